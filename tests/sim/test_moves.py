"""Runs that move to another machine while their own works: every promise under every fault of
moves, and, where nothing else goes wrong, what a move really saves."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.sim.drawing import draw, with_moves
from tests.sim.moves import moving_scenario
from tests.sim.playing import seeds_of
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.control import events as ev
from trmcloud.core.errors import Outcome
from trmcloud.sim.faults.table import MOVES, arm_all
from trmcloud.sim.play import PlayResult, play
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.world import SimWorld

SEEDS = (*itertools.islice(seeds_of(moving_scenario, 900_001), 60), 501_062, 502_195)
"""In the last two a pod that is left alone has days until its hard stop, and so has the world."""


@pytest.mark.parametrize("seed", SEEDS)
def test_what_moves_keeps_every_promise(seed: int) -> None:
    scenario = moving_scenario(seed)
    assert scenario is not None
    played = play(scenario, arm_all)
    assert not played.violation, played.detail


def healthy() -> Iterator[Scenario]:
    """Worlds in which nothing goes wrong, with one attended run that may move."""
    for seed in range(100_000):
        made = with_moves(draw(seed, ()), ())
        if made is None or made.off:
            continue
        wish = replace(made.wishes[0], stop_after_s=0.0, resume_after_s=0.0)
        spec = wish.plan.spec
        if spec.move_if and not spec.patience and wish.plan.candidates[0].provider != LOCAL:
            yield replace(made, wishes=(wish,), account_cap=None, foreign=False, faults=())


def staying(scenario: Scenario) -> Scenario:
    """The same world with a run that stays on its machine."""
    wish = scenario.wishes[0]
    plan = replace(wish.plan, spec=replace(wish.plan.spec, move_if=0.0))
    return replace(scenario, wishes=(replace(wish, plan=plan),))


def bill(played: PlayResult) -> int:
    return sum(micros for _, _, micros, _ in played.runs)


def starts(played: PlayResult) -> list[tuple[str, str, int]]:
    """(machine, phase, step that it was started from) of each start of a trainer, in order."""
    form = re.compile(r"(\S+) (\w+) attempt \d+ from step (\d+)")
    found = (form.fullmatch(line.text) for line in played.timeline)
    return [(f[1], f[2], int(f[3])) for f in found if f]


@pytest.mark.slow
def test_a_move_saves_what_was_asked_and_trains_every_step_once() -> None:
    moved = 0
    for scenario in itertools.islice(healthy(), 60):
        played = play(scenario, arm_all)
        assert not played.violation, played.detail
        if not played.moves[3]:
            continue
        stayed = play(staying(scenario), arm_all)
        assert not stayed.violation, stayed.detail
        both = (played.runs[0][1], stayed.runs[0][1])
        if both != (Outcome.FINISHED.value, Outcome.FINISHED.value):
            continue
        moved += 1
        assert played.saved == stayed.saved, "the same last step"
        # Of the rest of the work at least what was asked is saved; all of it was never at stake.
        assert bill(played) < bill(stayed), f"{scenario.seed}: it would have been cheaper to stay"
        before = {machine for machine, _, _ in starts(played)}
        assert len(before) == 1 + played.moves[3]
    assert moved >= 5, "too few of these worlds have a run that moves"


class Kept:
    """Keeps the world that is played."""

    world: SimWorld

    def __call__(self, world: SimWorld, scenario: Scenario) -> None:
        self.world = world


def test_the_next_machine_begins_where_the_one_before_has_landed() -> None:
    judged = 0
    for scenario in itertools.islice(healthy(), 60):
        kept = Kept()
        played = play(scenario, kept)
        assert not played.violation, played.detail
        records = [record.event for record in kept.world.ledger.records()]
        ended = [e for e in records if isinstance(e, ev.PhaseEnded)]
        landed = [(e.phase, e.step) for e in ended if e.outcome == "landed_signal"]
        begun = starts(played)
        firsts = [
            (phase, step)
            for (before, _, _), (machine, phase, step) in itertools.pairwise(begun)
            if machine != before
        ]
        judged += len(firsts)
        assert len(firsts) == played.moves[3]
        assert firsts == landed[: len(firsts)], scenario.seed
    assert judged >= 3, "too few of these worlds have a run that moves"


def test_every_fault_of_moves_is_felt_somewhere() -> None:
    fired: set[str] = set()
    for seed in itertools.islice(seeds_of(moving_scenario, 910_001), 150):
        scenario = moving_scenario(seed)
        assert scenario is not None
        fired |= play(scenario, arm_all).fired & set(MOVES)
        if fired == set(MOVES):
            return
    assert fired == set(MOVES)


def test_moves_are_drawn_apart_from_all_else() -> None:
    for seed in itertools.islice(seeds_of(moving_scenario, 1), 20):
        plain, moving = draw(seed, ("1", "2")), with_moves(draw(seed, ("1", "2")), tuple(MOVES))
        assert moving is not None
        assert moving.faults[: len(plain.faults)] == plain.faults
        for before, after in zip(plain.wishes, moving.wishes, strict=True):
            assert (before.run_id, before.shapes) == (after.run_id, after.shapes)
            assert after.plan.reservation <= (after.plan.cap or after.plan.reservation)
