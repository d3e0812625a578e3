"""An account's balance: what live runs hold of it, how long it lasts, and which runs land before it
ends. Pure.

At a balance of zero a provider ends every machine of the account, also those whose budgets last
longer; what was not saved elsewhere is lost. The balance can be read only while a process runs
here: it is a limit beside the budgets, and no promise rests on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

from trmcloud.core.control import events as ev
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import PaymentRequired
from trmcloud.core.money import ZERO, Usd, cost, total
from trmcloud.core.spec.spec import IGNORE, STOP
from trmcloud.core.values import Value, replace

if TYPE_CHECKING:
    from trmcloud.core.spec.plan import Plan

LOOK_EVERY_S = 300.0
"""How often a process reads an account's balance at most."""
_JITTER = 0.2
MARGIN_S = 1800.0
"""The least time between the end of a landing and that of the balance."""
LOW_HOURS = (6, 24)
"""A warning is given when the balance lasts for fewer hours than these, once for each."""
BILLED_WITHIN_S = 600.0
"""Rent is in the balance at the latest so long after it was due: RunPod charges every 5 minutes."""
INVOICED = "the account is invoiced (POSTPAID): a low balance ends nothing"
FITTING_SHARE = 0.98
"""Of what is free, for a budget that is shortened to it."""
_HOUR_S = 3600.0
_BEFORE_A_POD = (State.PLANNED, State.RESERVED)


class Billing(str, Enum):
    """How an account pays, by its provider's own answer: only a prepaid one ends with its money."""

    PREPAID = "prepaid"
    POSTPAID = "postpaid"
    """Invoiced: a low balance ends nothing."""
    UNKNOWN = "unknown"


class AccountBalance(Value):
    """An account's money as its provider tells it: None where it does not say.

    ``balance`` is prepaid credit that is left, in USD, below zero where more was used;
    ``spending`` and ``spend_limit`` are USD per hour of all that the account rents.
    """

    balance: Usd | None = None
    spending: Usd | None = None
    spend_limit: Usd | None = None
    why: str = ""
    """Why it does not say."""
    billing: Billing = Billing.UNKNOWN


def prepaid_limit(account: AccountBalance) -> tuple[bool, str]:
    """Return whether the balance ends everything that the account rents, and why or why not.

    An account whose billing is unknown counts as one that it does not end.
    """
    if account.billing is Billing.POSTPAID:
        return False, INVOICED
    if account.billing is Billing.UNKNOWN:
        return False, f"not known to be a prepaid account: {account.why or 'its API does not say'}"
    if account.balance is None or account.balance <= ZERO:
        return False, f"the prepaid balance is {account.balance or 'not reported'}"
    return True, (
        f"a prepaid balance of {account.balance} ends everything when it is used up, unless "
        "auto-reload is on"
    )


# What is free of a balance.


def holder_of(run: RunState) -> str:
    """The provider at which a live run's reservation is held; '' where it holds nothing."""
    if not run.live or run.reserved <= ZERO:
        return ""
    if run.state not in _BEFORE_A_POD and run.generation is not None:
        return run.generation.provider
    chosen = run.chosen
    return chosen.provider if chosen is not None else ""


def held_of(run: RunState, now: float) -> Usd:
    """The most that a live run may still take from its provider's balance: the reservation of its
    latest machine, less the rent that the balance is already without. ``now`` is epoch s."""
    generation = run.generation
    if not run.live or run.state in _BEFORE_A_POD or generation is None or generation.up_at is None:
        return run.reserved if run.live else ZERO
    until = now if generation.ended_at is None else min(now, generation.ended_at)
    billed_s = until - generation.up_at - BILLED_WITHIN_S
    rate = min(generation.rate, generation.charged_rate)
    return max(run.reserved - cost(rate, billed_s), ZERO)


class Funds(Value):
    """A provider's balance, and how much of it runs hold at worst: by run."""

    provider: str
    balance: Usd
    held: Mapping[str, Usd]

    @property
    def held_usd(self) -> Usd:
        return total(self.held.values())

    @property
    def free(self) -> Usd:
        """Below zero where runs may need more than there is."""
        return self.balance - self.held_usd

    @property
    def fitting(self) -> Usd:
        """The most that a budget may be to fit: the account may spend until it is reserved."""
        return Usd.from_micros(int(self.free.micros * FITTING_SHARE))

    def missing(self, worst: Usd) -> Usd:
        """The sum to pay in before ``worst`` fits; 0 where it fits."""
        return max(worst - self.free, ZERO)


def funds_of(
    provider: str, account: AccountBalance, runs: Iterable[RunState], now: float, but: str = ""
) -> Funds | None:
    """The funds at ``provider`` for one more run; None where the balance is not told, or limits
    nothing. ``but``: the run that asks, whose own reservation is not held against it."""
    if account.balance is None or account.billing is Billing.POSTPAID:
        return None
    machines = (each for run in runs if run.run_id != but for each in _by_machine(run))
    there = [(each.run_id, held_of(each, now)) for each in machines if holder_of(each) == provider]
    held = {name: total(usd for run_id, usd in there if run_id == name) for name, _ in there}
    return Funds(provider, account.balance, {name: usd for name, usd in held.items() if usd})


def _by_machine(run: RunState) -> tuple[RunState, ...]:
    """The run as it is with each of its machines alone: one that stands by has its own reservation,
    and may be at another provider."""
    standby = run.standby
    if standby is None:
        return (run,)
    return replace(run, reserved=run.reserved - standby.reserved), standby


def worst_at(plan: Plan, provider: str) -> Usd:
    """The most that the plan's launchable candidates of ``provider`` may cost."""
    tried = [plan.candidate(name) for name in plan.launchable]
    return max((c.worst_case for c in tried if c.provider == provider), default=ZERO)


def require_funds(funds: Funds, worst: Usd, fits: str = "--fit-balance shortens it") -> None:
    """
    Raises:
        PaymentRequired: ``worst`` does not fit; ``fits``: what makes it fit.
    """
    missing = funds.missing(worst)
    if missing > ZERO:
        ways = f"{fits}; " if funds.free > ZERO and fits else ""
        raise PaymentRequired(
            f"{max(funds.free, ZERO)} of the {funds.provider} balance of {funds.balance} are "
            f"free{_held_words(funds)}: the worst case is {worst}",
            next_step=f"add {missing} at {funds.provider}; {ways}--balance ignore if auto-reload "
            "is on",
        )


def require_known(funds: Funds | None, provider: str, why: str) -> Funds:
    """
    Raises:
        PaymentRequired: there is no balance that a budget could fit; ``why``: the reason, if known.
    """
    if funds is None:
        raise PaymentRequired(
            f"--fit-balance is not possible: {why or f'{provider} shows no balance here'}",
            next_step="leave it out, and give --budget USD",
        )
    return funds


def _held_words(funds: Funds) -> str:
    names = ", ".join(funds.held)
    return f", {funds.held_usd} are reserved for {names}" if funds.held else ""


# How long a balance lasts, and what follows from that.


class BalanceOutlook(Value):
    """When a balance ends if everything that the account rents stays: ``ends_at`` is epoch s,
    infinite where nothing is spent; ``spending`` is USD per hour of the whole account."""

    provider: str
    balance: Usd
    spending: Usd
    read_at: float
    ends_at: float

    def hours_left(self, now: float) -> float:
        return max(0.0, self.ends_at - now) / _HOUR_S


def outlook_of(
    provider: str, account: AccountBalance, runs: Iterable[RunState], read_at: float
) -> BalanceOutlook | None:
    """The outlook of a balance that was read at ``read_at`` (epoch s); None where it is not told,
    or ends nothing.

    A provider may count a new machine late: the account spends at least what its open machines of
    these runs are rented for.
    """
    if account.balance is None or account.billing is Billing.POSTPAID:
        return None
    own = total(
        run.hourly_rate(generation)
        for run in runs
        for generation in run.open_generations
        if run.live and generation.provider == provider
    )
    spending = max(own, account.spending or ZERO)
    left_s = math.inf
    if account.balance <= ZERO:
        left_s = 0.0
    elif spending > ZERO:
        left_s = account.balance.micros * _HOUR_S / spending.micros
    return BalanceOutlook(provider, account.balance, spending, read_at, read_at + left_s)


def low_balance_event(
    outlook: BalanceOutlook, last: ev.BalanceLow | None, now: float
) -> ev.BalanceLow | None:
    """The event that this outlook puts on record: below 24 and below 6 hours once each, again
    after money was paid in, and once that it lasts again. ``last``: the one on record."""
    hours = outlook.hours_left(now)
    level = next((each for each in LOW_HOURS if hours < each), 0)
    before = last.hours if last is not None else 0
    if last is not None and outlook.balance > last.balance:
        before = 0 if level else before  # it was refilled, and is low again
    if level == before or (before and level > before):
        return None
    ends_at = outlook.ends_at if math.isfinite(outlook.ends_at) else 0.0
    return ev.BalanceLow(
        outlook.provider, level, outlook.balance, outlook.spending, outlook.read_at, ends_at
    )


def why_land(
    outlook: BalanceOutlook, run: RunState, now: float, next_look_s: float
) -> Reason | None:
    """The reason to land ``run`` now; None where that can wait, or is not wanted.

    The next landing begins at the next look (in ``next_look_s``) or at the soft stop, whichever is
    sooner. Where the balance ends before that landing and ``MARGIN_S`` are over, it begins now.
    """
    generation = run.generation
    able = run.stop is None and run.state in (State.BOOTING, State.RUNNING)
    if not able or generation is None or run.balance_policy != STOP:
        return None
    if run.errand is not None or generation.provider != outlook.provider:
        return None
    landing_s = generation.hard_stop_at - generation.soft_stop_at
    begins_at = max(now, min(generation.soft_stop_at, now + next_look_s))
    if outlook.ends_at >= begins_at + landing_s + MARGIN_S:
        return None
    return make_reason(
        ReasonKind.BALANCE_ENDS,
        provider=outlook.provider,
        balance_usd=outlook.balance,
        spending_usd_per_hour=outlook.spending,
        left_s=max(0.0, outlook.ends_at - now),
    )


def is_watched(run: RunState) -> bool:
    """Whether the balance of the provider of a run's machine is to be read while it is rented: not
    while it is asked for, which a run that waits does many times in vain."""
    generation = run.generation
    if generation is None or generation.up_at is None or not generation.open:
        return False
    return run.live and run.balance_policy != IGNORE


def look_every_s(share: float) -> float:
    """The seconds between two readings; ``share``, from 0 to 1, sets processes apart."""
    return LOOK_EVERY_S * (1.0 + _JITTER * share)
