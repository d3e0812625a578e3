"""The live line of a run: its stages and what is drawn of them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from math import inf
from shutil import get_terminal_size
from typing import Any

from trmcloud.app.conditions import LASTING, LINK, clock_words, conditions_of
from trmcloud.app.context import Context
from trmcloud.app.narration import Narrator, Severity, since_opening
from trmcloud.app.run_facts import gains_of
from trmcloud.app.run_queries import (
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
from trmcloud.app.symptoms import TrainingNews
from trmcloud.cli.views.metrics import (
    best_words,
    buys_words,
    losses_words,
    metric_words,
    steps_words,
)
from trmcloud.cli.views.streams import columns, drawn_on, outlive_the_reader, paint, wrap
from trmcloud.cli.views.text import duration
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract.notices import NoticeKind
from trmcloud.core.contract.pod_contract import AgentReport
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control.events import ActionKey, Closed, PodIntended, Pulled
from trmcloud.core.control.pod_facts import absence_needed_s
from trmcloud.core.control.report import spent_so_far
from trmcloud.core.control.run_state import GRANT, STAGE, RunState, State
from trmcloud.core.control.waiting import allows_waiting, is_waiting
from trmcloud.core.errors import LedgerError, Outcome
from trmcloud.core.money import ZERO
from trmcloud.core.text import one_line

WAITING = "Waiting for a machine"
SENDING = "Sending code and data"
MAKING_DATA = "Making data"
PULLING = "Pulling checkpoints"
UPLOADING = "Uploading checkpoints"
GONE = "Making sure it is gone"
_STATES: Mapping[State, str] = {
    State.RESERVED: "Reserved",
    State.RENTING: "Renting",
    State.BOOTING: "Booting",
    State.RUNNING: "Starting the trainer",
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
    "starting": _STATES[State.RUNNING],
    "waiting": MAKING_DATA,
    "compiling": "Compiling",
    "landing": "Landing",
}
_SPEED_OVER_S = 10.0


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
        if run.generation is not None and run.generation.missed_at:
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
        return _TRAINER.get(beat.state, before or _STATES[State.RUNNING])
    if report is not None and report.waiting:
        return _WAITING.get(report.waiting, _STATES[State.RUNNING])
    return _STATES[State.RUNNING]


@dataclass
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
    if generation is None or generation.missed_at is None:
        return ""
    needed = duration(absence_needed_s(run, traits_of(generation.provider)))
    since = duration(now - generation.missed_at)
    return f"not listed by {generation.provider} for {since}; gone after {needed}"


BAD_ENDS = (Outcome.FAILED, Outcome.LOST, Outcome.KILLED)

_BAD_RESULTS = (*BAD_ENDS, Outcome.UNFIT, Outcome.NOT_STARTED, Outcome.NO_MACHINE)
_PLAIN_EVERY_S = 10.0
_TRIALS_EVERY_S = 2.0
_MOST_TRIALS = 8
_BESIDE_TRIALS = 8
"""Lines of the terminal that are no trials: the bar's, the header, and what was printed last."""
_BAR_WIDTH = 16


class RunBar(AbstractContextManager["RunBar"]):
    """``watch`` is shown every state of the run; nothing moves where stdout is no terminal."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._stage = ""
        self._stage_at = context.wall()
        self._stage_words = ""
        self._said_at = 0.0
        self._live: Any = None
        self._speed = Speed()
        self._narrator = Narrator()
        self._recoveries = TrainingNews(context)
        self._conditions: dict[str, tuple[float, str | None]] = {}
        """By name: since when it is in the way, and the key under which it was told; None: not
        yet."""
        self._trials: tuple[tuple[Any, ...], float, list[str]] = ((), -inf, [])

    def __enter__(self) -> RunBar:
        outlive_the_reader()
        return self

    def __exit__(self, *exc: object) -> None:
        self.pause()

    def pause(self, *, clear: bool = False) -> None:
        if self._live is not None:
            self._live.transient |= clear
            self._live.stop()

    def resume(self) -> None:
        if self._live is not None:
            self._live.start()

    def watch(self, run: RunState) -> None:
        now = self._context.wall()
        report, beat = last_report(self._context, run), last_beat(self._context, run)
        sending, pulling = transfer_lines(errands(self._context, run), self._speed, now)
        stage = stage_of(run, beat, report, self._stage, pulls=bool(pulling))
        with suppress(LedgerError):
            self._tell_news(run)
        if stage and stage != self._stage:
            self._end_stage(run, now)
            self._stage, self._stage_at, self._stage_words = stage, now, ""
        self._tell_conditions(run, now)
        if making := data_progress_text(self._context, run) if waits_for_data(run, beat) else "":
            self._stage_words = making
            self._show_stage(run, now, sending, [f"data: {making}", *pulling])
        elif beat is not None and run.state is State.RUNNING:
            self._stage_words = _progress(run, beat)
            self._show(run, beat, now, pulling)
        elif run.live:
            self._show_stage(run, now, sending, pulling)
        if not run.live:
            self._end_stage(run, now)
            self.pause()

    # -- lines that stay ----------------------------------------------------------------------

    def _end_stage(self, run: RunState, now: float) -> None:
        if self._stage:
            took = duration(now - self._stage_at)
            mark = "✘" if self._went_wrong(run) else "✔"
            line = f"{mark} {self._stage:<22} {took:>12} · {spent_so_far(run, now)}"
            self._print(" · ".join(filter(None, (line, self._stage_words))))
        self._stage = ""

    def _went_wrong(self, run: RunState) -> bool:
        if run.state is State.RESERVED and run.generation is not None and not is_waiting(run):
            return True  # on to the next candidate
        ended = run.outcome.value if run.outcome is not None else run.result
        bad = ended in [outcome.value for outcome in _BAD_RESULTS]
        ending = self._stage.startswith(("Ending", "Settling", "Pulling", GONE))
        without_a_word = run.state is State.SETTLING and run.result is None and not ending
        return (bad and not ending) or without_a_word

    def _tell_news(self, run: RunState) -> None:
        """Print the news since the run was opened, or reopened; of a machine that is requested also
        the lines that work without trmcloud. The command itself says how the run ended."""
        news = since_opening(self._narrator.tell(self._context.ledger.records(run.run_id)))
        *earlier, pulled = [None, *(x for x in news if isinstance(x.record.event, Pulled))]
        number = run.generation.number if run.generation is not None else 0
        for told in news:
            event = told.record.event
            if isinstance(event, PodIntended) and event.generation == number:
                for line in by_hand(self._context, run):
                    self._print(f"  by hand: {line}")
            if told.severity < Severity.NEWS or isinstance(event, Closed):
                continue
            if any(notice.kind is NoticeKind.ENDED for notice in told.notices):
                continue
            if isinstance(event, Pulled) and told is not pulled:
                continue  # of several that came at once the last is told, with their number
            also = f", and {len(earlier) - 1} before" if told is pulled and earlier[1:] else ""
            for line in (f"{told.text}{also}", *told.more):
                self._print(f"  {line}")
        for what, done in self._recoveries.new_recoveries(run):
            self._print(f"  {what}")
            self._print(f"    {done}")

    def _tell_conditions(self, run: RunState, now: float) -> None:
        """Print what is in the way once it has lasted, and that the pod answers again."""
        found = {each.name: each for each in conditions_of(self._context, run, now)}
        for name, each in found.items():
            began, _ = self._conditions.get(each.of, (now, None))
            since, told = self._conditions.get(name, (began, None))
            is_new = told is None or each.key not in ("", told)
            if is_new and now - since >= each.after_s:
                told = each.key
                self._print(f"  {each.text}")
                if each.more:
                    self._print(f"    try: {each.more}")
            self._conditions[name] = since, told
        for name in self._conditions.keys() - found.keys() - LASTING:
            since, told = self._conditions.pop(name)
            again = run.state is State.RUNNING and has_answered(self._context, run)
            if name == LINK and told is not None and again:
                self._print(f"  the pod answers again after {duration(now - since)}")

    def _print(self, text: str) -> None:
        text = one_line(text)
        if self._live is not None:
            from rich.text import Text

            for line in wrap(text, columns()):
                self._live.console.print(Text.from_ansi(paint(line)), soft_wrap=True)
        else:
            print(text, flush=True)

    # -- what moves ---------------------------------------------------------------------------

    def _show_stage(self, run: RunState, now: float, sending: str, pulling: list[str]) -> None:
        """Show the present stage, with what is transferred in it."""
        if self._stage in (SENDING, "Starting the trainer") and sending:
            self._stage_words = sending.partition(" · ")[0].partition(" of ")[2] + " in all"
        if self._stage in (_STATES[State.RENTING], _HERE[State.RENTING]) and is_rented(run):
            self._stage_words = where(run)
        doing = {SENDING: sending, GONE: absence(run, now)}.get(self._stage, "")
        if sys.stdout.isatty():
            from rich.console import Group

            took = duration(now - self._stage_at)
            words = (f"{self._stage}… {took}", _money(run, now), doing)
            line = _shown(" · ".join(filter(None, words)))
            self._update(Group(line, *_lines(pulling)), lasting=False)
        elif (doing or pulling) and now - self._said_at >= _PLAIN_EVERY_S:
            self._said_at = now
            told = " · ".join(filter(None, (self._stage, doing, *pulling)))
            print(one_line(f"  {told}"), flush=True)

    def _show(self, run: RunState, beat: Heartbeat, now: float, pulling: list[str]) -> None:
        if sys.stdout.isatty():
            self._draw(run, beat, now, pulling)
        elif now - self._said_at >= _PLAIN_EVERY_S:
            self._said_at = now
            words = [*training_words(run, beat), *money_words(run, beat, now), *pulling]
            self._print(" · ".join(words))

    def _draw(self, run: RunState, beat: Heartbeat, now: float, pulling: list[str]) -> None:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        share, of_what = share_done(run, beat, now)
        line = Table.grid(padding=(0, 1))
        first, *rest = training_words(run, beat)
        below = [" · ".join([*money_words(run, beat, now), *pulling])]
        beside = columns() - len(first) - _BAR_WIDTH - len("100 % of steps") - 4
        if len(" · ".join(rest)) > beside:  # the long list of losses gets a line of its own
            below = [word for word in rest if "ℓ " in word] + below
            rest = [word for word in rest if "ℓ " not in word]
        if len(" · ".join(rest)) > beside:
            below, rest = [" · ".join(rest), *below], []
        bar = ProgressBar(total=1.0, completed=share, width=_BAR_WIDTH)
        told = f"{100 * share:.0f} % of {of_what}"
        line.add_row(_shown(first), bar, _shown(told), _shown(" · ".join(rest)))
        rows = [_row(each) for each in self._trial_rows(run, beat, now)]
        self._update(Group(line, *_lines(below), *rows), lasting=True)

    def _trial_rows(self, run: RunState, beat: Heartbeat, now: float) -> list[str]:
        """The table of a sweep's trials, as many as the terminal has room for; read anew every
        few seconds, and where a trial has begun or saved."""
        if run.spec.sweep is None:
            return []
        seen = (run.run_id, *beat.parts.items(), beat.saved_step)
        before, read_at, rows = self._trials
        if seen != before or not 0 <= now - read_at < _TRIALS_EVERY_S:
            from trmcloud.app.sweep_facts import sweep_of
            from trmcloud.cli.views.sweep import trial_lines

            swept = sweep_of(self._context, run)
            most = max(1, min(_MOST_TRIALS, get_terminal_size().lines - _BESIDE_TRIALS))
            rows = trial_lines(swept, most=most) if swept is not None else []
            self._trials = (seen, now, rows)
        return rows

    def _update(self, shown: Any, *, lasting: bool) -> None:
        """``lasting``: what is shown last stays on the terminal when the bar is gone."""
        from rich.console import Console
        from rich.live import Live

        if self._live is None:
            self._live = Live(
                console=Console(file=drawn_on(sys.stdout)),
                refresh_per_second=4,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.transient = not lasting
        self._live.update(shown)


def _shown(text: str) -> Any:
    """For what is drawn, which passes by ``Plain``."""
    from rich.text import Text

    return Text(one_line(text))


def _row(text: str) -> Any:
    """A line of a table, cut where the terminal ends."""
    from rich.text import Text

    return Text(one_line(text), no_wrap=True, overflow="ellipsis")


def _lines(texts: Iterable[str]) -> list[Any]:
    """Return the lines below a bar, each text on as many lines as it needs."""
    return [_shown(piece) for text in texts for piece in wrap(one_line(f"  {text}"), columns())]


def _progress(run: RunState, beat: Heartbeat) -> str:
    if run.spec.sweep is not None:
        metric = metric_words(run.spec.command, mark_reported(run, beat))
        return f"{_trials_words(beat)} · {metric}"
    return f"step {steps_words(beat)} · {metric_words(run.spec.command, mark_reported(run, beat))}"


def training_words(run: RunState, beat: Heartbeat) -> list[str]:
    """``fast step 120/3,000``, ``0.11 s/step``, ``ℓ 5.9 > 4.7``, ``pod's bpb 2.31``."""
    told = mark_reported(run, beat)
    state = "" if beat.state == "training" else f" {beat.state}"
    if run.spec.sweep is not None:
        return [f"sweep{state}: {_trials_words(beat)}", metric_words(run.spec.command, told)]
    words = [f"{beat.phase}{state} step {steps_words(beat)}"]
    if beat.step_seconds:
        words.append(f"{beat.step_seconds:.2f} s/step")
    if each_step := losses_words(told):
        words.append(each_step)
    words.append(metric_words(run.spec.command, told))
    return words


def _trials_words(beat: Heartbeat) -> str:
    """``7 trials, 2 running``, of a sweep's executor."""
    begun, running = (int(beat.parts.get(name, 0)) for name in ("trials", "running"))
    return f"{begun} trial{'s' if begun != 1 else ''}, {running} running"


def _money(run: RunState, now: float) -> str:
    """``$0.05 of $0.20``; of a machine without a price, that no budget can end the run."""
    spent = spent_so_far(run, now)
    if spent == ZERO and run.trained_here and not (run.generation and run.generation.rate):
        return "free (no --rate)"
    return f"{spent} of {run.cap}"


_MOST_NOTE = 200
"""Characters of a trainer's note."""


def money_words(run: RunState, beat: Heartbeat, now: float) -> list[str]:
    """``$0.05 of $0.20``, ``asks to stop at 14:02 (budget), …``, ``best step 1,200``."""
    words = [_money(run, now)]
    if clock := clock_words(run, beat, now):
        words.append(clock)
    if buys := buys_words(*gains_of(run, beat)):
        words.append(buys)
    if beat.saved_step is not None:
        whose = "" if run.trained_here else "pod "
        words.append(f"{whose}saved step {beat.saved_step:,}")
    if best := best_words(run.spec.command, mark_reported(run, beat)):
        words.append(best)
        if (beat.phase, beat.best_step) in run.pulled:
            words[-1] += ", fetched"
    if beat.note:
        words.append(one_line(beat.note)[:_MOST_NOTE])
    return words


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
