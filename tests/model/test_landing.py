"""A training against its deadline: when it cools down and lands, and how it is replayed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

import pytest
import torch

from model.machine.signals import SignalFlag
from model.training import loop
from model.training.landing import Landing, Limits
from model.training.schedule import Cooldown, Schedule
from tests.model.attempts import TickingClock, before_steps, crash, dying_at
from trmcloud.core.contract.manifest import to_json
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import PhaseRecipe

NewRun = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("keep_generator")


def test_a_deadline_already_gone_lands_at_once(new_run: NewRun) -> None:
    run = new_run()
    assert run.train_here(TRMCLOUD_DEADLINE_AT="1.0") == "landed_deadline"
    assert sorted(run.manifests()) == [0]


def test_a_run_killed_in_its_cooldown_keeps_its_decision(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is, to the last bit, what a replay of that decision gives."""
    run = new_run("timed", steps=10_000, save_every=8, keep_best=99)
    hand = TickingClock()
    deadline = {"TRMCLOUD_DEADLINE_AT": str(hand.at + 14.0)}

    def die_in_cooldown(trainer: Any) -> None:
        cooldown = trainer._progress.cooldown
        if cooldown is not None and trainer._progress.step == cooldown.first + 12:
            raise RuntimeError("struck by lightning")

    before_steps(monkeypatch, die_in_cooldown)
    assert run.train_here(clock=hand.clock(), **deadline) == "crashed"
    monkeypatch.undo()
    [decision, *_] = run.metrics("decision")
    start = decision["cooldown_from"]
    assert run.train_here(attempt=2, clock=hand.clock(), **deadline) == "landed_deadline"
    assert run.metrics("start")[-1]["from_step"] > start
    decisions = run.metrics("decision")
    assert decisions[0] == decision, "it begins once, whatever follows"
    assert hand.at <= float(deadline["TRMCLOUD_DEADLINE_AT"]) + 1.0
    last = run.heartbeat.step
    assert start < last <= decisions[-1]["cooldown_from"] + decisions[-1]["cooldown_steps"]
    replayed = new_run("replayed", steps=10_000, save_every=8, keep_best=99)
    pairs = (f"{each['cooldown_from']}:{each['cooldown_steps']}" for each in decisions)
    record = {"TRMCLOUD_REPLAY_DECISION": f"{','.join(pairs)}:{last}"}
    assert replayed.train_here(**record) == "landed_deadline"
    assert replayed.weights_at(last) == run.weights_at(last)
    rates = [[line["lr"] for line in each.metrics("train")] for each in (run, replayed)]
    assert rates[0] == rates[1]


@pytest.mark.parametrize("lost", [False, True], ids=["kept", "lost"])
def test_a_run_topped_up_after_cooldown_goes_on_at_full_rate(new_run: NewRun, lost: bool) -> None:
    """From before its cooldown; where that is not to be had, after a short warm-up."""
    run = new_run("timed", steps=10_000)
    hand = TickingClock(tick=0.05)
    for attempt in (1, 2):
        deadline = {"TRMCLOUD_DEADLINE_AT": str(hand.at + 35.0)}
        assert run.train_here(attempt, hand.clock(), **deadline) == "landed_deadline"
        if attempt == 1:
            landed, first = run.heartbeat.step, run.metrics("decision")[0]["cooldown_from"]
            stable = run.manifests()[first]
            assert (stable.cooldown_from, run.manifests()[landed].cooldown_from) == (None, first)
            if lost:
                shutil.rmtree(run.out / "checkpoints" / f"step-{first:08d}")
    decisions, start = run.metrics("decision"), run.metrics("start")[-1]
    assert (start["from_step"], start.get("weights_of")) == (landed, None if lost else first)
    rates = {line["step"]: line["lr"] for line in run.metrics("train")}
    assert sorted(rates) == list(range(1, run.heartbeat.step + 1)), "all that was told stays"
    assert rates[landed] < 0.15
    if lost:
        assert rates[landed + 1] == pytest.approx(1 / 4), "a short warm-up"
    assert rates[landed + (4 if lost else 1)] == 1.0
    again = decisions[-1]["cooldown_from"]
    assert again > landed > first
    assert rates[run.heartbeat.step] < 0.15
    kept = run.manifests()
    assert kept[run.heartbeat.step].cooldown_from in kept, "and what the next one goes on from"
    assert first not in kept, "which the first is not any more"


@pytest.mark.parametrize("ema", [False, True], ids=["", "ema"])
def test_what_was_topped_up_is_what_would_have_been_trained(new_run: NewRun, ema: bool) -> None:
    """20 steps with a cooldown from 14 on, then 20 more: of the weights that stood at 14, 12 at the
    full rate and 12 in a cooldown, on the data that follows there."""
    run = new_run(steps=20, keep_best=99, ema=ema)
    assert run.train_here() == "finished"
    settings = {**run.job.settings, "steps": 40}
    run.job = replace(run.job, settings=settings)
    crash(run, 24, attempt=2)
    assert run.train_here(attempt=3) == "finished", "and goes back once more: nothing was saved"
    starts = [(line["from_step"], line.get("weights_of")) for line in run.metrics("start")]
    assert starts == [(0, None), (20, 14), (20, 14)]
    whole = new_run("whole", steps=10_000, keep_best=99, ema=ema)
    record = {"TRMCLOUD_REPLAY_DECISION": "22:12:34"}
    assert whole.train_here(**record) == "landed_deadline"
    assert run.weights_at(40) == whole.weights_at(34)
    assert run.manifests()[40].tokens == whole.manifests()[34].tokens, "as these weights have seen"
    rates = [[line["lr"] for line in each.metrics("train")] for each in (run, whole)]
    assert rates[0][20:] == rates[1][14:]


def test_no_time_for_stable_steps_is_no_reason_to_go_back(new_run: NewRun) -> None:
    """Topped up by less than a cooldown takes, what has cooled is gone on with."""
    run = new_run("timed", steps=10_000)
    hand = TickingClock(tick=0.05)
    for attempt, seconds in ((1, 60.0), (2, 10.0)):
        deadline = {"TRMCLOUD_DEADLINE_AT": str(hand.at + seconds)}
        assert run.train_here(attempt, hand.clock(), **deadline) == "landed_deadline"
    assert "weights_of" not in run.metrics("start")[-1]


def test_landing_at_once_after_going_back_leaves_what_has_cooled_as_it_was(new_run: NewRun) -> None:
    """Neither its files nor its metric become those of the weights that were gone back to."""
    run = new_run(steps=20)
    assert run.train_here() == "finished"
    run.job = replace(run.job, settings={**run.job.settings, "steps": 40})
    before = run.manifests()
    flag = SignalFlag()
    flag.raised = flag.save = True
    assert run.train_here(attempt=2, flag=flag) == "landed_signal"
    assert run.metrics("start")[-1]["weights_of"] == 14
    assert run.manifests() == before


@pytest.mark.parametrize("fault", ["flipped", "bare"])
def test_what_cannot_be_gone_back_to_is_passed_over(new_run: NewRun, fault: str) -> None:
    run = new_run(steps=20)
    assert run.train_here() == "finished"
    folder = run.out / "checkpoints" / "step-00000014"
    manifest = run.manifests()[14]
    if fault == "flipped":
        (folder / "state.json").write_text("{}")
    else:  # its optimizer's state has made room
        kept = tuple(file for file in manifest.files if file.kind != "optimizer")
        (folder / "manifest.json").write_text(to_json(replace(manifest, files=kept)))
    run.job = replace(run.job, settings={**run.job.settings, "steps": 24})
    assert run.train_here(attempt=2) == "finished"
    assert "weights_of" not in run.metrics("start")[-1]
    assert run.heartbeat.step == 24


def test_a_timed_run_whose_steps_end_first_finishes(new_run: NewRun) -> None:
    run = new_run(steps=40)
    hand = TickingClock()
    far = {"TRMCLOUD_DEADLINE_AT": str(hand.at + 10_000)}
    assert run.train_here(clock=hand.clock(), **far) == "finished"
    [decision] = run.metrics("decision")
    assert (decision["cooldown_from"], decision["cooldown_steps"]) == (28, 12)
    alone = new_run("alone", steps=40)
    alone.train_here()
    assert alone.weights_at(40) == run.weights_at(40), "the clock made no difference"


def landing_of(settings: PhaseRecipe, limits: Limits, flag: SignalFlag | None = None) -> Landing:
    from model.machine.distributed import World

    return Landing(settings, limits, World(0, 1, torch.device("cpu")), flag or SignalFlag())


def test_a_signal_lands_before_the_next_step(settings: PhaseRecipe) -> None:
    flag = SignalFlag()
    landing = landing_of(settings, Limits(), flag)
    assert landing.consult(3, None, now=0.0, elapsed_s=1.0).outcome is None
    flag.raised = True
    assert landing.consult(4, None, now=0.0, elapsed_s=1.0).outcome == "landed_signal"
    assert landing.consult(12, None, now=0.0, elapsed_s=1.0).outcome == "finished"


def test_a_save_is_due_once_its_minutes_have_passed(settings: PhaseRecipe) -> None:
    landing = landing_of(replace(settings, steps=1000, save_minutes=2.0), Limits())

    def due(step: int, now: float) -> bool:
        return landing.consult(step, None, now=now, elapsed_s=1.0).save_due

    assert [due(step, now) for step, now in ((1, 50.0), (2, 169.0), (3, 170.0))] == [
        *(False, False, True)
    ]
    assert due(4, 171.0), "until it is begun"
    landing.saving(171.0)
    assert not due(5, 290.0)
    assert due(6, 291.0)
    never = landing_of(settings, Limits())
    assert not never.consult(1, None, now=0.0, elapsed_s=1.0).save_due
    assert not never.consult(2, None, now=1e9, elapsed_s=1.0).save_due


def test_no_step_is_begun_that_would_pass_the_deadline(settings: PhaseRecipe) -> None:
    landing = landing_of(replace(settings, steps=1000), Limits(deadline_at=100.0))
    for _ in range(5):
        landing.took(2.0)
    cooldown = Cooldown(0, 999, 100.0)
    assert landing.consult(3, cooldown, now=97.9, elapsed_s=90.0).outcome is None
    assert landing.consult(3, cooldown, now=98.1, elapsed_s=90.0).outcome == "landed_deadline"


def test_a_deadline_that_was_moved_is_the_one_that_ends_it(
    settings: PhaseRecipe, tmp_path: Path
) -> None:
    environment = {"TRMCLOUD_DEADLINE_AT": "100.0", "TRMCLOUD_JOB": str(tmp_path / "job.json")}
    landing = landing_of(replace(settings, steps=1000), Limits.from_environment(environment))
    for _ in range(5):
        landing.took(2.0)
    assert landing.consult(3, None, now=80.0, elapsed_s=80.0).cooldown is not None
    (tmp_path / "deadline").write_text("300.0")
    moved = landing.consult(4, None, now=99.0, elapsed_s=99.0)
    assert (moved.outcome, moved.cooldown) == (None, None), "it trains on, at its full rate"
    (tmp_path / "deadline").write_text("not a number")
    assert landing.deadline_at == 300.0
    assert landing.consult(5, None, now=298.1, elapsed_s=290.0).outcome == "landed_deadline"


def test_the_cooldown_begins_once_and_stays_while_steps_wait(settings: PhaseRecipe) -> None:
    landing = landing_of(replace(settings, steps=1000), Limits(deadline_at=100.0))
    landing.took(1.0)
    assert landing.consult(50, None, now=50.0, elapsed_s=50.0).cooldown is None
    decided = landing.consult(76, None, now=77.0, elapsed_s=77.0).cooldown
    assert decided is not None
    assert decided.start == 76
    assert 20 <= decided.steps <= 24
    later = landing.consult(80, decided, now=81.0, elapsed_s=81.0)
    assert (later.cooldown, later.outcome) == (None, None)
    later = landing.consult(90, decided, now=91.0, elapsed_s=91.0)
    assert (later.cooldown, later.outcome) == (None, None)
    done = landing.consult(decided.end, decided, now=99.8, elapsed_s=99.8)
    assert done.outcome == "landed_deadline"


ASKED = Cooldown(100, 25, 0.0, asked=True)


@pytest.mark.parametrize(
    ("steps", "deadline_at", "cooldown", "saved_steps", "holds"),
    [
        (12, 100.0, Cooldown(10, 5, 100.0), 12, True),
        (12, 90.0, Cooldown(10, 5, 100.0), 12, True),
        (12, 500.0, Cooldown(10, 5, 100.0), 12, False),  # topped up
        (12, None, Cooldown(10, 5, 100.0), 12, False),
        (30, 100.0, Cooldown(10, 5, 100.0), 15, False),  # its steps were to end it
        (30, 100.0, Cooldown(10, 5, 100.0), 20, True),  # the deadline was, and still is
        (15, 100.0, Cooldown(10, 5, 100.0), 15, True),
        (1000, None, ASKED, 1000, True),
        (1000, None, ASKED, 900, False),
    ],
)
def test_a_cooldown_holds_until_the_run_is_topped_up(
    settings: PhaseRecipe,
    steps: int,
    deadline_at: float | None,
    cooldown: Cooldown,
    saved_steps: int,
    holds: bool,
) -> None:
    landing = landing_of(replace(settings, steps=steps), Limits(deadline_at=deadline_at))
    assert landing.keeps(cooldown, saved_steps) is holds
    assert Cooldown.from_json(cooldown.to_json()) == cooldown


def test_limits_are_read_from_the_environment() -> None:
    assert Limits.from_environment({}) == Limits()
    assert Limits.from_environment({"TRMCLOUD_DEADLINE_AT": "12.5"}).deadline_at == 12.5
    replay = Limits.from_environment({"TRMCLOUD_REPLAY_DECISION": "7:3:9"}).replay
    assert replay is not None
    assert (replay.decisions, replay.last_step) == (((7, 3),), 9)
    several = Limits.from_environment({"TRMCLOUD_REPLAY_DECISION": "7:3,9:14:20"}).replay
    assert several is not None
    assert (several.decisions, several.last_step) == (((7, 3), (9, 14)), 20)
    with pytest.raises(UsageError):
        Limits.from_environment({"TRMCLOUD_REPLAY_DECISION": "7:3"})
    told = Limits.from_environment({"TRMCLOUD_LANDING_S": "6.5", "TRMCLOUD_PATIENCE": "2"})
    assert (told.landing_s, told.patience) == (6.5, 2)
    for name in ("TRMCLOUD_LANDING_S", "TRMCLOUD_PATIENCE", "TRMCLOUD_DEADLINE_AT"):
        with pytest.raises(UsageError, match=f"{name} is 'soon'"):
            Limits.from_environment({name: "soon"})


# -- the time that a landing takes here ----------------------------------------------------------


@pytest.mark.parametrize(
    ("evaluation_s", "save_s", "step_s", "ends_s"),
    [
        (0.1, 0.2, 0.1, 100.0),  # less than was reserved: 6 s
        (1.3, 1.5, 1.0, 100.0 - (2 * 2.8 + 1.0 + 2.0 - 6.0)),
        (1.3, None, 1.0, 100.0 - (2 * 2.6 + 1.0 + 2.0 - 6.0)),
        (9.0, 30.0, 5.0, 100.0 - (2 * 39.0 + 5.0 + 2.0 - 6.0)),
    ],
)
def test_steps_end_by_what_a_landing_was_measured_to_take(
    settings: PhaseRecipe, evaluation_s: float, save_s: float | None, step_s: float, ends_s: float
) -> None:
    made = replace(settings, schedule="constant", steps=10_000)
    landing = landing_of(made, Limits(deadline_at=100.0, landing_s=6.0))
    landing.evaluation_s = evaluation_s
    if save_s is not None:
        landing.save_s = save_s
    for _ in range(5):
        landing.took(step_s)
    before, after = (ends_s - step_s + off for off in (-0.01, 0.01))
    assert landing.consult(9, None, now=before, elapsed_s=50.0).outcome is None
    assert landing.consult(9, None, now=after, elapsed_s=50.0).outcome == "landed_deadline"
    assert landing.leaves_time_for(0.0, before)
    assert not landing.leaves_time_for(0.0, after)
    untold = landing_of(made, Limits(deadline_at=100.0))
    untold.evaluation_s = untold.save_s = evaluation_s
    untold.took(step_s)
    assert untold.consult(9, None, now=99.9 - step_s, elapsed_s=50.0).outcome is None


def test_one_slow_evaluation_is_remembered_and_one_slow_step_counts_as_three(
    settings: PhaseRecipe,
) -> None:
    landing = landing_of(settings, Limits(deadline_at=100.0, landing_s=6.0))
    for evaluation_s, step_s in ((4.0, 1.0), (1.0, 1.0), (1.0, 60.0)):
        landing.evaluation_s = evaluation_s
        landing.took(step_s)
    landing.save_s = 1.0
    assert landing.needed_s == pytest.approx(2 * (4.0 + 1.0) + 3.0 + 2.0)


@pytest.mark.parametrize("ema", [False, True])
def test_an_evaluation_that_the_hard_stop_would_cut_off_is_left(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch, ema: bool
) -> None:
    """What is saved is a landing all the same, and goes on from there as any other."""
    clock, real = TickingClock(), loop.evaluate  # type: ignore[attr-defined]
    run = new_run(steps=100_000, schedule="constant", eval_every=10_000, ema=ema)

    def evaluate(*given: Any, **named: Any) -> Any:
        if run.heartbeat.state == "landing":
            clock.at += 60.0
        return real(*given, **named)

    monkeypatch.setattr(loop, "evaluate", evaluate)
    environment = {"TRMCLOUD_DEADLINE_AT": "1010.0", "TRMCLOUD_LANDING_S": "20.0"}
    assert run.train_here(clock=clock.clock(), **environment) == "landed_deadline"
    beat = run.heartbeat
    assert beat.step == beat.saved_step > 0
    assert run.manifests()[beat.step].val_bpb is None
    [warning] = [line["message"] for line in run.metrics("warning") if line["step"] == beat.step]
    assert warning == f"step {beat.step} is saved and was not evaluated: the hard stop is too near"
    monkeypatch.undo()
    longer = new_run(steps=beat.step + 2, schedule="constant", ema=ema)
    assert longer.train_here(attempt=2) == "finished"
    assert longer.metrics("start")[-1]["from_step"] == beat.step


def test_one_that_no_longer_pays_cools_down_and_ends(settings: PhaseRecipe) -> None:
    flag = SignalFlag()
    landing = landing_of(replace(settings, steps=1000), Limits(), flag)
    assert landing.consult(100, None, now=0.0, elapsed_s=1.0).cooldown is None
    flag.finish = True
    decided = landing.consult(100, None, now=0.0, elapsed_s=1.0).cooldown
    assert decided is not None
    assert (decided.asked, decided.start) == (True, 100)
    assert decided.steps == 100, "no more than there were before it"
    own = Schedule.of(replace(settings, steps=1000)).own_cooldown
    late = landing.consult(600, None, now=0.0, elapsed_s=1.0).cooldown
    assert own is not None
    assert late is not None
    assert 100 < late.steps == own.steps, "as many as the schedule's own"
    assert landing.consult(110, decided, now=0.0, elapsed_s=1.0) == landing_of(
        replace(settings, steps=1000), Limits()
    ).consult(110, decided, now=0.0, elapsed_s=1.0), "it is told once"
    over = landing.consult(decided.end, decided, now=0.0, elapsed_s=1.0)
    assert over.outcome == "stopped_paying"


def test_one_that_is_worse_or_knows_no_cooldown_ends_at_once(settings: PhaseRecipe) -> None:
    flag = SignalFlag()
    flag.finish = True
    landing = landing_of(replace(settings, steps=1000), Limits(), flag)
    worse = landing.consult(100, None, now=0.0, elapsed_s=1.0, worse=True)
    assert (worse.outcome, worse.cooldown) == ("stopped_paying", None)
    constant = replace(settings, steps=1000, schedule="constant")
    at_once = landing_of(constant, Limits(), flag).consult(100, None, now=0.0, elapsed_s=1.0)
    assert (at_once.outcome, at_once.cooldown) == ("stopped_paying", None)


def test_an_ordered_cooldown_is_not_drawn_out_over_the_time_left(settings: PhaseRecipe) -> None:
    flag = SignalFlag()
    flag.finish = True
    landing = landing_of(replace(settings, steps=9000), Limits(deadline_at=9000.0), flag)
    for _ in range(20):
        landing.took(1.0)
    decided = landing.consult(100, None, now=100.0, elapsed_s=100.0).cooldown
    assert decided is not None
    assert decided.asked
    later = landing.consult(110, decided, now=110.0, elapsed_s=110.0)
    assert (later.cooldown, later.outcome) == (None, None)
    over = landing.consult(decided.end, decided, now=140.0, elapsed_s=140.0)
    assert over.outcome == "stopped_paying"
    sooner = landing_of(replace(settings, steps=9000), Limits(deadline_at=120.0))
    for _ in range(20):
        sooner.took(1.0)
    shorter = sooner.consult(110, decided, now=110.0, elapsed_s=110.0).cooldown
    assert shorter is not None, "but a deadline cuts it"
    assert shorter.asked
    assert shorter.end < decided.end


def test_a_training_that_is_told_cools_down_and_a_crash_keeps_that(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trmcloud.core.contract.gate.is_worse", lambda points: False)
    run = new_run("told", steps=400, save_every=5, eval_every=5, keep_best=99)
    flag, curves = SignalFlag(), []

    def tell(trainer: Any) -> None:
        step = trainer._progress.step
        curves.append((step, trainer._pulse.now.curve))
        flag.finish = step >= 60

    before_steps(monkeypatch, tell)
    with pytest.MonkeyPatch.context() as patch:
        dying_at(patch, 70)
        assert run.train_here(flag=flag) == "crashed"
    [decision] = run.metrics("decision")
    start, steps = decision["cooldown_from"], decision["cooldown_steps"]
    assert start == 61
    known = dict(curves)
    assert known[10] is None, "too little is known"
    assert known[60] is not None
    assert known[65] is None, "it cools down"
    assert run.train_here(attempt=2) == "stopped_paying"
    assert steps == 61, "no more than there were before it"
    assert run.heartbeat.step == start + steps
    assert run.metrics("decision") == [decision], "the first attempt's word holds"
    rates = {line["step"]: line["lr"] for line in run.metrics("train")}
    assert rates[run.heartbeat.step] < 0.2
    told = [line["curve"] for line in run.metrics("eval") if "curve" in line]
    assert told
    assert told[0].keys() == {"step", "slope", "scatter", "steps_per_hour", "since_best"}
