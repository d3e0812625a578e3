"""Telling those who do not look: notices derived into the outbox, and delivered from there.

Nothing of this is in the way of control: whoever drives a run lets a thread of its own do it, with
a ledger of its own to read. What is not taken is tried again, ever more rarely, for three days.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from trmcloud.app.context import Context
from trmcloud.app.narration import Narrator, words_of
from trmcloud.app.reap import last_visit
from trmcloud.app.run_queries import report_of
from trmcloud.app.trainings import find_symptoms
from trmcloud.core.contract.notices import TROUBLE_PATH, Notice, NoticeKind, body_of
from trmcloud.core.contract.pod_contract import AgentReport
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.events import Record
from trmcloud.core.control.grants import money_of
from trmcloud.core.control.notices import (
    MOST_TROUBLES,
    NoticeInputs,
    ReaperVisit,
    finding_notice,
    standing_notices,
)
from trmcloud.core.control.run_book import present_runs
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import TrmcloudError
from trmcloud.core.money import ZERO
from trmcloud.io.requests import pause_s
from trmcloud.ports.notices import DeliveryResult, Destination, Outbox, QueuedNotice, Send

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 3600.0
GIVE_UP_AFTER_S = 3 * 86_400.0
HOLD_S = 45.0
"""Longer than a try usually takes: another process may try once this has passed."""
_HEALTH_EVERY_S = 60.0


def due_notices(
    ledger: LedgerState,
    records: Sequence[Record],
    after_seq: int,
    observed: NoticeInputs,
    now: float,
) -> tuple[Notice, ...]:
    """Every notice that follows now: those of records after ``after_seq``, and how things stand.

    Args:
        records: those after it, and all earlier ones of their runs and of no run.
        now: epoch s.
    """
    told = Narrator(ledger.ledger_id, after_seq).tell(records)
    notices = [made for each in told for notice in each.notices for made in _asked(ledger, notice)]
    touched = {each.record.run_id for each in told}
    runs = [run for run in present_runs(ledger.runs) if run.live or run.run_id in touched]
    at_rest = sorted(touched & ledger.runs.keys() - {run.run_id for run in runs})
    runs += [ledger.runs[run_id] for run_id in at_rest]
    notices += standing_notices(ledger, runs, observed, now)
    return tuple({notice.id: notice for notice in reversed(notices)}.values())[::-1]


def _asked(ledger: LedgerState, notice: Notice) -> list[Notice]:
    """A request for approval with what its principal's grant has, unless it was answered; any
    other notice as it is."""
    if notice.kind is not NoticeKind.APPROVAL:
        return [notice]
    asked = ledger.approvals.get(str(notice.facts["request"]))
    if asked is None or asked.is_given is not None:
        return []
    grant = ledger.grants.get(str(notice.facts["principal"]))
    total, held = ZERO, ZERO
    if grant is not None:
        total, held = grant.terms.total, money_of(ledger, grant).whole
    money = {"total_usd": total.plain(), "spent_or_reserved_usd": held.plain()}
    return [replace(notice, facts={**notice.facts, **money})]


@dataclass
class Notifier:
    """Derives and delivers for one home. ``context`` is a thread's own, ledger included."""

    context: Context
    outbox: Outbox
    destinations: Sequence[Destination]
    sender: Callable[[Destination], Send]
    _taken: set[str] = field(default_factory=set)
    _cursor: int | None = None
    _looked_at: float | None = None
    _findings: tuple[Notice, ...] = ()
    _senders: dict[str, Send] = field(default_factory=dict)

    def derive(self, *, silently: bool = False) -> int:
        """Put what follows now into the outbox; ``silently``: as known already, without a
        destination. Return how many were new.

        Raises:
            LedgerError, OutboxError: it could not be looked, or kept.
        """
        context, now = self.context, self.context.wall()
        newest, cursor = context.ledger.last_seq(), self.outbox.cursor()
        # Events before the first destination are no news; nor are those that a restored ledger
        # shows again: a notification whose id is known is not sent again.
        first = cursor is None
        after = newest if cursor is None else cursor if cursor <= newest else 0
        ledger, records = context.ledger.read(), self._records(after)
        newest = max(newest, records[-1].seq if records else 0)
        observed = self._observe(ledger, now)
        notices = due_notices(ledger, records, after, observed, now)
        fresh = [n for n in notices if n.id not in self._taken and self._is_ours(ledger, n)]
        if not fresh and newest == self._cursor:
            return 0
        kept = self._bounded(fresh)
        told_to = () if first or silently else self.destinations
        bodies = [(notice, body_of(notice, words_of(notice))) for notice in kept]
        new = self.outbox.take(bodies, told_to, newest, now)
        self._taken |= {notice.id for notice in fresh}
        self._cursor = newest
        return new

    def deliver(self, destination: Destination) -> bool:
        """Tell one destination the oldest that is due; False where nothing was.

        Raises:
            OutboxError: it could not be kept what came of it.
        """
        now = self.context.wall()
        waiting = self.outbox.due(destination.name, now, HOLD_S)
        if waiting is None:
            return False
        told = self._try(destination, waiting)
        now = self.context.wall()
        if told.taken:
            self.outbox.done(waiting, now)
        elif now - waiting.since >= GIVE_UP_AFTER_S:
            self.outbox.give_up(waiting, told.why)
        else:
            pause = pause_s(waiting.tries, FIRST_PAUSE_S, LONGEST_PAUSE_S)
            self.outbox.put_off(waiting, now + max(pause, told.again_in_s or 0.0), told.why)
        return True

    def _records(self, after: int) -> Sequence[Record]:
        """The records after number ``after``, and the earlier ones that they follow on: of their
        runs, and of no run."""
        ledger = self.context.ledger
        new = ledger.records_after(after)
        runs = dict.fromkeys(("", *(record.run_id for record in new)))
        known = [r for run_id in runs for r in ledger.records(run_id) if r.seq <= after]
        return (*sorted(known, key=lambda record: record.seq), *new)

    def _is_ours(self, ledger: LedgerState, notice: Notice) -> bool:
        """Whether this home tells it. Of a shared ledger's runs each home tells of its own, and of
        a cap where a run of its own may reach it: a team would be told as often as it has homes."""
        context = self.context
        if notice.run_id:
            return not context.is_elsewhere(notice.run_id) or self._drives(notice.run_id)
        if notice.kind is not NoticeKind.CAP:
            return True
        live = [run for run in present_runs(ledger.runs) if run.live]
        elsewhere = [run for run in live if context.is_elsewhere(run.run_id)]
        return (
            len(elsewhere) < len(live)
            or not live
            or any(self._drives(run.run_id) for run in elsewhere)
        )

    def _drives(self, run_id: str) -> bool:
        """Whether a process of this machine drives it now, as a server does for others' runs."""
        driver = self.context.ledger.driver(run_id)
        who = driver.controller if driver is not None else None
        return who is not None and who.host == self.context.who.host

    def _try(self, destination: Destination, waiting: QueuedNotice) -> DeliveryResult:
        try:
            if destination.name not in self._senders:
                self._senders[destination.name] = self.sender(destination)
            return self._senders[destination.name](waiting.notice_id, waiting.body)
        except TrmcloudError as error:
            return DeliveryResult(False, str(error))

    def _bounded(self, notices: Sequence[Notice]) -> list[Notice]:
        """Without what a machine tells beyond ``MOST_TROUBLES``."""
        kept, counts = [], dict[str, int]()
        for notice in notices:
            head, found, _ = notice.id.partition(f"/{TROUBLE_PATH}/")
            if notice.kind is NoticeKind.TROUBLE and found:
                prefix = head + found
                if prefix not in counts:
                    counts[prefix] = self.outbox.known(prefix)
                counts[prefix] += 1
                if counts[prefix] > MOST_TROUBLES:
                    continue
            kept.append(notice)
        return kept

    def _observe(self, ledger: LedgerState, now: float) -> NoticeInputs:
        reports: dict[str, AgentReport] = {}
        for run in present_runs(ledger.runs):
            if run.live and run.generation is not None:
                report = report_of(self.context, run.generation)
                if report is not None:
                    reports[run.generation.pod_name] = report
        if self._looked_at is None or not 0 <= now - self._looked_at < _HEALTH_EVERY_S:
            self._looked_at = now
            self._findings = tuple(self._found(ledger, now))
        visit = last_visit(self.context)
        seen = None if visit is None else ReaperVisit(visit.at, visit.every_s, visit.machine)
        return NoticeInputs(reports, seen, self._findings)

    def _found(self, ledger: LedgerState, now: float) -> Iterator[Notice]:
        """Yield the notices of findings in the numbers of running trainings."""
        for run in present_runs(ledger.runs):
            if run.state is not State.RUNNING or run.errand is not None:
                continue
            with suppress(TrmcloudError, ValueError, KeyError):
                for phase, made in find_symptoms(self.context, run).items():
                    for each in made:
                        what = each.rule.value
                        yield finding_notice(ledger.ledger_id, run, phase, what, each.step, now)
