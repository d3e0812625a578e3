"""Sending notifications: notices are derived from the ledger, queued, and delivered.

Nothing of this is in the way of control: a process that drives a run has a thread for it, with a
ledger of its own to read. A failed delivery is tried again, ever more rarely, for three days.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from trmcloud.core.contract.notices import (
    TROUBLE_PATH,
    Notice,
    NoticeKind,
    Webhook,
    body_of,
    is_wanted,
)
from trmcloud.core.contract.pod_contract import AgentReport
from trmcloud.core.contract.records import dump
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.events import Record
from trmcloud.core.control.grants import money_of
from trmcloud.core.control.notices import (
    MOST_TROUBLES,
    NoticeInputs,
    ReaperVisit,
    finding_notice,
    may_follow_again,
    standing_notices,
)
from trmcloud.core.control.run_book import present_runs
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import TrmcloudError
from trmcloud.core.money import ZERO
from trmcloud.io.requests import pause_s
from trmcloud.operations.context import Context
from trmcloud.operations.curves.trainings import find_symptoms
from trmcloud.operations.driving.reap import last_visit
from trmcloud.operations.narration import Narrator, words_of
from trmcloud.operations.run_queries import report_of
from trmcloud.ports.notices import (
    Deliveries,
    DeliveryResult,
    DeliveryState,
    Destination,
    QueuedNotice,
    Send,
)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 3600.0
GIVE_UP_AFTER_S = 3 * 86_400.0
HOLD_S = 45.0
"""Longer than a try usually takes: another process may try once this has passed."""
_LONGEST_S = 7 * 86_400.0
"""No notice is put off or held for longer: a clock that was set back would do so."""
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
    deliveries: Deliveries
    destinations: Sequence[Destination]
    sender: Callable[[Destination], Send]
    _looked_at: float | None = None
    _findings: tuple[Notice, ...] = ()
    _senders: dict[str, Send] = field(default_factory=dict)

    def derive(self) -> int:
        """Queue what follows now. To a new destination, what was before is no news. Return how many
        notices were queued.

        Raises:
            LedgerError, NotifyError: the ledger cannot be read, or the queue not be written.
        """
        context, now = self.context, self.context.wall()
        queued: set[str] = set()
        if self._looked_at is None or not 0 <= now - self._looked_at < _HEALTH_EVERY_S:
            self._looked_at = now
            self._findings = tuple(self._found(context.ledger.read(), now))
        # The ledger is read under the lock: an older look could queue what another has dropped.
        with self.deliveries.change() as states:
            newest = context.ledger.last_seq()
            begun = {
                each.name: states.get(each.name) or DeliveryState(newest, now)
                for each in self.destinations
            }
            afters = {name: self._after(state, newest) for name, state in begun.items()}
            ledger, records = context.ledger.read(), self._records(min(afters.values()))
            newest = max(newest, records[-1].seq if records else 0)
            read_at = max(now, records[-1].at if records else now)
            observed = self._observe(ledger)
            due = {
                after: due_notices(ledger, records, after, observed, now)
                for after in set(afters.values())
            }
            for each in self.destinations:
                state = begun[each.name]
                sent = {*state.standing, *(waiting.notice_id for waiting in state.waiting)}
                fresh = [notice for notice in due[afters[each.name]] if notice.id not in sent]
                kept = _bounded(state.standing, [n for n in fresh if self._is_ours(ledger, n)])
                wanted = [n for n in kept if each.name in states and is_wanted(n, each.only)]
                queued |= {notice.id for notice in wanted}
                known = (*state.standing, *(notice.id for notice in kept))
                states[each.name] = replace(
                    state,
                    cursor=newest,
                    looked_at=state.looked_at if state.cursor == newest else read_at,
                    standing=tuple(i for i in known if may_follow_again(i, ledger, observed.visit)),
                    waiting=state.waiting
                    + tuple(
                        QueuedNotice(n.id, body_of(n, words_of(n)), now, next_at=now)
                        for n in wanted
                    ),
                )
        return len(queued)

    def deliver(self, destination: Destination) -> bool:
        """Send one destination the oldest notice that is due; False where there is none.

        Raises:
            NotifyError: the result cannot be written.
        """
        name, now = destination.name, self.context.wall()
        with self.deliveries.change() as states:
            state = states.get(name)
            held = None if state is None else _due(state, now)
            if state is None or held is None:
                return False
            states[name] = _with(state, replace(held, held_until=now + HOLD_S))
        result, now = self._try(destination, held), self.context.wall()
        with self.deliveries.change() as states:
            if name in states:  # it was not removed meanwhile
                states[name] = _settled(states[name], held, result, now)
        return True

    def _after(self, state: DeliveryState, newest: int) -> int:
        """Return the number of the last record that is no news."""
        if state.cursor <= newest:
            return state.cursor
        # The ledger was restored from a backup: its records up to that look are known.
        known = self.context.ledger.records_after(0)
        return max((each.seq for each in known if each.at <= state.looked_at), default=0)

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
            return not context.files.is_elsewhere(notice.run_id) or self._drives(notice.run_id)
        if notice.kind is not NoticeKind.CAP:
            return True
        live = [run for run in present_runs(ledger.runs) if run.live]
        elsewhere = [run for run in live if context.files.is_elsewhere(run.run_id)]
        return (
            len(elsewhere) < len(live)
            or not live
            or any(self._drives(run.run_id) for run in elsewhere)
        )

    def _drives(self, run_id: str) -> bool:
        """Whether a process of this machine drives it now, as a server does for others' runs."""
        driver = self.context.ledger.driver(run_id)
        who = driver.controller if driver is not None else None
        return who is not None and who.host == self.context.caller.controller.host

    def _try(self, destination: Destination, waiting: QueuedNotice) -> DeliveryResult:
        try:
            if destination.name not in self._senders:
                self._senders[destination.name] = self.sender(destination)
            return self._senders[destination.name](waiting.notice_id, waiting.body)
        except TrmcloudError as error:
            return DeliveryResult(False, str(error))

    def _observe(self, ledger: LedgerState) -> NoticeInputs:
        reports: dict[str, AgentReport] = {}
        for run in present_runs(ledger.runs):
            if run.live and run.generation is not None:
                report = report_of(self.context, run.generation)
                if report is not None:
                    reports[run.generation.pod_name] = report
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


def webhook_of(destinations: Sequence[Destination]) -> str:
    """Return ``webhook.json`` for a pod: the first destination that is to be told from there; ''
    where none is."""
    chosen = next((each for each in destinations if each.on_pod), None)
    return "" if chosen is None else dump(Webhook(chosen.where, chosen.secret, chosen.only))


def _bounded(standing: Sequence[str], notices: Sequence[Notice]) -> list[Notice]:
    """Return them without what a machine reports beyond ``MOST_TROUBLES``; ``standing`` are the ids
    that were sent."""
    kept, counts = [], dict[str, int]()
    for notice in notices:
        head, found, _ = notice.id.partition(f"/{TROUBLE_PATH}/")
        if notice.kind is NoticeKind.TROUBLE and found:
            prefix = head + found
            if prefix not in counts:
                counts[prefix] = sum(each.startswith(prefix) for each in standing)
            counts[prefix] += 1
            if counts[prefix] > MOST_TROUBLES:
                continue
        kept.append(notice)
    return kept


def _due(state: DeliveryState, now: float) -> QueuedNotice | None:
    """Return the oldest notice that is due and that no other process is sending."""
    for each in state.waiting:
        if all(at <= now or at > now + _LONGEST_S for at in (each.next_at, each.held_until)):
            return each
    return None


def _with(state: DeliveryState, changed: QueuedNotice) -> DeliveryState:
    waiting = (changed if w.notice_id == changed.notice_id else w for w in state.waiting)
    return replace(state, waiting=tuple(waiting))


def _settled(
    state: DeliveryState, held: QueuedNotice, result: DeliveryResult, now: float
) -> DeliveryState:
    """Return the state after the result of one try."""
    rest = tuple(each for each in state.waiting if each.notice_id != held.notice_id)
    if result.taken:
        return replace(state, waiting=rest, last_told_at=now, gave_up="")
    if result.is_final or now - held.since >= GIVE_UP_AFTER_S:
        return replace(state, waiting=rest, gave_up=f"{held.notice_id}: {result.why}")
    pause = max(pause_s(held.tries, FIRST_PAUSE_S, LONGEST_PAUSE_S), result.again_in_s or 0.0)
    later = replace(held, tries=held.tries + 1, next_at=now + pause, held_until=0.0, why=result.why)
    return _with(state, later)
