"""A trainer as arithmetic: where it stands at any instant, without an event for every step.

A command of the user's own is one, too: its habits, and the process of ours that watches over it,
which thinks with ``core.contract.command`` as on a real pod.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import StrEnum
from math import inf, nan
from typing import Any

from trmcloud.core.contract import gate
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.command_terms import Act, CommandStopper
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.values import Value, replace

_ROUNDING_S = 1e-3
"""Instants are floats of about 10⁹ s."""
_COOLS_FOR = 0.2
"""Of the steps before it, a cooldown that is asked for."""
_NEWEST = 12
"""Evaluations that its curve is drawn through, at most."""
_COOLS_AT = 0.6
"""The share of its steps after which a training cools down."""


class Shape(Value):
    """One phase as this machine really trains it; seconds of one step, evaluation, save."""

    phase: str
    steps: int
    step_s: float
    eval_every: int
    eval_s: float
    save_every: int
    save_s: float
    start_s: float
    compile_s: float
    gate_passes: bool = True
    turns_at: float = 0.6
    """The share of its steps from which on it may do harm."""

    def seconds_to(self, step: int) -> float:
        """Training time from step 0 until the end of ``step``, its evaluation and save included."""
        evals, saves = step // self.eval_every, step // self.save_every
        return step * self.step_s + evals * self.eval_s + saves * self.save_s

    def step_at(self, seconds: float) -> int:
        """The last step whose end lies within ``seconds``."""
        within, step_s, steps = seconds + _ROUNDING_S, self.step_s, self.steps
        eval_every, eval_s, save_every, save_s = (
            self.eval_every, self.eval_s, self.save_every, self.save_s,
        )  # fmt: skip
        low, high = 0, steps
        if within < steps * step_s:
            high = max(0, min(steps, int(within / step_s) + 2))
        while low < high:
            middle = (low + high + 1) // 2
            before = middle - 1
            # As ``seconds_to``, which is too slow to be called at each try.
            evals, saves = before // eval_every, before // save_every
            if before * step_s + evals * eval_s + saves * save_s + step_s <= within:
                low = middle
            else:
                high = before
        return low

    def cooldown_from(self, step: int) -> int | None:
        """Return the step at which the cooldown began that ``step`` was taken in; None: it had not.
        It begins at a step that is saved anyway: a save of its own would delay what follows, and no
        more."""
        first = int(self.steps * _COOLS_AT) // self.save_every * self.save_every
        return first if 0 < first < step else None

    def bpb_at(self, step: int) -> float:
        """Half of all trainings come to know their data too well: their best is not their last."""
        too_long = max(0.0, step / self.steps - self.turns_at) if self.steps % 2 else 0.0
        return 1.0 + 2.0 / (1.0 + step / 50.0) + too_long


class TrainerFault(Value):
    """Trouble of an attempt that begins once ``after_s`` seconds of it have passed.

    ``kind``: an outcome of the contract, ``lost`` (no last word), ``hang`` (alive, no progress),
    ``deaf`` (goes on, but does not land when told) or ``last_evaluation`` (out of memory in it,
    whenever that is).
    """

    kind: str
    after_s: float
    fault: str
    room: float = 1.0
    """It strikes again and again, until what the trainer asks for, by its overrides, is no more
    than this share of what it asked for with its own settings; 1: it strikes once."""


def asks_for(kind: str, own: PhaseRecipe, overrides: Mapping[str, Any]) -> float:
    """Return the share of its own settings' memory, or of their rate and reward, that a trainer
    needs."""
    if kind == "out_of_memory":
        kept = float(overrides.get("batch", own.batch)) / own.batch
        kept *= 0.4 if overrides.get("activation_checkpointing") else 1.0
        kept *= 0.9 if overrides.get("compile", own.compile) != own.compile else 1.0
        return kept * (0.95 if overrides.get("loader_workers") == 0 else 1.0)
    lower = "preset" in overrides
    return float(overrides.get("rate", 1.0)) * (0.7 if lower else 1.0)


class SimTrainer:
    """One attempt at one phase: everything it does follows from when it began and was told."""

    heeds_saves = True

    def __init__(
        self,
        shape: Shape,
        *,
        run_id: str,
        attempt: int,
        pid: int,
        at: float,
        deadline_s: float,
        from_step: int,
        ill: TrainerFault | None,
        overrides: Mapping[str, Any] | None = None,
        tells_worth: bool = False,
    ) -> None:
        self.overrides = overrides or {}
        self.shape, self.run_id, self.attempt, self.pid = shape, run_id, attempt, pid
        self.started_at, self.from_step, self.ill = at, from_step, ill
        self.trains_at = at + shape.start_s + shape.compile_s
        self.deadline_at = at + max(0.0, deadline_s)
        self.killed_at: float | None = None
        self.told_at: float | None = None
        self.tells_worth = tells_worth
        self.finish_step: int | None = None
        """The step at which the requested cooldown ends."""
        self.requested: list[tuple[float, int]] = []
        """Saves that it was asked for: when each pause begins, and the step that is saved in it."""
        self.told_times = 0
        """The number of times that its future has changed."""
        self._curve: tuple[int, gate.Curve | None] = 0, None
        self._replan()

    def _replan(self) -> None:
        """It was told something: it will stand elsewhere from now on."""
        self._forget()
        self._plan()

    def _forget(self) -> None:
        """It is asked many times at one instant; what it said is kept until that may differ."""
        self.told_times += 1
        self._step: tuple[float, int] = nan, 0
        self._beat: tuple[float, Heartbeat | None] = nan, None

    def _plan(self) -> None:
        """When training turns into landing, and when the process ends by itself."""
        shape, ill = self.shape, self.ill
        base = self.trains_at - shape.seconds_to(self.from_step)
        paused_s = len(self.requested) * (shape.save_s + shape.eval_s)
        finish = base + paused_s + shape.seconds_to(shape.steps - 1) + shape.step_s
        lands = [(finish, "finished"), (self.deadline_at, "landed_deadline")]
        deaf = ill is not None and ill.kind == "deaf"
        if self.finish_step is not None:
            to_end_s = shape.seconds_to(self.finish_step - 1) + shape.step_s
            lands.insert(0, (base + paused_s + to_end_s, "stopped_paying"))
        if deaf:
            lands = lands[:1]
        elif self.told_at is not None:
            lands.append((self.told_at, "landed_signal"))
        turn, outcome = min(lands)
        turn = max(turn, self.started_at)
        self.base, self.turns_at, self.outcome, self.message = base, turn, outcome, ""
        # A step that is under way is brought to its end first; one that would end behind the
        # deadline is not begun.
        wait = shape.step_s if outcome == "landed_signal" and turn > self.trains_at else 0.0
        # It saves, and evaluates what it has saved.
        self.saved_at = turn + wait + shape.save_s
        self.ends_at: float | None = self.saved_at + shape.eval_s
        self.scored_at = self.ends_at
        self.saves_last = turn >= self.trains_at
        if turn < self.trains_at:
            self.ends_at = turn + 1.0
        self.frozen_at: float | None = None
        if ill is None or deaf:
            return
        if ill.kind == "last_evaluation":
            if self.saves_last:
                self.ends_at, self.outcome = self.saved_at + shape.eval_s / 2, "out_of_memory"
                self.message = "out of memory in the last evaluation"
            return
        strikes = self.started_at + ill.after_s
        if strikes >= self.ends_at:
            return
        self.saves_last = self.saves_last and strikes >= self.saved_at
        if ill.kind == "hang":
            self.frozen_at, self.ends_at = strikes, None
        else:
            self.ends_at, self.outcome = strikes, ill.kind
            self.message = f"{ill.kind} struck"

    @property
    def struck(self) -> bool:
        """Whether the illness, if any, shaped this attempt."""
        ill = self.ill
        if ill is None:
            return False
        if ill.kind == "deaf":
            return self.told_at is not None or self.killed_at is not None
        if ill.kind == "last_evaluation":
            return self.outcome == "out_of_memory"
        return self.frozen_at is not None or self.outcome == ill.kind

    def ask(self, at: float) -> float | None:
        """SIGUSR1: save after this step and go on, or, told while it is at a save, after the step
        that follows. When it will be saved; None where it lands before, or does not heed it."""
        shape, done_s = self.shape, self._trained_s(at)
        step = max(self.from_step, shape.step_at(done_s)) + 1
        last = self.requested[-1][0] if self.requested else -inf
        resumes_at = max(at, last + self._pause_s)
        pause_at = resumes_at + shape.seconds_to(step - 1) + shape.step_s - done_s
        told = last > at
        if at < self.trains_at or pause_at >= self.turns_at or not self.runs(at) or told:
            return None
        if self.frozen_at is not None and at >= self.frozen_at:
            return None
        self.requested.append((pause_at, step))
        self._replan()
        return pause_at + shape.save_s

    @property
    def _pause_s(self) -> float:
        return self.shape.save_s + self.shape.eval_s

    def _trained_s(self, at: float) -> float:
        """Of the phase's own time, what has passed at ``at``: pauses that were asked for left
        out."""
        pauses = (min(at - begins, self._pause_s) for begins, _ in self.requested if at > begins)
        return at - self.base - sum(pauses)

    def tell(self, at: float) -> None:
        """SIGTERM: land now. A trainer that hangs or is ending does not heed it."""
        if self.told_at is None and self.runs(at):
            self.told_at = at
            if self.frozen_at is None or at < self.frozen_at:
                self._replan()

    def move_deadline(self, at: float, left_s: float) -> None:
        """Its deadline is ``left_s`` from now on."""
        if self.told_at is None and self.runs(at) and at < self.turns_at:
            self.deadline_at = at + left_s
            if self.frozen_at is None or at < self.frozen_at:
                self._replan()

    def finish(self, at: float) -> None:
        """SIGUSR2: it no longer pays. It cools down after this step, unless it does already."""
        frozen = self.frozen_at is not None and at >= self.frozen_at
        if not self.runs(at) or at >= self.turns_at or frozen or self.curve(at) is None:
            return
        step = self.step(at) + 1
        end = step + max(1, round(_COOLS_FOR * step))
        if end < self.shape.steps:
            self.finish_step = end
            self._replan()

    def curve(self, at: float) -> gate.Curve | None:
        """As a trainer tells it: by its evaluations until now, and until it cools down."""
        shape, step = self.shape, self.step(at)
        cools = self.finish_step is not None or shape.cooldown_from(step + 1) is not None
        if not self.tells_worth or cools or at < self.trains_at:
            return None
        evaluations = step // shape.eval_every
        if evaluations != self._curve[0]:
            self._curve = evaluations, self.curve_after(evaluations)
        return self._curve[1]

    def curve_after(self, evaluations: int) -> gate.Curve | None:
        shape = self.shape
        first = max(1, evaluations - _NEWEST + 1)
        steps = [number * shape.eval_every for number in range(first, evaluations + 1)]
        points = [(step, shape.bpb_at(step)) for step in steps]
        fitted = gate.fit(points)
        if fitted is None:
            return None
        hourly = 3600.0 * shape.eval_every / shape.seconds_to(shape.eval_every)
        since = gate.since_best(points)
        return gate.Curve(steps[-1], fitted[0], fitted[1], hourly, since)

    def evaluated_at(self, number: int) -> float:
        """When the evaluation of that number is done, where no pause is asked for."""
        return self.base + self.shape.seconds_to(number * self.shape.eval_every)

    def kill(self, at: float) -> None:
        if self.killed_at is None and self.runs(at):
            self.killed_at = at
            self._forget()

    def runs(self, at: float) -> bool:
        if self.killed_at is not None and at >= self.killed_at:
            return False
        return self.ends_at is None or at < self.ends_at

    @property
    def silent_from(self) -> float:
        """From when on nothing is heard of it, though it runs; infinite: it is heard."""
        return self.frozen_at if self.frozen_at is not None else inf

    def _seen_until(self, at: float) -> float:
        for limit in (self.killed_at, self.frozen_at, self.ends_at):
            if limit is not None:
                at = min(at, limit)
        return at

    def step(self, at: float) -> int:
        if at != self._step[0]:
            step, seen = self.from_step, min(self._seen_until(at), self.turns_at)
            if seen > self.trains_at:
                step = max(step, min(self.shape.step_at(self._trained_s(seen)), self.shape.steps))
            self._step = at, step
        return self._step[1]

    def saved_step(self, at: float) -> int | None:
        """The newest step whose checkpoint is whole; None where this attempt saved none."""
        at = self._seen_until(at)
        if self._has_landed(at, self.saved_at):
            return self.step(at)
        step = self.step(at)
        whole = step // self.shape.save_every * self.shape.save_every
        if (
            whole
            and self.shape.seconds_to(whole) - self.shape.eval_s > self._trained_s(at) + _ROUNDING_S
        ):
            whole -= self.shape.save_every
        asked = [step for begins, step in self.requested if begins + self.shape.save_s <= at]
        newest = max([whole, *asked])
        return newest if newest > self.from_step else None

    def is_scored(self, step: int, at: float) -> bool:
        """Whether the checkpoint of ``step`` that it has saved is evaluated, too."""
        at = self._seen_until(at)
        if self._has_landed(at, self.saved_at) and step == self.step(at):
            return self._has_landed(at, self.scored_at)
        if step <= self.from_step:
            return False  # another attempt's: what it left undone is done by a landing alone
        for begins, asked in self.requested:
            if asked == step:
                return at >= begins + self._pause_s - _ROUNDING_S
        return self._trained_s(at) >= self.shape.seconds_to(step) - _ROUNDING_S

    def _has_landed(self, at: float, when: float) -> bool:
        return self.saves_last and at >= when - _ROUNDING_S

    def heartbeat(self, at: float) -> Heartbeat | None:
        """Return the contents of ``heartbeat.json`` at ``at``; None before the first."""
        if at != self._beat[0]:
            self._beat = at, self._beat_by(at)
        return self._beat[1]

    def _beat_by(self, at: float) -> Heartbeat | None:
        seen = self._seen_until(at)
        if seen < self.started_at + self.shape.start_s and self.runs(at):
            return None
        step = self.step(seen)
        done = self.ends_at is not None and at >= self.ends_at and self.killed_at is None
        outcome = self.outcome if done and self.outcome != "lost" else None
        if outcome is not None:
            state = "ended"
        elif seen < self.trains_at:
            state = "compiling"
        elif seen >= self.turns_at:
            state = "landing"
        else:
            state = "training"
        trained = max(0.0, min(seen, self.turns_at) - self.trains_at)
        return Heartbeat(
            run_id=self.run_id,
            phase=self.shape.phase,
            attempt=self.attempt,
            pid=self.pid,
            pid_started="1",
            at=seen,
            state=state,
            step=step,
            steps=self.shape.steps,
            outcome=outcome,
            message=self.message if outcome is not None else "",
            step_seconds=self.shape.step_s,
            landing_seconds=self.shape.eval_s + self.shape.save_s,
            val_bpb=self.shape.bpb_at(step) if step else None,
            saved_step=self.saved_step(seen),
            finite=outcome != "non_finite",
            saves=sum(begins + self.shape.save_s <= seen for begins, _ in self.requested),
            seconds={"training": trained},
            curve=self.curve(seen) if state == "training" else None,
        )

    def metrics(self, at: float) -> list[Mapping[str, Any]]:
        """Enough lines for the gate: two evaluations and a training step."""
        step = self.step(at)
        first, last = self.shape.bpb_at(0), self.shape.bpb_at(max(1, step))
        losses = [last, last * 0.8, last * 0.7]
        if not self.shape.gate_passes:
            losses.reverse()
        return [
            {"kind": "eval", "step": 0, "val_bpb": first, "val_step_losses": losses},
            {"kind": "train", "step": step, "grad_norm": 1.0},
            {"kind": "eval", "step": step, "val_bpb": last, "val_step_losses": losses},
        ]


_TICK_S = 0.2
_LEAVES_S = 0.1
_COLLECTED_S = 2.5
"""From the command's end to the word of its watcher: what it left is looked at and copied."""
_SLOWEST = 2.5
"""Of its grace, what one that is slow to save takes for it at most."""
_STRIKES = 4


class Habit(StrEnum):
    """A thing that a stranger's script does and should not; the first word of its command."""

    PLAIN = "plain"
    DEAF = "deaf"
    SLOW = "slow-to-save"
    FORKING = "forks-children"
    HALF = "half-a-file"
    FILLING = "fills-the-disk"
    ATTACKING = "kills-the-agent"


class SimCommand(SimTrainer):
    """One attempt: the watcher's process is what the agent knows as its trainer; beside it are the
    command's own, which may outlive it."""

    def __init__(
        self,
        command: Command,
        shape: Shape,
        *,
        run_id: str,
        attempt: int,
        ill: TrainerFault | None,
        **started: Any,
    ) -> None:
        """``started``: see ``SimTrainer``."""
        self.command, self.habit = command, Habit(command.words[0])
        self.swept_at: float | None = None
        """When somebody else than its watcher killed all its processes."""
        self.disk_full_at = inf
        # Dice of its own: the world's are not changed by it.
        self._dice = random.Random(f"{run_id} {attempt} {command.words[0]}")
        self._needs_s = command.grace_s * self._dice.uniform(0.1, _SLOWEST)
        self._watcher_dies_s = (
            self._dice.expovariate(1 / 1800.0)
            if self.habit is Habit.ATTACKING and self._dice.random() < 0.5
            else inf
        )
        super().__init__(
            # Its watcher beats from the beginning, and knows of no compiling.
            replace(shape, start_s=0.0, compile_s=shape.start_s + shape.compile_s),
            run_id=run_id,
            attempt=attempt,
            **started,
            ill=None if ill is not None and ill.kind in ("deaf", "last_evaluation") else ill,
        )
        if self.habit is Habit.FILLING:
            self.disk_full_at = self.trains_at + self._dice.expovariate(1 / 1800.0)

    def strikes(self) -> list[float]:
        """When it tries to kill the agent."""
        if self.habit is not Habit.ATTACKING:
            return []
        first = self.trains_at
        return [first + self._dice.expovariate(1 / 1800.0) for _ in range(_STRIKES)]

    def _plan(self) -> None:
        shape = self.shape
        base = self.trains_at - shape.seconds_to(self.from_step)
        finish = base + shape.seconds_to(shape.steps - 1) + shape.step_s
        told = min(self.deadline_at, self.told_at if self.told_at is not None else inf)
        self.base, self.message, self.frozen_at = base, "", None
        crash, dies = inf, self.started_at + self._watcher_dies_s
        if self.ill is not None:
            strikes = self.started_at + self.ill.after_s
            if self.ill.kind == "hang":
                self.frozen_at = strikes
                finish = inf if strikes < finish else finish
            elif self.ill.kind == "lost":
                dies = min(dies, strikes)
            else:
                crash = strikes
        turn = min(finish, told, crash)
        self.turns_at = max(turn, self.started_at)
        self.saves_last = False
        if turn == finish:
            self.outcome, leaves, self.saves_last = "finished", self.turns_at + shape.save_s, True
        elif turn == crash:
            self.outcome, leaves = "crashed", self.turns_at
        else:
            self.outcome = "landed_signal" if self.told_at == told else "landed_deadline"
            leaves = self._leaves_at()
        self.gone_by_watcher_at = leaves
        self.saved_at = leaves
        self.ends_at = leaves + _COLLECTED_S
        self.scored_at = self.ends_at
        self.watcher_died = dies < self.ends_at
        if self.watcher_died:
            # No signal is sent and nothing is copied: the command's own processes live on.
            self.ends_at, self.outcome, self.saves_last = dies, "lost", False

    def _leaves_at(self) -> float:
        """When none of its processes is left, once it was told: its watcher ends what stays."""
        told = self.turns_at
        stopping = CommandStopper(self.command, self.deadline_at)
        by_signal = self.habit in (Habit.PLAIN, Habit.FORKING, Habit.FILLING, Habit.ATTACKING)
        by_signal = by_signal and not (self.frozen_at is not None and self.frozen_at <= told)
        tick, saving_from = 0, inf
        while True:
            now = told + tick * _TICK_S
            if now >= saving_from + self._needs_s:
                self.saves_last = True
                return saving_from + self._needs_s
            for act in stopping.acts(now, now, asked=True, listens=False):
                if act is Act.KILL:
                    return now
                if act is Act.SIGNAL and by_signal:
                    return now + _LEAVES_S  # children that stay are killed once it has left
                if act is Act.SIGNAL and self.habit is Habit.SLOW:
                    saving_from = now
            tick += 1

    # -- what is asked of a trainer of ours, and means nothing to a command ------------------------

    heeds_saves = False

    def ask(self, at: float) -> float | None:
        return None

    def finish(self, at: float) -> None:
        """It knows no cooldown."""

    def curve(self, at: float) -> gate.Curve | None:
        return None

    # -- its processes -----------------------------------------------------------------------------

    def tell(self, at: float) -> None:
        """To its watcher, which a script that hangs does not keep from stopping it."""
        if self.told_at is None and self.runs(at) and at < self.turns_at:
            self.told_at = at
            self._replan()

    def kill(self, at: float) -> None:
        """All of it: the watcher, and what the command has started, in whichever session."""
        if self.lives(at):
            self.swept_at = at
        super().kill(at)

    def lives(self, at: float) -> bool:
        """Whether any process of the command itself is left."""
        if self.swept_at is not None and at >= self.swept_at:
            return False
        return self.watcher_died or at < self.gone_by_watcher_at

    @property
    def silent_from(self) -> float:
        """A heartbeat that cannot be written is none."""
        return min(super().silent_from, self.disk_full_at)

    def saved_step(self, at: float) -> int | None:
        if at >= self.disk_full_at:
            at = self.disk_full_at
        return super().saved_step(at)

    def heartbeat(self, at: float) -> Heartbeat | None:
        beat = super().heartbeat(min(at, self.disk_full_at))
        if beat is None:
            return None
        state = "training" if beat.state == "compiling" else beat.state
        return replace(beat, state=state, saves=None, signs=int(beat.at - self.started_at) + 1)

    def metrics(self, at: float) -> list[Mapping[str, Any]]:
        return []
