"""A run that an earlier version was moving, taken over by this one: its second machine is ended at
once, and its bill is the run's. The events are put into the ledger as such a version wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.sim.oracle.invariants import judge_of
from tests.sim.oracle.ledger_oracle import LedgerOracle
from tests.sim.play import play
from tests.sim.test_found import world
from trmcloud.core.contract.pod_contract import PodName
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import CREATE
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.ports.compute import PodRequest
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.account import Process, RentedMachine
from trmcloud.sim.world.controllers import Process as Controller
from trmcloud.sim.world.world import SimWorld

_LATE_S = 900.0
"""Until the lists of a provider prove an end, and its bill is there."""


class Inherits:
    """Has another machine stand by for the run, once that trains; with ``killed`` the command that
    drives it is gone from then on, so that only the reaper and other commands look."""

    def __init__(self, *, heard: bool, killed: bool) -> None:
        self.heard, self.killed = heard, killed
        self.rented: RentedMachine | None = None
        self.since = 0.0
        self.world: SimWorld

    def __call__(self, made: SimWorld, scenario: Scenario) -> None:
        self.world = made
        made.queue.after(600.0, lambda: self._stand_by(scenario.wishes[0].run_id))

    @property
    def run(self) -> RunState:
        return next(iter(self.world.ledger.read().runs.values()))

    @property
    def _truth(self) -> LedgerOracle:
        return judge_of(self.world).truth

    def _stand_by(self, run_id: str) -> None:
        made, run = self.world, self.world.ledger.read().runs.get(run_id)
        if run is None or run.generation is None or run.state is not State.RUNNING:
            if run is None or run.live:
                made.queue.after(60.0, lambda: self._stand_by(run_id))
            return
        now, mine = made.queue.now, run.generation
        hard = now + 7200.0
        name = str(PodName(made.ledger.ledger_id, run_id, 2, int(hard)))
        held = cost(mine.rate, 7200.0 + 600.0)
        rented = self._rent(name, run, now)
        key = f"{run_id}/g2/create/1"
        events: list[ev.RunEvent] = [
            ev.MoveStarted(mine.candidate_id, mine.rate, held, held, ZERO),
            ev.PodIntended(2, name, mine.provider, mine.candidate_id, mine.rate, hard - 60, hard),
            ev.ActionStarted(key, CREATE),
            ev.ActionFinished(key, CREATE, rented.pod_id),
        ]
        if self.heard:
            events += [ev.PodUp(2, rented.pod_id, mine.rate), ev.AgentUp(2)]
        made.ledger._add(run_id, run.epoch, events, now)
        made.fire("inherited", "another machine stands by")  # it is no healthy world
        self._truth.on_append = self._judge  # type: ignore[method-assign]
        if self.killed:
            for process in [p for p in made.processes if isinstance(p, Controller) and p.driver]:
                process.kill()
        self.rented, self.since = rented, now

    def _judge(self, process: Process, run_id: str, events: Sequence[ev.RunEvent]) -> None:
        """As every append is judged, but for what is held, and for the end of the machine that
        stands by: that judge knows of one machine."""
        run, truth = self.run, self._truth
        truth._held[run_id] = run.reserved.micros
        ends = [event for event in events if isinstance(event, ev.ActionStarted)]
        if any("/g2/" in event.action_id for event in ends):
            truth.calls.may_end[process] = run_id
        elif not any(isinstance(event, ev.Settled) for event in events):
            LedgerOracle.on_append(truth, process, run_id, events)

    def _rent(self, name: str, run: RunState, now: float) -> RentedMachine:
        assert run.generation is not None
        account = self.world.accounts[run.generation.provider]
        first = account.named(run.generation.pod_name)[0].pod.lease
        lease = replace(first, pod_name=name, granted_at=now, hard_stop_at=now + 7200.0)
        rented = RentedMachine(
            account,
            f"{account.habits.provider}-inherited",
            PodRequest(name, "sim", 8, run.generation.rate, lease, ()),
            run.generation.rate.micros,
            now,
        )
        rented.agreed_micros = rented.rate_micros
        rented.pod.running = True
        account._add(rented)
        return rented


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("heard", [False, True])
def test_a_machine_that_stands_by_is_ended_at_once_and_billed(heard: bool, killed: bool) -> None:
    inherits, judged = Inherits(heard=heard, killed=killed), 0
    for seed in (40, 60, 80, 100, 120, 140):
        inherits.rented = None
        scenario = world(seed=seed, reaper="server", looks_every_s=600.0)
        (wish,) = scenario.wishes
        plan = replace(wish.plan, cap=Usd.from_micros(3 * wish.plan.reservation.micros))
        scenario = replace(scenario, wishes=(replace(wish, plan=plan),))
        played = play(scenario, inherits)
        assert played.violation == "", f"{seed}: {played.detail}"
        rented, run = inherits.rented, inherits.run
        if rented is None:
            continue
        judged += 1
        assert rented.ended_at is not None
        assert rented.ended_at < inherits.since + _LATE_S, "it does not wait for its hard stop"
        assert (run.state, run.reserved, run.standby_usd) == (State.CLOSED, ZERO, None)
        there = run.generations[1]
        bill = rented.micros(inherits.world.queue.now) + rented.storage_micros
        assert there.billed == there.settled == Usd.from_micros(bill)
        assert run.settled.micros >= bill
    assert judged >= 4
