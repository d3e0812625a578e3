"""Grants of principals: given, raised and revoked by the owner, asked for and shown to both."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from trmcloud.core.catalog.hardware import parse_hardware
from trmcloud.core.catalog.providers import TRAITS, find_traits
from trmcloud.core.contract.bucket_layout import parse_place
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.grants import (
    DEFAULT_IDLE_S,
    GrantRefusal,
    day_of,
    left_in,
    live_runs,
    money_of,
    month_of,
    refuse_bucket,
    refuse_by_grant,
    standing_of,
)
from trmcloud.core.control.ledger_facts import Approval, Grant
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import ConflictError, GrantRefused, NotFoundError, UsageError
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.nearest import nearest
from trmcloud.core.spec.plan import Plan, RecordedPlan, plan_to_json
from trmcloud.core.spec.spec import parse_deadline
from trmcloud.core.values import Value, replace
from trmcloud.operations.context import Context, find_run
from trmcloud.operations.driving.reconciling import reconcile
from trmcloud.operations.views import ApprovalLine, GrantChange, GrantLine, filled
from trmcloud.options import parse_cap

STANDING, EXPIRED, REVOKED = "standing", "expired", "revoked"
OPEN, APPROVED, DENIED = "open", "approved", "denied"
NOT_FOR_PRINCIPALS: Mapping[str, str] = {
    "env": "a variable of this process, which is the owner's",
    "accept_exposure": "money beyond every cap",
    "allow_key": "the owner's account",
}
"""Options that a principal cannot use, and what each would give away."""
_MOST_WORDS = 300


class GrantAccount(Value):
    """A principal's grant: what it allows, and what of that is spent (settled), reserved and left.
    Money is USD, instants epoch seconds; ``left`` is the most that a new run can reserve now."""

    principal: str
    state: str
    """standing, expired or revoked."""
    total: Usd
    spent: Usd
    reserved: Usd
    left: Usd
    per_run: Usd | None
    per_day: Usd | None
    spent_today: Usd
    reserved_today: Usd
    """Of the UTC day."""
    runs_at_once: int
    """0: any number."""
    live_runs: tuple[str, ...]
    hardware: tuple[str, ...]
    providers: tuple[str, ...]
    """Empty: any."""
    expires_at: float | None
    idle_s: float
    given_at: float
    given_by: str
    revoked_at: float | None = None
    per_month: Usd | None = None
    spent_this_month: Usd = ZERO
    reserved_this_month: Usd = ZERO
    """Of the UTC month."""
    buckets: tuple[str, ...] = ()
    """Beside the one that this machine is configured with."""


class ApprovalRequest(Value):
    """A principal's request for more; what is 0, None or empty was not asked for."""

    id: str
    principal: str
    state: str
    """open, approved or denied."""
    why: str
    more: Usd
    per_run: Usd | None
    per_day: Usd | None
    runs_at_once: int
    hardware: tuple[str, ...]
    providers: tuple[str, ...]
    expires_at: float | None
    asked_at: float
    asked_by: str = ""
    """The role of the database, or the user of this machine; empty in records of before."""
    answered_at: float | None = None
    answered_by: str = ""
    per_month: Usd | None = None


# -- looking ---------------------------------------------------------------------------------------


def account_of(ledger: LedgerState, grant: Grant, now: float) -> GrantAccount:
    terms, held = grant.terms, money_of(ledger, grant)
    today = money_of(ledger, grant, day_of(now))
    month = money_of(ledger, grant, month_of(now))
    expired = terms.expires_at is not None and now >= terms.expires_at
    state = EXPIRED if expired else STANDING
    state = REVOKED if grant.revoked_at is not None else state
    return filled(
        GrantAccount,
        terms,
        principal=grant.principal,
        state=state,
        spent=held.settled,
        reserved=held.reserved,
        left=left_in(ledger, grant, now) if state == STANDING else ZERO,
        spent_today=today.settled,
        reserved_today=today.reserved,
        live_runs=tuple(run.run_id for run in live_runs(ledger, grant)),
        given_at=grant.given_at,
        given_by=grant.by,
        revoked_at=grant.revoked_at,
        spent_this_month=month.settled,
        reserved_this_month=month.reserved,
    )


def grants(context: Context) -> tuple[GrantAccount, ...]:
    """Every principal's latest grant; where the process acts for one, theirs alone."""
    ledger, now = context.ledger.read(), context.wall()
    return tuple(
        account_of(ledger, each, now)
        for name, each in ledger.grants.items()
        if context.caller.principal in ("", name)
    )


def approvals(context: Context) -> tuple[ApprovalRequest, ...]:
    """Requests for approval, the earliest first; as in ``grants``."""
    known = context.ledger.read().approvals.values()
    return tuple(
        request_of(each) for each in known if context.caller.principal in ("", each.asked.principal)
    )


def request_of(approval: Approval) -> ApprovalRequest:
    asked, state = approval.asked, OPEN
    if approval.is_given is not None:
        state = APPROVED if approval.is_given else DENIED
    return filled(
        ApprovalRequest,
        asked,
        state=state,
        asked_at=approval.asked_at,
        asked_by=asked.by,
        answered_at=approval.answered_at if state != OPEN else None,
        answered_by=approval.by,
    )


# -- by the owner ----------------------------------------------------------------------------------


def make_terms(total: Usd, given: Mapping[str, Any], before: ev.GrantTerms | None) -> ev.GrantTerms:
    """Return the terms of ``total`` and of the others that are ``given``, by their fields' names;
    what is not given stays as ``before``.

    Raises:
        UsageError: there is no such term, or no such hardware.
    """
    usual = ev.GrantTerms(total, runs_at_once=1, idle_s=DEFAULT_IDLE_S)
    terms = replace(before or usual, total=total)
    known = {name for name in vars(usual) if name != "total"}
    for name in given:
        if name not in known:
            raise UsageError(
                f"a grant has no term {name!r:.80}", next_step=", ".join(sorted(known))
            )
    made = dict(given)
    if "hardware" in made:
        made["hardware"] = tuple(parse_hardware(each).text for each in made["hardware"])
    if "providers" in made:
        made["providers"] = tuple(made["providers"])
    if "buckets" in made:
        made["buckets"] = tuple(str(parse_place(each)) for each in made["buckets"])
    return replace(terms, **made)


def parse_terms(
    context: Context,
    *,
    expires: str | None,
    idle: str | None,
    runs_at_once: int | None,
    **texts: str | list[str] | None,
) -> dict[str, Any]:
    """Return the terms that were typed, by the names of their fields, with ``total``; None and
    empty lists were not typed.

    Raises:
        UsageError: an amount, a provider, a place or a time that is none.
    """
    made: dict[str, Any] = {}
    for name, text in texts.items():
        if isinstance(text, str):
            flag = "USD" if name == "total" else f"--{name.replace('_', '-')}"
            made[name] = parse_cap(text, "trmcloud grant give NAME 20", flag)
        elif text:
            made[name] = tuple(text)
    for name in made.get("providers", ()):
        _require_provider(name)
    if "buckets" in made:
        made["buckets"] = tuple(str(parse_place(each)) for each in made["buckets"])
    now = context.wall()
    if expires is not None:
        made["expires_at"] = _deadline("--expires", expires, now)
    if idle is not None:
        is_zero = idle.strip() == "0"
        made["idle_s"] = 0.0 if is_zero else round(_deadline("--idle", idle, now) - now, 3)
    if runs_at_once is not None:
        made["runs_at_once"] = runs_at_once
    return made


def _require_provider(name: str) -> None:
    if find_traits(name) is None:
        known = [each for each, traits in TRAITS.items() if traits.route.can_be_named]
        raise UsageError(
            f"--provider: there is no provider {name[:80]!r}",
            next_step=f"--provider {nearest(name, known) or ', '.join(known)}",
        )


def _deadline(flag: str, text: str, now: float) -> float:
    try:
        return parse_deadline(text, now, None)
    except UsageError as error:
        what, step = (each.replace("--deadline", flag) for each in (error.what, error.next_step))
        raise UsageError(what, next_step=step) from None


def added_terms(before: ev.GrantTerms, typed: Mapping[str, Any]) -> ev.GrantTerms:
    """Return ``before`` with the terms that were ``typed``: hardware, providers and buckets are
    added to those that it names."""
    made = dict(typed)
    for name in ("hardware", "providers"):
        if name in made:
            held = getattr(before, name)
            made[name] = (*held, *made[name]) if held else ()
    if "buckets" in made:
        made["buckets"] = (*before.buckets, *made["buckets"])
    return make_terms(made.pop("total", before.total), made, before)


def give(context: Context, principal: str, terms: ev.GrantTerms) -> GrantAccount:
    """
    Raises:
        UsageError, ConflictError: see ``bookkeeping.add_grant``.
    """
    return _written(context, principal, ev.GrantGiven(principal, terms))


def raise_grant(context: Context, principal: str, terms: ev.GrantTerms) -> GrantAccount:
    """
    Raises:
        UsageError, NotFoundError: see ``bookkeeping.add_grant``.
    """
    return _written(context, principal, ev.GrantRaised(principal, terms))


def standing_terms(context: Context, principal: str) -> ev.GrantTerms:
    """
    Raises:
        NotFoundError: the principal has no grant.
    """
    mine = context.ledger.read().grants.get(principal)
    if mine is None or mine.revoked_at is not None:
        raise NotFoundError(
            f"{principal[:80]} has no grant", next_step=f"trmcloud grant give {principal[:80]} USD"
        )
    return mine.terms


def revoke(context: Context, principal: str, *, at_once: bool = False) -> GrantAccount:
    """Revoke a grant, and have its runs land, or end ``at_once``: as every command does later, too.

    Raises:
        NotFoundError, ConflictError: there is none to revoke.
    """
    _written(context, principal, ev.GrantRevoked(principal, at_once=at_once))
    reconcile(context)
    ledger = context.ledger.read()
    return account_of(ledger, ledger.grants[principal], context.wall())


def answer(context: Context, approval_id: str, *, give: bool) -> ApprovalRequest:
    """Approve or deny a request. The ledger records who does: the role that logged in to its
    database, or the user of this process.

    Raises:
        NotFoundError, ConflictError: it is no open one. GrantRefused: the process acts for a
            principal, or its role of the database asked for it.
    """
    require_owner(context)
    event = ev.ApprovalGiven(approval_id) if give else ev.ApprovalDenied(approval_id)
    context.ledger.set_grant(event, context.wall())
    return request_of(context.ledger.read().approvals[approval_id])


def _written(context: Context, principal: str, event: ev.GrantEvent) -> GrantAccount:
    require_owner(context)
    context.ledger.set_grant(event, context.wall())
    ledger = context.ledger.read()
    return account_of(ledger, ledger.grants[principal], context.wall())


def require_owner(context: Context) -> None:
    if context.caller.principal:
        raise GrantRefused(
            f"{context.caller.principal} cannot change caps or grants",
            next_step="ask the ledger's owner for approval",
        )


# -- by the principal ------------------------------------------------------------------------------


def ask(context: Context, why: str, wish: Mapping[str, Any]) -> ApprovalRequest:
    """Ask the owner for what ``wish`` names, by the fields of ``events.ApprovalAsked``.

    Raises:
        UsageError: nothing is asked for that the grant does not allow. NotFoundError: there is no
            grant. GrantRefused: too many requests are open, or were made today.
    """
    if not context.caller.principal:
        raise UsageError("the ledger's owner needs no approval")
    if "hardware" in wish:
        named = tuple(parse_hardware(each).text for each in wish["hardware"])
        wish = {**wish, "hardware": named}
    event = ev.ApprovalAsked(
        id=f"a-{secrets.token_hex(4)}",
        principal=context.caller.principal,
        why=why.strip()[:_MOST_WORDS],
        **wish,
    )
    same = [each for each in approvals(context) if each.state == OPEN and _asks_same(each, event)]
    if same:
        return same[0]
    context.ledger.set_grant(event, context.wall())
    return request_of(context.ledger.read().approvals[event.id])


def _asks_same(request: ApprovalRequest, event: ev.ApprovalAsked) -> bool:
    names = (
        *("more", "per_run", "per_day", "per_month", "runs_at_once"),
        *("hardware", "providers", "expires_at"),
    )
    return all(getattr(request, name) == getattr(event, name) for name in names)


def require_allowed(context: Context, plan: Plan) -> None:
    """Look before anything is made ready whether the principal's grant pays for a plan now; what
    counts is the look of the transaction that reserves.

    Raises:
        GrantRefused: it does not.
    """
    if not context.caller.principal:
        return
    ledger, now = context.ledger.read(), context.wall()
    found = standing_of(ledger, context.caller.principal, now)
    if isinstance(found, GrantRefusal):
        raise GrantRefused(found.why, next_step=found.allowed)
    run = RunState("", recorded_plan=RecordedPlan(plan_to_json(plan)), payer=found.payer)
    require_bucket(context, plan.spec.bucket)
    refused = refuse_by_grant(ledger, run, plan.reservation, now)
    if refused is not None:
        raise GrantRefused(refused.why, next_step=refused.allowed)


def require_wish(context: Context, wish: Mapping[str, Any]) -> None:
    """
    Raises:
        GrantRefused: an option that is the owner's alone.
    """
    for name, gives in NOT_FOR_PRINCIPALS.items():
        if context.caller.principal and wish.get(name):
            raise GrantRefused(
                f"{name}: a grant does not cover {gives}", next_step=f"leave out {name}"
            )
    require_bucket(context, str(wish.get("bucket") or ""))


def require_bucket(context: Context, bucket: str) -> None:
    """
    Raises:
        GrantRefused: ``bucket``, an s3:// place, is written with the owner's key, and is neither
            the configured one nor one of the grant's.
    """
    principal = context.caller.principal
    grant = context.ledger.read().grants.get(principal) if principal else None
    if grant is None or not bucket:
        return
    refused = refuse_bucket(grant, bucket, context.caller.bucket)
    if refused is not None:
        raise GrantRefused(refused.why, next_step=refused.allowed)


def judge_run(context: Context, name: str | None) -> RunState:
    """Find the run that a user named, and judge whether the process may change it. What is done
    then is given this run's id, whatever has its name by then.

    Raises:
        NotFoundError: see ``find_run``. ConflictError: see ``require_paying``.
    """
    return require_paying(context, find_run(context, name))


def require_paying(context: Context, run: RunState) -> RunState:
    """
    Raises:
        ConflictError: the owner has resumed the run since, and pays for it.
    """
    if context.caller.principal and run.payer.principal != context.caller.principal:
        raise ConflictError(
            f"{run.run_id} was resumed by {run.payer.principal or 'the owner'}, who pays for it",
            next_step="start a run of your own",
        )
    return run


def changes(context: Context) -> tuple[GrantChange, ...]:
    """Return all changes of grants and all requests on record, the earliest first."""
    records, whose = context.ledger.read().grant_history, {}
    found = []
    for record in records:
        event = record.event
        kind = _KINDS[type(event)]
        total, request, by = None, getattr(event, "id", ""), getattr(event, "by", "")
        if isinstance(event, ev.GrantGiven | ev.GrantRaised):
            total = event.terms.total
        if isinstance(event, ev.ApprovalAsked):
            whose[request], by = event.principal, event.by or event.principal
        principal = getattr(event, "principal", "") or whose.get(request, "")
        found.append(
            GrantChange(
                changed_at=record.at,
                kind=kind,
                principal=principal,
                total_usd=total,
                request=request,
                by=by,
            )
        )
    return tuple(found)


_KINDS: Mapping[type, str] = {
    ev.GrantGiven: "given",
    ev.GrantRaised: "raised",
    ev.GrantRevoked: "revoked",
    ev.ApprovalAsked: "asked",
    ev.ApprovalGiven: "approved",
    ev.ApprovalDenied: "denied",
}


def grant_line(account: GrantAccount) -> GrantLine:
    return filled(
        GrantLine,
        account,
        settled_usd=account.spent,
        settled_today_usd=account.spent_today,
        settled_this_month_usd=account.spent_this_month,
    )


def approval_line(request: ApprovalRequest) -> ApprovalLine:
    return filled(ApprovalLine, request)
