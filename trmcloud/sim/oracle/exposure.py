"""Exposure: time in which no layer could end a pod, by one named predicate of ground truth.

The promise counts the other time; a bill may exceed its budget by at most rate × exposed.
"""

from __future__ import annotations

from trmcloud.core.catalog.providers import TRAITS
from trmcloud.sim.world.account import RentedMachine, World
from trmcloud.sim.world.provider_profiles import STALE_LIST_S

REACTION_S = 120.0
"""A controller that is up and heard must have acted by then."""
GUARD_REACTION_S = 25.0
"""So must a watchdog that could end its pod."""
CLOCK_OFF_S = 5.0
ANY_RUN = ""


class Exposure:
    """The processes that could act, and since when (true epoch s)."""

    reap_every_s = 300.0

    def __init__(self, world: World) -> None:
        self.world = world
        self.able: dict[str, float] = {}
        """By run: since when a controller drives it that is up, heard, and has the right time;
        under ``ANY_RUN``, since when there is one for pods without an owner."""
        self.ending: dict[str, float] = {}
        """Likewise, whether or not anything can be written: at its hard stop a pod is ended all the
        same."""
        self._stuck: set[str] = set()
        self._hurt: set[str] = set()
        self._hurt_until: dict[str, float] = {}
        """By run: until when its records were damaged."""
        self._unread_until = 0.0
        """When the ledger could not be read last."""
        self._reap_since: float | None = None
        self._reap_ending_since: float | None = None

    def look(self, now: float) -> None:
        """Something happened: who can act from now on?"""
        knobs = self.world.knobs
        heard = now >= knobs.deaf_until
        # A copy of the ledger that was restored says what is no longer true, until it is accepted.
        ends = heard and not self.world.ledger.is_older
        writes = heard and self.world.ledger_writable
        drives: set[str] = set()
        stuck: set[str] = set()
        reaps = False
        if ends:
            for process in self.world.processes:
                machine, driver = process.machine, process.driver
                able = machine.awake and machine.online and not process.busy
                if not able or abs(machine.offset_s) > CLOCK_OFF_S:
                    if driver is not None:
                        stuck.add(driver.run_id)
                elif process.kind == "reap":
                    reaps = True
                elif driver is not None:
                    drives.add(driver.run_id)
        if drives:
            drives.add(ANY_RUN)
        # Of a run whose records are damaged nothing can be written by any driver.
        hurt = self.world.ledger.seen().quarantined.keys()
        if hurt or self._hurt:
            for run_id in {*hurt, *self._hurt}:
                self._hurt_until[run_id] = now
            self._hurt = {*hurt}
        if not self.world.ledger_readable:
            self._unread_until = now
        _since(self.able, drives - hurt if writes else set(), now)
        _since(self.ending, drives, now)
        self._stuck = stuck
        self._reap_ending_since = (self._reap_ending_since or now) if reaps else None
        self._reap_since = (self._reap_since or now) if reaps and writes else None

    def seconds(self, rented: RentedMachine, since: float, until: float) -> float:
        """Seconds of (since, until] in which no layer could have ended this pod's billing.

        A layer counts once it has been able for as long as it takes to react.
        """
        world = self.world
        able_at = float("inf")
        if rented.deleting and not rented.undeletable_until > since:
            return 0.0
        if not world.queue.now < rented.undeletable_until:
            seen_at = max(rented.visible_at, rented.undeletable_until)
            if world.knobs.list_flickers:
                seen_at = max(seen_at, rented.created_at + STALE_LIST_S)
            owned = rented.unowned_at is None
            # By its id a pod is ended in spite of its list; the id stands in its run's records.
            is_hurt = rented.run_id in self._hurt
            if not owned or is_hurt:
                seen_at = max(seen_at, rented.hidden_until)
            if is_hurt or (not owned and rented.run_id in self._hurt_until):
                # Whose it is cannot be read: it has the time that its name says, and no more.
                latest_s = max(traits.kill_latency_s for traits in TRAITS.values())
                told_at = min(self._hurt_until[rented.run_id], rented.name_due_at + latest_s)
                seen_at = max(seen_at, told_at)
            able_since = self.ending.get(rented.run_id) if owned else self.able.get(ANY_RUN)
            # Where a wrong clock granted the lease, controllers believe in a later hard stop.
            if abs(rented.granted_ahead_s) > CLOCK_OFF_S and owned:
                able_since = None
            # Which of two is the run's is unknown before its driver has chosen.
            untold = not owned and rented.may_be_owned
            if able_since is not None and not untold:
                able_at = min(able_at, max(able_since, seen_at) + REACTION_S)
            # One that is alive and stuck still counts as the run's driver: no other takes over.
            stuck = rented.run_id in self._stuck or abs(rented.granted_ahead_s) > CLOCK_OFF_S
            reap_since = self._reap_ending_since if owned else self._reap_since
            if reap_since is not None and not (owned and stuck) and not untold:
                due = rented.due_at
                if since <= self._unread_until:  # then its name in a list is all that is known
                    due, seen_at = rented.name_due_at, max(seen_at, rented.hidden_until)
                if rented.unowned_at is not None:
                    due = min(due, rented.unowned_at)
                wait = self.reap_every_s + REACTION_S
                able_at = min(able_at, max(reap_since, seen_at, due) + wait)
            by_api = rented.account.habits.self_ends == "api"
            if self._guard_could(rented):
                able_at = min(
                    able_at,
                    max(
                        rented.lease_due_at + self.late_s(rented),
                        rented.undeletable_until,
                        rented.pod.stopped_until,
                        # Its own call to the provider gets through since then.
                        self.world.knobs.pod_api_down_until if by_api else 0.0,
                        self.world.knobs.outage_until if by_api else 0.0,
                    )
                    + GUARD_REACTION_S,
                )
        return max(0.0, min(until, able_at) - since)

    def late_s(self, rented: RentedMachine) -> float:
        """Return the delay that is allowed to a pod's own processes: a clock that was wrong when
        the lease was granted, or is wrong on the pod, may cost the time between the two, and no
        more."""
        wrong_s = max(-rented.pod.machine.offset_s, rented.granted_ahead_s)
        if rented.pod.wiped:
            return max(CLOCK_OFF_S, wrong_s)
        return max(CLOCK_OFF_S, min(wrong_s, rented.boots_after_s + 5.0))

    def _guard_could(self, rented: RentedMachine) -> bool:
        """Whether its watchdog lives and has a means, now or once it is heard."""
        how = rented.account.habits.self_ends
        pod = rented.pod
        if not pod.running or pod.guard is None:
            return False
        if pod.guard_stopped and not self.agent_could(rented):
            return False
        return how in ("exit", "shutdown") or not self.world.knobs.pod_key_useless

    def agent_could(self, rented: RentedMachine) -> bool:
        """Whether its agent runs, which ends the pod or makes a stopped watchdog run again."""
        pod = rented.pod
        return pod.agent is not None and not pod.agent_stopped and "agent" not in self.world.off


def _since(since: dict[str, float], those: set[str], now: float) -> None:
    """Keep since when each of ``those`` is one of them."""
    if since.keys() == those:
        return
    for name in set(since) - those:
        del since[name]
    for name in those:
        since.setdefault(name, now)
