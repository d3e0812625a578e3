"""What each event of a ledger says: its severity, its sentence and its facts, in one table. Pure.

The bar, notifications, the page and ``api.events`` read it through a ``Narrator``, whose cursor is
the number of the last record that was told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields
from enum import IntEnum
from typing import Any

from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.codec import to_json
from trmcloud.core.contract.command import own_facts, shown_metric
from trmcloud.core.contract.notices import UNFIT, Fact, Notice, NoticeKind, run_fact_id
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import TERMINATE
from trmcloud.core.control.controller import foreseen_end
from trmcloud.core.control.notices import by_pod, finding_notice
from trmcloud.core.control.pace import planned_step_s
from trmcloud.core.control.reason import MEANINGS, OF_KINDS, Reason, ReasonKind, kind_of
from trmcloud.core.control.report import spent_so_far
from trmcloud.core.control.run_state import IllegalTransition, RunState, apply_event
from trmcloud.core.control.waiting import allows_waiting
from trmcloud.core.durations import duration
from trmcloud.core.errors import Outcome
from trmcloud.core.money import Usd
from trmcloud.core.reported import BY_POD, POD, ReportedValue
from trmcloud.core.spec.spec import CONTINUE, STOP
from trmcloud.core.text import one_line
from trmcloud.core.values import Value, dataclass
from trmcloud.operations.reasons import sentence


class Severity(IntEnum):
    """Who is told of an event: each severity includes those below it."""

    RECORD = 0
    """``api.events`` yields it."""
    MARK = 1
    """The page lists it, and marks it on its curves."""
    NEWS = 2
    """The bar prints it."""
    ALERT = 3
    """A notification is sent."""


class Told(Value):
    """One event in words. ``more`` are lines below ``text``; ``mark`` is the kind of the page's
    mark; ``run`` is its run after it; ``notices`` are facts that no earlier event told."""

    record: ev.Record
    run: RunState
    severity: Severity
    text: str
    more: tuple[str, ...] = ()
    mark: str = "pod"
    notices: tuple[Notice, ...] = ()

    @property
    def line(self) -> str:
        """All of it as one line."""
        return "; ".join((self.text, *self.more))

    @property
    def facts(self) -> Mapping[str, Any]:
        """The event's fields as JSON, a plan by its id alone; a command's own metric by its
        name."""
        facts = to_json(self.record.event)
        if isinstance(self.record.event, ev.RunPlanned):
            facts["plan"] = {"id": facts["plan"].get("id", "")}  # the whole is a hundred lines
        if "val_bpb" in facts and self.run.recorded_plan is not None:
            facts = own_facts(self.run.spec.command, facts)
        return facts


@dataclass
class Narrator:
    """Tells each record once: those after number ``after``, in their order. Earlier ones are folded
    and not told, so that a reader that joins late continues where another one ended."""

    ledger_id: str = ""
    after: int = 0
    _read: int = 0
    _runs: dict[str, RunState] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    _refusals: dict[tuple[str, str], str] = field(default_factory=dict)

    def tell(self, records: Iterable[ev.Record]) -> list[Told]:
        """``records``: all of a run, of several or of the ledger, the earliest first; those that
        were read before are passed over."""
        told = []
        for record in records:
            if record.seq > self._read:
                self._read, one = record.seq, self._tell(record)
                told += [one] if record.seq > self.after else []
        self.after = max(self.after, self._read)
        return told

    def _tell(self, record: ev.Record) -> Told:
        name, event = record.run_id, record.event
        before = after = self._runs.get(name) or RunState(name)
        if isinstance(event, ev.RunEvent):
            try:
                after = self._runs[name] = apply_event(before, record)
            except IllegalTransition:  # of a damaged ledger: told as it stands there
                return Told(record, before, Severity.RECORD, type(event).__name__)
        row = ROWS[type(event)]
        moment = _Moment(record, before, after, self.ledger_id)
        said = row.say(event, moment) if callable(row.say) else _Said(_filled(row.say, moment))
        severity = row.severity if said.severity is None else said.severity
        if isinstance(event, ev.PodNotMade) and self._is_repeated(event, moment):
            severity = Severity.RECORD
        notices: tuple[Notice, ...] = ()
        if before.errand is None:  # a machine that only brings checkpoints home alerts nobody
            notices = tuple(each for each in said.notices if each.id not in self._known)
            self._known.update(each.id for each in notices)
        severity = Severity.ALERT if notices else severity
        return Told(record, after, severity, said.text, said.more, row.mark, notices)

    def _is_repeated(self, event: ev.PodNotMade, moment: _Moment) -> bool:
        """Whether a run that waits, or a move of an earlier version, had the same answer from the
        same provider last time: it may have it for hours."""
        machine = moment.after.generations[event.generation - 1]
        key, why = (moment.record.run_id, machine.provider), sentence(event.reason)
        last, self._refusals[key] = self._refusals.get(key), why
        return last == why and (allows_waiting(moment.after) or machine.legacy.stands_by)


class Event(Value):
    """One fact of the ledger: ``kind`` is the name of its class in ``core.control.events``,
    ``facts`` its fields as JSON. ``id`` grows by time within a ledger and never changes. ``text``
    says it in a sentence; ``severity`` is record, mark, news or alert, each more urgent than the
    one before."""

    id: int
    run: str
    at: float
    kind: str
    facts: Mapping[str, Any]
    severity: str = "record"
    text: str = ""


def event_of(told: Told) -> Event:
    """An event as ``api.events`` yields it."""
    record, severity = told.record, told.severity.name.lower()
    kind = type(record.event).__name__
    return Event(record.seq, record.run_id, record.at, kind, told.facts, severity, told.line)


def since_opening(told: Sequence[Told]) -> list[Told]:
    """Return those since the run was planned or reopened last."""
    openings = [n for n, each in enumerate(told) if isinstance(each.record.event, _OPENINGS)]
    return list(told[openings[-1] :]) if openings else list(told)


_OPENINGS = (ev.RunPlanned, ev.Reopened)


class _Moment(Value):
    """An event, and its run before and after it."""

    record: ev.Record
    before: RunState
    after: RunState
    ledger_id: str

    @property
    def number(self) -> int:
        """The number of the run's machine, 0 before it has one."""
        return self.after.generation.number if self.after.generation is not None else 0

    def notice(self, kind: NoticeKind, path: str, /, **facts: Fact | Usd) -> Notice:
        """A notice of the run, whose id is its machine's and ``path``."""
        fact_id = run_fact_id(self.ledger_id, self.after.run_id, self.number, path)
        return self.ledger_notice(fact_id, kind, self.after.run_id, **facts)

    def ledger_notice(
        self, fact_id: str, kind: NoticeKind, run_id: str = "", /, **facts: Fact | Usd
    ) -> Notice:
        kept = {k: v.plain() if isinstance(v, Usd) else v for k, v in facts.items()}
        return Notice(fact_id, kind, run_id, self.record.at, kept)


class _Said(Value):
    """``severity``: None: the row's."""

    text: str
    notices: tuple[Notice, ...] = ()
    severity: Severity | None = None
    more: tuple[str, ...] = ()


class Row(Value):
    """``say``: a sentence with the event's fields in it, or what makes one of the event; an event
    with notices is an alert, whatever ``severity`` is."""

    say: str | Callable[[Any, _Moment], _Said]
    severity: Severity = Severity.RECORD
    mark: str = "pod"


def _filled(template: str, moment: _Moment) -> str:
    """``template`` with the event's fields, and the provider of its machine where it has one."""
    event: Any = moment.record.event
    values = {each.name: getattr(event, each.name) for each in fields(event)}
    if "outcome" in values:
        values["outcome"] = values["outcome"].replace("_", " ")
    if (number := values.get("generation")) and "provider" not in values:
        values["provider"] = moment.after.generations[number - 1].provider
    return template.format(**{name: _words(value) for name, value in values.items()})


def _words(value: Any) -> str:
    if isinstance(value, Reason):
        return sentence(value)
    return f"{value:,}" if type(value) is int else one_line(str("–" if value is None else value))


# -- events of a run ------------------------------------------------------------------------------
def _up(event: ev.PodUp, moment: _Moment) -> _Said:
    run = moment.after
    planned = run.generations[event.generation - 1].rate
    text = f"generation {event.generation}: its machine is up, {event.rate}/h"
    severity, notices = Severity.MARK, tuple[Notice, ...]()
    if event.rate != planned:
        rates = {"planned_usd_per_hour": planned, "billed_usd_per_hour": event.rate}
        price = moment.notice(NoticeKind.PRICE, "price", **rates)
        text = f"generation {event.generation}: {text_of(price)}"
        notices = (price,) if event.rate > planned else ()
    return _Said(text, notices, severity)


def _revised(event: ev.PlanRevised, moment: _Moment) -> _Said:
    before, after, notices = moment.before.chosen, moment.after.chosen, []
    text, severity = f"continues as {event.candidate_id}: {sentence(event.reason)}", Severity.MARK
    if event.reason.kind is ReasonKind.MACHINE_LOST and after is not None:
        follows = {"continues_at": after.provider, "hardware": after.hardware}
        notices.append(moment.notice(NoticeKind.LOST, "lost", **_lost(moment), **follows))
        text = f"generation {moment.number}: {sentence(event.reason)}"
        text, severity = f"{text}, on {after.hardware} at {after.provider}", Severity.NEWS
    if before is not None and after is not None and after.rate != before.rate:
        rates = {"planned_usd_per_hour": before.rate, "billed_usd_per_hour": after.rate}
        path = f"price/{event.candidate_id}"
        price = moment.notice(NoticeKind.PRICE, path, **rates, hardware=after.hardware)
        text, notices = f"{text}; {text_of(price)}", [*notices, price]
    return _Said(text, tuple(notices), severity)


def _paced(event: ev.PaceMeasured, moment: _Moment) -> _Said:
    text, *more = pace_lines(moment.after, event)
    if event.slow is None:
        return _Said(text, more=tuple(more))
    what, at = event.slow.kind.value, moment.record.at
    found = (moment.ledger_id, moment.after, event.phase, what, event.step, at)
    return _Said(text, (finding_notice(*found),), more=tuple(more))


def _gate(event: ev.GateJudged, moment: _Moment) -> _Said:
    facts: dict[str, Fact] = {"phase": event.phase, "passed": event.passed}
    path = f"gate/{event.phase}"
    notice = moment.notice(NoticeKind.GATE, path, **facts, **by_pod(moment.after))
    return _Said(text_of(notice), (notice,))


def _result(event: ev.ResultKnown, moment: _Moment) -> _Said:
    run = moment.after
    if event.reason is not None and event.reason.kind is ReasonKind.MOVING:
        # Of an earlier version: a run that did not move then alerts when it is closed.
        return _Said(f"generation {moment.number}: has landed for another machine")
    if event.result == Outcome.UNFIT.value:
        facts = {"what": UNFIT, "mended": False, **by_pod(run)}
        notice = moment.notice(NoticeKind.TROUBLE, UNFIT, **facts)
        text = f"generation {moment.number}: {sentence(event.reason) or text_of(notice)}"
        return _Said(text, (notice,), Severity.NEWS)
    return _ended(event.result, moment)


def _gone(event: ev.PodGone, moment: _Moment) -> _Said:
    run, machine = moment.after, moment.after.generations[event.generation - 1]
    why = next((tried.reason for tried in run.tries(machine, TERMINATE) if tried.reason), None)
    text, severity = f"generation {event.generation}: its machine is gone", Severity.MARK
    if machine.agent_at is None and why is not None:
        text, severity = f"generation {event.generation}: {sentence(why)}", Severity.NEWS
    end = foreseen_end(run, run.plan, traits_of(machine.provider)) if run.result is None else None
    if end is None or end.outcome not in _LOST:
        return _Said(text, severity=severity)
    lost = moment.notice(NoticeKind.LOST, "lost", **_lost(moment))
    text = text if severity is Severity.NEWS else f"generation {event.generation}: {text_of(lost)}"
    return _Said(text, (lost,), severity)


def _closed(event: ev.Closed, moment: _Moment) -> _Said:
    if event.outcome not in _LOST:
        return _ended(event.outcome, moment)
    lost = moment.notice(NoticeKind.LOST, "lost", **_lost(moment))
    return _Said(f"{event.outcome}: {text_of(lost)}", (lost,))


def _ended(outcome: str, moment: _Moment) -> _Said:
    run = moment.after
    facts: dict[str, Fact | Usd] = {
        "outcome": outcome,
        "spent_usd": spent_so_far(run, moment.record.at),
        "cap_usd": run.cap,
    }
    last = run.phase_accounts[-1] if run.phase_accounts else None
    if last is not None:
        facts |= {"phase": last.phase} | ({"step": last.step} if last.step is not None else {})
        command = run.spec.command if run.recorded_plan is not None else None
        facts |= {"kind": kind_of(run.spec)} if command is not None else {}
        value = shown_metric(command, last.val_bpb)
        facts |= {"val_bpb" if command is None else "value": value} if value is not None else {}
        facts |= {"metric": command.metric_name} if command and command.metric_name else {}
        facts |= by_pod(run)
    notice = moment.notice(NoticeKind.ENDED, "ended", **facts)
    return _Said(f"{outcome}: {text_of(notice)}", (notice,))


_LOST = (Outcome.LOST.value, Outcome.UNREPORTED.value)


def _lost(moment: _Moment) -> dict[str, Fact | Usd]:
    run = moment.after
    return {
        "pod": run.generation.pod_name if run.generation is not None else "",
        "provider": run.generation.provider if run.generation is not None else "",
        "spent_usd": spent_so_far(run, moment.record.at),
        "cap_usd": run.cap,
    }


# -- events of the whole ledger -------------------------------------------------------------------
def _stray(event: ev.StrayCharged, moment: _Moment) -> _Said:
    fact_id = f"{moment.ledger_id}/orphan/{event.provider}/{event.pod_id}"
    facts = {"provider": event.provider, "pod": event.pod_name, "pod_id": event.pod_id}
    notice = moment.ledger_notice(
        fact_id, NoticeKind.ORPHAN, event.run_id, **facts, at_most_usd=event.amount
    )
    return _Said(text_of(notice), (notice,))


def _balance(event: ev.BalanceLow, moment: _Moment) -> _Said:
    if not event.hours:
        return _Said(f"the {event.provider} balance of {event.balance} lasts again")
    notice = moment.ledger_notice(
        f"{moment.ledger_id}/balance/{event.provider}/{moment.record.seq}",
        NoticeKind.BALANCE,
        provider=event.provider,
        hours=event.hours,
        balance_usd=event.balance,
        spending_usd_per_hour=event.spending,
        left_s=round(max(0.0, event.ends_at - moment.record.at)),
    )
    return _Said(f"the {event.provider} balance: {text_of(notice)}", (notice,))


def _approval(event: ev.ApprovalAsked, moment: _Moment) -> _Said:
    wider = {
        "per_run_usd": event.per_run.plain() if event.per_run is not None else "",
        "per_day_usd": event.per_day.plain() if event.per_day is not None else "",
        "per_month_usd": event.per_month.plain() if event.per_month is not None else "",
        "hardware": ", ".join(event.hardware),
        "providers": ", ".join(event.providers),
    }
    facts: dict[str, Fact | Usd] = {"request": event.id, "principal": event.principal}
    facts |= {"why": event.why, "more_usd": event.more, "runs_at_once": event.runs_at_once}
    facts |= {name: text for name, text in wider.items() if text}
    fact_id = f"{moment.ledger_id}/approval/{event.id}"
    notice = moment.ledger_notice(fact_id, NoticeKind.APPROVAL, **facts)
    return _Said(f"{event.principal}: {text_of(notice)}", (notice,))


_MARK, _NEWS = Severity.MARK, Severity.NEWS
ROWS: Mapping[type[Any], Row] = {
    ev.RunPlanned: Row("planned within {cap}"),
    ev.Reserved: Row("{amount} reserved"),
    ev.WaitStarted: Row("waits while no machine is free, at most {boot_usd} for failed boots"),
    ev.PodIntended: Row("generation {generation}: asks {provider} for a machine at {rate}/h"),
    ev.Extended: Row("generation {generation}: needs more time: {amount} reserved", _NEWS, "price"),
    ev.PodNotMade: Row("generation {generation}: {reason}", _NEWS),
    ev.PodUp: Row(_up, _MARK),
    ev.PodMissed: Row("generation {generation}: its provider's list lacks it"),
    ev.PodFound: Row("generation {generation}: it is there again"),
    ev.AgentUp: Row("generation {generation}: its agent reports"),
    ev.MoveStarted: Row("{amount} reserved for another machine: saves {saves} of {stays}"),
    ev.HandedOver: Row("generation {generation}: lands for another machine", _NEWS),
    ev.Moved: Row("generation {generation}: training moved here, to {provider}", _NEWS),
    ev.PlanRevised: Row(_revised, _MARK, "price"),
    ev.BoardFound: Row("generation {generation}: {reason}", _NEWS),
    ev.PaceMeasured: Row(_paced, _NEWS),
    ev.ActionStarted: Row("{action_id} was started"),
    ev.ActionFinished: Row("{action_id} is done"),
    ev.ActionFailed: Row("{action_id} failed: {error}"),
    ev.Pulled: Row("pulled {phase} step {step}, verified", _NEWS, "checkpoint"),
    ev.Fetched: Row("{phase} step {step} was fetched to {path}"),
    ev.PhaseEnded: Row("{phase}: {outcome} at step {step}", _MARK, "phase"),
    ev.GateJudged: Row(_gate, _NEWS, "gate"),
    ev.SaveRequested: Row("a checkpoint was requested by {by}"),
    ev.StopRequested: Row("stop requested by {by}: {reason}", _NEWS, "stop"),
    ev.StopLowering: Row("generation {generation}: an earlier stop was requested by {by}"),
    ev.StopKnown: Row("generation {generation}: it stops earlier", _MARK, "stop"),
    ev.StopLowered: Row("generation {generation}: {amount} stays reserved, the rest is free"),
    ev.ResultKnown: Row(_result, mark="stop"),
    ev.LateReport: Row("generation {generation}: its volume has the result {result}"),
    ev.PodGone: Row(_gone, _MARK),
    ev.Settled: Row("generation {generation}: it cost {amount}"),
    ev.Billed: Row("generation {generation}: it was billed {amount}", _MARK, "bill"),
    ev.BucketSwept: Row("the bucket held {size_bytes} bytes too many, which cost {amount}"),
    ev.Closed: Row(_closed, mark="stop"),
    ev.Reopened: Row("continues within {cap} for the whole run", _MARK, "price"),
    ev.CapSet: Row("the cap of {level} {key} is {cap}"),
    ev.GrantGiven: Row("{principal} was given a grant"),
    ev.GrantRaised: Row("the grant of {principal} was raised"),
    ev.GrantRevoked: Row("the grant of {principal} was revoked"),
    ev.ApprovalAsked: Row(_approval),
    ev.ApprovalGiven: Row("request {id} was approved by {by}"),
    ev.ApprovalDenied: Row("request {id} was denied by {by}"),
    ev.LayerVerified: Row("{layer} of {provider} was seen to work: {how}"),
    ev.StrayCharged: Row(_stray),
    ev.StrayBilled: Row("the orphaned pod {pod_id} at {provider} was billed {amount}"),
    ev.VolumeDeleted: Row("the network volume in {place} was deleted by {by}"),
    ev.TokensPinned: Row("hashes of {key} in {bucket} were recorded"),
    ev.DataPinned: Row("{source} is {repository} at {revision}"),
    ev.BalanceLow: Row(_balance),
    ev.LedgerRestored: Row("an older copy of the ledger was restored"),
    ev.LedgerReconciled: Row("every provider was asked since the copy was restored"),
    ev.DamageSettled: Row("{amount} counts as spent for damaged records of {of}"),
}


# -- a move and a measured pace -------------------------------------------------------------------
_FOLLOWS = {
    STOP: "the run stops and saves now; its checkpoints are kept (outcome stopped, exit code 21)",
    CONTINUE: "the run continues; to change this: --if-slow stop, or trmcloud stop",
    "move": "the run was to move to another machine",  # by an earlier version
}


def pace_lines(run: RunState, pace: ev.PaceMeasured) -> list[str]:
    """``Measured: 0.42 s per step …``, and where the machine is slower than planned a second line:
    what that costs, and what follows."""
    if pace.doubt is not None:
        doubt = ReportedValue(pace.doubt, here=run.trained_here).as_reported(sentence)
        return [f"Measured pace not plausible: {doubt}; the plan's figures stay valid"]
    told = ReportedValue(pace, here=run.trained_here).as_reported(lambda it: _pace(run, it))
    lines = [f"Measured: {told}"]
    if pace.slow is not None:
        why = "; ".join(filter(None, (sentence(pace.slow), sentence(pace.instead))))
        lines.append(f"{why}; {_FOLLOWS.get(pace.follows, pace.follows)}")
    return lines


def _pace(run: RunState, pace: ev.PaceMeasured) -> str:
    """``0.42 s per step over 40 steps (planned 0.31 to 0.40): 5.1 h, $13.20 (planned 4.6 h,
    $11.90)``."""
    candidate = run.candidate(run.generations[pace.generation - 1].candidate_id)
    phases = candidate.phases if candidate is not None else ()
    phase = next((each for each in phases if each.name == pace.phase), None)
    told = f"{pace.step_s:.3g} s per step over {pace.steps} steps"
    if phase is not None:
        planned = planned_step_s(phase)
        told += f" (planned {planned.p10:.3g} to {planned.p90:.3g})"
    told += f": {_hours(pace.hours)} ({_hours(pace.least_hours)} to {_hours(pace.most_hours)})"
    told += f", {pace.usd}"
    if candidate is not None:
        told += f" (planned {_hours(candidate.hours.p50)}, {candidate.cost_p50})"
    if phase is not None and pace.steps_fit < phase.settings.steps:
        told += f"; {pace.steps_fit:,} of {phase.settings.steps:,} steps of {phase.name} fit"
    return told


def _hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else duration(hours * 3600)


# -- notices in words -----------------------------------------------------------------------------
_WHAT = {
    "out_of_memory": "ran out of memory",
    "non_finite": "its loss or gradients were not finite",
    "diverged": "its loss rose and did not fall again",
    "crashed": "its trainer crashed",
    "lost": "a process of its trainer was lost, or made no progress",
    "unsound": "skipped steps whose loss was not finite or far too high",
    "unfit": "a machine was not as rented, and is returned",
}


def words_of(notice: Notice) -> Mapping[str, str]:
    """``title`` and ``text`` of a notice; whatever a pod said is one line of plain text."""
    title, text, command = _title_text_and_command(notice)
    text = f"{text}{_by(notice)}. trmcloud {command}"
    return {"title": one_line(title)[:120], "text": one_line(text)[:600]}


def text_of(notice: Notice) -> str:
    """A notice's text without what to type next: the sentence of its event."""
    return f"{_title_text_and_command(notice)[1]}{_by(notice)}"


def _by(notice: Notice) -> str:
    return f" {BY_POD}" if notice.facts.get("reported_by") == POD else ""


def _title_text_and_command(notice: Notice) -> tuple[str, str, str]:
    run, kind = notice.run_id, notice.kind
    facts: Mapping[str, Any] = notice.facts
    usd = {name: Usd(value) for name, value in facts.items() if "_usd" in name}
    spent = f"{usd.get('spent_usd')} of {usd.get('cap_usd')} accrued"
    status = f"status {run}"
    match kind:
        case NoticeKind.STARTED:
            return f"{run} has started", f"{facts['phase']} training", status
        case NoticeKind.GATE:
            told = "passed" if facts["passed"] else "FAILED"
            return f"{run}: gate {told}", f"the gate after {facts['phase']} {told}", status
        case NoticeKind.CAP:
            name = f"{facts['level']} {facts['key']}".strip()
            return f"{facts['percent']} % of the {name} cap is spent", spent, "budget show"
        case NoticeKind.ENDED:
            return f"{run}: {facts['outcome']}", _end_text(facts, spent), status
        case NoticeKind.TROUBLE:
            what = str(facts["what"])
            where = f"{facts['phase']} step {facts['step']:,}: " if "phase" in facts else ""
            short = what.replace("_", " ")
            told = f"{where}{_WHAT.get(what, short)}"
            if not facts["mended"]:
                return f"{run}: {short}", told, status
            now = f"now with {facts['changed']}" if facts["changed"] else "from its last checkpoint"
            lost = f"{facts['lost_steps']:,} steps and {duration(facts['lost_s'])} lost"
            return f"{run}: recovered, {short}", f"{told}; continues {now}, {lost}", status
        case NoticeKind.LOST:
            text = f"{facts['pod']} at {facts['provider']} ended without a report; {spent}"
            if "continues_at" not in facts:
                return f"{run}: its pod is lost", text, f"resume {run}"
            text += f". It continues on {facts['hardware']} at {facts['continues_at']}"
            return f"{run}: its pod is lost, the run continues", text, status
        case NoticeKind.PRICE:
            planned, billed = usd["planned_usd_per_hour"], usd["billed_usd_per_hour"]
            now = f" with {facts['hardware']}" if "hardware" in facts else ""
            text = f"{billed}/h{now}, planned at {planned}/h; the cap stays"
            return f"{run}: its price changed", text, status
        case NoticeKind.ORPHAN:
            text = f"{facts['pod']} at {facts['provider']} belongs to no run, and may have cost "
            text += f"{usd['at_most_usd']}; it is being ended"
            return "an orphaned pod was found", text, "admin reap --yes"
        case NoticeKind.REAPER:
            text = f"it should run every {duration(facts['every_s'])}, but last ran "
            text += f"{duration(facts['silent_s'])} ago, while machines are rented"
            return f"the reaper on {facts['machine']} is silent", text, "admin guard status"
        case NoticeKind.BALANCE:
            text = f"{usd['balance_usd']} are left, and the account spends "
            text += f"{usd['spending_usd_per_hour']}/h: it ends in {duration(facts['left_s'])}; "
            title = f"the {facts['provider']} balance lasts less than {facts['hours']} hours"
            return title, f"{text}add credit", "status"
        case NoticeKind.APPROVAL:
            answer = f"grant approve {facts['request']}, or trmcloud grant deny {facts['request']}"
            return f"{facts['principal']} asks for approval", _approval_text(facts, usd), answer
        case NoticeKind.TEST:
            return "trmcloud: test", "notifications work", "admin notify list"


def _end_text(facts: Mapping[str, Any], spent: str) -> str:
    outcome, of_kind = str(facts["outcome"]), OF_KINDS.get(str(facts.get("kind", "")), {})
    known = {each.value: of_kind.get(each) or MEANINGS.get(each, "") for each in Outcome}
    words = [known.get(outcome, ""), spent if "spent_usd" in facts else ""]
    if "step" in facts:
        metric = "bpb –" if facts.get("val_bpb") is None else f"bpb {facts['val_bpb']:.3f}"
        if "val_bpb" not in facts and "value" in facts:
            metric = f"{one_line(str(facts['metric']))[:40]} {facts['value']:.4g}"
        words.append(f"{facts['phase']} step {facts['step']:,}, {metric}")
    return "; ".join(filter(None, words))


def _approval_text(facts: Mapping[str, Any], usd: Mapping[str, Usd]) -> str:
    asked = [f"{usd['more_usd']} more"] if usd["more_usd"] else []
    units = {"per_run_usd": "run", "per_day_usd": "day", "per_month_usd": "month"}
    asked += [f"{usd[name]} per {unit}" for name, unit in units.items() if name in usd]
    asked += [f"{facts['runs_at_once']} runs at once"] if facts["runs_at_once"] else []
    asked += [str(facts[name]) for name in ("hardware", "providers") if name in facts]
    text = f"it asks for {', '.join(asked)}"
    if "total_usd" in usd:
        text += f"; {usd['spent_or_reserved_usd']} of {usd['total_usd']} are spent or reserved"
    return f"{text}; its reason: {facts['why']}" if facts["why"] else text
