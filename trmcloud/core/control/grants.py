"""Grants: what principals other than the ledger's owner may spend, and what they have. Pure.

A principal is a person, an agent or a CI job. Its runs bear its name, and each of their machines
the number of the grant that pays for it, so that no clock decides what counts. What is settled and
reserved under a grant is never more than the grant's total. On a UTC day money counts whole that
may be spent on that day: a machine on each day between its intent and its end, what is reserved
from the day on when it was. So no day costs more than the grant allows for one, and a run across
midnight burdens both days. The same holds for a UTC month.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trmcloud.core.clock import utc_day, utc_minute, utc_month
from trmcloud.core.control import events as ev
from trmcloud.core.control.ledger_facts import Approval, Grant, LedgerFacts, holds, rents_volume
from trmcloud.core.control.run_book import PAYER, find_runs, present_runs, with_run
from trmcloud.core.control.run_state import IllegalTransition, RunState
from trmcloud.core.money import ZERO, Usd, total
from trmcloud.core.values import Value, replace

if TYPE_CHECKING:
    from trmcloud.core.spec.plan import Candidate

OWNER = "owner"
"""What the ledger's owner is called on screens; no principal has that name."""
DEFAULT_IDLE_S = 1800.0
MOST_OPEN, MOST_A_DAY = 3, 10
"""Requests for approval of one principal that may be open at once, and be made on one UTC day:
each of them is sent to people."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_FOREVER = float("inf")
_MEND = "the owner restores its records: trmcloud admin ledger restore"
DAY_S = 86_400.0


day_of, month_of = utc_day, utc_month


def is_principal(name: str) -> bool:
    """Whether a principal may have that name."""
    return _NAME.fullmatch(name) is not None and name.lower() != OWNER


# -- the fold --------------------------------------------------------------------------------------


class GrantBook:
    """Grants and requests for approval while records are added."""

    def __init__(
        self,
        grants: dict[str, Grant],
        approvals: dict[str, Approval],
        history: tuple[ev.Record, ...],
    ) -> None:
        self.grants, self.approvals, self.history = grants, approvals, history

    @classmethod
    def of(cls, ledger: LedgerFacts) -> GrantBook:
        return cls(dict(ledger.grants), dict(ledger.approvals), ledger.grant_history)

    def add(self, record: ev.Record, event: ev.GrantEvent) -> None:
        """
        Raises:
            IllegalTransition: the event cannot follow those before it.
        """
        self.history = (*self.history, record)
        if isinstance(event, ev.GrantGiven):
            before = self.grants.get(event.principal)
            if before is not None and before.revoked_at is None:
                raise IllegalTransition(f"{event.principal} has a grant already")
            number = before.number + 1 if before is not None else 1
            made = Grant(event.principal, number, event.terms, record.at, event.by)
            self.grants[event.principal] = made
        elif isinstance(event, ev.GrantRaised):
            mine = self._standing(event.principal)
            self.grants[event.principal] = replace(mine, terms=event.terms)
        elif isinstance(event, ev.GrantRevoked):
            self._revoke(record, event)
        elif isinstance(event, ev.ApprovalAsked):
            mine = self._standing(event.principal)
            if event.id in self.approvals:
                raise IllegalTransition(f"{event.id} was asked for already")
            self.approvals[event.id] = Approval(event, record.at, mine.number)
        else:
            self._answer(record, event)

    def _revoke(self, record: ev.Record, event: ev.GrantRevoked) -> None:
        mine = self.grants.get(event.principal)
        if mine is None or (mine.revoked_at is not None and mine.ends_at_once):
            raise IllegalTransition(f"{event.principal} has no grant")
        if mine.revoked_at is not None and not event.at_once:
            raise IllegalTransition(f"the grant of {event.principal} is revoked already")
        revoked_at = record.at if mine.revoked_at is None else mine.revoked_at
        done = replace(mine, revoked_at=revoked_at, ends_at_once=event.at_once)
        self.grants[event.principal] = done

    def _answer(self, record: ev.Record, event: ev.ApprovalGiven | ev.ApprovalDenied) -> None:
        asked = self.approvals.get(event.id)
        if asked is None or asked.is_given is not None:
            raise IllegalTransition(f"{event.id} is no open request")
        given = isinstance(event, ev.ApprovalGiven)
        if given:
            mine = self._standing(asked.asked.principal)
            if mine.number != asked.grant:
                raise IllegalTransition(f"{event.id} is about a grant that was revoked")
            self.grants[mine.principal] = replace(mine, terms=raised(mine.terms, asked.asked))
        answer = replace(asked, is_given=given, answered_at=record.at, by=event.by)
        self.approvals[event.id] = answer

    def _standing(self, principal: str) -> Grant:
        mine = self.grants.get(principal)
        if mine is None or mine.revoked_at is not None:
            raise IllegalTransition(f"{principal} has no grant")
        return mine


def raised(terms: ev.GrantTerms, asked: ev.ApprovalAsked) -> ev.GrantTerms:
    """The terms with what was asked for: never less than before in any respect."""
    at_once = max(terms.runs_at_once, asked.runs_at_once) if terms.runs_at_once else 0
    return replace(
        terms,
        total=terms.total + asked.more,
        per_run=_larger(terms.per_run, asked.per_run),
        per_day=_larger(terms.per_day, asked.per_day),
        per_month=_larger(terms.per_month, asked.per_month),
        runs_at_once=at_once,
        hardware=_with(terms.hardware, asked.hardware),
        providers=_with(terms.providers, asked.providers),
        expires_at=_later(terms.expires_at, asked.expires_at),
    )


def _larger(before: Usd | None, asked: Usd | None) -> Usd | None:
    return before if before is None or asked is None else max(before, asked)


def _later(before: float | None, asked: float | None) -> float | None:
    return before if before is None or asked is None else max(before, asked)


def _with(before: Sequence[str], asked: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*before, *asked))) if before else ()


def allows_less(new: ev.GrantTerms, old: ev.GrantTerms) -> str:
    """Return the term by which ``new`` allows less than ``old``; empty where there is none."""
    amounts = (
        (new.per_run, old.per_run, "per-run"),
        (new.per_day, old.per_day, "per-day"),
        (new.per_month, old.per_month, "per-month"),
    )
    if new.total < old.total:
        return "total"
    for amount, before, name in amounts:
        if amount is not None and (before is None or amount < before):
            return name
    if new.runs_at_once and not 0 < old.runs_at_once <= new.runs_at_once:
        return "runs-at-once"
    for names, earlier, name in (
        (new.hardware, old.hardware, "hardware"),
        (new.providers, old.providers, "provider"),
    ):
        if names and not (earlier and set(earlier) <= set(names)):
            return name
    if not set(old.buckets) <= set(new.buckets):
        return "bucket"
    if new.expires_at is not None and (old.expires_at is None or new.expires_at < old.expires_at):
        return "expires"
    return ""


# -- money -----------------------------------------------------------------------------------------


class Held(Value):
    """USD that burden a grant; ``strays``, ``unproven``, ``volumes`` and ``quarantined`` are shares
    of the rest, as in ``budget.Line``."""

    settled: Usd = ZERO
    reserved: Usd = ZERO
    strays: Usd = ZERO
    unproven: Usd = ZERO
    volumes: Usd = ZERO
    quarantined: Usd = ZERO

    @property
    def whole(self) -> Usd:
        return self.settled + self.reserved


class _Share(Value):
    """Money of one machine, one reservation, one volume: it is spent between ``since`` and
    ``until`` (epoch s)."""

    since: float
    until: float
    held: Held


def money_of(ledger: LedgerFacts, grant: Grant, when: str | None = None) -> Held:
    """All that is settled and reserved under a grant; with ``when``, a UTC day or month as
    ``day_of`` and ``month_of`` write it, what may be spent then."""
    shares = _shares(ledger, grant)
    mine = [share.held for share in shares if when is None or _touches(share, when)]
    return Held(
        total(each.settled for each in mine),
        total(each.reserved for each in mine),
        total(each.strays for each in mine),
        total(each.unproven for each in mine),
        total(each.volumes for each in mine),
        total(each.quarantined for each in mine),
    )


def _touches(share: _Share, when: str) -> bool:
    """A share whose end a clock that was set back places before its beginning touches both days."""
    first, last = sorted((share.since, share.until))
    size = len(when)  # a month's name is the beginning of its days' names
    return day_of(first)[:size] <= when and (last == _FOREVER or when <= day_of(last)[:size])


def _shares(ledger: LedgerFacts, grant: Grant) -> Iterator[_Share]:
    mine = grant.payer
    has_volumes = False
    for run in find_runs(ledger.runs, PAYER, grant.principal):
        # Also those of others: one that it resumed may have been resumed by another since.
        yield from _shares_of(run, grant)
        has_volumes = has_volumes or rents_volume(run)
    for hold in holds(ledger) if has_volumes else ():
        if hold.payer == mine:
            gone, amount = hold.deleted_at is not None, hold.amount
            held = Held(settled=amount if gone else ZERO, reserved=ZERO if gone else amount)
            yield _Share(hold.since, max(hold.since, hold.until), replace(held, volumes=amount))
    for stray in ledger.strays.values():
        owner = ledger.runs.get(stray.run_id)
        if owner is not None and owner.payer == mine:
            open_ = ZERO if stray.billed is not None else stray.amount
            held = Held(stray.billed or ZERO, open_, stray.cost, open_)
            until = stray.charged_at if stray.billed is not None else _FOREVER
            yield _Share(stray.since, until, held)
    for hurt in ledger.quarantined.values():
        if hurt.principals is not None and grant.principal not in hurt.principals:
            continue
        if hurt.settled is not None:
            yield _Share(hurt.reserved_at or 0.0, hurt.settled_at, Held(settled=hurt.settled))
        elif hurt.most is not None:
            held = Held(reserved=hurt.most, unproven=hurt.most, quarantined=hurt.most)
            yield _Share(hurt.reserved_at or 0.0, _FOREVER, held)


def _shares_of(run: RunState, grant: Grant) -> Iterator[_Share]:
    mine = grant.payer
    for each in run.generations:
        if each.payer != mine:
            continue
        amount = each.settled or ZERO
        _, rent = run.swept.of(each.number)
        unproven = amount if each.awaits_bill else ZERO
        ends = each.ended_at if each.ended_at is not None else _FOREVER
        if each.not_made is not None:
            ends = each.intended_at
        until = max(ends, run.swept.at) if rent else ends
        yield _Share(each.intended_at, until, Held(settled=amount + rent, unproven=unproven))
    if run.payer == mine and run.reserved:
        yield _Share(run.reserved_at, _FOREVER, Held(reserved=run.reserved))


# -- the check -------------------------------------------------------------------------------------


class GrantRefusal(Value):
    """Why a grant does not pay for something: ``why`` is a sentence, ``allowed`` one that says what
    would be; ``left`` the USD that could be reserved now, where money is what lacks."""

    principal: str
    why: str
    allowed: str
    left: Usd | None = None


def live_runs(ledger: LedgerFacts, grant: Grant) -> tuple[RunState, ...]:
    """Runs under a grant that have not ended."""
    mine = grant.payer
    return tuple(run for run in present_runs(ledger.runs) if run.live and run.payer == mine)


def _damaged_runs(ledger: LedgerFacts, grant: Grant) -> list[str]:
    """Runs with damaged records that may be the grant's and may not have ended."""
    return [
        each.run_id
        for each in ledger.quarantined.values()
        if each.may_live and each.settled is None
        if each.principals is None or grant.principal in each.principals
    ]


def left_in(ledger: LedgerFacts, grant: Grant, at: float) -> Usd:
    """The most that a new run could reserve at ``at`` (epoch s) as far as money goes; ZERO at the
    least."""
    terms = grant.terms
    left = [terms.total - money_of(ledger, grant).whole]
    if terms.per_day is not None:
        left.append(terms.per_day - money_of(ledger, grant, day_of(at)).whole)
    if terms.per_month is not None:
        left.append(terms.per_month - money_of(ledger, grant, month_of(at)).whole)
    if terms.per_run is not None:
        left.append(terms.per_run)
    return max(min(left), ZERO)


def standing_of(ledger: LedgerFacts, principal: str, at: float) -> Grant | GrantRefusal:
    """The principal's grant, under which something may be reserved at ``at``; else why not."""
    grant = ledger.grants.get(principal)
    if grant is None:
        why = f"{principal} has no grant: it may spend nothing"
        return GrantRefusal(principal, why, f"the owner gives one: {_give(principal)}", ZERO)
    if grant.revoked_at is not None:
        why = f"the grant of {principal} is revoked"
        return GrantRefusal(principal, why, f"the owner gives another: {_give(principal)}", ZERO)
    ends_at = grant.terms.expires_at
    if ends_at is not None and at >= ends_at:
        why = f"the grant of {principal} expired at {utc_minute(ends_at)}"
        longer = f"the owner extends it: trmcloud grant raise {principal} --expires 7d"
        return GrantRefusal(principal, why, longer, ZERO)
    return grant


def refuse_by_grant(
    ledger: LedgerFacts, run: RunState, amount: Usd, at: float
) -> GrantRefusal | None:
    """Return why the grant of the run's principal does not pay for reserving ``amount`` at ``at``;
    None where it does, or where the run is the owner's.

    The run's own open reservation is replaced by ``amount``, not added to it.

    Args:
        ledger: without the events that are judged.
    """
    if not run.payer.principal:
        return None
    grant = standing_of(ledger, run.payer.principal, at)
    if isinstance(grant, GrantRefusal):
        return grant
    name, terms = grant.principal, grant.terms
    if run.payer != grant.payer:
        why = f"the grant that {run.run_id} was launched under is revoked"
        return GrantRefusal(name, why, f"resume it under the new one: trmcloud resume {run.run_id}")
    book = replace(
        ledger,
        runs=with_run(ledger.runs, replace(run, reserved=ZERO, reserved_at=at)),
    )
    others = [each.run_id for each in live_runs(book, grant) if each.run_id != run.run_id]
    hurt = _damaged_runs(ledger, grant)
    if terms.runs_at_once and len(others) + len(hurt) >= terms.runs_at_once:
        most = "1 run" if terms.runs_at_once == 1 else f"{terms.runs_at_once} runs"
        damaged = [f"{each} has damaged records and may not have ended" for each in hurt]
        ended = [f"{', '.join(others)} has not ended"] if others else []
        why = f"the grant of {name} allows {most} at once, and {' and '.join(ended + damaged)}"
        step = f"wait for it, or land it: {others[0]}" if others else _MEND
        return GrantRefusal(name, why, step)
    for candidate in _about_to_rent(run):
        refused = refuse_machine(grant, candidate)
        if refused is not None:
            return refused
    return _refuse_money(book, grant, run, amount, at)


def refuse_machine(grant: Grant, candidate: Candidate) -> GrantRefusal | None:
    """Return why a grant does not allow a candidate; None where it does."""
    terms, name = grant.terms, grant.principal
    if terms.providers and candidate.provider not in terms.providers:
        why = f"the grant of {name} does not allow {candidate.provider}"
        return GrantRefusal(name, why, f"allowed providers: {', '.join(terms.providers)}")
    if terms.hardware and candidate.hardware not in terms.hardware:
        why = f"the grant of {name} does not allow {candidate.hardware}"
        return GrantRefusal(name, why, f"allowed hardware: {', '.join(terms.hardware)}")
    return None


def refuse_bucket(grant: Grant, bucket: str, configured: str) -> GrantRefusal | None:
    """Return why a grant's runs may not keep checkpoints at ``bucket``, an s3:// place; None where
    they may: at or below ``configured``, or one of the grant's."""
    places = [place for place in (configured, *grant.terms.buckets) if place]
    if any(f"{bucket}/".startswith(f"{place.rstrip('/')}/") for place in places):
        return None
    name = grant.principal
    why = f"the grant of {name} does not allow {bucket}"
    allowed = ", ".join(places)
    allowed = allowed or f"none; its owner types trmcloud grant raise {name} --bucket {bucket}"
    return GrantRefusal(name, why, f"allowed buckets: {allowed}")


def _about_to_rent(run: RunState) -> Iterator[Candidate]:
    if run.recorded_plan is None:
        return
    for candidate_id in run.recorded_plan.launchable:
        candidate = run.recorded_plan.candidate(candidate_id)
        if candidate is not None:
            yield candidate


def _refuse_money(
    book: LedgerFacts, grant: Grant, run: RunState, amount: Usd, at: float
) -> GrantRefusal | None:
    name, terms = grant.principal, grant.terms
    held = money_of(book, grant)
    limits = [(terms.total, held.settled, held.reserved, "in total")]
    if terms.per_run is not None:
        settled, reserved = run.settled, ZERO
        for hold in holds(book):
            if hold.run_id == run.run_id:
                reserved += hold.amount
        for stray in book.strays.values():
            if stray.run_id == run.run_id:
                reserved += stray.cost
        limits.append((terms.per_run, settled, reserved, "per run"))
    for most, when, name_of in (
        (terms.per_day, day_of(at), "on"),
        (terms.per_month, month_of(at), "in"),
    ):
        if most is not None:
            then = money_of(book, grant, when)
            limits.append((most, then.settled, then.reserved, f"{name_of} {when} (UTC)"))
    left, cap, settled, reserved, of = min(
        (cap - settled - reserved, cap, settled, reserved, of)
        for cap, settled, reserved, of in limits
    )
    if amount <= left:
        return None
    left = max(left, ZERO)
    why = (
        f"{amount} does not fit the grant of {name}: {cap} {of}, {settled} spent, "
        f"{reserved} reserved, {left} left"
    )
    return GrantRefusal(
        name, why, f"a reservation of up to {left.plain()} USD is allowed now", left
    )


def _give(principal: str) -> str:
    return f"trmcloud grant give {principal} USD"
