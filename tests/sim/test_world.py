"""The simulator itself: replayable, shrinkable, and able to see that faults strike."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.present import present
from tests.sim import hostile
from tests.sim.drawing import draw
from tests.sim.faults import NAMES, PAIRS, arm_all
from tests.sim.kept import KEPT
from tests.sim.play import play
from tests.sim.shrinking import shrink
from tests.sim.soak import Tally, code_hash, first_seed, page, run_seeds
from tests.sim.soak import _missing as missing
from tests.sim.soak import main as soak
from trmcloud.core.control import bookkeeping
from trmcloud.sim.faults import controller, provider, training
from trmcloud.sim.play import timeline
from trmcloud.sim.world.clocks import EventQueue
from trmcloud.sim.world.trainer import Shape, SimTrainer, TrainerFault

SHAPE = Shape("fast", 100, 1.0, 10, 2.0, 20, 3.0, 5.0, 15.0)


def trainer(**changes: object) -> SimTrainer:
    values: dict[str, object] = {
        "run_id": "r-1", "attempt": 1, "pid": 7, "at": 1000.0, "deadline_s": 1e6, "from_step": 0,
        "ill": None,
    }  # fmt: skip
    return SimTrainer(SHAPE, **{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(15))
def test_a_seed_replays_to_the_same_hash(seed: int) -> None:
    scenario = draw(seed, NAMES)
    assert play(scenario, arm_all).digest == play(draw(seed, NAMES), arm_all).digest


@pytest.mark.slow
def test_a_seed_replays_in_another_process() -> None:
    """Nothing depends on the hash seed of the interpreter."""
    code = (
        "from trmcloud.wiring_plans import simulate_providers\n"
        "from tests.sim.faults import NAMES, arm_all\n"
        "from tests.sim.play import play\n"
        "from tests.sim.drawing import draw\n"
        "simulate_providers()\n"
        "print(*(play(draw(s, NAMES), arm_all).digest for s in range(12)))"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(made) == 1


@pytest.mark.slow
@pytest.mark.more
def test_every_fault_is_felt_somewhere() -> None:
    """In any of these worlds; of the later ones only those are played that have what is missing."""
    unfelt = set(NAMES)
    for seed in range(3000, 3060):
        unfelt -= set(play(draw(seed, NAMES), arm_all).observed)
    for name in sorted(unfelt):
        drawn = (draw(seed, NAMES) for seed in range(3060, 3900))
        if any(name in play(each, arm_all).observed for each in drawn if name in each.faults):
            unfelt.remove(name)
    assert unfelt == set()


def test_the_faults_are_those_of_the_list() -> None:
    assert tuple(str(number) for number in (*range(1, 80), *range(90, 94), 96)) == NAMES
    assert len(PAIRS) == 3486


@pytest.mark.slow
def test_exposure_is_neither_always_nor_never() -> None:
    """The predicate bites: some worlds have exposed time, most have none."""
    seconds = [play(draw(seed, NAMES), arm_all).exposed_s for seed in range(60)]
    assert 0.0 < sum(s > 0 for s in seconds) / len(seconds) < 0.5


def test_a_broken_world_is_shrunk_to_a_short_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no reservation is judged, two runs and one cap are enough."""
    monkeypatch.setattr(bookkeeping, "admit", lambda *anything: None)
    for seed in range(200):
        scenario = draw(seed, NAMES)
        if play(scenario, arm_all).violation:
            break
    else:
        pytest.fail("reservations beyond every cap went unnoticed")
    smaller, played = shrink(scenario)
    assert len(smaller.faults) <= 3
    story = timeline(played.timeline)
    assert "VIOLATION" in story
    assert len(story.splitlines()) <= 61


def test_a_fault_taken_away_leaves_the_others_dice_alone() -> None:
    scenario = draw(5, NAMES)
    scenario = replace(scenario, faults=("34", "31"), fault_seeds=(1, 2))
    both = play(scenario, arm_all)
    one = play(replace(scenario, faults=("31",), fault_seeds=(2,)), arm_all)
    assert "31" in both.fired
    assert "31" in one.fired


def test_events_happen_in_order_and_may_nest() -> None:
    queue, seen = EventQueue(0.0), []

    def one() -> None:
        seen.append("one")
        queue.run_until(3.0, idle, idle)

    queue.at(2.0, lambda: seen.append("two"))
    queue.at(1.0, one)
    queue.at(4.0, lambda: seen.append("four"))
    queue.at(1.5, lambda: seen.append("never")).cancel()
    queue.run_until(10.0, idle, idle)
    assert seen == ["one", "two", "four"]
    assert queue.now == 10.0


def test_a_trainer_finishes_all_its_steps() -> None:
    made = trainer()
    assert made.ends_at is not None
    beat = present(made.heartbeat(made.ends_at + 1))
    assert (beat.state, beat.outcome, beat.step, beat.saved_step) == ("ended", "finished", 100, 100)
    assert not made.runs(made.ends_at)


def test_a_trainer_lands_at_its_deadline_or_when_told() -> None:
    by_deadline = trainer(deadline_s=50.0)
    assert by_deadline.ends_at == pytest.approx(1000 + 50 + 2 + 3)
    told = trainer()
    told.tell(1060.0)
    assert told.ends_at is not None
    beat = present(told.heartbeat(told.ends_at))
    assert beat.outcome == "landed_signal"
    assert 0 < beat.step < 100


def test_a_killed_trainer_keeps_only_what_it_had_saved() -> None:
    saved_at = 1000 + 20 + SHAPE.seconds_to(20) - SHAPE.eval_s  # evaluated after that
    made = trainer()
    made.kill(saved_at + 0.5)
    assert made.saved_step(2000.0) == 20
    early = trainer()
    early.kill(saved_at - 0.5)
    assert early.saved_step(2000.0) is None


@pytest.mark.parametrize("kind", ["hang", "lost", "out_of_memory", "deaf"])
def test_illnesses_strike(kind: str) -> None:
    made = trainer(ill=TrainerFault(kind, 40.0, "55"))
    if kind == "hang":
        assert made.runs(1e9)
        assert made.step(1e9) == made.step(1040.0)
    elif kind == "deaf":
        made.tell(1050.0)
        assert made.outcome == "finished"
    else:
        assert not made.runs(1041.0)
        assert present(made.heartbeat(1041.0)).outcome == (None if kind == "lost" else kind)


def test_the_soak_counts_and_publishes() -> None:
    tally = run_seeds(0, 30, Tally(code_hash()))
    assert tally.done == 30
    assert Tally.from_json(tally.to_json()).observed == tally.observed
    text = page(tally, date="2026-11-21", command="x")
    assert "| worlds played | 30 |" in text
    assert "| violations | 0 |" in text
    twice = Tally(tally.code)
    twice.merge(tally)
    twice.merge(tally)
    assert twice.done == 60
    assert all("+" in pair for pair in itertools.islice(tally.pairs, 3))


def test_each_version_of_the_code_draws_seeds_of_its_own() -> None:
    drawn = {first_seed(f"{number:064x}"[::-1]) for number in range(500)}
    assert len(drawn) == 500
    assert all(first >= 1_000_000 and first % 1_000_000 == 0 for first in drawn)
    assert first_seed("0" * 64) == 1_000_000
    assert first_seed("f" * 64) <= 10**12


def test_a_soak_goes_on_where_it_was_and_begins_anew_with_the_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state, shown = (tmp_path / name for name in ("soak.json", "page.md"))
    assert soak(["--seeds", "3", "--state", str(state)]) == 0
    arguments = ["--seeds", "7", "--state", str(state), "--page", str(shown)]
    assert soak(arguments) == 0
    first = first_seed(code_hash())
    text = shown.read_text(encoding="utf-8")
    assert f"| seeds | {first:,} to {first + 6:,}, drawn by the hash |" in text
    assert "| worlds played | 7 |" in text
    assert f"| {KEPT[0].name} | {KEPT[0].taught} |" in text
    data = json.loads(state.read_text(encoding="utf-8"))
    state.write_text(json.dumps({**data, "code": "another"}), encoding="utf-8")
    assert soak(["--from", "9", "--seeds", "2", "--state", str(state), "--page", str(shown)]) == 0
    assert "counting starts anew" in capfd.readouterr().err
    text = shown.read_text(encoding="utf-8")
    assert "| seeds | 9 to 10 |" in text
    assert "`python -m tests.sim.soak --from 9 --seeds 2`" in text


def test_what_was_interrupted_leaves_gaps_that_are_played() -> None:
    assert missing([], 5, 6) == [(5, 6)]
    assert missing([], 0, 1200) == [(0, 500), (500, 1000), (1000, 1200)]
    assert missing([[500, 1000]], 0, 1200) == [(0, 500), (1000, 1200)]
    assert missing([[0, 100], [90, 300]], 50, 350) == [(300, 350)]
    assert missing([[0, 9000]], 50, 350) == []


def idle() -> None:
    """Nothing to be done between events."""


@pytest.mark.slow
def test_volumes_are_made_billed_and_deleted_in_some_worlds() -> None:
    told = Counter(
        line.text.rpartition(" ")[2]
        for seed in range(60)
        for line in play(draw(seed, NAMES), arm_all).timeline
        if line.text.startswith("volume-")
    )
    assert told["made"] > told["deleted"] > 0


def test_no_two_faults_have_one_number() -> None:
    rooms = (controller.FAULTS, provider.FAULTS, training.FAULTS, hostile.FAULTS)
    assert sum(len(room) for room in rooms) == len(NAMES)
