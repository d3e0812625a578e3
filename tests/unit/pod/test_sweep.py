"""A sweep's executor with trials that are no processes: their clock is the test's."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.plans import small_recipe
from tests.present import present
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.manifest import (
    MANIFEST_NAME,
    CheckpointFile,
    CheckpointManifest,
    pick_best,
    pick_latest,
    step_dir_name,
    to_json,
)
from trmcloud.core.contract.trainer_contract import Heartbeat, PhaseJob, load_heartbeat
from trmcloud.core.money import Usd
from trmcloud.core.sweep import events as ev
from trmcloud.core.sweep.job import SWEEP_NAME, SweepJob, dump_job, load_job
from trmcloud.core.sweep.priors import (
    NO_PRIORS,
    EarlierSweep,
    EarlierTrial,
    FirstPoint,
    Priors,
    memory_table,
)
from trmcloud.core.sweep.space import read_words
from trmcloud.core.sweep.state import SweepState, TrialState, fold
from trmcloud.core.sweep.terms import Goal, SweepTerms, make_terms
from trmcloud.core.values import dataclass, replace
from trmcloud.io.files import write_atomic
from trmcloud.pod.sweep.children import (
    MachineLost,
    TrialProcesses,
    TrialStart,
    filled,
    manifests_in,
    slot_gpus,
    trial_name,
)
from trmcloud.pod.sweep.executor import JOURNAL_NAME, SweepExecutor
from trmcloud.pod.sweep.publishing import PublishedCheckpoints

BEGAN_AT = 1_795_000_000.0
STEP_S = 1.0
RATE = Usd(36)
"""USD/h of a slot: a cent a second."""


class Killed(Exception):
    """Stands for SIGKILL: nothing of the executor runs after it."""


class Clock:
    def __init__(self) -> None:
        self.at = BEGAN_AT
        self.kill_at = math.inf

    def now(self) -> float:
        return self.at

    def steady(self) -> float:
        return self.at - BEGAN_AT

    def sleep(self, seconds: float) -> None:
        self.at += seconds
        if self.at >= self.kill_at:
            raise Killed


@dataclass(frozen=True)
class Habit:
    """How trials behave: ``metric`` of (values, steps); what goes wrong is by its trial."""

    metric: Callable[[dict[str, Any], int], float | None]
    crashes: Callable[[int], bool] = lambda trial: False
    crash: tuple[str, str] = ("crashed", "RuntimeError: no")
    deaf: Callable[[int], bool] = lambda trial: False
    nan: Callable[[int], bool] = lambda trial: False
    lost: Callable[[int, int], bool] = lambda trial, attempt: False
    saves: bool = True
    start_s: float = 0.0
    """Before the first step."""
    landing_s: float = 0.0
    whole: int = 10_000
    """Steps after which a training is finished."""


class FakeChildren:
    """Trials below ``folder``, which train a step every ``STEP_S``."""

    def __init__(self, folder: Path, clock: Clock, habit: Habit) -> None:
        self._folder, self._clock, self._habit = folder, clock, habit
        self.starts: list[TrialStart] = []
        self.most_at_once = 0
        self.running: set[int] = set()

    def folder(self, trial: int) -> Path:
        return self._folder / "trials" / trial_name(trial)

    def manifests(self, trial: int) -> list[CheckpointManifest]:
        return manifests_in(self.folder(trial) / contract.CHECKPOINTS_DIR)

    def beat(self, trial: int) -> Heartbeat | None:
        path = self.folder(trial) / contract.HEARTBEAT_NAME
        return load_heartbeat(path.read_text()) if path.exists() else None

    def start(self, start: TrialStart) -> FakeChild:
        folder = self.folder(start.trial)
        if start.is_fresh:
            shutil.rmtree(folder, ignore_errors=True)
        (folder / contract.CHECKPOINTS_DIR).mkdir(parents=True, exist_ok=True)
        self.starts.append(start)
        self.running.add(start.trial)
        self.most_at_once = max(self.most_at_once, len(self.running))
        latest = pick_latest(self.manifests(start.trial))
        return FakeChild(self, start, self._clock, self._habit, latest.step if latest else 0)


class FakeChild:
    def __init__(
        self, children: FakeChildren, start: TrialStart, clock: Clock, habit: Habit, step: int
    ) -> None:
        self._children, self._start, self._clock = children, start, clock
        self._habit, self._first, self._began = habit, step, clock.now()
        self._code: int | None = None
        self._landing = False
        self._told = -1

    def poll(self) -> int | None:
        if self._code is not None:
            return self._code
        now, trial = self._clock.now(), self._start.trial
        trained_s = now - self._began - self._habit.start_s
        if trained_s < 0.0:
            return None
        step = min(self._habit.whole, self._first + int(trained_s / STEP_S))
        if self._habit.lost(trial, self._start.attempt) and now - self._began >= 2.0:
            raise MachineLost("its node is gone")
        if self._habit.crashes(trial) and now - self._began >= 1.0:
            return self._end(1, step, *self._habit.crash)
        if self._habit.nan(trial) and trained_s >= 3.0:
            save(self._children.folder(trial), step, None)
            return self._end(1, step, "non_finite", "the loss is not finite")
        late = now >= self._start.deadline_at + self._habit.landing_s
        if (self._landing or late) and not self._habit.deaf(trial):
            return self._end(0, step, "landed_signal" if self._landing else "landed_deadline")
        if step >= self._habit.whole:
            return self._end(0, step, "finished")
        if step != self._told:
            self._told = step
            self._tell(step, "training")
        return None

    def land(self) -> None:
        self._landing = True

    def kill(self) -> None:
        self._children.running.discard(self._start.trial)
        if self._code is None:
            self._code = -9

    def _end(self, code: int, step: int, outcome: str, message: str = "") -> int:
        self._children.running.discard(self._start.trial)
        self._code = code
        metric = self._habit.metric(dict(self._start.values), step)
        is_whole = outcome not in ("crashed", "non_finite", "out_of_memory")
        if self._habit.saves and is_whole and step > self._first:
            save(self._children.folder(self._start.trial), step, metric)
        self._tell(step, "ended", outcome, message)
        return code

    def _tell(self, step: int, state: str, outcome: str | None = None, message: str = "") -> None:
        beat = Heartbeat(
            run_id="r-1", phase="train", attempt=self._start.attempt, pid=1, pid_started="1",
            at=self._clock.now(), state=state, step=step, steps=0, outcome=outcome,
            message=message,
        )  # fmt: skip
        folder = self._children.folder(self._start.trial)
        write_atomic(folder / contract.HEARTBEAT_NAME, contract.dump(beat), durable=False)


def save(folder: Path, step: int, metric: float | None) -> None:
    path = folder / contract.CHECKPOINTS_DIR / step_dir_name(step)
    path.mkdir(parents=True, exist_ok=True)
    content = f"{folder.name} {step}".encode()
    (path / "weights.safetensors").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    file = CheckpointFile("weights.safetensors", "weights", len(content), digest)
    made = CheckpointManifest(
        run_id="r-1", phase="train", step=step, tokens=step, created_at=BEGAN_AT + step,
        recipe="shakespeare", settings={}, world_size=1, val_bpb=metric, step_losses=(),
        cooled=False, data_sha256="0" * 64, tokenizer_sha256="0" * 64, files=(file,),
    )  # fmt: skip
    write_atomic(path / MANIFEST_NAME, to_json(made), durable=False)


def bowl(values: dict[str, Any], steps: int) -> float:
    """Least at lr = 0.01, and lower with more steps."""
    return 1.0 + abs(math.log10(values["lr"]) + 2.0) + 5.0 / (5 + steps)


def terms_of(usd: str, *, full: str = "0.60", slots: int = 1, **more: Any) -> SweepTerms:
    space = read_words(["lr=log:1e-4,1"])
    default, _ = space.default({"lr": 0.2})
    return make_terms(
        space, default, metric="val_bpb", goal=Goal.MIN, usd=Usd(usd), full_usd=Usd(full),
        slot_rate=RATE, slots=slots, overrun_s=1.0, seeds=1, least_usd=Usd("0.06"), **more,
    )  # fmt: skip


class World:
    """A sweep's folder, its clock and its trials; executors come and go."""

    def __init__(
        self,
        folder: Path,
        terms: SweepTerms,
        habit: Habit,
        priors: Priors = NO_PRIORS,
        **job: Any,
    ) -> None:
        self.folder, self.terms, self.habit, self.priors = folder, terms, habit, priors
        self.clock = Clock()
        left_s = terms.seconds(terms.usd) / terms.slots
        self.deadline_at = BEGAN_AT + left_s
        settings = {"family": "gpt", "keep_best": 3, "seed": 1337}
        self._job: dict[str, Any] = {"settings": settings, "processes": 1, **job}
        self.children = FakeChildren(folder, self.clock, habit)
        self.attempt = 0
        self.executor: SweepExecutor | None = None

    def run(self, *, kill_after: float = math.inf, stop_after: float = math.inf) -> tuple[str, str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.attempt += 1
        self.clock.kill_at = self.clock.at + kill_after
        job = PhaseJob(
            run_id="r-1", phase="train", data_dir="", out_dir=str(self.folder), **self._job
        )
        self.executor = executor = SweepExecutor(
            job, SweepJob(self.terms, self.priors), self.children, self.clock,
            attempt=self.attempt, deadline_at=self.deadline_at,
        )  # fmt: skip
        stop_at, sleep = self.clock.at + stop_after, self.clock.sleep

        def asking(seconds: float) -> None:
            if self.clock.at >= stop_at:
                executor.ask_to_stop()
            sleep(seconds)

        self.clock.sleep = asking  # type: ignore[method-assign]
        try:
            return executor.run()
        finally:
            self.clock.sleep = sleep  # type: ignore[method-assign]

    def lose_machine(self, folder: Path) -> None:
        """All but what was published is gone."""
        shutil.copytree(self.folder / contract.CHECKPOINTS_DIR, folder / contract.CHECKPOINTS_DIR)
        self.folder = folder
        self.children = FakeChildren(folder, self.clock, self.habit)

    @property
    def events(self) -> tuple[ev.SweepEvent, ...]:
        return ev.read_journal((self.folder / JOURNAL_NAME).read_text())

    @property
    def state(self) -> SweepState:
        return fold(self.events)

    @property
    def published(self) -> list[CheckpointManifest]:
        return PublishedCheckpoints(self.folder / contract.CHECKPOINTS_DIR, 3).manifests()

    def check(self) -> None:
        """What always holds."""
        state = self.state
        assert state.spent + state.idle <= self.terms.usd + self.terms.overrun_usd
        assert self.clock.at <= self.deadline_at + 2.0
        assert self.children.most_at_once <= self.terms.slots
        best = pick_best(self.published)
        metrics = [t.metric for t in state.trials.values() if t.metric is not None]
        if metrics:
            assert best is not None
            assert best.val_bpb == pytest.approx(min(metrics))


def test_a_sweep_ends_with_its_best_checkpoint_published(tmp_path: Path) -> None:
    world = World(tmp_path / "train", terms_of("3"), Habit(bowl))
    outcome, message = world.run()
    world.check()
    assert outcome == "finished"
    state = world.state
    assert len(state.trials) >= 5
    assert dict(state.trials[1].point) == {"lr": 0.2}, "the default is the first"
    best = present(pick_best(world.published))
    about = ev.about_trial(best.extra)
    assert f"trial {about['trial']}" in message
    winner = state.trials[about["trial"]]
    assert winner.state is TrialState.COMPLETE
    assert winner.rung == world.terms.last
    assert best.val_bpb is not None
    assert best.val_bpb < bowl({"lr": 0.2}, 120)
    # What was published has the trial's bytes, and the journal until then.
    folder = world.folder / contract.CHECKPOINTS_DIR / step_dir_name(best.step)
    for file in best.files:
        assert hashlib.sha256((folder / file.name).read_bytes()).hexdigest() == file.sha256
    told_there = ev.unpack_journal(best.extra)
    assert [ev.read_event(line) for line in told_there] == list(world.events[: len(told_there)])
    assert len(told_there) > 3
    lines = (world.folder / contract.METRICS_NAME).read_text().splitlines()
    told = [line for line in map(json.loads, lines) if line["kind"] == "sweep"]
    assert [line["n"] for line in told] == list(range(len(world.events)))


def test_trials_run_on_slots_and_no_more(tmp_path: Path) -> None:
    world = World(tmp_path / "train", terms_of("5", slots=4), Habit(bowl))
    assert world.run()[0] == "finished"
    world.check()
    assert world.children.most_at_once == 4
    assert {start.slot for start in world.children.starts} == {0, 1, 2, 3}


@pytest.mark.parametrize("after", [0.3, 7.0, 31.0, 63.7, 120.0])
def test_an_executor_that_is_killed_is_followed_by_one_that_continues(
    tmp_path: Path, after: float
) -> None:
    world = World(tmp_path / "train", terms_of("4"), Habit(bowl))
    with pytest.raises(Killed):
        world.run(kill_after=after)
    before = world.state
    outcome, _ = world.run()
    world.check()
    assert outcome == "finished"
    for number, trial in before.trials.items():
        assert world.state.trials[number].point == trial.point
    lost = [event for event in world.events if isinstance(event, ev.TrialLost)]
    assert len(lost) == len(before.running), "each that ran is charged its interval, once"
    for event in lost:
        assert event.usd <= before.trials[event.trial].most_usd


def test_a_lost_machine_costs_the_interval_that_ran(tmp_path: Path) -> None:
    world = World(tmp_path / "one", terms_of("4"), Habit(bowl))
    with pytest.raises(Killed):
        world.run(kill_after=100.0)
    before = world.state
    assert [t for t in before.trials.values() if t.rung >= 0]
    world.lose_machine(tmp_path / "two")
    outcome, _ = world.run()
    assert outcome == "finished"
    world.check()
    state = world.state
    kept = {number for number, t in before.trials.items() if t.rung >= 0 and not t.is_running}
    gone = {n for n in kept if state.trials[n].state is TrialState.DROPPED}
    assert kept - gone, "what came home is continued from"
    published = json.loads((tmp_path / "two" / "sweep.jsonl").read_text().splitlines()[0])
    assert published["event"] in ("SlotsIdle", "TrialStarted")


def test_a_trial_whose_machine_is_lost_pays_its_interval_and_is_run_again(tmp_path: Path) -> None:
    """Its executor lives: the trial alone ran elsewhere."""
    habit = Habit(bowl, lost=lambda trial, attempt: trial == 2 and attempt == 1)
    world = World(tmp_path / "train", terms_of("3", slots=2), habit)
    assert world.run()[0] == "finished"
    world.check()
    lost = [event for event in world.events if isinstance(event, ev.TrialLost)]
    assert [event.trial for event in lost] == [2]
    assert Usd("0.02") <= lost[0].usd <= Usd("0.03")  # its two seconds
    assert world.state.trials[2].results, "it was run again"
    assert world.state.trials[2].spent > lost[0].usd


def test_a_stop_lands_what_runs_and_keeps_the_best(tmp_path: Path) -> None:
    world = World(tmp_path / "train", terms_of("3"), Habit(bowl))
    outcome, message = world.run(stop_after=40.0)
    assert outcome == "landed_signal"
    assert "it was asked to stop" in message
    world.check()
    assert any(isinstance(event, ev.TrialLanded) for event in world.events)
    assert world.clock.at < BEGAN_AT + 45.0
    assert world.run()[0] == "finished", "it continues where it was stopped"
    world.check()


def test_the_soft_stop_lands_it(tmp_path: Path) -> None:
    world = World(tmp_path / "train", terms_of("3"), Habit(bowl))
    world.deadline_at = BEGAN_AT + 110.0
    outcome, _ = world.run()
    assert outcome in ("landed_deadline", "finished")
    assert world.clock.at <= BEGAN_AT + 112.0
    assert pick_best(world.published) is not None


def test_a_lease_with_less_than_one_rung_starts_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "train", terms_of("3"), Habit(bowl))
    world.deadline_at = BEGAN_AT + 5.0
    outcome, message = world.run()
    assert (outcome, message) == ("bad_config", "less is left than one rung costs (0 trials)")
    assert not world.children.starts


def test_a_setting_that_crashes_every_trial_is_one_line(tmp_path: Path) -> None:
    world = World(tmp_path / "train", terms_of("3"), Habit(bowl, crashes=lambda trial: True))
    outcome, message = world.run()
    assert outcome == "bad_config", "an agent does not start it again"
    assert message.startswith("every trial crashed (")
    assert "RuntimeError: no" in message
    assert "\n" not in message
    assert world.clock.at < BEGAN_AT + 20.0
    world.check()


def test_one_that_runs_out_of_memory_is_told_so_and_is_not_continued(tmp_path: Path) -> None:
    message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    habit = Habit(bowl, crashes=lambda trial: trial == 2, crash=("out_of_memory", message))
    world = World(tmp_path / "train", terms_of("3"), habit)
    assert world.run()[0] == "finished"
    failed = world.state.trials[2]
    assert failed.state is TrialState.FAILED
    assert failed.error.startswith("out_of_memory: torch.OutOfMemoryError: CUDA out of memory")
    assert [start.trial for start in world.children.starts].count(2) == 1
    world.check()


@pytest.mark.parametrize("kill_after", [math.inf, 30.0])
def test_what_needs_as_much_memory_as_one_that_died_of_it_is_not_begun(
    tmp_path: Path, kill_after: float
) -> None:
    """Also by the executor after it, which has the journal alone."""
    space = read_words(["lr=log:1e-4,1", "width=1,2,3,4"])
    default, _ = space.default({"lr": 0.2, "width": 1})
    table = memory_table(space, default, lambda point: int(dict(point)["width"]) / 5, 1.0)
    first = (FirstPoint((("lr", 0.01), ("width", 3)), "r-0", 1),)
    terms = replace(terms_of("4"), space=space, default=default)
    habit = Habit(bowl, crashes=lambda trial: trial == 2, crash=("out_of_memory", "no memory"))
    world = World(tmp_path / "train", terms, habit, Priors(first, memory=table))
    if math.isfinite(kill_after):
        with pytest.raises(Killed):
            world.run(kill_after=kill_after)
    assert world.run()[0] == "finished"
    widths = [dict(trial.point)["width"] for trial in world.state.trials.values()]
    assert widths[:2] == [1, 3]
    assert len(widths) > 4
    assert set(widths[2:]) == {1, 2}


@pytest.mark.parametrize("kill_after", [math.inf, 25.0])
def test_what_is_known_before_decides_the_first_points_and_those_never_started(
    tmp_path: Path, kill_after: float
) -> None:
    """Also after the executor was killed: what it knows travels with the terms."""
    space = read_words(["lr=log:1e-4,1", "width=1,2,3,4"])
    default, _ = space.default({"lr": 0.2, "width": 1})
    table = memory_table(space, default, lambda point: int(dict(point)["width"]) / 2, 1.0)
    earlier = EarlierSweep("r-0", (EarlierTrial((("lr", 0.01), ("width", 2)), 1, 0.5),))
    first = tuple(FirstPoint((("lr", 0.01), ("width", width)), "r-0", width) for width in (4, 2))
    terms = replace(terms_of("4"), space=space, default=default)
    priors = Priors(first, (earlier,), table)
    world = World(tmp_path / "train", terms, Habit(bowl), priors)
    if math.isfinite(kill_after):
        with pytest.raises(Killed):
            world.run(kill_after=kill_after)
    assert world.run()[0] == "finished"
    world.check()
    points = [dict(trial.point) for trial in world.state.trials.values()]
    assert points[:2] == [dict(default), {"lr": 0.01, "width": 2}]
    assert len(points) > 4
    assert {point["width"] for point in points} == {1, 2}


def test_a_trial_that_crashes_leaves_the_others(tmp_path: Path) -> None:
    world = World(tmp_path / "train", terms_of("3"), Habit(bowl, crashes=lambda t: t % 2 == 0))
    assert world.run()[0] == "finished"
    world.check()


def test_a_metric_that_never_appears_is_one_line(tmp_path: Path) -> None:
    world = World(tmp_path / "train", terms_of("3"), Habit(lambda values, steps: None))
    outcome, message = world.run()
    assert (outcome, message.partition(" (")[0]) == ("bad_config", "no trial gave the metric")


def test_a_command_that_saves_nothing_is_told_so(tmp_path: Path) -> None:
    world = World(tmp_path / "train", terms_of("3"), Habit(bowl, saves=False))
    outcome, message = world.run()
    assert outcome == "bad_config"
    assert "it left no checkpoint" in message


def test_a_trial_whose_numbers_are_not_finite_is_not_the_winner(tmp_path: Path) -> None:
    """It would be the best by what it had before."""
    habit = Habit(lambda values, steps: 0.1 if values["lr"] > 0.19 else 1.0, nan=lambda n: n == 1)
    world = World(tmp_path / "train", terms_of("3"), habit)
    assert world.run()[0] == "finished"
    first = world.state.trials[1]
    assert first.results
    assert first.results[0].problem == ev.NOT_A_NUMBER
    best = pick_best([m for m in world.published if ev.about_trial(m.extra)["trial"] != 1])
    assert best is not None
    assert world.state.best(Goal.MIN) is not first


def test_a_space_with_one_point_is_trained_to_its_end(tmp_path: Path) -> None:
    space = read_words(["lr=0.01"])
    point, _ = space.default({})
    terms = replace(terms_of("3"), space=space, default=point)
    world = World(tmp_path / "train", terms, Habit(bowl))
    outcome, message = world.run()
    assert outcome == "finished"
    assert "the space has one point" in message
    assert world.state.trials[1].state is TrialState.COMPLETE
    world.check()


def test_equal_trials_end_it_with_that_reason(tmp_path: Path) -> None:
    world = World(tmp_path / "train", terms_of("5"), Habit(lambda values, steps: 2.0))
    outcome, message = world.run()
    assert outcome == "finished"
    assert "all trials are equal" in message
    world.check()


def test_one_that_does_not_land_is_killed_at_its_dollars(tmp_path: Path) -> None:
    habit = Habit(bowl, deaf=lambda trial: trial == 1)
    settings = {"family": "command", "keep_best": 3}
    world = World(
        tmp_path / "train", terms_of("1.50"), habit, settings=settings, command=Command(("x",))
    )
    world.run()
    first = world.state.trials[1]
    assert first.state is TrialState.FAILED
    assert "beyond its dollars" in first.error
    assert first.spent <= world.terms.most_usd(-1, 0) + Usd("0.01")
    world.check()


def test_starts_that_are_slower_than_planned_are_given_more(tmp_path: Path) -> None:
    """The first is killed before its first step, and runs again with more for its start."""
    terms = terms_of("5", restart_s=2.0)
    slow_s = terms.seconds(terms.most_usd(-1, 0)) + 5.0
    world = World(tmp_path / "train", terms, Habit(bowl, start_s=slow_s))
    assert world.run()[0] == "finished"
    lost = [event for event in world.events if isinstance(event, ev.TrialLost)]
    assert [event.trial for event in lost] == [1]
    assert world.state.trials[1].state is not TrialState.FAILED
    world.check()


def test_landings_that_are_slower_than_planned_are_given_more(tmp_path: Path) -> None:
    world = World(tmp_path / "train", terms_of("5"), Habit(bowl, landing_s=3.0))
    assert world.run()[0] == "finished"
    lost = [event for event in world.events if isinstance(event, ev.TrialLost)]
    assert 0 < len(lost) <= 2
    assert world.state.trials[1].state is not TrialState.FAILED


def test_a_training_that_is_done_early_is_complete(tmp_path: Path) -> None:
    world = World(tmp_path / "train", terms_of("4"), Habit(bowl, whole=8))
    assert world.run()[0] == "finished"
    assert world.state.trials[1].state is TrialState.COMPLETE


def test_what_cannot_resume_begins_anew_and_is_charged_all_of_it(tmp_path: Path) -> None:
    world = World(tmp_path / "train", terms_of("3", can_resume=False), Habit(bowl))
    world.run()
    world.check()
    assert all(start.is_fresh for start in world.children.starts)
    later = [s for s in world.children.starts if s.attempt > 1]
    assert later, "a promoted trial is started again"


def test_a_cut_journal_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    world = World(tmp_path / "train", terms_of("4"), Habit(bowl))
    with pytest.raises(Killed):
        world.run(kill_after=60.0)
    path = world.folder / JOURNAL_NAME
    path.write_text(path.read_text() + '{"event":"RungRea')
    assert world.run()[0] == "finished"
    world.check()


def test_placeholders_become_the_values_of_the_point() -> None:
    command = Command(("train.py", "--lr={lr}", "{width}", "{other}"), resume=("x", "{lr}"))
    made = filled(command, {"lr": 0.0003, "width": 64})
    assert made.words == ("train.py", "--lr=0.0003", "64", "{other}")
    assert made.resume == ("x", "0.0003")


def test_a_slot_has_its_share_of_the_gpus() -> None:
    start = TrialStart(1, {}, 1, 1, 0.0, True)
    assert slot_gpus("0,1,2,3,4,5,6,7", 8, 4, start) == "2,3"
    assert slot_gpus("4,5", 2, 2, start) == "5"
    assert slot_gpus("0,1", 2, 1, start) == "", "one trial has them all"


def test_the_terms_travel_as_json() -> None:
    job = SweepJob(replace(terms_of("3"), slots=3))
    assert load_job(dump_job(job)) == job
    with pytest.raises(ValueError, match="cannot be read"):
        load_job("{}")
    with pytest.raises(ValueError, match="version 2"):
        load_job(dump_job(replace(job, version=2)))


def test_a_trial_has_not_the_limits_of_its_sweep(tmp_path: Path) -> None:
    settings = small_recipe().to_json()
    job = PhaseJob("r-1", "train", settings, "", str(tmp_path / "runs" / "r-1" / "train"), 1)
    told = {"TRMCLOUD_LANDING_S": "6.0", "TRMCLOUD_PATIENCE": "2", "TRMCLOUD_DEADLINE_AT": "9.0"}
    trials = TrialProcesses(job, 1, {**told, "PATH": "/bin"}, cores=1)
    made = trials.prepare(TrialStart(1, {}, 0, 1, 5.0, is_fresh=True)).environment
    assert made["TRMCLOUD_DEADLINE_AT"] == "5.0"
    assert not {"TRMCLOUD_LANDING_S", "TRMCLOUD_PATIENCE"} & set(made)


def test_one_that_was_planned_on_several_machines_starts_no_trial(tmp_path: Path) -> None:
    """An earlier version had reserved for it, and this one has rented the machines."""
    code, out = tmp_path / "code", tmp_path / "runs" / "r-1" / "train"
    code.mkdir()
    out.mkdir(parents=True)
    (code / SWEEP_NAME).write_text(dump_job(SweepJob(terms_of("3", slots=2))))
    job = PhaseJob("r-1", "train", small_recipe().to_json(), "", str(out), 1, code_dir=str(code))
    (out / contract.JOB_NAME).write_text(contract.dump(job))
    environment = {**os.environ, "TRMCLOUD_JOB": str(out / contract.JOB_NAME), "NNODES": "2"}
    words = (sys.executable, "-m", "trmcloud.pod.sweep.executor")
    subprocess.run(words, env=environment, check=True, timeout=60)
    beat = load_heartbeat((out / contract.HEARTBEAT_NAME).read_text())
    assert beat.outcome == "bad_config"
    assert beat.message == "a sweep runs on one machine: launch it for one"
    assert not (out / JOURNAL_NAME).exists()
