"""A provider as it really is: its pods, its answers, and its bill, which is the judge.

``Account`` is ground truth. What a controller sees of it goes through ``SimCompute`` and
``SimLink``, one pair for each process, so that a call can fail for one and not for the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trmcloud.core import pod_contract as contract
from trmcloud.core.bucket import load_grants
from trmcloud.core.errors import (
    AmbiguousCreate,
    CheckpointError,
    LinkError,
    NoCapacity,
    ProviderError,
)
from trmcloud.core.money import Usd
from trmcloud.core.observation import Bill, PodSeen
from trmcloud.core.providers import traits_of
from trmcloud.ports import PodRequest, Progress, StageItem
from trmcloud.sim.habits import STALE_LIST_S, Habits
from trmcloud.sim.pod import SimPod

if TYPE_CHECKING:
    from trmcloud.core.manifest import CheckpointManifest
    from trmcloud.ports import StageItem
    from trmcloud.sim.process import Process
    from trmcloud.sim.world import SimWorld


class Rented:
    """One machine as the provider bills it. Money in micro-dollars, time in true epoch s."""

    def __init__(
        self, account: Account, pod_id: str, request: PodRequest, rate_micros: int, at: float
    ) -> None:
        self.account, self.pod_id, self.name = account, pod_id, request.name
        self.run_id = request.lease.run_id
        self.gpus = self.gpus_wanted = request.gpus
        self.created_at = self._since = at
        self.rate_micros = self.agreed_micros = rate_micros
        self._before_micros = 0
        self.ended_at: float | None = None
        self.deleting = False
        self.undeletable_until = 0.0
        self.refuses_until = 0.0
        """Until when a delete is answered with an error."""
        self.ended_by = ""
        self.visible_at = at
        self.storage_micros = 0
        promised_s = request.lease.hard_stop_at - request.lease.granted_at
        self.due_at = at + promised_s
        """When it must have ended, by the truth: what was promised, counted from its creation."""
        self.unowned_at: float | None = None
        self.exposed_s = 0.0
        self.exposed_micros = 0.0
        self.overdue_s = 0.0
        self.dear_micros = 0.0
        self.boots_after_s = 0.0
        self.land_by = math.inf
        """When it must have landed, where its budget was cut."""
        self.landing_s = request.lease.landing_s
        self.surplus = False
        """Whether another pod bore this name before it."""
        self.shown_at = 0.0
        """When its run's driver last found it in a list; 0: never."""
        self.came_too_late = False
        """Whether it was made later after its request than its provider ever should."""
        self.granted_ahead_s = request.lease.granted_at - at
        self.pod = SimPod(account.world, self, request.lease)

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    def micros(self, now: float) -> int:
        """What it has cost by ``now``, storage apart."""
        until = now if self.ended_at is None else self.ended_at
        seconds = max(0.0, until - self._since)
        if self._before_micros == 0:
            seconds = max(seconds, self.account.habits.least_billed_s)
        return self._before_micros + math.ceil(self.rate_micros * math.ceil(seconds) / 3600)

    def reprice(self, rate_micros: int, now: float) -> None:
        self._before_micros += math.ceil(self.rate_micros * (now - self._since) / 3600)
        self._since, self.rate_micros = now, rate_micros


class Account:
    """All pods rented from one provider."""

    def __init__(self, world: SimWorld, habits: Habits) -> None:
        self.world, self.habits = world, habits
        self.pods: dict[str, Rented] = {}
        self.living: list[Rented] = []
        self.coming: dict[str, float] = {}
        """Names of pods that were asked for and not made yet, and when they should have been."""

    @property
    def lags(self) -> bool:
        """Whether its lists are copies of the truth; this machine's own processes are the truth."""
        return self.habits.self_ends != "exit"

    # -- making -------------------------------------------------------------------------------

    def make(self, request: PodRequest, *, too_late: bool = False) -> Rented:
        world, rng, now = self.world, self.world.rng, self.world.queue.now
        pod_id = f"{self.habits.provider}-{len(self.pods) + 1}"
        gpus, rate = request.gpus, request.rate.micros
        if world.knobs.price_at_boot != 1.0:
            rate = int(rate * world.knobs.price_at_boot)
            world.felt("30")
        rented = Rented(self, pod_id, request, rate, now)
        rented.agreed_micros = request.rate.micros
        rented.came_too_late = too_late
        if world.knobs.wrong_gpus:
            rented.gpus = max(1, gpus // 2)
            world.felt("29")
        rented.visible_at = now + rng.uniform(*self.habits.lists_new_after_s)
        if world.knobs.list_omits_s and self.lags:
            rented.visible_at = now + world.knobs.list_omits_s
        self.pods[pod_id] = rented
        self.living.append(rented)
        world.check.pod_made(rented)
        world.say(f"{pod_id} is made as {request.name}")
        rented.boots_after_s = rng.uniform(*self.habits.boot_s)
        if not world.knobs.never_boots:
            world.queue.after(rented.boots_after_s, rented.pod.boot)
        else:
            world.felt(world.knobs.never_boots)
            world.knobs.never_boots = ""
            # Counted from when it is first listed.
            listed_s = rented.visible_at - now + STALE_LIST_S
            boot_s = traits_of(self.habits.provider).boot_deadline_s
            rented.land_by = now + listed_s + boot_s
        world.queue.at(rented.due_at, world.poke)
        world.poke()
        return rented

    def rent_foreign(self, request: PodRequest) -> Rented:
        """A pod that somebody else has: it is listed, and that is all."""
        pod_id = f"foreign-{len(self.pods) + 1}"
        now = self.world.queue.now
        rented = Rented(self, pod_id, request, request.rate.micros, now)
        rented.pod.running = True
        self.pods[pod_id] = rented
        self.living.append(rented)
        return rented

    # -- ending -------------------------------------------------------------------------------

    def honors_delete(self, rented: Rented) -> bool:
        """Whether a delete issued now would end the billing."""
        return self.world.queue.now >= max(
            rented.undeletable_until, self.world.knobs.deletes_ignored_until
        )

    def delete(self, rented: Rented, by: str) -> None:
        """An accepted delete: what it does depends on the provider's mood."""
        world = self.world
        if rented.ended or rented.deleting:
            return
        if not self.honors_delete(rented):
            world.felt_any("delete")
            return
        if world.knobs.next_deletes[:1] not in ([], ["refused"]):
            self._moody_delete(rented, world.knobs.next_deletes.pop(0))
            return
        rented.deleting = True
        rented.ended_by = rented.ended_by or by
        rented.pod.stop()
        world.say(f"{rented.pod_id} is deleted by {by}")
        world.queue.after(world.rng.uniform(*self.habits.delete_s), lambda: self.end(rented, by))

    def refuse(self, rented: Rented) -> None:
        """A provider that will not delete this one pod now says so.

        Raises:
            ProviderError
        """
        world, now = self.world, self.world.queue.now
        if world.knobs.next_deletes[:1] == ["refused"] and not rented.ended:
            world.knobs.next_deletes.pop(0)
            world.felt("22")
            world.say(f"{rented.pod_id} is not deleted: refused")
            rented.undeletable_until = rented.refuses_until = now + world.rng.uniform(30, 900)
            world.queue.at(rented.refuses_until + 0.1, world.poke)
        if now < rented.refuses_until:
            raise ProviderError("409: the pod is being changed")

    def _moody_delete(self, rented: Rented, mood: str) -> None:
        """A delete that is not what its answer says."""
        world, now = self.world, self.world.queue.now
        world.felt({"ignored": "20", "404": "21", "stuck": "22"}[mood])
        world.say(f"{rented.pod_id} is not deleted: {mood}")
        if mood == "404" and self.lags:
            rented.undeletable_until = now + world.rng.uniform(20, 150)
            rented.visible_at = rented.undeletable_until
        else:
            rented.undeletable_until = now + 30 * 120 ** world.rng.random()
        world.queue.at(rented.undeletable_until + 0.1, world.poke)
        if mood == "stuck":
            rented.pod.stop()
            rented.deleting = True
            world.queue.at(rented.undeletable_until, lambda: self.end(rented, "controller"))

    def end(self, rented: Rented, by: str) -> None:
        """Billing stops here."""
        if rented.ended:
            return
        world = self.world
        rented.ended_at = world.queue.now
        rented.ended_by = rented.ended_by or by
        rented.pod.stop()
        self.living.remove(rented)
        world.files.lose_pod(rented.run_id, pod_id=rented.pod_id)
        if world.knobs.storage_tail_micros:
            rented.storage_micros += world.knobs.storage_tail_micros
            world.felt("32")
            if rented.unowned_at is not None:
                # A pod nobody asked for has a disk nobody reserved for.
                rented.exposed_micros += world.knobs.storage_tail_micros
        world.say(f"{rented.pod_id} is gone ({by})")
        world.check.pod_ended(rented)
        world.poke()

    def end_from_inside(self, rented: Rented) -> None:
        """What the pod's own processes can do about themselves."""
        how, world = self.habits.self_ends, self.world
        if how == "exit":
            if not rented.pod.trainers_alive:
                self.end(rented, rented.ended_by or "agent")
        elif how == "shutdown" or (how == "api" and world.knobs.pod_api_works(world.queue.now)):
            self.delete(rented, rented.ended_by or "guardian")
        elif self.habits.idle_stop_s:
            world.queue.after(
                self.habits.idle_stop_s + world.rng.uniform(0, 60),
                lambda: self.delete(rented, "provider"),
            )

    def host_lost(self, rented: Rented, by: str) -> None:
        """Preempted or burnt down: no notice, and nothing more is billed."""
        if not rented.ended:
            rented.pod.stop()
            rented.ended_by = by
            self.end(rented, by)

    def out_of_money(self) -> None:
        for rented in list(self.living):
            self.host_lost(rented, "provider's $0 rule")


class SimCompute:
    """``Compute`` as one process has it."""

    def __init__(self, account: Account, process: Process) -> None:
        self._account, self._process = account, process

    def create(self, request: PodRequest) -> str:
        account, knobs, world = self._account, self._account.world.knobs, self._account.world
        world.check.truth.asked_for(self._process, request)
        self._process.cross("create.before")
        request.require_timely(self._process.machine.now().wall)
        self._gate("create")
        if knobs.no_capacity_until > world.queue.now:
            world.felt("28")
            raise NoCapacity("there are no longer any instances available")
        mood = knobs.next_creates.pop(0) if knobs.next_creates and account.lags else ""
        if mood == "sold out":
            world.felt("28")
            raise NoCapacity("there are no longer any instances available")
        if mood == "fails but made":
            account.make(request)
            world.felt("15")
            raise AmbiguousCreate("500 from the provider")
        if mood in ("late", "too late"):
            world.felt("16")
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
            world.felt("17")
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
        seen = []
        for rented in account.pods.values():
            if now < rented.visible_at:
                if not rented.ended and knobs.list_omits_s:
                    world.felt("18")
                continue
            if (
                account.lags
                and knobs.list_flickers
                and not rented.ended
                and now < rented.created_at + STALE_LIST_S
            ):
                knobs.flicker = not knobs.flicker or world.rng.random() < 0.6
                if knobs.flicker:
                    world.felt("18")
                    continue
            if rented.ended_at is not None:
                stale = account.lags and now < rented.ended_at + knobs.lists_dead_s
                if stale:
                    world.felt("19")
                elif not account.habits.lists_gone:
                    continue
                status = "running" if stale else "gone"
            else:
                status = "running" if rented.pod.running else "creating"
            if knobs.statuses_unknown and status != "gone":
                world.felt("26")
                status = "unknown"
            ended_at = rented.ended_at if status == "gone" else None
            if ended_at is not None:
                ended_at += self._process.machine.offset_s
            driver = self._process.driver
            ours = driver is not None and driver.run_id == rented.run_id
            sure = not knobs.list_flickers or now >= rented.created_at + STALE_LIST_S
            if status != "gone" and ours and sure:
                rented.shown_at = now
            rate = Usd.from_micros(rented.rate_micros)
            seen.append(PodSeen(rented.pod_id, rented.name, status, rate, ended_at))
        return seen

    def terminate(self, pod_id: str) -> bool:
        account = self._account
        self._process.cross("terminate.before")
        self._gate("terminate")
        rented = account.pods.get(pod_id)
        if rented is None:
            named = [r for r in account.pods.values() if r.name == pod_id]
            rented = named[0] if named else None
        if rented is not None and account.world.queue.now < rented.visible_at:
            if account.world.knobs.list_omits_s:
                account.world.felt("21")
            rented = None
        if rented is not None:
            account.world.check.terminated(rented, self._process)
            account.refuse(rented)
            by = "reap" if self._process.kind == "reap" else "controller"
            account.delete(rented, by)
        self._process.cross("terminate.after")
        # A 404 says that it knows no such pod; it may come up again.
        return rented is not None and account.world.queue.now >= rented.visible_at

    def bill(self, pod_id: str) -> Bill | None:
        account, world = self._account, self._account.world
        self._process.cross("bill")
        self._gate("bill")
        now = world.queue.now
        rented = account.pods.get(pod_id)
        if rented is None:
            rented = next((r for r in account.pods.values() if r.name == pod_id), None)
        if rented is None:
            return None
        amount = rented.micros(now) + rented.storage_micros
        final = rented.ended_at is not None and now >= rented.ended_at + world.knobs.bill_lag_s
        if rented.ended_at is not None and not final:
            world.felt("31")
            amount = amount * 7 // 10
        return Bill(rented.pod_id, Usd.from_micros(amount), final)

    def _gate(self, verb: str) -> None:
        self._account.world.gate(self._process, verb)


class SimLink:
    """``PodLink`` as one process has it."""

    def __init__(self, account: Account, process: Process) -> None:
        self._account, self._process = account, process

    def _pod(self, pod_name: str) -> SimPod | None:
        world = self._account.world
        found = next((r for r in self._account.pods.values() if r.name == pod_name), None)
        if found is None:
            return None
        if found.account.habits.self_ends != "exit":
            if not world.link_up(self._process):
                return None
            if not found.pod.running and not self._account.habits.reports_survive:
                return None
        return found.pod

    def report(self, pod_name: str) -> contract.AgentReport | None:
        pod = self._pod(pod_name)
        if pod is None or pod.report is None:
            return None
        report = pod.report if pod.running else pod.durable_report
        if report is not None and pod.world.knobs.crossed_reports:
            # Another machine has the pod's old address.
            pod.world.felt("64")
            other = report.pod_name.replace(report.run_id.replace("-", ""), "r000000")
            return replace(report, pod_name=other, run_id="r-000000", result="failed")
        if report is not None and pod.world.knobs.garbled_reports:
            pod.world.felt("64")
            return None
        return report

    def stage(self, pod_name: str, items: Sequence[StageItem], progress: Progress) -> None:
        pod = self._reached(pod_name)
        if pod.world.knobs.pod_disk_full:
            pod.world.felt("47")
            raise LinkError("no room on the pod's disk")
        pod.staged = True
        pod.poke()

    def grant(self, pod_name: str, text: str) -> None:
        pod = self._reached(pod_name)
        if pod.world.knobs.pod_disk_full:
            pod.world.felt("47")
            raise LinkError("no room on the pod's disk")
        pod.uploader.give(load_grants(text))
        pod.poke()

    def manifest(self, pod_name: str, run_id: str, kept: contract.Kept) -> CheckpointManifest:
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
        pod = self._reached(pod_name)
        world = pod.world
        if world.knobs.fetch_fails:
            world.felt(world.knobs.fetch_fails.pop(0))
            raise LinkError("the copy was cut off")
        world.files.bring_home(run_id, pod.rented.pod_id, manifest)

    def _reached(self, pod_name: str) -> SimPod:
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
                pod.world.check.duties.ordered(pod)
            pod.poke()
