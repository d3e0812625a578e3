"""A provider as it really is: its pods, its answers, and its bill, which is the judge.

``Account`` is ground truth. What a controller sees of it goes through ``SimCompute`` and
``SimLink``, one pair for each process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trmcloud.core.catalog.providers import local_terminate_wait_s, traits_of
from trmcloud.core.control.observation import PodSeen
from trmcloud.core.errors import ProviderError
from trmcloud.core.storage import pod_disks_price, price_per_hour
from trmcloud.ports.compute import PodRequest
from trmcloud.sim.world import protocols
from trmcloud.sim.world.facts import FutileCreate, KeptVolume
from trmcloud.sim.world.pod import SimPod
from trmcloud.sim.world.provider_profiles import STALE_LIST_S, ProviderProfile

BOOT_LOG_S = 60.0
"""So long after its log says that its boot has failed a pod may live, where somebody can see it."""


class RentedMachine:
    """One machine as the provider bills it. Money in micro-dollars, time in true epoch s."""

    def __init__(
        self, account: Account, pod_id: str, request: PodRequest, rate_micros: int, at: float
    ) -> None:
        self.account, self.pod_id, self.name = account, pod_id, request.name
        self.run_id = request.lease.run_id
        self.gpus = self.gpus_wanted = request.gpus
        self.created_at = self._since = at
        self.rate_micros = self.agreed_micros = rate_micros
        on_volume = bool(request.volume_gb)
        disks = (account.habits.provider, request.disk_gb, request.nodes)
        self.disk_rate = pod_disks_price(*disks, on_volume=on_volume)
        """USD/h of its own disks: on top of its rate."""
        self._before_micros = 0
        self.ended_at: float | None = None
        self.deleting = False
        self.deleted_at = math.inf
        self.undeletable_until = 0.0
        self.refuses_until = 0.0
        """Until when a delete is answered with an error."""
        self.ended_by = ""
        self.visible_at = at
        self.storage_micros = 0
        self.listed: PodSeen | None = None
        """As a list showed it last."""
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
        self.never_boots = False
        self.boot_failed_at = math.inf
        """From when on its provider's log says that its boot has failed."""
        self.known = False
        """Whether its run's ledger has had its id."""
        self.landing_s = request.lease.landing_s
        self.surplus = False
        self.may_be_owned = False
        """Whether another pod had this name before it."""
        self.shown_at = 0.0
        """When its run's driver last found it in a list; 0: never."""
        self.came_too_late = False
        """Whether it was made later after its request than its provider ever should."""
        self.granted_ahead_s = request.lease.granted_at - at
        self.pod = SimPod(account.world, self, request.lease)

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    @property
    def hourly_micros(self) -> int:
        return self.rate_micros + self.disk_rate.micros

    def micros(self, now: float) -> int:
        """Return its cost by ``now`` in micro-dollars, its disks included, kept storage apart."""
        until = now if self.ended_at is None else self.ended_at
        seconds = max(0.0, until - self._since)
        if self._before_micros == 0:
            seconds = max(seconds, self.account.habits.least_billed_s)
        return self._before_micros + math.ceil(self.hourly_micros * math.ceil(seconds) / 3600)

    def end_from_inside(self) -> None:
        self.account.end_from_inside(self)

    def reprice(self, rate_micros: int, now: float) -> None:
        self._before_micros += math.ceil(self.hourly_micros * (now - self._since) / 3600)
        self._since, self.rate_micros = now, rate_micros


class Account:
    """All pods rented from one provider."""

    def __init__(self, world: protocols.World, habits: ProviderProfile) -> None:
        self.world, self.habits = world, habits
        self.pods: dict[str, RentedMachine] = {}
        self._named: dict[str, list[RentedMachine]] = {}
        self.living: list[RentedMachine] = []
        self.coming: dict[str, float] = {}
        """Names of pods that were asked for and not made yet, and when they should have been."""
        self.sought: dict[str, FutileCreate] = {}
        self.volumes: list[KeptVolume] = []
        """All that there ever were; the last one may be there still."""

    @property
    def lags(self) -> bool:
        """Whether its lists are copies of the truth; this machine's own processes are the truth."""
        return self.habits.self_ends != "exit"

    # -- making -------------------------------------------------------------------------------

    def make(self, request: PodRequest, *, too_late: bool = False) -> RentedMachine:
        world, rng, now = self.world, self.world.rng, self.world.queue.now
        pod_id = f"{self.habits.provider}-{len(self.pods) + 1}"
        gpus, rate = request.gpus, request.rate.micros
        if world.knobs.price_at_boot != 1.0:
            rate = int(rate * world.knobs.price_at_boot)
            world.observed("30")
        rented = RentedMachine(self, pod_id, request, rate, now)
        rented.agreed_micros = request.rate.micros
        rented.came_too_late = too_late
        if world.knobs.wrong_gpus:
            rented.gpus = max(1, gpus // 2)
            world.observed("29")
        rented.visible_at = now + rng.uniform(*self.habits.lists_new_after_s)
        if world.knobs.list_omits_s and self.lags:
            rented.visible_at = now + world.knobs.list_omits_s
        self._add(rented)
        world.check.on_pod_made(rented)
        world.say(f"{pod_id} is made as {request.name}")
        rented.boots_after_s = rng.uniform(*self.habits.boot_s)
        if world.knobs.boots_failing and self.habits.shows_boot_log:
            world.knobs.boots_failing -= 1
            rented.boot_failed_at = now + rented.boots_after_s
            rented.land_by = max(rented.boot_failed_at, rented.visible_at) + BOOT_LOG_S
            world.queue.at(rented.boot_failed_at, world.wake)
            world.check.boots.watch(rented)
        elif not world.knobs.never_boots:
            world.queue.after(rented.boots_after_s, rented.pod.boot)
        else:
            world.observed(world.knobs.never_boots)
            world.knobs.never_boots = ""
            # Counted from when it is first listed.
            listed_s = rented.visible_at - now + STALE_LIST_S
            boot_s = traits_of(self.habits.provider).boot_deadline_s
            rented.land_by = now + listed_s + boot_s
            rented.never_boots = True
        world.queue.at(rented.due_at, world.wake)
        world.wake()
        return rented

    def seek(self, request: PodRequest) -> str:
        """Take a create that will come to nothing; the pod's id."""
        world, rng = self.world, self.world.rng
        takes_s = 5.0 * 100 ** rng.random()
        sought = FutileCreate(request, world.queue.now + takes_s, listed=rng.random() < 0.7)
        self.sought[request.name] = sought
        world.say(f"{request.name} is looked for in vain, for {takes_s:.0f} s")
        world.queue.at(sought.over_at + 0.1, world.wake)
        return request.name

    def ensure_volume(self, request: PodRequest) -> None:
        """Before its pod is asked for, and whether or not that is had. One for each place."""
        world, size_gb = self.world, request.volume_gb
        rate = price_per_hour(self.habits.provider, "kept", size_gb).micros
        if not rate:
            return
        there = self.volume_there(request.region)
        if there is None:
            number = len(self.volumes) + 1
            there = KeptVolume(f"volume-{number}", request.region, size_gb, rate, world.queue.now)
            self.volumes.append(there)
            world.say(f"{there.volume_id} is made")
        there.users.add(request.lease.run_id)

    def volume_there(self, place: str) -> KeptVolume | None:
        mine = (v for v in self.volumes if v.place == place and v.ended_at is None)
        return next(mine, None)

    def rent_foreign(self, request: PodRequest) -> RentedMachine:
        """A pod that somebody else has: it is listed, and that is all."""
        pod_id = f"foreign-{len(self.pods) + 1}"
        now = self.world.queue.now
        rented = RentedMachine(self, pod_id, request, request.rate.micros, now)
        rented.pod.running = True
        self._add(rented)
        return rented

    def _add(self, rented: RentedMachine) -> None:
        self.pods[rented.pod_id] = rented
        self.living.append(rented)
        self._named.setdefault(rented.name, []).append(rented)

    def named(self, name: str) -> Sequence[RentedMachine]:
        """Those of that name, the first one first: a provider may make two of one."""
        return self._named.get(name, ())

    def find(self, name: str) -> RentedMachine | None:
        """The pod of that id, or the first of that name."""
        return self.pods.get(name) or next(iter(self.named(name)), None)

    # -- ending -------------------------------------------------------------------------------

    def honors_delete(self, rented: protocols.RentedMachine) -> bool:
        """Whether a delete issued now would end the billing."""
        return self.world.queue.now >= max(
            rented.undeletable_until, self.world.knobs.deletes_ignored_until
        )

    def delete(self, rented: RentedMachine, by: str) -> None:
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
        rented.deleted_at = world.queue.now
        rented.ended_by = rented.ended_by or by
        takes_s = world.rng.uniform(*self.habits.delete_s)
        if self.habits.self_ends == "exit" and rented.pod.guard_stopped:
            takes_s += local_terminate_wait_s(watchdog_stopped=True)
        rented.pod.stop()
        world.say(f"{rented.pod_id} is deleted by {by}")
        world.queue.after(takes_s, lambda: self.end(rented, by))

    def refuse(self, rented: RentedMachine) -> None:
        """A provider that will not delete this one pod now says so.

        Raises:
            ProviderError
        """
        world, now = self.world, self.world.queue.now
        if world.knobs.next_deletes[:1] == ["refused"] and not rented.ended:
            world.knobs.next_deletes.pop(0)
            world.observed("22")
            world.say(f"{rented.pod_id} is not deleted: refused")
            rented.undeletable_until = rented.refuses_until = now + world.rng.uniform(30, 900)
            world.queue.at(rented.refuses_until + 0.1, world.wake)
        if now < rented.refuses_until:
            raise ProviderError("409: the pod is being changed")

    def _moody_delete(self, rented: RentedMachine, mood: str) -> None:
        """A delete that is not what its answer says."""
        world, now = self.world, self.world.queue.now
        world.observed({"ignored": "20", "404": "21", "stuck": "22"}[mood])
        world.say(f"{rented.pod_id} is not deleted: {mood}")
        if mood == "404" and self.lags:
            rented.undeletable_until = now + world.rng.uniform(20, 150)
            rented.visible_at = rented.undeletable_until
        else:
            rented.undeletable_until = now + 30 * 120 ** world.rng.random()
        world.queue.at(rented.undeletable_until + 0.1, world.wake)
        if mood == "stuck":
            rented.pod.stop()
            rented.deleting = True
            rented.deleted_at = now
            world.queue.at(rented.undeletable_until, lambda: self.end(rented, "controller"))

    def end(self, rented: RentedMachine, by: str) -> None:
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
            world.observed("32")
            if rented.unowned_at is not None:
                # A stray pod has a disk that no run reserved.
                rented.exposed_micros += world.knobs.storage_tail_micros
        world.say(f"{rented.pod_id} is gone ({by})")
        world.check.on_pod_end(rented)
        world.wake()

    def end_from_inside(self, rented: RentedMachine) -> None:
        """End it by the means that the pod's own processes have."""
        how, world = self.habits.self_ends, self.world
        if how == "exit":
            if not rented.pod.trainers_alive:
                self.end(rented, rented.ended_by or "agent")
        elif how == "shutdown" or (how == "api" and world.knobs.pod_api_works(world.queue.now)):
            self.delete(rented, rented.ended_by or "watchdog")
        elif self.habits.idle_stop_s:
            world.queue.after(
                self.habits.idle_stop_s + world.rng.uniform(0, 60),
                lambda: self.delete(rented, "provider"),
            )

    def host_lost(self, rented: RentedMachine, by: str) -> None:
        """Preempted or burnt down: no notice, and nothing more is billed."""
        if not rented.ended:
            rented.pod.stop()
            rented.ended_by = by
            self.end(rented, by)
