"""Judges a run that waits for a machine: it asks politely, at no more than its price, within its
boot budget and its time, and does not give up before."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.control import events as ev
from trmcloud.core.control.reason import ReasonKind
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import Outcome
from trmcloud.core.money import cost
from trmcloud.sim.oracle.exposure import CLOCK_OFF_S
from trmcloud.sim.world.account import Process, RentedMachine

if TYPE_CHECKING:
    from tests.sim.oracle.invariants import Invariants


MOST_ASKS_PER_HOUR = 19
"""Creates of one run at one provider: three at once, then one in four minutes at most."""
MOST_TOGETHER, MOST_AT_ONCE = 13, 3
"""Creates of all runs at one provider: those of one run, and the first ones of each further run,
which may have begun to wait once the others had ended."""
_HOUR_S = 3600.0


class WaitJudge:
    """Judges each run of one world that waits."""

    def __init__(self, check: Invariants) -> None:
        self.check, self.world, self.fail = check, check.world, check.world.fail
        self._asked: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._together: dict[str, list[tuple[float, str]]] = defaultdict(list)

    def on_intent(self, run: RunState, event: ev.PodIntended, *, is_time_odd: bool) -> None:
        """``run`` is as it is with the intent."""
        wait, now = run.wait, self.world.queue.now
        if wait is None:
            return
        if wait.most_rate is not None and event.rate > wait.most_rate:
            self.fail("I1", f"{run.run_id} asks for {event.rate}/h, {wait.most_rate}/h is the most")
        earlier = run.generations[run.first_generation - 1 : -1]
        lost = any(g.agent_at is not None and g.unfit is None for g in earlier)
        if not lost and now > wait.until_at + CLOCK_OFF_S and not is_time_odd:
            self.fail("wasteful", f"{run.run_id} asks for a machine after its time")
        boots = [g for g in earlier if g.settled is not None and (g.agent_at is None or g.unfit)]
        spent = sum(g.settled.micros for g in boots if g.settled is not None)
        disks = run.disk_rate(run.generations[-1])
        traits = traits_of(event.provider)
        one = cost(event.rate + disks, traits.boot_deadline_s + traits.kill_latency_s)
        # A reservation smaller than one boot is the budget, and bounds the pod by its hard stop.
        if not lost and spent + min(one.micros, wait.boot_usd.micros) > wait.boot_usd.micros:
            self.fail("I1", f"{run.run_id} has spent {spent / 1e6} of {wait.boot_usd} on boots")
        times = self._asked[(run.run_id, event.provider)]
        times.append(now)
        recent = [at for at in times if now - at < _HOUR_S]
        made = sum(1 for g in earlier if g.not_made is None)
        if len(recent) > MOST_ASKS_PER_HOUR + made and not is_time_odd:
            self.fail("impolite", f"{run.run_id} asks {event.provider} {len(recent)} times an hour")
        follows_boot = bool(earlier) and earlier[-1].not_made is None
        if not follows_boot:
            self._together[event.provider].append((now, run.run_id))
        together = [who for at, who in self._together[event.provider] if now - at < _HOUR_S]
        most = MOST_TOGETHER + MOST_AT_ONCE * (len(set(together)) - 1)
        if len(together) > most and not is_time_odd:
            self.fail(
                "impolite", f"runs together ask {event.provider} {len(together)} times an hour"
            )

    def on_made(self, rented: RentedMachine, run: RunState | None) -> None:
        most = run.wait.most_rate if run is not None and run.wait is not None else None
        if most is not None and rented.agreed_micros > most.micros:
            self.fail("I1", f"{rented.pod_id} is rented above {most}/h")

    def on_closed(
        self, process: Process, run: RunState, event: ev.Closed, *, is_time_odd: bool
    ) -> None:
        """Judge that it has not given up early: by its own time, or since its boots failed."""
        wait = run.wait
        if event.outcome != Outcome.NO_MACHINE.value or wait is None or is_time_odd:
            return
        spent = event.reason is not None and event.reason.kind is ReasonKind.BOOTS_SPENT
        boots = any(g.not_made is None for g in run.generations[run.first_generation - 1 :])
        if run.stop is not None:
            self.fail("I4", f"{run.run_id} was told to stop, and ends as if it had waited")
        if self.world.queue.now < wait.until_at - CLOCK_OFF_S and not (spent or boots):
            self.fail("wasteful", f"{run.run_id} gave up waiting before its time")
