"""Judges what principals reserve: whose money it is follows from the records alone, one by one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from trmcloud.core.control import events as ev
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import GrantRefused, TrmcloudError
from trmcloud.core.values import replace
from trmcloud.sim.world.account import Observer, Process

if TYPE_CHECKING:
    from tests.sim.oracle.invariants import Invariants


_Payer = tuple[str, int]
"""A principal and the number of its grant: the first is 1."""


class _Book:
    """Grants, and who pays for what, as the records have it."""

    def __init__(self, records: Sequence[ev.Record]) -> None:
        self.terms: dict[_Payer, ev.GrantTerms] = {}
        self.ended: set[_Payer] = set()
        self.runs: dict[str, _Payer] = {}
        self.machines: dict[tuple[str, int], _Payer] = {}
        self.reserved_at: dict[str, float] = {}
        self._numbers: dict[str, int] = {}
        self._asked: dict[str, ev.ApprovalAsked] = {}
        for record in records:
            self._add(record)

    def payer(self, principal: str) -> _Payer:
        return principal, self._numbers.get(principal, 0)

    def _add(self, record: ev.Record) -> None:
        event = record.event
        if isinstance(event, ev.GrantGiven):
            self._numbers[event.principal] = self._numbers.get(event.principal, 0) + 1
            self.terms[self.payer(event.principal)] = event.terms
        elif isinstance(event, ev.GrantRaised):
            self.terms[self.payer(event.principal)] = event.terms
        elif isinstance(event, ev.GrantRevoked):
            self.ended.add(self.payer(event.principal))
        elif isinstance(event, ev.ApprovalAsked):
            self._asked[event.id] = event
        elif isinstance(event, ev.ApprovalGiven):
            asked = self._asked[event.id]
            mine = self.payer(asked.principal)
            terms = self.terms[mine]
            more = max(terms.runs_at_once, asked.runs_at_once) if terms.runs_at_once else 0
            self.terms[mine] = replace(terms, total=terms.total + asked.more, runs_at_once=more)
        elif isinstance(event, ev.RunPlanned | ev.Reopened):
            self.runs[record.run_id] = self.payer(event.principal)
        elif isinstance(event, ev.Reserved):
            self.reserved_at[record.run_id] = record.at
        elif isinstance(event, ev.PodIntended):
            self.machines[record.run_id, event.generation] = self.runs[record.run_id]


class GrantJudge(Observer):
    """Judges the reservations of one world's principals."""

    def __init__(self, check: Invariants) -> None:
        self.check, self.world, self.fail = check, check.world, check.world.fail
        self.judged = self.refused = self.revoked = 0

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.judged, self.refused, self.revoked

    def on_error(self, error: TrmcloudError) -> None:
        self.refused += isinstance(error, GrantRefused)

    def on_revoke(self) -> None:
        self.revoked += 1

    def on_append(self, process: Process, run_id: str, events: Sequence[ev.RunEvent]) -> None:
        """A reservation was written: its grant allows it, with all that burdens it."""
        if not any(isinstance(event, ev.Reserved) for event in events):
            return
        records = self.world.ledger.records()
        book = _Book(records)
        payer = book.runs.get(run_id)
        if payer is None or not payer[0]:
            return
        self.judged += 1
        self._judge(book, payer, run_id, records[-1].at)

    def _judge(self, book: _Book, payer: _Payer, run_id: str, at: float) -> None:
        runs = self.world.ledger.read().runs
        run, terms = runs[run_id], book.terms.get(payer)
        name = f"{payer[0]}, grant {payer[1]}"
        if terms is None or payer in book.ended or payer != book.payer(payer[0]):
            self.fail("G1", f"{run_id} reserves under no standing grant: {name}")
            return
        if terms.expires_at is not None and at >= terms.expires_at:
            self.fail("G1", f"{run_id} reserves after the grant expired: {name}")
        held = self._held(book, payer, runs.values(), None)
        if held > terms.total.micros:
            self.fail("G1", f"{name} holds {held / 1e6} of {terms.total}")
        whole = run.settled.micros + run.reserved.micros
        if terms.per_run is not None and whole > terms.per_run.micros:
            self.fail("G1", f"{run_id} holds {whole / 1e6}, a run may {terms.per_run}: {name}")
        today = self._held(book, payer, runs.values(), _day(at))
        if terms.per_day is not None and today > terms.per_day.micros:
            self.fail("G1", f"{name} holds {today / 1e6} of {terms.per_day} on one day")
        live = [each for each in runs.values() if each.live and book.runs[each.run_id] == payer]
        if terms.runs_at_once and len(live) > terms.runs_at_once:
            self.fail("G1", f"{name} has {len(live)} runs of {terms.runs_at_once} at once")
        tried = [run.plan.candidate(each).provider for each in run.plan.launchable]
        if terms.providers and not set(tried) <= set(terms.providers):
            self.fail("G1", f"{run_id} may rent from {tried}, the grant {terms.providers}: {name}")

    def _held(
        self, book: _Book, payer: _Payer, runs: Collection[RunState], day: dt.date | None
    ) -> int:
        """Micro-dollars settled and reserved under a grant, at the least; of a UTC day, those of
        machines that lived on it and of reservations that were open."""
        held = 0
        for run in runs:
            if book.runs.get(run.run_id) == payer:
                opened = _day(book.reserved_at.get(run.run_id, 0.0))
                held += run.reserved.micros if day is None or opened <= day else 0
            for machine in run.generations:
                if book.machines.get((run.run_id, machine.number)) != payer:
                    continue
                ended = machine.ended_at
                if machine.not_made is not None:
                    ended = machine.intended_at
                lives = day is None or _day(machine.intended_at) <= day <= _day(ended)
                held += (machine.settled.micros if machine.settled is not None else 0) * lives
        return held


def _day(at: float | None) -> dt.date:
    """The UTC day of an instant; the last of all days for None."""
    if at is None:
        return dt.date.max
    return dt.datetime.fromtimestamp(at, dt.timezone.utc).date()
