"""When a training ends: all steps done, told to land, or the deadline; decided by rank 0 for all.

Where the time after the deadline is known and is less than a landing takes here, steps end so much
before the deadline. What it takes is measured: evaluations, saves and steps of this training.

SIGTERM and SIGINT to any rank set a flag there, and SIGUSR1 another, to save and go on. SIGUSR2
to rank 0 says that further steps no longer pay, as does the run's patience: the training cools
down, and ends. Before
every step the ranks take the maximum of one short vector: the flags, and what rank 0 (whose clock
alone counts) has decided. So all ranks end after the same step, and all know the same cooldown.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from model.machine.distributed import World
from model.machine.signals import SignalFlag
from model.training.schedule import (
    WSD,
    Cooldown,
    Costs,
    Schedule,
    decide_cooldown,
    follow,
    is_due,
    recent_mean,
)
from trmcloud.core.contract.pod_contract import DEADLINE_NAME
from trmcloud.core.contract.trainer_contract import (
    ENV_DEADLINE_AT,
    ENV_JOB,
    ENV_LANDING_S,
    ENV_PATIENCE,
)
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import PhaseRecipe

ENV_REPLAY_DECISION = "TRMCLOUD_REPLAY_DECISION"
"""``cooldown_from:cooldown_steps:last_step`` of a recorded run: repeat it whatever the clock.
Several decisions stand one after the other: ``from:steps,from:steps:last_step``."""

_GO_ON, _FINISHED, _DEADLINE, _STOPPED = 0, 1, 2, 3
_OUTCOMES = {
    _FINISHED: "finished",
    _DEADLINE: "landed_deadline",
    _STOPPED: "stopped_paying",
}
_RECENT_STEPS = 64
_LATEST_STEPS = 16
"""The number of latest steps that a running cooldown is timed by: its end is near, and it must
react to a change at once."""
_RECENT_PAUSES = 4
_LANDING_TIMES = 2.0
"""A landing is given so many times what its evaluation and its save took before: on a machine that
others use, too, the next may take twice as long."""
_EXIT_S = 2.0
"""From a training's last heartbeat until its agent has read that."""
#: A deadline moved by less than this is the same one, told by another clock.
_SAME_DEADLINE_S = 30.0


@dataclass(frozen=True)
class Replay:
    """Recorded decisions, and the step after which the recorded run had landed."""

    decisions: tuple[tuple[int, int], ...]
    """(from, steps), in order."""
    last_step: int

    def steps_from(self, step: int) -> int:
        """Of the cooldown that was decided there; 0: none was."""
        return dict(self.decisions).get(step, 0)


@dataclass(frozen=True)
class Limits:
    """The limits of this training apart from its steps: a deadline, or a replayed one, and a
    patience."""

    deadline_at: float | None = None
    replay: Replay | None = None
    landing_s: float | None = None
    """Seconds after the deadline by which saving must be complete; None if none was given."""
    patience: int = 0
    """Evaluations in a row without a better one that end it; 0: any number may be."""
    deadline_file: Path | None = None
    """Where a later deadline stands, once there is one."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Limits:
        """Raises: UsageError: a value that is not what it should be."""
        deadline, replay = environment.get(ENV_DEADLINE_AT), environment.get(ENV_REPLAY_DECISION)
        name = ENV_PATIENCE
        try:
            patience = int(environment.get(ENV_PATIENCE) or 0)
            name, landing = ENV_LANDING_S, environment.get(ENV_LANDING_S)
            landing_s = float(landing) if landing else None
            name = ENV_REPLAY_DECISION if replay else ENV_DEADLINE_AT
            if replay:
                told, _, last = replay.rpartition(":")
                pairs = (pair.split(":") for pair in told.split(","))
                decisions = tuple((int(start), int(steps)) for start, steps in pairs)
                return cls(replay=Replay(decisions, int(last)))
            job = environment.get(ENV_JOB)
            moved = Path(job).parent / DEADLINE_NAME if job else None
            return cls(float(deadline) if deadline else None, None, landing_s, patience, moved)
        except ValueError:
            raise UsageError(f"{name} is {environment[name]!r}", where=name) from None


@dataclass(frozen=True)
class Verdict:
    """The decision of all ranks before a step."""

    outcome: str | None
    """Set where the training ends here."""
    cooldown: Cooldown | None
    """Set where the cooldown was decided just now, or changed."""
    save: bool = False
    """Some rank was told to save now."""
    save_due: bool = False
    """So much time has passed since the last save that the recipe asks for one."""
    data: int = 0
    """The worst of what the ranks said of their data."""


class Landing:
    """Asks before every step whether there is to be one."""

    def __init__(
        self, settings: PhaseRecipe, limits: Limits, world: World, flag: SignalFlag
    ) -> None:
        self._settings = settings
        self._schedule = Schedule.of(settings)
        self._limits = limits
        self._world = world
        self._flag = flag
        self._recent: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._evaluations: deque[float] = deque(maxlen=_RECENT_PAUSES)
        self._saves: deque[float] = deque(maxlen=_RECENT_PAUSES)
        self.stall_s: float | None = None
        """For which a save holds training up."""
        self._saved_at: float | None = None

    @property
    def step_s(self) -> float:
        """Seconds from one step boundary to the next, logging included, pauses left out."""
        return recent_mean(self._recent)

    @property
    def median_step_s(self) -> float | None:
        return statistics.median(self._recent) if self._recent else None

    @property
    def evaluation_s(self) -> float:
        """Seconds of the last evaluation; 0 before the first."""
        return self._evaluations[-1] if self._evaluations else 0.0

    @evaluation_s.setter
    def evaluation_s(self, seconds: float) -> None:
        self._evaluations.append(seconds)

    @property
    def save_s(self) -> float | None:
        """Seconds until the last checkpoint was on disk; None before the first."""
        return self._saves[-1] if self._saves else None

    @save_s.setter
    def save_s(self, seconds: float) -> None:
        self._saves.append(seconds)

    @property
    def needed_s(self) -> float:
        """Seconds that a landing may take here, with the step that comes before it; a save that
        was not measured takes as long as an evaluation."""
        evaluation_s = max(self._evaluations, default=0.0)
        pauses_s = evaluation_s + max(self._saves, default=evaluation_s)
        slow_step_s = min(max(self._recent, default=0.0), 3.0 * (self.median_step_s or 0.0))
        return _LANDING_TIMES * pauses_s + slow_step_s + _EXIT_S

    @property
    def deadline_at(self) -> float | None:
        """Epoch seconds at which the training's steps end; None: it has no deadline."""
        deadline, landing_s = self._limits.deadline_at, self._limits.landing_s
        if deadline is None or landing_s is None:
            return deadline
        return deadline - max(0.0, self.needed_s - landing_s)

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether this rank was sent SIGTERM or SIGINT."""
        return self._flag.raised

    @property
    def is_timed(self) -> bool:
        """Whether a clock, or a record of one, decides the cooldown."""
        return self._limits.deadline_at is not None or self._limits.replay is not None

    def reread_deadline(self) -> None:
        """Take the deadline that the agent has moved this training's to, if it has."""
        path = self._limits.deadline_file
        if path is None or self._limits.deadline_at is None:
            return
        with suppress(OSError, ValueError):
            self._limits = replace(self._limits, deadline_at=float(path.read_text()))

    def took(self, step_s: float) -> None:
        self._recent.append(step_s)

    def keeps(self, cooldown: Cooldown, steps_before: int) -> bool:
        """Whether a cooldown found in a checkpoint still holds, which was to take ``steps_before``.

        It does until another, later deadline (or none) is given, or more steps where these were to
        end it: then the run has been topped up, and goes on at the full rate.
        """
        if self._limits.replay is not None:
            return True
        if cooldown.asked:
            return self._settings.steps <= steps_before
        if cooldown.end >= steps_before < self._settings.steps:
            return False
        deadline, old = self._limits.deadline_at, cooldown.deadline_at
        return deadline is not None and old is not None and deadline <= old + _SAME_DEADLINE_S

    def may_stay_at_full_rate(self, step: int, *, now: float, elapsed_s: float) -> bool:
        """Whether no cooldown would be due at ``step``, where a training that had trained for
        ``elapsed_s`` began with it ``now``."""
        if self._limits.replay is not None:
            return False
        deadline = self._limits.deadline_at
        return not is_due(
            step,
            steps=self._settings.steps,
            fraction=self._schedule.fraction,
            by_steps_too=self._schedule.kind == WSD,
            elapsed_s=elapsed_s,
            remaining_s=math.inf if deadline is None else deadline - now,
        )

    def consult(
        self,
        step: int,
        cooldown: Cooldown | None,
        *,
        now: float,
        elapsed_s: float,
        data: int = 0,
        worse: bool = False,
        since_best: int = 0,
    ) -> Verdict:
        """A collective call before ``step``.

        Args:
            cooldown: the one decided for a deadline, where it has been.
            now: epoch seconds.
            elapsed_s: seconds trained so far, earlier attempts included.
            data: whether this rank has what the step reads; the larger, the worse.
            worse: than it was before; one that is to end is not cooled down from there.
            since_best: evaluations in a row without a better one.
        """
        self.reread_deadline()
        code, length, asked = _GO_ON, 0, 0
        if self._world.is_main:
            code, length = self._judge(step, cooldown, now, elapsed_s)
            if code == _GO_ON and not length and self._is_to_end(step, cooldown, since_best):
                length = 0 if worse else self._schedule.steps_to_cool(step)
                code, asked = (_GO_ON, 1) if length else (_STOPPED, 0)
        own = [int(self._flag.raised), int(self._flag.save), int(self._is_save_due(now)), asked]
        flag, save, due, asked, code, length, data = self._world.largest([*own, code, length, data])
        outcome = _OUTCOMES.get(code) or ("landed_signal" if flag else None)
        decided = None
        if length and cooldown is not None:
            decided = cooldown.followed_by(step, length)
        elif length:
            deadline_at = self._limits.deadline_at or 0.0
            decided = Cooldown(step, length, deadline_at, asked=bool(asked))
        return Verdict(outcome, decided, bool(save), bool(due), data)

    def is_out_of_patience(self, since_best: int) -> bool:
        return 0 < self._limits.patience <= since_best

    def _is_to_end(self, step: int, cooldown: Cooldown | None, since_best: int) -> bool:
        """Whether further steps no longer pay, and it does not cool down already."""
        own = None if self.is_timed else self._schedule.own_cooldown
        cools = cooldown is not None or (own is not None and step >= own.start)
        asked = self._flag.finish or self.is_out_of_patience(since_best)
        return asked and step > 0 and not cools

    def _is_save_due(self, now: float) -> bool:
        """By rank 0's clock."""
        if self._saved_at is None:
            self._saved_at = now
        minutes = self._settings.save_minutes
        return self._world.is_main and 0 < 60.0 * minutes <= now - self._saved_at

    def saving(self, now: float) -> None:
        """A save has begun."""
        self._saved_at = now

    def saved(self) -> None:
        """Note that a save has answered the requests until now."""
        self._flag.save = False

    def can_evaluate_on(self, now: float) -> bool:
        """Whether there is still time before the hard stop to exit in; rank 0's answer, on all
        ranks."""
        deadline, landing_s = self._limits.deadline_at, self._limits.landing_s
        if deadline is None or landing_s is None:
            return True
        in_time = self._world.is_main and now + _EXIT_S <= deadline + landing_s
        return bool(self._world.largest([int(in_time)])[0])

    def leaves_time_for(self, pause_s: float, now: float) -> bool:
        """Whether a pause and one more step still fit; rank 0's answer, on all ranks."""
        deadline = self.deadline_at
        if deadline is None:
            return True
        fits = self._world.is_main and now + pause_s + self.step_s <= deadline
        return bool(self._world.largest([int(fits)])[0])

    def _judge(
        self, step: int, cooldown: Cooldown | None, now: float, elapsed_s: float
    ) -> tuple[int, int]:
        """Decide the outcome, and the number of steps of a cooldown that begins, or is changed,
        here; 0: none is."""
        if step >= self._settings.steps:
            return _FINISHED, 0
        replay, deadline = self._limits.replay, self.deadline_at
        if replay is not None:
            if step >= replay.last_step:
                return _DEADLINE, 0
            is_new = cooldown is None or cooldown.start < step
            return _GO_ON, replay.steps_from(step) if is_new else 0
        if cooldown is not None and cooldown.asked and step >= cooldown.end:
            return _STOPPED, 0
        if deadline is None:
            return _GO_ON, 0
        if now + self.step_s > deadline:
            return _DEADLINE, 0
        if not self._recent:
            ended = cooldown is not None and step >= cooldown.end
            return _DEADLINE if ended else _GO_ON, 0
        if cooldown is not None:
            changed = follow(
                step,
                cooldown,
                # One that was asked for is not drawn out over the time that is left.
                steps=cooldown.end if cooldown.asked else self._settings.steps,
                remaining_s=deadline - now,
                costs=self._costs(recent_mean(list(self._recent)[-_LATEST_STEPS:])),
            )
            if changed is not None:
                return _GO_ON, changed.steps
            return _DEADLINE if step >= cooldown.end else _GO_ON, 0
        costs = self._costs(self.step_s)
        # It is saved before it cools, if it was not just now.
        save_s = costs.save_s if step % self._settings.save_every else 0.0
        begun = decide_cooldown(
            step,
            steps=self._settings.steps,
            fraction=self._schedule.fraction,
            by_steps_too=self._schedule.kind == WSD,
            elapsed_s=elapsed_s,
            remaining_s=deadline - now - save_s,
            deadline_at=self._limits.deadline_at or deadline,
            costs=costs,
        )
        return _GO_ON, 0 if begun is None else begun.steps

    def _costs(self, step_s: float) -> Costs:
        return Costs(
            step_s=step_s,
            evaluation_s=self.evaluation_s,
            save_s=self.evaluation_s if self.stall_s is None else self.stall_s,
            eval_every=self._settings.eval_every,
            save_every=self._settings.save_every,
        )
