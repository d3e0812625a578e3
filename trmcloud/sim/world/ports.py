"""Providers, pods, the bucket and workers, as one process has them: a call can fail for one and not
for another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket import CachedFile, FolderGet, Grants, PhaseSlots, load_grants
from trmcloud.core.contract.bucket_layout import slots_of
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.control.balance import AccountBalance
from trmcloud.core.control.events import ActionKey
from trmcloud.core.control.observation import Bill, BootTrouble, PodSeen, PodStatus
from trmcloud.core.errors import (
    AmbiguousCreate,
    CheckpointError,
    LinkError,
    NoCapacity,
    ProviderError,
    ProviderRefused,
    TrmcloudError,
)
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.values import replace
from trmcloud.ports.bucket import BucketCheckpoints, GrantRequest, StoredCheckpoint
from trmcloud.ports.compute import Compute, PodLink, PodRequest, StageItem, Throttled, VolumeSeen
from trmcloud.ports.machine import Progress, WorkDone
from trmcloud.sim.world.account import Account, Observer, Pod, Process, RentedMachine, World
from trmcloud.sim.world.provider_profiles import STALE_LIST_S


def _listed(rented: RentedMachine, status: PodStatus, ended_at: float | None) -> PodSeen:
    """As a list shows it: the same record again, where nothing has changed."""
    known, micros = rented.listed, rented.rate_micros
    if (
        known is None
        or known.status is not status
        or known.ended_at != ended_at
        or known.rate.micros != micros
    ):
        rate, disks = Usd.from_micros(micros), rented.disk_rate
        known = PodSeen(rented.pod_id, rented.name, status, rate, ended_at, disk_rate=disks)
        rented.listed = known
    return known


HEARD_S = 60.0
"""A report that is older than this shows no agent that lives."""
SOLD_OUT = "there are no longer any instances available"
BOOT_LINE = "error creating container: layer does not exist"


class SimCompute(Compute):
    """``Compute`` as one process has it."""

    def __init__(self, account: Account, process: Process) -> None:
        self._account, self._process = account, process

    def create(self, request: PodRequest) -> str:
        account, knobs, world = self._account, self._account.world.knobs, self._account.world
        world.emit(Observer.on_create_call, request)
        self._process.cross("create.before")
        request.require_wanted()
        self._gate()
        account.ensure_volume(request)
        if knobs.no_capacity_until > world.queue.now:
            world.observed("28")
            raise NoCapacity(SOLD_OUT)
        self._market(request)
        world.emit(Observer.on_create_sent, request)
        mood = knobs.next_creates.pop(0) if knobs.next_creates and account.lags else ""
        if mood == "sold out":
            world.observed("28")
            raise NoCapacity(SOLD_OUT)
        if mood == "sold out later":
            world.observed("28")
            pod_id = account.seek(request)
            self._process.cross("create.after")
            return pod_id
        if mood == "fails but made":
            account.make(request)
            world.observed("15")
            raise AmbiguousCreate("500 from the provider")
        if mood in ("late", "too late"):
            world.observed("16")
            delay_s = world.rng.uniform(20.0, 0.9 * knobs.latest_create_s)
            if mood == "too late":
                delay_s = 2 * knobs.latest_create_s + 5 * delay_s
            else:
                account.coming[request.name] = world.queue.now + delay_s
            world.queue.after(delay_s, lambda: self._late(request, mood))
            raise AmbiguousCreate("the create timed out")
        made = account.make(request)
        if mood == "twice":
            account.make(request)
            world.observed("17")
        self._process.cross("create.after")
        return made.pod_id

    def _market(self, request: PodRequest) -> None:
        """Refuse what is sold out, costs more than is reserved, or is asked for too often."""
        world, knobs = self._account.world, self._account.world.knobs
        now = world.queue.now
        if not request.is_waited_for:
            return
        if now < knobs.creates_throttled_until:
            world.observed("105")
            raise Throttled("429 to a create", retry_s=knobs.retry_after_s)
        if 0 < knobs.most_machines <= len(world.living()):
            raise NoCapacity(SOLD_OUT)
        if now < knobs.sold_out_until:
            world.observed("101")
            world.observed("102")
            raise NoCapacity(SOLD_OUT)
        if world.quoted_micros(request) * knobs.price_now > request.rate.micros:
            world.observed("104")
            raise ProviderRefused("it costs more now than is reserved")

    def _late(self, request: PodRequest, mood: str) -> None:
        self._account.coming.pop(request.name, None)
        self._account.make(request, too_late=mood == "too late")

    def list_pods(self) -> Sequence[PodSeen]:
        account, world, process = self._account, self._account.world, self._process
        process.cross("list")
        self._gate()
        now, knobs, lags = world.queue.now, world.knobs, account.lags
        lists_gone, driver = account.habits.lists_gone, process.driver
        seen = list(self._sought()) if account.sought else []
        for rented in account.pods.values():
            ended_at = rented.ended_at
            if now < rented.visible_at:
                if ended_at is None and knobs.list_omits_s:
                    world.observed("18")
                continue
            if ended_at is None and now < rented.hidden_until:
                world.observed("90")
                continue
            fresh = now < rented.created_at + STALE_LIST_S
            if lags and knobs.list_flickers and ended_at is None and fresh:
                knobs.flicker = not knobs.flicker or world.rng.random() < 0.6
                if knobs.flicker:
                    world.observed("18")
                    continue
            if ended_at is not None:
                stale = lags and now < ended_at + knobs.lists_dead_s
                if stale:
                    world.observed("19")
                elif not lists_gone:
                    continue
                status = PodStatus.RUNNING if stale else PodStatus.GONE
            else:
                runs = rented.pod.running or now >= rented.boot_failed_at
                status = PodStatus.RUNNING if runs else PodStatus.CREATING
                if rented.is_stopped:
                    status = PodStatus.STOPPED
            if status is PodStatus.GONE:
                seen.append(_listed(rented, status, (ended_at or 0.0) + process.machine.offset_s))
                continue
            if knobs.statuses_unknown:
                world.observed("26")
                status = PodStatus.UNKNOWN
            ours = driver is not None and driver.run_id == rented.run_id
            if ours and not (knobs.list_flickers and fresh):
                process.shown[rented] = now
            seen.append(_listed(rented, status, None))
        return seen

    def _sought(self) -> Iterator[PodSeen]:
        now = self._account.world.queue.now
        for sought in self._account.sought.values():
            name = sought.name
            if sought.goes_on(now) and sought.listed:
                yield PodSeen(name, name, PodStatus.CREATING, sought.rate)
            elif not sought.called_off and not sought.goes_on(now):
                yield PodSeen(name, name, PodStatus.GONE, ZERO, never_made="none was found")

    def terminate(self, pod_id: str) -> bool:
        account, asked_at = self._account, self._account.world.queue.now
        self._process.cross("terminate.before")
        # What was decided before it slept in the midst of the call cannot be taken back.
        slept = account.world.queue.now > asked_at
        self._gate()
        sought = account.sought.get(pod_id)
        if sought is not None:
            taken = sought.goes_on(account.world.queue.now)
            sought.called_off = sought.called_off or taken
            self._process.cross("terminate.after")
            return taken
        rented = account.find(pod_id)
        if rented is not None and account.world.queue.now < rented.visible_at:
            if account.world.knobs.list_omits_s:
                account.world.observed("21")
            rented = None
        if rented is not None:
            if self._process.named:
                account.world.named_ends.add(rented.pod_id)
            account.world.emit(Observer.on_end_call, rented, self._process, slept=slept)
            account.refuse(rented)
            by = "reap" if self._process.kind == "reap" else "controller"
            account.delete(rented, by)
        self._process.cross("terminate.after")
        # A 404 says that it knows no such pod; it may come up again.
        if rented is None or (rented.ended_at is not None and not account.habits.lists_gone):
            return False
        return account.world.queue.now >= rented.visible_at

    def balance(self) -> AccountBalance | None:
        if self._account.paid_in is None:
            return None
        self._process.cross("balance")
        self._gate()
        return self._account.balance()

    def bill(self, pod_id: str) -> Bill | None:
        account, world = self._account, self._account.world
        self._process.cross("bill")
        self._gate()
        now = world.queue.now
        sought = account.sought.get(pod_id)
        if sought is not None:
            return Bill(pod_id, ZERO, final=not sought.goes_on(now))
        rented = account.find(pod_id)
        if rented is None:
            return None
        amount = rented.micros(now) + rented.storage_micros
        final = rented.ended_at is not None and now >= rented.ended_at + world.knobs.bill_lag_s
        if rented.ended_at is not None and not final:
            world.observed("31")
            amount = amount * 7 // 10
        return Bill(rented.pod_id, Usd.from_micros(amount), final)

    def boot_trouble(self, pod_id: str) -> BootTrouble | None:
        """By a log that can be read: of a pod whose boot failed it has a fatal line from then on,
        and of every other a complaint that means nothing."""
        account, world = self._account, self._account.world
        rented = account.pods.get(pod_id)
        if rented is None or not account.habits.shows_boot_log:
            return None
        if world.queue.now < rented.boot_failed_at:
            return BootTrouble("error pulling image, trying again")
        try:
            self._gate()
        except ProviderError:
            return None
        world.observed("79")
        return BootTrouble(BOOT_LINE, fatal=True)

    def kept_volumes(self) -> Sequence[VolumeSeen]:
        self._process.cross("volumes")
        self._gate()
        there = (v for v in self._account.volumes if v.ended_at is None)
        return [VolumeSeen(volume.volume_id, volume.place, volume.size_gb) for volume in there]

    def delete_volume(self, volume_id: str) -> None:
        account, world = self._account, self._account.world
        asked_at = world.queue.now
        self._process.cross("delete-volume.before")
        slept = world.queue.now > asked_at  # see ``terminate``
        self._gate()
        for volume in account.volumes:
            if volume.volume_id == volume_id and volume.ended_at is None:
                if not slept:
                    world.emit(Observer.on_volume_delete, account, volume)
                volume.ended_at = world.queue.now
                world.say(f"{volume_id} is deleted")
        self._process.cross("delete-volume.after")

    def _gate(self) -> None:
        self._account.world.gate(self._process)


class SimLink(PodLink):
    """``PodLink`` as one process has it."""

    def __init__(self, account: Account, process: Process) -> None:
        self._account, self._process = account, process

    def _pod(self, pod_name: str) -> Pod | None:
        world = self._account.world
        named = self._account.named(pod_name)
        # Of two that were made of one name, the address is that of the one that is left.
        ended_last = max(named, key=lambda each: each.ended_at or 0.0, default=None)
        found = next((each for each in named if not each.ended), ended_last)
        if found is None or found.is_stopped:
            return None
        if found.account.habits.self_ends != "exit":
            if not world.link_up(self._process):
                return None
            # One that can tell the bucket is not read any more; what is heard of another while it
            # lingers counts as surviving.
            tells = found.pod.uploader.grants is not None
            survives = self._account.habits.reports_survive and not tells
            if found.pod.others.head_watch is not None:
                return None if found.ended or found.deleting else found.pod
            if not found.pod.running and not survives:
                return None
        return found.pod

    def report(self, pod_name: str) -> contract.AgentReport | None:
        told, pod = self._report(pod_name), self._pod(pod_name)
        mine = told is not None and pod is not None and told.pod_name == pod_name
        heard = mine and pod is not None and pod.reported_at > pod.world.queue.now - HEARD_S
        for rented in self._account.named(pod_name):
            rented.heard = heard
        return told

    def _report(self, pod_name: str) -> contract.AgentReport | None:
        pod = self._pod(pod_name)
        if pod is not None and pod.others.head_watch is not None:
            return pod.others.word()
        if pod is None or pod.report is None:
            return None
        report = pod.report if pod.running else pod.durable_report
        if pod.running and pod.speaks and pod.world.queue.now < pod.rented.hidden_until:
            # Between two events an agent's reports say nothing new but when they are of.
            pod.date_report()
            report = pod.report
        if report is not None and pod.world.knobs.crossed_reports:
            # Another machine has the pod's old address.
            pod.world.observed("64")
            other = report.pod_name.replace(report.run_id.replace("-", ""), "r000000")
            return replace(report, pod_name=other, run_id="r-000000", result="failed")
        if report is not None and pod.world.knobs.garbled_reports:
            pod.world.observed("64")
            return None
        for lie in pod.world.knobs.lies:
            report = lie(report) if report is not None else None
        return report

    def stage(self, pod_name: str, items: Sequence[StageItem], progress: Progress) -> None:
        pod = self._writable(pod_name)
        pod.staged = True
        pod.wake()

    def grant(self, pod_name: str, text: str) -> None:
        pod = self._writable(pod_name)
        pod.uploader.give(load_grants(text))
        pod.wake()

    def _writable(self, pod_name: str) -> Pod:
        pod = self._reached(pod_name)
        if pod.world.knobs.pod_disk_full:
            pod.world.observed("47")
            raise LinkError("no room on the pod's disk")
        return pod

    def manifest(
        self, pod_name: str, run_id: str, kept: contract.CheckpointRef
    ) -> CheckpointManifest:
        pod = self._reached(pod_name)
        for manifest in pod.world.files.on_pod(run_id, pod.rented.pod_id):
            if (manifest.phase, manifest.step) == (kept.phase, kept.step):
                return manifest
        raise CheckpointError(f"{kept.phase}/{kept.step} is not there any more")

    def pull(
        self,
        pod_name: str,
        run_id: str,
        manifest: CheckpointManifest,
        names: Sequence[str],
        progress: Progress,
    ) -> None:
        pod = self._copied(pod_name)
        pod.world.files.bring_home(run_id, pod.rented.pod_id, manifest)

    def fetch(
        self,
        pod_name: str,
        run_id: str,
        manifest: CheckpointManifest,
        names: Sequence[str],
        into: str,
        progress: Progress,
    ) -> None:
        """Folders beside the home are not simulated: the copy succeeds or is cut off."""
        self._copied(pod_name)

    def _copied(self, pod_name: str) -> Pod:
        """The pod, from which a copy got through.

        Raises:
            LinkError: it did not.
        """
        pod = self._reached(pod_name)
        world = pod.world
        if world.knobs.fetch_fails:
            world.observed(world.knobs.fetch_fails.pop(0))
            raise LinkError("the copy was cut off")
        return pod

    def _reached(self, pod_name: str) -> Pod:
        pod = self._pod(pod_name)
        if pod is None or not pod.running:
            raise LinkError("the pod cannot be reached")
        return pod

    def send_orders(self, pod_name: str, orders: contract.Orders) -> None:
        self._process.cross("orders")
        pod = self._pod(pod_name)
        if pod is None or not pod.running:
            raise ProviderError("the pod cannot be reached")
        if pod.orders is None or orders.epoch >= pod.orders.epoch:
            pod.orders = orders
            if orders.land:
                pod.world.emit(Observer.on_orders, pod)
            pod.wake()


_ANY_SIZE: Mapping[str, int] = {}


class SimBucket:
    """``ports.Bucket`` as one process has it."""

    def __init__(self, world: World, process: Process) -> None:
        self._world, self._process = world, process

    def _gate(self) -> None:
        self._process.cross("bucket")
        self._process.bucket_refused_at = self._world.queue.now
        if not self._process.machine.online:
            self._world.felt_any("offline")
            raise ProviderError("the bucket cannot be reached")
        if self._world.queue.now < self._world.knobs.bucket_down_until:
            self._world.observed("48")
            raise ProviderError("503 from the bucket")
        self._process.bucket_refused_at = None

    def check(self) -> None:
        try:
            self._gate()
        except ProviderError as error:
            # Asked before anything is reserved: a command that ends here has refused to begin.
            self._world.emit(Observer.on_refusal, error)
            raise

    def _pass(self, *args: Any, **more: Any) -> None:
        """Nothing is simulated of a call but whether the bucket answers it."""
        self._gate()

    claim = fetch = add_metric = delete = send = store = _pass

    def grant(self, request: GrantRequest) -> Grants:
        self._gate()
        phases = {}
        for name, best in request.phases.items():
            slots = slots_of(request.generation, best)
            held = self._world.files.in_slots(request.run_id, name, slots)
            phases[name] = PhaseSlots(best, slots, held)
        until = min(request.until, self._process.machine.now().wall + 7 * 86_400.0)
        gets = tuple(
            FolderGet(f"/sim/{stored.manifest.sha256}", (), needed=False)
            for stored, _ in request.go_on_from
        )
        return Grants(request.pod_name, until, phases, {}, gets)

    def checkpoints(
        self, run_id: str, file_bytes: Mapping[str, int] = _ANY_SIZE
    ) -> BucketCheckpoints:
        self._gate()
        found = self._world.files.stored(run_id)
        return BucketCheckpoints(
            tuple(StoredCheckpoint(manifest, manifest.label) for manifest in found)
        )

    def stored_tokens(
        self, key: str, pods: Collection[str], pins: Sequence[CachedFile]
    ) -> tuple[CachedFile, ...]:
        """None: simulated runs train on data that is brought."""
        self._gate()
        return ()

    def oversized(self, run_id: str, file_bytes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        self._gate()
        found = self._world.files.oversized_of(run_id)
        if found:
            self._world.observed("74")
        return tuple((each.key, each.size_bytes) for each in found)

    def drop(self, keys: Sequence[str]) -> None:
        self._gate()
        for key in keys:
            for _ in range(self._world.files.drop_oversized(key, self._world.queue.now)):
                self._world.say(f"{self._process.kind} deletes {key}")

    def last_report(self, run_id: str, generation: int) -> bytes | None:
        self._gate()
        return self._world.files.last_word(run_id, generation)


_SHORTEST_S, _LONGEST_S = 2.0, 90.0


class SimWorkers:
    """``Workers`` of one process; what it carries dies with it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._running: dict[ActionKey, object] = {}
        self._finished: list[WorkDone] = []

    def start(self, key: ActionKey, work: Callable[[Progress], None]) -> None:
        sim = self._process.sim
        token = object()
        self._running[key] = token
        seconds = sim.rng.uniform(_SHORTEST_S, _LONGEST_S)
        sim.queue.after(seconds, partial(self._end, key, token, work))

    def _end(self, key: ActionKey, token: object, work: Callable[[Progress], None]) -> None:
        process = self._process
        if not process.alive or self._running.get(key) is not token:
            return
        if not process.up:
            process.sim.queue.after(30.0, partial(self._end, key, token, work))
            return
        del self._running[key]
        error: list[TrmcloudError | None] = [ProviderError("the copy was cut off")]

        def carry() -> None:
            process.cross("work.mid")
            try:
                work(lambda done, total: None)
                error[0] = None
            except TrmcloudError as problem:
                error[0] = problem

        process.do(carry)
        if process.alive:
            self._finished.append(WorkDone(key, error[0]))
            process.soon(0.5)

    def running(self) -> frozenset[ActionKey]:
        return frozenset(self._running)

    def finished(self) -> Sequence[WorkDone]:
        done, self._finished = self._finished, []
        return done

    def progress(self, key: ActionKey) -> tuple[int, int] | None:
        return None

    def cancel(self) -> None:
        self._running.clear()
