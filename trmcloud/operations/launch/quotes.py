"""Conditions of a principal's launch before money is spent: a plan whose price still holds, and a
trial of its command that found nothing."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.control.run_book import PAYER, find_runs
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import ConflictError, GrantRefused, Outcome, TrialFailed, UsageError
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.core.values import replace
from trmcloud.operations.commands.trial_checks import Check, Result, failed
from trmcloud.operations.context import Context
from trmcloud.operations.plans import planning
from trmcloud.operations.plans.planning import Planner

PROBE_CAP = Usd(1)
"""A run that reserves no more may be started without a probe, and a probe reserves no more."""
PROBE_STEPS = 20
_BY_MACHINE = "gpu"
"""The check of a trial that only the rented hardware can answer."""
_DONE = (Outcome.FINISHED, Outcome.LANDED)


class QuoteRefused(ConflictError):
    """A quote has expired, or its price has risen; ``plan`` is the new one, saved."""

    def __init__(self, what: str, plan: Plan) -> None:
        first = plan.recommended
        price = f" at {first.rate}/h" if first is not None else ""
        super().__init__(
            what, next_step=f"the new quote {plan.id} reserves {plan.reservation.plain()}{price}"
        )
        self.plan = plan


def require_quote(context: Context, planner: Planner, plan_id: str) -> None:
    """Look whether a saved plan's price still holds. What it says is what is reserved.

    Raises:
        QuoteRefused: it has expired, or what it would rent costs more by now or is not offered.
        UsageError, NotFoundError: there is no such plan.
    """
    quoted = planning.load_plan(context.home, plan_id, 0.0, context.caller.principal)
    if context.wall() > quoted.expires_at:
        why = f"quote {plan_id} has expired"
        raise QuoteRefused(why, planner.save(planner.plan(quoted.spec)))
    now = planner.plan(quoted.spec)
    why = _why_dearer(quoted, now)
    if why:
        raise QuoteRefused(f"quote {plan_id}: {why}", planner.save(now))


def require_same(
    context: Context, planner: Planner, quote: str, plan: Plan, stopped: Callable[[Plan], Plan]
) -> None:
    """Look whether ``plan``, a command's as it is about to be launched, is what was quoted.
    ``stopped``: returns a plan with the stop that it is launched with.

    Raises:
        QuoteRefused, NotFoundError: as above. UsageError: the quote is for something else.
    """
    quoted = stopped(planning.load_plan(context.home, quote, 0.0, context.caller.principal))
    if _wish(quoted) != _wish(plan):
        raise UsageError(
            f"quote {quote} is for another command or other options",
            next_step="use the options of the quote, or ask for another one",
        )
    if context.wall() > quoted.expires_at:
        raise QuoteRefused(f"quote {quote} has expired", planner.save(plan))
    why = _why_dearer(quoted, plan)
    if why:
        raise QuoteRefused(f"quote {quote}: {why}", planner.save(plan))


def _wish(plan: Plan) -> object:
    command = plan.spec.command
    return replace(plan.spec, command=replace(command, source=None) if command else None)


def _why_dearer(quoted: Plan, now: Plan) -> str:
    first = quoted.recommended
    if first is None:
        return "it has nothing to launch"
    same = next((c for c in now.candidates if _place(c) == _place(first)), None)
    if same is None or now.recommended is None:
        return f"{first.hardware} at {first.provider} is not offered any more"
    if same.reserved_rate > first.reserved_rate:
        return f"{first.hardware} costs {same.rate}/h now, not {first.rate}/h"
    if now.reservation > quoted.reservation:
        more, less = now.reservation.plain(), quoted.reservation.plain()  # to the micro-dollar
        return f"it would reserve {more} USD, not {less}"
    return ""


def _place(candidate: Candidate) -> tuple[str, str, str, bool]:
    return candidate.hardware, candidate.provider, candidate.region, candidate.spot


# -- rehearsal -------------------------------------------------------------------------------------


def require_tried(context: Context, plan: Plan, code: Path, words: Sequence[str]) -> None:
    """Look whether a principal's command, with the code that would be sent, was tried here, found
    sound, and measured on rented hardware where only that can answer.

    Args:
        words: those that were to be tried: the plan's own; of a sweep, those of its first point.

    Raises:
        TrialFailed: a check of its trial failed. GrantRefused: it was not tried; or it has not
            been probed, and would reserve more than a probe.
    """
    command = plan.spec.command
    if not context.caller.principal or command is None:
        return
    from trmcloud.operations.commands.trial import (
        find_trial,  # a launch without a grant needs none of it
    )

    trial = find_trial(context.home, code, words, context.caller.principal)
    if trial is None:
        first = f" at the sweep's first point: {shlex.join(words)}" if plan.spec.sweep else ""
        raise GrantRefused(
            "a grant pays for a command only after a trial of it, with the same files",
            next_step=f"try the command first{first}: it runs here for a minute, free",
        )
    if trial.has_failed:
        raise TrialFailed(_what_failed(failed(trial.checks)), next_step=_fix(failed(trial.checks)))
    unknown = {check.name for check in trial.checks if check.result is Result.UNKNOWN}
    rented = any(plan.candidate(name).provider != LOCAL for name in plan.launchable)
    if not rented or _BY_MACHINE not in unknown:
        return
    if command.probe_steps and plan.reservation > PROBE_CAP:
        raise GrantRefused(
            f"a probe may reserve {PROBE_CAP} at most, not {plan.reservation}",
            next_step=f"budget {PROBE_CAP.plain()}",
        )
    if command.probe_steps or plan.reservation <= PROBE_CAP or (_was_probed(context, plan, words)):
        return
    raise GrantRefused(
        f"this would reserve {plan.reservation}, and whether the command fits the machine's memory "
        "is not known: only a GPU can tell",
        next_step=f"run it with probe {PROBE_STEPS} and budget {PROBE_CAP.plain()} first, which is "
        "paid from the grant",
    )


def _was_probed(context: Context, plan: Plan, words: Sequence[str]) -> bool:
    """Whether a probe of these words and the same files, by the same principal, came to its end."""
    runs = find_runs(context.ledger.read().runs, PAYER, context.caller.principal)
    return any(_is_probe_of(run, plan, words, context.caller.principal) for run in runs)


def _is_probe_of(run: RunState, plan: Plan, words: Sequence[str], principal: str) -> bool:
    if run.creator != principal or run.outcome not in _DONE or run.recorded_plan is None:
        return False
    probe, command = run.spec.command, plan.spec.command
    if probe is None or command is None or not probe.probe_steps:
        return False
    sources = probe.source, command.source
    same_code = all(sources) and sources[0].code_sha256 == sources[1].code_sha256  # type: ignore[union-attr]
    return same_code and probe.words == tuple(words)


def _what_failed(checks: tuple[Check, ...] | list[Check]) -> str:
    told = "; ".join(f"{check.name}: {check.evidence}" for check in checks)
    return f"its trial failed: {told}"


def _fix(checks: tuple[Check, ...] | list[Check]) -> str:
    return next((check.fix for check in checks if check.fix), "fix it and try it again")
