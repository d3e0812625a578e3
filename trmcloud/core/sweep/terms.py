"""What a sweep may spend and how: its rungs in dollars and its reservations. Pure."""

from __future__ import annotations

import math
from enum import Enum

from trmcloud.core.errors import UsageError
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.sweep.space import Point, Space
from trmcloud.core.values import Value

_CONFIRM_PARTS = 4
"""Repetitions with other seeds take at most one of so many parts of the budget."""
_WINNER_PARTS = 2
"""Likewise the winner's continuation, with evaluation and landing."""


class Goal(str, Enum):
    MIN = "min"
    MAX = "max"

    def best(self, one: float, other: float) -> bool:
        """Whether ``one`` is better than ``other``."""
        return one < other if self is Goal.MIN else one > other


class SweepTerms(Value):
    """The terms of a sweep, which stay the same while it runs. Amounts are of one slot.

    ``usd`` is what all trials and the winner may spend. ``rungs`` are cumulative dollars of a
    trial's training, rising; the last one is the whole training. ``winner_usd`` of ``usd`` is
    reserved before the first trial: the continuation of the winner to the last rung, its cooldown,
    evaluation and landing; of it ``finish_usd``, evaluation and landing, is needed even where the
    winner is trained already. ``confirm_usd`` is reserved for what the verdict compares: the
    winner's and the default's ``seeds`` at the last rung. An interval may exceed its rung by
    ``overrun_usd``, the grace period and its landing, and each start costs ``restart_usd`` before
    the first step. Without ``can_resume`` a trial trains from its start in each interval.

    Where a machine has no rate, seconds are the currency: ``slot_rate`` is 3600 then, and ``unit``
    ``s``.
    """

    space: Space
    default: Point
    metric: str
    goal: Goal
    usd: Usd
    slot_rate: Usd
    rungs: tuple[Usd, ...]
    winner_usd: Usd
    slots: int = 1
    finish_usd: Usd = ZERO
    confirm_usd: Usd = ZERO
    overrun_usd: Usd = ZERO
    restart_usd: Usd = ZERO
    eta: int = 3
    seeds: int = 2
    can_resume: bool = True
    sampler: str = "density"
    seed: int = 0
    unit: str = "usd"
    least_steps: int = 1
    """Settings whose first rung buys fewer steps are not started."""

    @property
    def last(self) -> int:
        """The number of the last rung."""
        return len(self.rungs) - 1

    def train_usd(self, kept: int, rung: int) -> Usd:
        """Return what a trial whose checkpoint is of rung ``kept`` (−1: none) trains for until
        ``rung``, in dollars, start and overrun not counted."""
        return self.rungs[rung] - (self.rungs[kept] if kept >= 0 and self.can_resume else ZERO)

    def most_usd(self, kept: int, rung: int) -> Usd:
        """Return the most that this interval may cost."""
        return self.train_usd(kept, rung) + self.restart_usd + self.overrun_usd

    @property
    def kept_by_slot(self) -> Usd:
        """The most of one slot's share that all that is reserved can take."""
        return self.by_slot(self.winner_usd + self.confirm_usd)

    def by_slot(self, amount: Usd) -> Usd:
        """Return the most that one slot needs so that all slots can spend ``amount``: the longest
        interval and its share of the others (Graham 1969)."""
        longest = max(self.winner_usd, self.most_usd(-1, self.last) if self.confirm_usd else ZERO)
        longest = min(amount, longest)
        return longest + Usd.from_micros(-(-(amount - longest).micros // self.slots))

    def seconds(self, amount: Usd) -> float:
        """Return how long a slot is paid with ``amount``."""
        return amount.micros * 3600 / self.slot_rate.micros if self.slot_rate else math.inf

    def check(self) -> None:
        """
        Raises:
            UsageError: they can start no trial, or are no terms.
        """
        self.space.check()
        rising = all(
            low < high for low, high in zip((ZERO, *self.rungs[:-1]), self.rungs, strict=True)
        )
        if not self.rungs or not rising or self.eta < 2 or self.slots < 1 or self.seeds < 1:
            raise UsageError(
                "a sweep needs rising rungs above $0, eta from 2, a slot and a seed",
                next_step="leave --rungs, --eta and --slots out: each has a default",
            )
        if self.slot_rate <= ZERO:
            raise UsageError("a slot's rate must be above 0", next_step="name one with --rate")
        first, kept = self.most_usd(-1, 0), self.winner_usd + self.confirm_usd
        least = max(first + kept, (first + self.kept_by_slot) * self.slots)
        if least > self.usd:
            beside = f" on each of {self.slots} slots" if self.slots > 1 else ""
            raise UsageError(
                f"{self.usd} buy less than one rung of one trial{beside}: that takes {first}, and "
                f"{kept} is reserved for the winner",
                next_step=f"raise the budget to {least}, shorten the training, or use fewer slots",
            )


def make_terms(
    space: Space,
    default: Point,
    *,
    metric: str,
    goal: Goal,
    usd: Usd,
    full_usd: Usd,
    slot_rate: Usd,
    slots: int = 1,
    least_usd: Usd = ZERO,
    finish_s: float = 0.0,
    overrun_s: float = 0.0,
    restart_s: float = 0.0,
    eta: int = 3,
    rungs: int | None = None,
    seeds: int = 2,
    can_resume: bool = True,
    sampler: str = "density",
    seed: int = 0,
    unit: str = "usd",
) -> SweepTerms:
    """Return the terms of a sweep whose whole training costs ``full_usd`` on one slot.

    Each rung takes ``eta`` times the one before. The first rung is at least ``least_usd`` and twice
    what each start costs; there are at most four, or ``rungs``. Of the budget at most a half is
    reserved for the winner and a quarter for repetitions with other seeds, both of each slot's
    share; repetitions that do not fit into that are left out, and the verdict says so then.

    Raises:
        UsageError: the budget starts no trial.
    """
    if full_usd <= ZERO or slot_rate <= ZERO or slots < 1 or eta < 2:
        raise UsageError(
            "a sweep needs a training and a machine that cost something, a slot, and eta from 2",
            next_step="name the machine's rate with --rate, or count in seconds",
        )
    restart, overrun = cost(slot_rate, restart_s), cost(slot_rate, overrun_s)
    least = max(least_usd, restart * 2, Usd.from_micros(1))
    made = [full_usd]
    while len(made) < (rungs or _MOST_RUNGS) and made[0].micros // eta >= least.micros:
        made.insert(0, Usd.from_micros(made[0].micros // eta))
    finish = cost(slot_rate, finish_s)
    kept = made[0] if can_resume else ZERO
    whole = made[-1] - (kept if len(made) > 1 else made[-1]) + finish
    if len(made) > 1:
        whole += restart + overrun
    slot = usd.micros // slots  # a machine is paid whole: no slot can spend more than its share
    winner = min(whole, Usd.from_micros(slot // _WINNER_PARTS))
    each = full_usd + restart + overrun
    repeats = 2 * seeds - 1 if seeds > 1 else 0
    fitting = min(repeats, slots * (slot // _CONFIRM_PARTS // each.micros))
    terms = SweepTerms(
        space=space, default=default, metric=metric, goal=goal, usd=usd, slot_rate=slot_rate,
        rungs=tuple(made), winner_usd=winner, slots=slots, finish_usd=min(finish, winner),
        confirm_usd=each * fitting, overrun_usd=overrun, restart_usd=restart, eta=eta,
        seeds=seeds, can_resume=can_resume, sampler=sampler, seed=seed, unit=unit,
    )  # fmt: skip
    terms.check()
    return terms


_MOST_RUNGS = 4
