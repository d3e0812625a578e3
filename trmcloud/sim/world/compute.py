"""A provider's answers, as one process has them: a call can fail for one and not for another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trmcloud.core.control.observation import Bill, BootTrouble, PodSeen, PodStatus
from trmcloud.core.errors import AmbiguousCreate, NoCapacity, ProviderError
from trmcloud.core.money import ZERO, Usd
from trmcloud.ports.compute import Compute, PodRequest, VolumeSeen
from trmcloud.sim.world.provider_profiles import STALE_LIST_S

if TYPE_CHECKING:
    from trmcloud.sim.world.account import Account
    from trmcloud.sim.world.controllers import Process

BOOT_LINE = "error creating container: layer does not exist"


class SimCompute(Compute):
    """``Compute`` as one process has it."""

    def __init__(self, account: Account, process: Process) -> None:
        self._account, self._process = account, process

    def create(self, request: PodRequest) -> str:
        account, knobs, world = self._account, self._account.world.knobs, self._account.world
        world.check.truth.calls.asked_for(self._process, request)
        self._process.cross("create.before")
        request.require_wanted()
        self._gate("create")
        account.ensure_volume(request)
        if knobs.no_capacity_until > world.queue.now:
            world.observed("28")
            raise NoCapacity("there are no longer any instances available")
        world.check.truth.calls.sent(self._process, request)
        mood = knobs.next_creates.pop(0) if knobs.next_creates and account.lags else ""
        if mood == "sold out":
            world.observed("28")
            raise NoCapacity("there are no longer any instances available")
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

    def _late(self, request: PodRequest, mood: str) -> None:
        self._account.coming.pop(request.name, None)
        self._account.make(request, too_late=mood == "too late")

    def list_pods(self) -> Sequence[PodSeen]:
        account, world = self._account, self._account.world
        self._process.cross("list")
        self._gate("list")
        now, knobs = world.queue.now, world.knobs
        seen = list(self._sought())
        for rented in account.pods.values():
            if now < rented.visible_at:
                if not rented.ended and knobs.list_omits_s:
                    world.observed("18")
                continue
            if (
                account.lags
                and knobs.list_flickers
                and not rented.ended
                and now < rented.created_at + STALE_LIST_S
            ):
                knobs.flicker = not knobs.flicker or world.rng.random() < 0.6
                if knobs.flicker:
                    world.observed("18")
                    continue
            if rented.ended_at is not None:
                stale = account.lags and now < rented.ended_at + knobs.lists_dead_s
                if stale:
                    world.observed("19")
                elif not account.habits.lists_gone:
                    continue
                status = PodStatus.RUNNING if stale else PodStatus.GONE
            else:
                runs = rented.pod.running or now >= rented.boot_failed_at
                status = PodStatus.RUNNING if runs else PodStatus.CREATING
            if knobs.statuses_unknown and status is not PodStatus.GONE:
                world.observed("26")
                status = PodStatus.UNKNOWN
            ended_at = rented.ended_at if status is PodStatus.GONE else None
            if ended_at is not None:
                ended_at += self._process.machine.offset_s
            driver = self._process.driver
            ours = driver is not None and driver.run_id == rented.run_id
            sure = not knobs.list_flickers or now >= rented.created_at + STALE_LIST_S
            if status is not PodStatus.GONE and ours and sure:
                self._process.shown[rented] = now
            rate = Usd.from_micros(rented.rate_micros)
            seen.append(PodSeen(rented.pod_id, rented.name, status, rate, ended_at))
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
        self._gate("terminate")
        sought = account.sought.get(pod_id)
        if sought is not None:
            taken = sought.goes_on(account.world.queue.now)
            sought.called_off = sought.called_off or taken
            self._process.cross("terminate.after")
            return taken
        rented = account.pods.get(pod_id)
        if rented is None:
            named = [r for r in account.pods.values() if r.name == pod_id]
            rented = named[0] if named else None
        if rented is not None and account.world.queue.now < rented.visible_at:
            if account.world.knobs.list_omits_s:
                account.world.observed("21")
            rented = None
        if rented is not None:
            account.world.check.terminated(rented, self._process, slept=slept)
            account.refuse(rented)
            by = "reap" if self._process.kind == "reap" else "controller"
            account.delete(rented, by)
        self._process.cross("terminate.after")
        # A 404 says that it knows no such pod; it may come up again.
        if rented is None or (rented.ended_at is not None and not account.habits.lists_gone):
            return False
        return account.world.queue.now >= rented.visible_at

    def bill(self, pod_id: str) -> Bill | None:
        account, world = self._account, self._account.world
        self._process.cross("bill")
        self._gate("bill")
        now = world.queue.now
        sought = account.sought.get(pod_id)
        if sought is not None:
            return Bill(pod_id, ZERO, final=not sought.goes_on(now))
        rented = account.pods.get(pod_id)
        if rented is None:
            rented = next((r for r in account.pods.values() if r.name == pod_id), None)
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
            self._gate("list")
        except ProviderError:
            return None
        world.observed("79")
        return BootTrouble(BOOT_LINE, fatal=True)

    def kept_volumes(self) -> Sequence[VolumeSeen]:
        self._process.cross("volumes")
        self._gate("list")
        there = (v for v in self._account.volumes if v.ended_at is None)
        return [VolumeSeen(volume.volume_id, volume.place, 50) for volume in there]

    def delete_volume(self, volume_id: str) -> None:
        account, world = self._account, self._account.world
        asked_at = world.queue.now
        self._process.cross("delete-volume.before")
        slept = world.queue.now > asked_at  # see ``terminate``
        self._gate("terminate")
        for volume in account.volumes:
            if volume.volume_id == volume_id and volume.ended_at is None:
                if not slept:
                    world.check.volumes.deleted(account, volume, self._process)
                volume.ended_at = world.queue.now
                world.say(f"{volume_id} is deleted")
        self._process.cross("delete-volume.after")

    def _gate(self, verb: str) -> None:
        self._account.world.gate(self._process, verb)
