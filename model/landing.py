"""When a training ends: all steps done, told to land, or the deadline; decided by rank 0 for all.

SIGTERM and SIGINT to any rank set a flag there, and SIGUSR1 another, to save and go on. Before
every step the ranks take the maximum of one short vector: the flags, and what rank 0 (whose clock
alone counts) has decided. So all ranks end after the same step, and all know the same cooldown.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from typing import Mapping

from model.distributed import World
from model.schedule import WSD, Cooldown, Costs, Schedule, decide_cooldown, recent_mean
from model.signals import SignalFlag
from trmcloud.core.errors import UsageError
from trmcloud.core.pod_contract import ENV_DEADLINE_AT
from trmcloud.core.recipe import PhaseRecipe

ENV_REPLAY_DECISION = "TRMCLOUD_REPLAY_DECISION"
"""``cooldown_from:cooldown_steps:last_step`` of a recorded run: repeat it whatever the clock."""

_GO_ON, _FINISHED, _DEADLINE = 0, 1, 2
_OUTCOMES = {_FINISHED: "finished", _DEADLINE: "landed_deadline"}
_RECENT_STEPS = 64
#: A deadline moved by less than this is the same one, told by another clock.
_SAME_DEADLINE_S = 30.0


@dataclass(frozen=True)
class Replay:
    """A recorded decision, and the step after which the recorded run had landed."""

    cooldown: Cooldown
    last_step: int


@dataclass(frozen=True)
class Limits:
    """What may end this training apart from its steps: a deadline, or a replayed one."""

    deadline_at: float | None = None
    replay: Replay | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Limits:
        """Raises: UsageError: a value that is not what it should be."""
        deadline, replay = environment.get(ENV_DEADLINE_AT), environment.get(ENV_REPLAY_DECISION)
        try:
            if replay:
                start, steps, last = (int(part) for part in replay.split(":"))
                return cls(replay=Replay(Cooldown(start, steps, 0.0), last))
            return cls(deadline_at=float(deadline) if deadline else None)
        except ValueError:
            name = ENV_REPLAY_DECISION if replay else ENV_DEADLINE_AT
            raise UsageError(f"{name} is {replay or deadline!r}", where=name) from None


@dataclass(frozen=True)
class Verdict:
    """What all ranks agreed on before a step."""

    outcome: str | None
    """Set where the training ends here."""
    cooldown: Cooldown | None
    """Set where the cooldown was decided just now."""
    save: bool = False
    """Some rank was told to save now."""
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
        self.evaluation_s = 0.0
        self.save_s: float | None = None

    @property
    def step_s(self) -> float:
        """Seconds from one step boundary to the next, logging included, pauses left out."""
        return recent_mean(self._recent)

    @property
    def median_step_s(self) -> float | None:
        return statistics.median(self._recent) if self._recent else None

    @property
    def is_timed(self) -> bool:
        """Whether a clock, or a record of one, decides the cooldown."""
        return self._limits.deadline_at is not None or self._limits.replay is not None

    def took(self, step_s: float) -> None:
        self._recent.append(step_s)

    def keeps(self, cooldown: Cooldown) -> bool:
        """Whether a cooldown found in a checkpoint still holds.

        It does until another, later deadline (or none) is given: then the run has been topped up,
        and goes on at the full rate.
        """
        if self._limits.replay is not None:
            return True
        deadline, old = self._limits.deadline_at, cooldown.deadline_at
        return deadline is not None and old is not None and deadline <= old + _SAME_DEADLINE_S

    def consult(
        self, step: int, cooldown: Cooldown | None, *, now: float, elapsed_s: float, data: int = 0
    ) -> Verdict:
        """A collective call before ``step``.

        Args:
            cooldown: the one decided for a deadline, where it has been.
            now: epoch seconds.
            elapsed_s: seconds trained so far, earlier attempts included.
            data: whether this rank has what the step reads; the larger, the worse.
        """
        code, fresh = _GO_ON, None
        if self._world.is_main:
            code, fresh = self._judge(step, cooldown, now, elapsed_s)
        start, steps = (fresh.start, fresh.steps) if fresh else (-1, -1)
        own = [int(self._flag.raised), int(self._flag.save)]
        flag, save, code, start, steps, data = self._world.largest([*own, code, start, steps, data])
        outcome = _OUTCOMES.get(code) or ("landed_signal" if flag else None)
        decided = None
        if start >= 0:
            deadline = self._limits.deadline_at
            decided = Cooldown(start, steps, 0.0 if deadline is None else deadline)
        return Verdict(outcome, decided, bool(save), data)

    def saved(self) -> None:
        """What was asked for until now is saved."""
        self._flag.save = False

    def leaves_time_for(self, pause_s: float, now: float) -> bool:
        """Whether a pause and one more step still fit; rank 0's answer, on all ranks."""
        deadline = self._limits.deadline_at
        if deadline is None:
            return True
        fits = self._world.is_main and now + pause_s + self.step_s <= deadline
        return bool(self._world.largest([int(fits)])[0])

    def _judge(
        self, step: int, cooldown: Cooldown | None, now: float, elapsed_s: float
    ) -> tuple[int, Cooldown | None]:
        if step >= self._settings.steps:
            return _FINISHED, None
        replay, deadline = self._limits.replay, self._limits.deadline_at
        if replay is not None:
            if step >= replay.last_step:
                return _DEADLINE, None
            begins = cooldown is None and step == replay.cooldown.start
            return _GO_ON, replay.cooldown if begins else None
        if deadline is None:
            return _GO_ON, None
        if now + self.step_s > deadline or (cooldown is not None and step >= cooldown.end):
            return _DEADLINE, None
        if cooldown is not None or not self._recent:
            return _GO_ON, None
        costs = Costs(
            step_s=self.step_s,
            evaluation_s=self.evaluation_s,
            save_s=self.evaluation_s if self.save_s is None else self.save_s,
            eval_every=self._settings.eval_every,
            save_every=self._settings.save_every,
        )
        return _GO_ON, decide_cooldown(
            step,
            steps=self._settings.steps,
            fraction=self._schedule.fraction,
            by_steps_too=self._schedule.kind == WSD,
            elapsed_s=elapsed_s,
            remaining_s=deadline - now,
            deadline_at=deadline,
            costs=costs,
        )
