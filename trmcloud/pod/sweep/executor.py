"""A sweep's process on its machine: it starts trials on slots, and asks the core what is next.

To the agent it is a trainer like any other: a job in, a heartbeat, metrics and checkpoints out, and
SIGTERM asks it to land. Each event is in the journal before what it says is done, so that an
executor that is killed at any moment, here or with its machine, is followed by one that continues.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.command import OFFSPRING_NAME, Command
from trmcloud.core.contract.manifest import (
    CheckpointManifest,
    pick_best,
    pick_latest,
    step_dir_name,
)
from trmcloud.core.contract.recovery import OUT_OF_MEMORY
from trmcloud.core.contract.trainer_contract import (
    CLEAN,
    DONE,
    ENV_ATTEMPT,
    ENV_DEADLINE_AT,
    ENV_JOB,
    Heartbeat,
    PhaseJob,
)
from trmcloud.core.contract.trainer_contract import load_job as load_phase_job
from trmcloud.core.errors import ProviderError, TrmcloudError
from trmcloud.core.money import Usd, cost
from trmcloud.core.sweep import events as ev
from trmcloud.core.sweep.halving import Begin, Continue, End, Reason, next_moves
from trmcloud.core.sweep.job import SWEEP_NAME, SweepJob, load_job, ray_address
from trmcloud.core.sweep.priors import NO_PRIORS, Priors
from trmcloud.core.sweep.samplers import SCALED, PointsFirst, Sampler, ScalingRule, make_sampler
from trmcloud.core.sweep.space import format_point
from trmcloud.core.sweep.state import SweepState, Trial, TrialState, apply, fold, lost_events
from trmcloud.core.sweep.terms import Goal, SweepTerms
from trmcloud.core.text import one_line
from trmcloud.core.values import Value, replace
from trmcloud.io.files import read_small, write_atomic
from trmcloud.pod.job.process import kill_all, offspring
from trmcloud.pod.machine import processes
from trmcloud.pod.sweep.children import (
    Child,
    Children,
    MachineLost,
    TrialProcesses,
    TrialStart,
    format_word,
    trial_name,
)
from trmcloud.pod.sweep.optuna_sampler import NAME as OPTUNA
from trmcloud.pod.sweep.optuna_sampler import open_optuna
from trmcloud.pod.sweep.publishing import PublishedCheckpoints, SweepReporter
from trmcloud.pod.sweep.ray_tune import RayTrials

JOURNAL_NAME = "sweep.jsonl"
INTERVAL_NAME = "interval.json"
"""In a trial's folder: when its running interval began."""
_TICK_S, _MOST_TICK_S = 0.2, 1.0
_TICK_SHARE = 0.01
"""Of the time that trials have run, so much passes between two looks at them: it is what an end
that is seen late can cost, and looking takes processor time."""
_IDLE_EVERY_S = 30.0
_KILL_WITHIN_S = 10.0
_MOST_JOURNAL_BYTES = 16 << 20
_TRAINS = frozenset({"training", "evaluating", "saving", "landing", "ended"})
_START_SHARE = 0.5
"""Of what is reserved for a start, the part that it is expected to take before any was measured."""
_ROOM_FOR = 6
"""Checkpoints that the disk has room for, at least, where nothing is dropped."""
_SLOWER = 2.0
"""A start that did not come to its first step is given so many times its seconds."""
_KEPT = frozenset({TrialState.PAUSED, TrialState.LANDED, TrialState.COMPLETE})
_NO_FINITE = frozenset({"non_finite", "diverged"})
_NO_RESULT: Mapping[Reason, str] = {
    Reason.CRASHES: "every trial crashed",
    Reason.NO_METRIC: "no trial gave the metric",
    Reason.NOT_A_NUMBER: "the metric of every trial is not a number",
    Reason.TOO_SMALL: "less is left than one rung costs",
}
_ENDS: Mapping[Reason, str] = {
    Reason.BUDGET: "its dollars are spent",
    Reason.SPACE: "all points were tried",
    Reason.ONE_POINT: "the space has one point",
    Reason.TOO_SMALL: "less is left than one rung costs",
    Reason.EQUAL: "all trials are equal",
    Reason.STOPPED: "it was asked to stop",
}


class SweepClock(Protocol):
    """``now`` is epoch seconds, ``steady`` seconds of a clock that cannot be set."""

    def now(self) -> float: ...

    def steady(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def steady(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class _Running(Value):
    """A trial's process and its limits, in steady seconds."""

    child: Child
    slot: int
    began: float
    kill_at: float
    attempt: int
    step_before: int


class SweepExecutor:
    """One attempt at a sweep. ``attempt`` is the agent's count, ``deadline_at`` the soft stop."""

    def __init__(
        self,
        job: PhaseJob,
        sweep: SweepJob,
        children: Children,
        clock: SweepClock,
        *,
        attempt: int = 1,
        deadline_at: float = math.inf,
    ) -> None:
        self._job, self._children, self._clock = job, children, clock
        self._folder = Path(job.out_dir)
        self._deadline_at = deadline_at
        self._command: Command | None = None
        if job.settings.get("family") == "command":
            self._command = job.command
        self._published = PublishedCheckpoints(
            self._folder / contract.CHECKPOINTS_DIR, int(job.settings.get("keep_best") or 2)
        )
        self._lines: list[str] = []
        self._state = SweepState()
        self._running: dict[int, _Running] = {}
        self._asked = False
        self._idle_from = clock.steady()
        self._idle_s = 0.0
        self._terms = sweep.terms
        self._priors = sweep.priors
        self._earlier = sweep.priors.tried()
        self._sampler: Sampler | None = None
        self._tell = SweepReporter(self._folder, job, attempt, clock.now)
        self._noted: dict[int, str] = {}
        self._start_s: list[float] = []
        """Seconds that starts took, from the process to its first step."""
        self._trained: set[int] = set()
        """Trials whose running interval has come to a step."""

    # -- what the agent asks --------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """Land: start nothing more, let what runs save and evaluate."""
        self._asked = True

    def run(self) -> tuple[str, str]:
        """Until the sweep has ended; returns the outcome and a message."""
        self._tell.write(self._clock.now(), force=True)
        try:
            self._sampler = self._make_sampler()
        except TrmcloudError as error:
            return "bad_config", one_line(f"{error}; {error.next_step}")
        self._take_up()
        self._learn_memory()
        self._tell.enter("training", self._clock.now())
        while True:
            self._look()
            if self._asked or self._clock.now() >= self._deadline_at:
                self._land()
            ended = self._start_trials()
            if ended is not None:
                return self._outcome(ended)
            self._tell.write(self._clock.now())
            self._note_offspring()
            self._clock.sleep(self._pause_s())

    def _make_sampler(self) -> Sampler:
        optimizer = str(self._job.settings.get("optimizer") or "")
        return sampler_of(self._terms, optimizer, self._priors)

    def _learn_memory(self) -> None:
        """Have the sampler pass over what needs as much memory as a trial that died of it."""
        died = [
            trial.point
            for trial in self._state.trials.values()
            if trial.state is TrialState.FAILED and trial.error.startswith(OUT_OF_MEMORY)
        ]
        if died and self._priors.memory is not None:
            memory = self._priors.memory.after(died)
            self._priors = replace(self._priors, memory=memory)
            self._sampler = self._make_sampler()

    def _pause_s(self) -> float:
        """Return the seconds until the next look, short where a limit is near."""
        steady = self._clock.steady()
        pauses = [
            min(_TICK_SHARE * (steady - running.began), (running.kill_at - steady) / 2)
            for running in self._running.values()
        ]
        pauses.append((self._deadline_at - self._clock.now()) / 2)
        return max(_TICK_S, min(_MOST_TICK_S, *pauses)) if self._running else _TICK_S

    def kill_trials(self) -> None:
        for running in self._running.values():
            running.child.kill()

    # -- the journal ----------------------------------------------------------------------------

    def _take_up(self) -> None:
        """Read the journal of the executor before, put checkpoints back, account for trials that
        ran when it was ended."""
        self._published.prune()
        events = self._kept_events()
        self._lines = [ev.write_event(event) for event in events]
        self._state = fold(events)
        text = "".join(f"{line}\n" for line in self._lines)
        write_atomic(self._folder / JOURNAL_NAME, text)
        self._tell.begin(self._lines)
        kept = {number: self._kept_rung(trial) for number, trial in self._state.trials.items()}
        for lost in lost_events(self._state, *self._spent_before_the_loss()):
            self._append(replace(lost, kept_rung=min(lost.kept_rung, kept[lost.trial])))
        for number, trial in tuple(self._state.trials.items()):
            is_kept = trial.state in _KEPT
            if is_kept and kept[number] < trial.rung:
                self._append(ev.TrialDropped(number))
        self._fit_terms()
        self._tell_best()

    def _kept_events(self) -> list[ev.SweepEvent]:
        own: tuple[ev.SweepEvent, ...] = ()
        with contextlib.suppress(ValueError):
            text = read_small(self._folder / JOURNAL_NAME, _MOST_JOURNAL_BYTES) or ""
            own = ev.read_journal(text)
        published: tuple[ev.SweepEvent, ...] = ()
        with contextlib.suppress(ValueError):
            published = tuple(ev.read_event(line) for line in self._published.journal())
        longer = own if len(own) >= len(published) else published
        # A sweep that had ended, or was stopped, was given more time.
        return [each for each in longer if not isinstance(each, ev.Ended | ev.StopAsked)]

    def _kept_rung(self, trial: Trial) -> int:
        """Return the rung of the newest checkpoint that there still is of a trial; put it back from
        those that are published where its folder has none."""
        if self._children.manifests(trial.number):
            return trial.rung
        into = self._children.folder(trial.number) / contract.CHECKPOINTS_DIR
        rung = self._published.put_back(trial.number, into)
        return -1 if rung is None else min(rung, trial.rung)

    def _spent_before_the_loss(self) -> tuple[dict[int, Usd], dict[int, float]]:
        """By trial, what a running interval had cost, as far as its last heartbeat tells."""
        amounts, seconds = {}, {}
        for trial in self._state.running:
            beat = self._children.beat(trial.number)
            began_at = _began_at(self._children.folder(trial.number))
            if began_at is not None:
                lasted_s = max(0.0, (beat.at if beat is not None else began_at) - began_at)
                seconds[trial.number] = lasted_s
                amounts[trial.number] = cost(self._terms.slot_rate, lasted_s)
        return amounts, seconds

    def _fit_terms(self) -> None:
        """Hold the budget to what the lease's time buys from now on: a machine that booted slowly
        leaves less, a run that was given more dollars leaves more."""
        left_s = self._deadline_at - self._clock.now()
        if math.isfinite(left_s):
            rate = self._terms.slot_rate.micros * self._terms.slots
            left = Usd.from_micros(max(0, int(rate * left_s / 3600)))
            self._terms = replace(self._terms, usd=self._state.committed + left)

    def _append(self, event: ev.SweepEvent) -> None:
        """Write an event, durably, before it is acted on."""
        self._state = apply(self._state, event)
        line = ev.write_event(event)
        with open(self._folder / JOURNAL_NAME, "a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._lines.append(line)
        self._tell.event(len(self._lines) - 1, line)
        self._tell.count(len(self._state.trials), len(self._state.running))

    # -- trials that run --------------------------------------------------------------------------

    def _look(self) -> None:
        """At what runs: what has ended is accounted for, what exceeds its dollars is killed."""
        steady = self._clock.steady()
        self._count_idle(steady)
        for number, running in tuple(self._running.items()):
            beat = self._children.beat(number)
            if beat is not None and beat.attempt == running.attempt:
                self._note(number, beat)
                is_at_work = self._command is not None and beat.state in _TRAINS
                begun = is_at_work or beat.step > running.step_before
                if number not in self._trained and begun:
                    self._trained.add(number)
                    self._start_s.append(steady - running.began)
            try:
                self._look_at(number, running, steady)
            except MachineLost as error:
                self._lose_interval(number, running, steady, str(error))

    def _look_at(self, number: int, running: _Running, steady: float) -> None:
        code, is_late = running.child.poll(), steady >= running.kill_at
        if code is None and is_late:
            running.child.kill()
            code = running.child.poll()
            self._close(number, running, steady, code, was_killed=True)
        elif code is not None:
            # On a cluster it may have been killed there, by the same limit.
            self._close(
                number, running, steady, code, was_killed=is_late and code == -signal.SIGKILL
            )

    def _lose_interval(self, number: int, running: _Running, steady: float, why: str) -> None:
        """Account for an interval that is gone with its machine; what it began from is here."""
        del self._running[number]
        self._trained.discard(number)
        running.child.kill()
        seconds = round(max(0.0, steady - running.began), 3)
        usd = cost(self._terms.slot_rate, seconds)
        self._tell.say(f"{trial_name(number)} is lost with its machine: {why}")
        self._append(ev.TrialLost(number, usd, seconds, self._state.trials[number].rung))

    def _note(self, number: int, beat: Heartbeat) -> None:
        seen = f"{beat.state}/{beat.step}/{beat.signs}/{beat.at if beat.state == 'waiting' else ''}"
        if self._noted.get(number) != seen:
            self._noted[number] = seen
            self._tell.sign()
        self._tell.stepped(number, beat.step)

    def _count_idle(self, steady: float) -> None:
        free = self._terms.slots - len(self._running)
        self._idle_s += max(0.0, steady - self._idle_from) * free
        self._idle_from = steady

    def _flush_idle(self) -> None:
        self._count_idle(self._clock.steady())
        amount = cost(self._terms.slot_rate, self._idle_s)
        if amount:
            self._append(ev.SlotsIdle(amount, round(self._idle_s, 3)))
        self._idle_s = 0.0

    def _close(
        self,
        number: int,
        running: _Running,
        steady: float,
        code: int | None,
        *,
        was_killed: bool = False,
    ) -> None:
        """Account for an interval that has ended."""
        del self._running[number]
        running.child.kill()  # what it has left behind
        has_trained = number in self._trained
        self._trained.discard(number)
        seconds = round(max(0.0, steady - running.began), 3)
        usd = cost(self._terms.slot_rate, seconds)
        beat = self._children.beat(number)
        if beat is not None and beat.attempt != running.attempt:
            beat = None
        outcome = beat.outcome if beat is not None else None
        has_trained |= beat is not None and beat.step > running.step_before
        made = self._children.manifests(number)
        trial = self._state.trials[number]
        latest, best = pick_latest(made), pick_best(made)
        gained = latest is not None and (latest.step > running.step_before or trial.rung >= 0)
        came_to_nothing = outcome in CLEAN - DONE and not has_trained
        came_to_nothing = came_to_nothing and not self._state.stopping
        is_own = self._command is None  # its landing is only as slow as the machine
        if came_to_nothing or (was_killed and (is_own or not has_trained)):
            self._lose_slow(number, usd, seconds, has_trained=has_trained)
            return
        landed = outcome in CLEAN or (was_killed and best is not None and gained)
        early = self._state.stopping and outcome not in DONE and steady < running.kill_at
        if early and landed:
            metric = self._shown((best or latest).val_bpb) if latest is not None else None
            finite = metric if metric is not None and math.isfinite(metric) else None
            step = latest.step if latest is not None else 0
            self._append(ev.TrialLanded(number, finite, usd, seconds, step))
            self._publish(self._state.trials[number], made, usd)
            return
        if outcome in _NO_FINITE and latest is not None:
            self._append(ev.rung_reached(number, trial.target, math.nan, usd, seconds, latest.step))
            return
        if not landed or latest is None or not gained:
            error = self._error(number, code, beat, was_killed, has_checkpoint=latest is not None)
            self._append(ev.TrialFailed(number, usd, seconds, error))
            self._learn_memory()
            return
        judged = best or latest
        metric = self._shown(judged.val_bpb)
        self._append(
            ev.rung_reached(
                number, trial.target, metric, usd, seconds, latest.step, complete=outcome in DONE
            )
        )
        if beat is not None and beat.step > running.step_before and beat.step:
            per_step = float(usd) / (beat.step - running.step_before)
            self._append(ev.PaceMeasured(number, per_step, beat.step))
        self._tell.judged(judged.val_bpb, number)
        self._tell.cpu()
        self._make_room(latest.size_bytes)
        self._publish(self._state.trials[number], made, usd)

    def _lose_slow(self, number: int, usd: Usd, seconds: float, *, has_trained: bool) -> None:
        """Account for an interval whose start, or whose landing, took more than all its dollars:
        the machine is slower than planned, and later intervals are given more for that."""
        trial, terms = self._state.trials[number], self._terms
        if has_trained:
            more = max(terms.overrun_usd * 2, cost(terms.slot_rate, seconds / 2))
            self._terms = replace(terms, overrun_usd=more)
            self._tell.say(f"trial {number}: not landed in {seconds:.0f} s; landings get more")
        else:
            self._start_s.append(seconds)
            more = max(terms.restart_usd, cost(terms.slot_rate, _SLOWER * seconds))
            self._terms = replace(terms, restart_usd=more)
            self._tell.say(f"trial {number}: no step in {seconds:.0f} s; starts get more")
        self._append(ev.TrialLost(number, usd, seconds, trial.rung))

    def _make_room(self, size_bytes: int) -> None:
        """Where the disk runs low, drop checkpoints of the trials that are least likely to be
        continued: those that failed, then the worst of those that wait."""
        sign = 1.0 if self._terms.goal is Goal.MIN else -1.0
        spare = [t for t in self._state.trials.values() if t.state is TrialState.FAILED]
        waiting = [t for t in self._state.trials.values() if t.state is TrialState.PAUSED]
        known = [t for t in waiting if t.metric is not None]
        spare += [t for t in waiting if t.metric is None]
        spare += sorted(known, key=lambda t: -sign * (t.metric or 0.0))[:-1]
        for trial in spare:
            if shutil.disk_usage(self._folder).free >= _ROOM_FOR * size_bytes:
                return
            folder = self._children.folder(trial.number) / contract.CHECKPOINTS_DIR
            if not folder.is_dir():
                continue
            shutil.rmtree(folder, ignore_errors=True)
            self._tell.say(f"the disk runs low: trial {trial.number} cannot be continued")
            if trial.state is TrialState.PAUSED:
                self._append(ev.TrialDropped(trial.number))

    def _error(
        self,
        number: int,
        code: int | None,
        beat: Heartbeat | None,
        was_killed: bool,
        *,
        has_checkpoint: bool,
    ) -> str:
        if was_killed:
            return "it ran beyond its dollars, and was killed"
        if beat is not None and beat.outcome not in CLEAN and beat.message:
            return one_line(f"{beat.outcome}: {beat.message}")[:300]
        if beat is not None and beat.outcome in CLEAN and not has_checkpoint:
            return one_line(beat.message or "it left no checkpoint")[:300]
        if beat is not None and beat.outcome in CLEAN:
            return "it saved nothing new"
        how = f"it ended with code {code}"
        if code is not None and code < 0:
            how = f"it was ended by signal {-code}"
        said = last_line(self._children.folder(number) / contract.TRAIN_LOG_NAME)
        return one_line(f"{how}: {said}" if said else how)[:300]

    def _shown(self, score: float | None) -> float | None:
        return score if self._command is None else self._command.shown(score)

    def _publish(self, trial: Trial, made: Sequence[CheckpointManifest], usd: Usd) -> None:
        """Make a trial's best and latest checkpoints the run's own."""
        latest, best = pick_latest(made), pick_best(made)
        about = {
            "trial": trial.number,
            "rung": trial.rung,
            "point": dict(trial.point),
            "seed": trial.seed,
            "usd": trial.spent.plain(),
        }
        wanted = [m for m in (best, latest) if m is not None]
        for manifest in dict.fromkeys(m.step for m in wanted):
            each = next(m for m in wanted if m.step == manifest)
            folder = self._children.folder(trial.number) / contract.CHECKPOINTS_DIR
            try:
                published = self._published.publish(
                    folder / step_dir_name(each.step), each, about, self._lines, self._clock.now()
                )
            except OSError as error:
                self._tell.say(f"trial {trial.number}: not published: {error}")
                continue
            self._tell.saved(published)
        self._tell_best()

    def _tell_best(self) -> None:
        best = pick_best(self._published.manifests())
        if best is not None:
            self._tell.best(best)

    # -- what is next ----------------------------------------------------------------------------

    def _land(self) -> None:
        if not self._state.stopping:
            why = "signal" if self._asked else "deadline"
            self._append(ev.StopAsked(why))
            self._tell.enter("landing", self._clock.now())
            for running in self._running.values():
                running.child.land()

    def _start_trials(self) -> End | None:
        free = self._terms.slots - len(self._running)
        if not free or (self._state.stopping and self._running):
            return None
        self._count_idle(self._clock.steady())
        if self._idle_s >= _IDLE_EVERY_S or not self._running:
            self._flush_idle()
        assert self._sampler is not None
        moves = next_moves(
            self._state,
            self._terms,
            free,
            self._sampler,
            seconds_left=max(0.0, self._deadline_at - self._clock.now()),
            earlier=self._earlier,
        )
        for move in moves:
            if isinstance(move, End):
                self._append(move.event)
                return move
            self._flush_idle()
            self._begin(move)
        return None

    def _begin(self, move: Begin | Continue) -> None:
        known = self._state.trials.get(move.trial)
        self._append(move.event)
        trial = self._state.trials[move.trial]
        made = pick_latest(self._children.manifests(trial.number))
        is_new = known is None or made is None or not self._terms.can_resume
        taken = {running.slot for running in self._running.values()}
        slot = min(set(range(self._terms.slots)) - taken)
        attempt = 1 + sum(_starts(line, trial.number) for line in self._lines[:-1])
        values: dict[str, Any] = dict(trial.point)
        own = self._job.settings.get("seed")  # repetitions have others than the recipe's
        values.setdefault("seed", trial.seed + (own if isinstance(own, int) else 0))
        steady, now = self._clock.steady(), self._clock.now()
        # It must land before it is killed, however long starts have taken.
        until_s = self._terms.seconds(move.most_usd - self._terms.overrun_usd)
        until_s = min(until_s, self._terms.seconds(move.train_usd) + self._expected_start_s())
        start = TrialStart(
            trial=trial.number,
            values=values,
            slot=slot,
            attempt=attempt,
            deadline_at=min(now + until_s, self._deadline_at),
            is_fresh=is_new,
            most_s=self._terms.seconds(move.most_usd),
        )
        self._tell.say(
            f"{trial_name(trial.number)} to rung {trial.target}: {format_point(trial.point)}"
        )
        self._count_idle(steady)
        try:
            child = self._children.start(start)
        except OSError as error:
            self._append(ev.TrialFailed(trial.number, Usd(0), 0.0, one_line(str(error))[:300]))
            return
        self._running[trial.number] = _Running(
            child=child,
            slot=slot,
            began=steady,
            kill_at=steady + start.most_s,
            attempt=attempt,
            step_before=0 if made is None or is_new else made.step,
        )
        record = json.dumps({"began_at": now})
        with contextlib.suppress(OSError):
            path = self._children.folder(trial.number) / INTERVAL_NAME
            write_atomic(path, record, durable=False)

    def _expected_start_s(self) -> float:
        """Seconds from a process's start to its first step: the median of those measured."""
        if self._start_s:
            return statistics.median(self._start_s)
        return _START_SHARE * self._terms.seconds(self._terms.restart_usd)

    def _note_offspring(self) -> None:
        if self._command is None:
            return
        found = offspring(os.getpid())
        with contextlib.suppress(OSError):
            path = self._folder / OFFSPRING_NAME
            write_atomic(path, json.dumps(sorted(found.items())), durable=False)

    def _outcome(self, end: End) -> tuple[str, str]:
        (self._folder / OFFSPRING_NAME).unlink(missing_ok=True)
        best = pick_best(self._published.manifests())
        trials = self._state.trials
        count = f"{len(trials)} trial{'s' if len(trials) != 1 else ''}"
        if best is None:
            why = _NO_RESULT.get(end.reason, "no trial has a checkpoint with the metric")
            errors = [t.error for t in trials.values() if t.error]
            told = f"{why} ({count})" + (f": {errors[-1]}" if errors else "")
            if end.reason is Reason.STOPPED:
                return f"landed_{self._state.stopping}", told
            return "bad_config", told
        shown = self._shown(best.val_bpb)
        about = best.extra.get("sweep", {})
        point = " ".join(f"{k}={format_word(v)}" for k, v in about.get("point", {}).items())
        told = (
            f"{count}; best {self._terms.metric} {shown:.4g}, "
            f"trial {about.get('trial')} with {point}; {_ENDS.get(end.reason, end.reason.value)}"
        )
        if self._state.stopping:
            return f"landed_{self._state.stopping}", told
        return "finished", told

    @property
    def reporter(self) -> SweepReporter:
        return self._tell


def sampler_of(terms: SweepTerms, optimizer: str = "", priors: Priors = NO_PRIORS) -> PointsFirst:
    """Return the sampler that a sweep's terms name, behind the first points of its priors; points
    that do not fit the memory are never suggested. Where width or batch are searched beside a
    learning rate, rates follow them, unless the ``optimizer`` is one whose rates do not: Muon's
    update has the same size at every width."""
    if terms.sampler == OPTUNA:
        return PointsFirst(priors, open_optuna(terms, priors.fits))
    names = {each.name for each in terms.space.parameters}
    rule = None
    if optimizer in ("", "adamw"):
        rate, width, batch = (next(filter(names.__contains__, each), "") for each in SCALED)
        rule = ScalingRule(rate, width, batch)
    drawn = make_sampler(
        terms.sampler, terms.space, terms.default, terms.goal, terms.seed, rule=rule,
        fits=priors.fits,
    )  # fmt: skip
    return PointsFirst(priors, drawn)


def last_line(log: Path) -> str:
    """Return the last line of a log that has any text; empty without one."""
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, os.path.getsize(log) - 4096))
        lines = file.read().decode("utf-8", "replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""


def _began_at(folder: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return float(json.loads(read_small(folder / INTERVAL_NAME) or "")["began_at"])
    return None


def _starts(line: str, trial: int) -> bool:
    said = json.loads(line)
    return said["event"] in ("TrialStarted", "TrialContinued") and said["trial"] == trial


def main() -> None:
    environment = dict(os.environ)
    job = load_phase_job(read_small(Path(environment[ENV_JOB])) or "")
    sweep = load_job(read_small(Path(job.code_dir) / SWEEP_NAME) or "")
    processes.adopt_orphans()
    cores, attempt = len(os.sched_getaffinity(0)), int(environment.get(ENV_ATTEMPT, "1"))
    children: Children = TrialProcesses(job, sweep.terms.slots, environment, cores)
    place: RayTrials | None = None
    if (address := ray_address(sweep.on)) is not None:
        children = place = RayTrials(job, sweep.terms, environment, attempt, address)
    deadline = environment.get(ENV_DEADLINE_AT, "")
    executor = SweepExecutor(
        job,
        sweep,
        children,
        SystemClock(),
        attempt=attempt,
        deadline_at=float(deadline) if deadline else math.inf,
    )

    def on_term(signum: int, frame: FrameType | None) -> None:
        executor.ask_to_stop()

    signal.signal(signal.SIGTERM, on_term)
    if int(environment.get("NNODES") or "1") > 1:  # an earlier version had planned and reserved it
        executor.reporter.finish("bad_config", "a sweep runs on one machine: launch it for one")
        return
    outcome, message = "crashed", "the sweep's executor failed"
    executor.reporter.write(time.time(), force=True)
    try:
        with place or contextlib.nullcontext():
            signal.signal(signal.SIGTERM, on_term)  # Ray has set its own
            try:
                outcome, message = executor.run()
            finally:
                executor.kill_trials()
    except ProviderError as error:
        message = one_line(f"{error}; {error.next_step}")
    except TrmcloudError as error:
        outcome, message = "bad_config", one_line(f"{error}; {error.next_step}")
    finally:
        kill_all(os.getpid(), _KILL_WITHIN_S)
        executor.reporter.cpu()
        executor.reporter.finish(outcome, message)


if __name__ == "__main__":
    main()
