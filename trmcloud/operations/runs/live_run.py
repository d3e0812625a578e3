"""A run while it is watched: its stage, its transfers, what is new, what is in its way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass as mutable
from dataclasses import field
from math import inf
from typing import TYPE_CHECKING

from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.notices import NoticeKind
from trmcloud.core.contract.pod_contract import AgentReport
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control.events import ActionKey, Closed, PodIntended, Pulled
from trmcloud.core.control.pod_facts import absence_needed_s
from trmcloud.core.control.report import spent_so_far
from trmcloud.core.control.run_state import GRANT, STAGE, RunState, State
from trmcloud.core.control.waiting import allows_waiting, is_waiting
from trmcloud.core.durations import duration
from trmcloud.core.errors import LedgerError, Outcome
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.reported import ReportedValue
from trmcloud.core.values import Value
from trmcloud.operations.context import Context
from trmcloud.operations.curves.symptoms import TrainingNews
from trmcloud.operations.narration import Narrator, Severity, since_opening
from trmcloud.operations.run_queries import (
    WorkerTransfer,
    by_hand,
    data_progress_text,
    ending_was_asked,
    errands,
    has_answered,
    is_rented,
    last_beat,
    last_report,
    mark_reported,
    waits_for_data,
)
from trmcloud.operations.runs.conditions import LASTING, LINK, clock_words, conditions_of
from trmcloud.operations.runs.run_facts import gains_of

if TYPE_CHECKING:
    from trmcloud.operations.sweeps.sweep_facts import SweepFacts

WAITING = "Waiting for a machine"
SENDING = "Sending code and data"
MAKING_DATA = "Making data"
PULLING = "Pulling checkpoints"
UPLOADING = "Uploading checkpoints"
GONE = "Making sure it is gone"
STARTING = "Starting the trainer"
_STATES: Mapping[State, str] = {
    State.RESERVED: "Reserved",
    State.RENTING: "Renting",
    State.BOOTING: "Booting",
    State.RUNNING: STARTING,
    State.ENDING: "Ending the pod",
    State.SETTLING: "Settling",
}
_HERE: Mapping[State, str] = {
    State.RENTING: "Starting",
    State.BOOTING: "Starting",
    State.ENDING: "Ending its processes",
}
"""Of a run on this machine, where nothing is rented."""
_WAITING = {
    "checking": "Checking the machine",
    "installing": "Installing",
    "files": SENDING,
    "grants": "Granting uploads",
    "data": "Fetching data",
}
_TRAINER = {
    "starting": STARTING,
    "waiting": MAKING_DATA,
    "compiling": "Compiling",
    "landing": "Landing",
}
_SPEED_OVER_S = 10.0
_TRIALS_EVERY_S = 2.0
BAD_ENDS = (Outcome.FAILED, Outcome.LOST, Outcome.KILLED)
_BAD_RESULTS = (*BAD_ENDS, Outcome.UNFIT, Outcome.NOT_STARTED, Outcome.NO_MACHINE)


class Paid(Value):
    """What a run has spent of its cap; ``is_free``: on this machine, without a rate."""

    spent: Usd
    cap: Usd
    is_free: bool


class Progress(Value):
    """A trainer's progress, with its source. ``share`` is done, 0 to 1, of what ``of_what`` names:
    the phase's steps, or the time until it stops, whichever ends first at the present pace.
    ``gains``: bits per byte that the next dollar, and the next hour, is expected to buy."""

    beat: ReportedValue[Heartbeat]
    command: Command | None
    is_sweep: bool
    clock: str
    gains: tuple[float | None, float | None]
    is_best_fetched: bool
    share: float
    of_what: str
    trials: SweepFacts | None = None


class LiveView(Value):
    """A run as its live line shows it. ``news`` are lines, each told once, that stay above it, as
    are ``in_the_way``; ``sending`` says how far files are sent, ``pulling`` has a line for each
    checkpoint; ``absence`` is about a machine that is no longer listed; ``making``: data is made,
    in the words of its machine. ``fell_back``: on to the next candidate; ``ends_badly``: a stage
    that ends now, other than one of the run's end, has failed."""

    news: tuple[str, ...]
    in_the_way: tuple[str, ...]
    stage: str
    live: bool
    paid: Paid
    sending: str
    pulling: tuple[str, ...]
    where: str
    absence: str
    making: str
    progress: Progress | None
    fell_back: bool
    ends_badly: bool
    at: float


class LiveRun:
    """Watches one run: ``watch`` is called with each of its states and shows a view of it. Each
    line of news is told once, by its own cursor."""

    def __init__(self, context: Context, show: Callable[[LiveView], None]) -> None:
        self._context, self._show = context, show
        self._stage = ""
        self._speed = Speed()
        self._narrator = Narrator()
        self._recoveries = TrainingNews(context)
        self._conditions: dict[str, tuple[float, str | None]] = {}
        """By name: since when it is in the way, and the key under which it was told; None: not
        yet."""
        self._trials: tuple[tuple[object, ...], float, SweepFacts | None] = ((), -inf, None)

    def watch(self, run: RunState) -> None:
        context, now = self._context, self._context.wall()
        report, beat = last_report(context, run), last_beat(context, run)
        sending, pulling = transfer_lines(errands(context, run), self._speed, now)
        stage = stage_of(run, beat, report, self._stage, pulls=bool(pulling))
        news: list[str] = []
        with suppress(LedgerError):
            news += self._news(run)
        making = data_progress_text(context, run) if waits_for_data(run, beat) else ""
        progress = None
        if beat is not None and run.state is State.RUNNING and not making:
            progress = progress_of(run, beat, now, self._swept(run, beat, now))
        self._stage = (stage or self._stage) if run.live else ""
        ended = run.outcome.value if run.outcome is not None else run.result
        is_silent = run.state is State.SETTLING and run.result is None
        self._show(
            LiveView(
                news=tuple(news),
                in_the_way=tuple(self._in_the_way(run, now)),
                stage=stage,
                live=run.live,
                paid=paid_of(run, now),
                sending=sending,
                pulling=tuple(pulling),
                where=where(run) if is_rented(run) else "",
                absence=absence(run, now),
                making=making,
                progress=progress,
                fell_back=run.state is State.RESERVED
                and run.generation is not None
                and not is_waiting(run),
                ends_badly=is_silent or ended in [outcome.value for outcome in _BAD_RESULTS],
                at=now,
            )
        )

    def _news(self, run: RunState) -> Iterator[str]:
        """Yield the news since the run was opened, or reopened; of a machine that is requested also
        the lines that work without trmcloud. The command itself says how the run ended."""
        news = since_opening(self._narrator.tell(self._context.ledger.records(run.run_id)))
        *earlier, pulled = [None, *(x for x in news if isinstance(x.record.event, Pulled))]
        number = run.generation.number if run.generation is not None else 0
        for told in news:
            event = told.record.event
            if isinstance(event, PodIntended) and event.generation == number:
                yield from (f"by hand: {line}" for line in by_hand(self._context, run))
            if told.severity < Severity.NEWS or isinstance(event, Closed):
                continue
            if any(notice.kind is NoticeKind.ENDED for notice in told.notices):
                continue
            if isinstance(event, Pulled) and told is not pulled:
                continue  # of several that came at once the last is told, with their number
            also = f", and {len(earlier) - 1} before" if told is pulled and earlier[1:] else ""
            yield from (f"{told.text}{also}", *told.more)
        for what, done in self._recoveries.new_recoveries(run):
            yield from (what, f"  {done}")

    def _in_the_way(self, run: RunState, now: float) -> Iterator[str]:
        """Yield what is in the way once it has lasted, and that the pod answers again."""
        found = {each.name: each for each in conditions_of(self._context, run, now)}
        for name, each in found.items():
            began, _ = self._conditions.get(each.of, (now, None))
            since, told = self._conditions.get(name, (began, None))
            is_new = told is None or each.key not in ("", told)
            if is_new and now - since >= each.after_s:
                told = each.key
                yield each.text
                if each.more:
                    yield f"  try: {each.more}"
            self._conditions[name] = since, told
        for name in self._conditions.keys() - found.keys() - LASTING:
            since, told = self._conditions.pop(name)
            again = run.state is State.RUNNING and has_answered(self._context, run)
            if name == LINK and told is not None and again:
                yield f"the pod answers again after {duration(now - since)}"

    def _swept(self, run: RunState, beat: Heartbeat, now: float) -> SweepFacts | None:
        """A sweep's trials; read anew every few seconds, and where one has begun or saved."""
        if run.spec.sweep is None:
            return None
        seen = (run.run_id, *beat.parts.items(), beat.saved_step)
        before, read_at, swept = self._trials
        if seen != before or not 0 <= now - read_at < _TRIALS_EVERY_S:
            from trmcloud.operations.sweeps.sweep_facts import sweep_of

            swept = sweep_of(self._context, run)
            self._trials = (seen, now, swept)
        return swept


def beside(
    look: Callable[[], None], watch: Callable[[RunState], None]
) -> Callable[[RunState], None]:
    """Return a function that calls ``look``, and then ``watch`` with the run."""

    def watch_both(run: RunState) -> None:
        look()
        watch(run)

    return watch_both


class LeftRun(Value):
    """A live run that a command leaves: what it is at. ``waits_s``: so long it still waits for a
    machine; None where it does not. ``trains``: its training was waited for, or is over."""

    stage: str
    trains: bool
    waits_s: float | None
    reserved: Usd


def left_run(context: Context, run: RunState) -> LeftRun:
    stage = stage_of(run, last_beat(context, run), last_report(context, run), "")
    waits = is_waiting(run) and run.wait is not None
    is_ending = run.state in (State.ENDING, State.SETTLING)
    return LeftRun(
        stage=stage,
        trains=is_ending or stage.startswith("Training"),
        waits_s=run.wait.until_at - context.wall() if waits and run.wait is not None else None,
        reserved=run.reserved,
    )


def stage_of(
    run: RunState,
    beat: Heartbeat | None,
    report: AgentReport | None,
    before: str,
    *,
    pulls: bool = False,
) -> str:
    """Return the stage's name; ``before`` is the last one, which stays where nothing else is
    known. ``pulls``: a checkpoint is being downloaded now."""
    states = {**_STATES, **_HERE} if run.trained_here else _STATES
    if run.state is State.ENDING:
        if run.generation is not None and run.generation.absence:
            return GONE
        between_pulls = before == PULLING and not ending_was_asked(run)
        return PULLING if pulls or between_pulls else states[State.ENDING]
    if report is not None and report.uploading:
        return UPLOADING
    if run.state in (State.RESERVED, State.RENTING) and allows_waiting(run):
        return WAITING
    if run.state is not State.RUNNING:
        return states.get(run.state, "")
    if beat is not None:
        if beat.state == "training":
            return f"Training {beat.phase}"
        return _TRAINER.get(beat.state, before or STARTING)
    if report is not None and report.waiting:
        return _WAITING.get(report.waiting, STARTING)
    return STARTING


@mutable
class Speed:
    """The speed of each errand, over the last few seconds."""

    _seen: dict[ActionKey, deque[tuple[float, int]]] = field(default_factory=dict)

    def words(self, errand: WorkerTransfer, now: float) -> str:
        """``12.0 of 40.0 MB · 8.1 MB/s · 3 s left``, as much of it as is known."""
        seen = self._seen.setdefault(errand.key, deque())
        seen.append((now, errand.done))
        while seen[0][0] < now - _SPEED_OVER_S:
            seen.popleft()
        if not errand.size:
            return ""
        words = f"{errand.done / 1e6:,.1f} of {errand.size / 1e6:,.1f} MB"
        (first_at, first), rate = seen[0], 0.0
        if now > first_at:
            rate = (errand.done - first) / (now - first_at)
        if rate > 0:
            left = duration((errand.size - errand.done) / rate)
            words += f" · {rate / 1e6:,.1f} MB/s · {left} left"
        return words


def transfer_lines(
    errands: Sequence[WorkerTransfer], speed: Speed, now: float
) -> tuple[str, list[str]]:
    """(what is said of files being sent, a line for each checkpoint being pulled)."""
    sending, pulling = "", []
    for errand in errands:
        words = speed.words(errand, now)
        if errand.what in (STAGE, GRANT):
            sending = words
        else:
            pulling.append(" · ".join(filter(None, (f"pulling {errand.what}", words))))
    return sending, pulling


def where(run: RunState) -> str:
    """``8xA100-80GB-SXM at runpod EU-RO-1`` of the candidate that is being tried."""
    generation = run.generation
    if generation is None:
        return ""
    chosen = run.candidate(generation.candidate_id)
    region = chosen.region if chosen is not None and chosen.region != "any" else ""
    place = " ".join(filter(None, (generation.provider, region)))
    return f"{chosen.hardware} at {place}" if chosen is not None else place


def absence(run: RunState, now: float) -> str:
    """Describe the time that the pod has been off its provider's list, and the time that it must
    last."""
    generation = run.generation
    if generation is None or generation.absence is None:
        return ""
    needed = duration(absence_needed_s(run, traits_of(generation.provider)))
    since = duration(now - generation.absence.since)
    return f"not listed by {generation.provider} for {since}; gone after {needed}"


def paid_of(run: RunState, now: float) -> Paid:
    spent = spent_so_far(run, now)
    has_rate = run.generation is not None and bool(run.generation.rate)
    return Paid(spent, run.cap, is_free=spent == ZERO and run.trained_here and not has_rate)


def progress_of(
    run: RunState, beat: Heartbeat, now: float, trials: SweepFacts | None = None
) -> Progress:
    share, of_what = share_done(run, beat, now)
    return Progress(
        beat=mark_reported(run, beat),
        command=run.spec.command,
        is_sweep=run.spec.sweep is not None,
        clock=clock_words(run, beat, now),
        gains=gains_of(run, beat),
        is_best_fetched=(beat.phase, beat.best_step) in run.pulled,
        share=share,
        of_what=of_what,
        trials=trials,
    )


def share_done(run: RunState, beat: Heartbeat, now: float) -> tuple[float, str]:
    """Return (the share that is done, 0 to 1; of what): the phase's steps, or the time until it
    stops, whichever ends first at the present pace."""
    by_steps = beat.step / beat.steps if beat.steps else 0.0
    by_time, generation = 0.0, run.generation
    if generation is not None:
        whole = generation.soft_stop_at - generation.intended_at
        by_time = (now - generation.intended_at) / whole if whole > 0 else 0.0
    share, of_what = max((by_steps, "steps"), (by_time, "time"))
    return max(0.0, min(1.0, share)), of_what
