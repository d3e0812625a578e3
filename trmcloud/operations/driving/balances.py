"""Accounts' balances: read for a plan, a launch, and while runs are driven here.

A balance that cannot be read stops nothing: it is said, and what is known from before counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from zlib import crc32

from trmcloud.core.catalog.providers import find_traits
from trmcloud.core.control import balance as rules
from trmcloud.core.control.balance import INVOICED, Billing, Funds, require_funds
from trmcloud.core.control.reason import Reason
from trmcloud.core.control.run_book import present_runs
from trmcloud.core.control.run_state import IllegalTransition, RunState
from trmcloud.core.errors import LedgerError
from trmcloud.core.spec.plan import Plan
from trmcloud.core.spec.spec import IGNORE
from trmcloud.operations.context import Context
from trmcloud.operations.machines import UnreachableProvider

AT_LAUNCH_S = 60.0
"""The greatest age of a reading that a launch is checked by."""


def can_tell(context: Context, provider: str) -> bool:
    """Whether there is an account at ``provider`` that can be asked from here."""
    traits, machines = find_traits(provider), context.machines
    if traits is None or not traits.rented or provider in machines.unasked:
        return False
    there = machines.computes
    return provider in there and not isinstance(there[provider], UnreachableProvider)


def read_funds(
    context: Context, provider: str, at_most_s: float = 0.0, but: str = ""
) -> tuple[Funds | None, str]:
    """Return (the balance at ``provider`` and what runs hold of it, why that is not known). Both
    are empty where its API has no balance. ``but``: a run whose reservation is left out."""
    if not can_tell(context, provider):
        return None, ""
    reading = context.machines.read_balance(provider, context.wall(), at_most_s)
    if reading.trouble or reading.account is None:
        return None, f"not read: {reading.trouble}" if reading.trouble else ""
    if reading.account.billing is Billing.POSTPAID:
        return None, INVOICED
    runs = present_runs(context.ledger.read().runs)
    return rules.funds_of(provider, reading.account, runs, reading.read_at, but), ""


def read_funds_if_any(
    provider: str, has_account: Callable[[str], bool], build_context: Callable[[], Context]
) -> tuple[Funds | None, str]:
    """``read_funds`` for a command that has no context: none is built where there is no account at
    ``provider``, and a ledger that cannot be read is a reason like any other."""
    try:
        return read_funds(build_context(), provider) if has_account(provider) else (None, "")
    except LedgerError as error:
        return None, str(error)


def funds_reader(context: Context) -> Callable[[str], tuple[Funds | None, str]]:
    """The reader for a planner beside ``context``, which shares its readings."""
    return lambda provider: read_funds(context, provider, AT_LAUNCH_S)


def plan_funds(context: Context, plan: Plan) -> tuple[Funds | None, str]:
    """(what is free of the balance at the plan's first provider, why that is not known)."""
    chosen = plan.recommended
    if chosen is None or plan.spec.balance == IGNORE:
        return None, ""
    return read_funds(context, chosen.provider, AT_LAUNCH_S)


def check_balance(context: Context, plan: Plan) -> None:
    """
    Raises:
        PaymentRequired: the balance at the plan's first provider does not cover its worst case
            beside what other runs hold.
    """
    funds, _ = plan_funds(context, plan)
    if funds is not None:
        require_funds(funds, rules.worst_at(plan, funds.provider))


def balances_due(context: Context) -> list[tuple[str, Reason]]:
    """Read the balances of live runs' providers where that is due, put warnings on record, and
    return the runs that are to land for it, each with the reason.

    One process reads each provider once in five to six minutes, and judges by its last reading in
    between.
    """
    runs = present_runs(context.ledger.read().runs)
    watched = [run for run in runs if rules.is_watched(run)]
    providers = dict.fromkeys(run.generation.provider for run in watched if run.generation)
    landing: list[tuple[str, Reason]] = []
    for provider in providers:
        if can_tell(context, provider):
            mine = [r for r in watched if r.generation and r.generation.provider == provider]
            landing += _judge(context, provider, runs, mine)
    return landing


def _judge(
    context: Context, provider: str, runs: Iterable[RunState], watched: Iterable[RunState]
) -> list[tuple[str, Reason]]:
    share = crc32(f"{context.caller.controller} {provider}".encode()) / 2**32
    every_s = rules.look_every_s(share)
    before = context.machines.balances.last(provider)
    reading = context.machines.read_balance(provider, context.wall(), every_s)
    if reading.account is None:
        return []
    outlook = rules.outlook_of(provider, reading.account, runs, reading.read_at)
    if outlook is None:
        return []
    now = context.wall()
    if reading is not before and not reading.trouble:
        last = context.ledger.read().low_balances.get(provider)
        low = rules.low_balance_event(outlook, last, now)
        if low is not None:
            with suppress(LedgerError, IllegalTransition):
                context.ledger.note(low, now)
    reasons = ((run.run_id, rules.why_land(outlook, run, now, every_s)) for run in watched)
    return [(run_id, reason) for run_id, reason in reasons if reason is not None]
