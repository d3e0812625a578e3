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

from trmcloud.app.context import Context
from trmcloud.app.run_queries import (
    WorkerTransfer,
    boot_trouble,
    bucket_trouble,
    data_progress_text,
    ending_was_asked,
    errands,
    has_answered,
    is_listed_as_running,
    is_rented,
    last_beat,
    last_report,
    link_trouble,
    mark_reported,
    waits_for,
    waits_for_data,
)
from trmcloud.cli.views.health import RecoveryNews
from trmcloud.cli.views.launch import lines_of
from trmcloud.cli.views.metrics import (
    best_words,
    losses_words,
    metric_words,
    next_buys,
    steps_words,
)
from trmcloud.cli.views.moves import moving_words
from trmcloud.cli.views.pace import pace_lines
from trmcloud.cli.views.reasons import FOLLOWS, low_balance, sentence
from trmcloud.cli.views.streams import columns, drawn_on, outlive_the_reader, paint, wrap
from trmcloud.cli.views.text import duration
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract.pod_contract import AgentReport
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control.actions import TERMINATE
from trmcloud.core.control.continuing import lost_machines
from trmcloud.core.control.controller import WaitState
from trmcloud.core.control.events import ActionKey
from trmcloud.core.control.pod_facts import absence_needed_s
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.report import spent_so_far
from trmcloud.core.control.run_state import GRANT, STAGE, Generation, RunState, State
from trmcloud.core.control.waiting import allows_waiting, is_waiting
from trmcloud.core.errors import HostKeyChanged, LedgerError, Outcome
from trmcloud.core.money import ZERO
from trmcloud.core.spec.spec import IGNORE
from trmcloud.core.text import one_line
from trmcloud.core.values import replace

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


def waiting_words(waiting: WaitState, now: float) -> str:
    """``runpod to list the pod …; 9 min 40 s more, then it counts as never made``."""
    what = sentence(waiting.what)
    if waiting.until_at is None:
        return what
    return f"{what}; {duration(waiting.until_at - now)} more, then {FOLLOWS[waiting.what.kind]}"


BAD_ENDS = (Outcome.FAILED, Outcome.LOST, Outcome.KILLED)

_BAD_RESULTS = (*BAD_ENDS, Outcome.UNFIT, Outcome.NOT_STARTED, Outcome.NO_MACHINE)
_PLAIN_EVERY_S = 10.0
_TRIALS_EVERY_S = 2.0
_MOST_TRIALS = 8
_BESIDE_TRIALS = 8
"""Lines of the terminal that are no trials: the bar's, the header, and what was printed last."""
_BAR_WIDTH = 16
_TROUBLE_AFTER_S = 6.0
"""A connection that drops is opened again at once; one that fails for longer gets a line."""
_WAIT_AFTER_S = 5.0
"""A provider takes a moment to list what it made."""
_BEFORE_A_POD = (State.RESERVED, State.RENTING)
_AFTER_WORK = (State.ENDING, State.SETTLING)


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
        self._refused = 0
        self._board_of = 0
        self._move_told = ""
        self._paces_told = 0
        self._pulled: set[tuple[str, int]] | None = None
        self._trouble_at: float | None = None
        self._trouble_said = ""
        self._unforeseen = self._unlisted_said = False
        self._told: dict[str, str] = {}
        self._by_hand_of = ""
        self._news = RecoveryNews(context)
        self._waits: tuple[Reason | None, float] = (None, 0.0)
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
        self._tell_refused(run)
        self._tell_board(run)
        self._tell_move(run)
        self._tell_pace(run)
        if stage and stage != self._stage:
            self._end_stage(run, now)
            self._stage, self._stage_at, self._stage_words = stage, now, ""
        self._tell_by_hand(run)
        self._tell_unforeseen(run)
        self._tell_trouble(run, now)
        boot, bucket = boot_trouble(self._context, run), bucket_trouble(self._context, run)
        self._tell_once("boot", boot, f"  the provider's log of the pod: {boot}")
        self._tell_once("bucket", bucket, f"  {bucket}; retrying")
        if not bucket:
            self._told.pop("bucket", None)
        self._tell_balance(run, now)
        self._tell_waiting(run, now)
        self._tell_pulled(run)
        self._tell_mended(run)
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

    def _tell_by_hand(self, run: RunState) -> None:
        """Once for each pod: the lines that work without trmcloud, too."""
        generation = run.generation
        if generation is None or generation.pod_name == self._by_hand_of:
            return
        self._by_hand_of = generation.pod_name
        for line in lines_of(self._context, run):
            self._print(f"  by hand: {line}")

    def _tell_refused(self, run: RunState) -> None:
        """Why a candidate came to nothing, once each."""
        for generation in run.generations[run.first_generation - 1 :]:
            why = sentence(
                generation.not_made
                or generation.unfit
                or _boot_ended(run, generation)
                or _lost(run, generation)
            )
            if why and generation.number > self._refused:
                self._refused = generation.number
                line = f"  generation {generation.number}: {why}"
                # One that waits is told the same for hours.
                often = allows_waiting(run) or generation.stands_by
                kind = f"refused by {generation.provider}" if often else str(line)
                self._tell_once(kind, why, line)

    def _tell_move(self, run: RunState) -> None:
        """Each stage of a move once: another machine is up, training lands for it, or has moved."""
        move, told = run.move, ""
        if move is not None and move.state in (State.BOOTING, State.RUNNING):
            told = f"  generation {move.number}: {moving_words(run)}"
        elif run.moves and run.generation is not None and run.generation.adopted_at is not None:
            number, provider = run.generation.number, run.generation.provider
            told = f"  generation {number}: training moved here, to {provider}"
        if told and told != self._move_told:
            self._print(told)
        self._move_told = told or self._move_told

    def _tell_board(self, run: RunState) -> None:
        """How the machine's board differs from the planned one, once."""
        generation = run.generation
        if generation is None or generation.board is None or generation.number <= self._board_of:
            return
        self._board_of = generation.number
        self._print(f"  generation {generation.number}: {sentence(generation.board)}")

    def _tell_pace(self, run: RunState) -> None:
        """Each measured pace once, with the corrected hours and dollars."""
        for pace in run.paces[self._paces_told :]:
            for line in pace_lines(run, pace):
                self._print(f"  {line}")
        self._paces_told = len(run.paces)

    def _tell_pulled(self, run: RunState) -> None:
        """Each checkpoint that has come, once; on a terminal the bar's own line tells it."""
        new = set(run.pulled) - (set(run.pulled) if self._pulled is None else self._pulled)
        self._pulled = set(run.pulled)
        if self._live is None or run.state in _AFTER_WORK:
            for phase, step in sorted(new):
                self._print(f"  pulled {phase} step {step:,}, verified")

    def _tell_mended(self, run: RunState) -> None:
        """Print recoveries of the training, which continued by itself."""
        for what, done in self._news.of_run(run):
            self._print(f"  {what}")
            self._print(f"    {done}")

    def _tell_balance(self, run: RunState, now: float) -> None:
        """Each warning of the provider's balance once, and once that it cannot be read."""
        provider = run.generation.provider if run.generation is not None else ""
        reading = self._context.balances.get(provider)
        if reading is not None and reading.trouble:
            told = f"  the {provider} balance could not be read, retrying: {reading.trouble}"
            self._tell_once("unread", "unread", one_line(told))
        with suppress(LedgerError):
            low = self._context.ledger.read().low_balances.get(provider)
            if low is None or run.balance_policy == IGNORE:
                return
            self._tell_once("balance", f"{low.hours} {low.read_at}", f"  {low_balance(low, now)}")

    def _tell_once(self, kind: str, trouble: str, line: str) -> None:
        """Print a trouble of a kind unless it is the one that was printed last."""
        if trouble and trouble != self._told.get(kind):
            self._print(line)
            self._told[kind] = trouble

    def _tell_trouble(self, run: RunState, now: float) -> None:
        trouble = link_trouble(self._context, run)
        if trouble is None:
            again = run.state is State.RUNNING and has_answered(self._context, run)
            if self._trouble_said and self._trouble_at is not None and again:
                self._print(f"  the pod answers again after {duration(now - self._trouble_at)}")
            self._trouble_at, self._trouble_said, self._unlisted_said = None, "", False
            return
        if self._trouble_at is None:
            self._trouble_at = now
        stranger, boots = isinstance(trouble, HostKeyChanged), run.state is State.BOOTING
        is_unlisted = run.state is State.RUNNING and not is_listed_as_running(self._context, run)
        if self._trouble_said and is_unlisted and not self._unlisted_said:
            self._unlisted_said = True
            self._print("  its provider no longer lists it as running")
        # While it boots, nothing else is told: there each new trouble has its line.
        told = self._trouble_said in (trouble.what, "") or not boots
        if (self._trouble_said and told) or not (
            stranger or now - self._trouble_at >= _TROUBLE_AFTER_S
        ):
            return
        self._trouble_said = trouble.what
        then = "its agent still runs and ends it in time"
        if boots:
            waiting = waits_for(self._context, run)
            until_at = waiting.until_at if waiting is not None else None
            left = duration((until_at or now) - now)
            then = f"retrying for {left}, then the pod is ended"
        if stranger and boots:
            then = "if this lasts for a minute, the pod is ended"
        what = "" if stranger else "the pod does not answer: "
        self._print(f"  {what}{trouble}; {then}")
        if boots and trouble.next_step:
            self._print(f"    try: {trouble.next_step}")

    def _tell_unforeseen(self, run: RunState) -> None:
        error = self._context.troubles.get(run.run_id)
        if error is not None and not self._unforeseen:
            self._unforeseen = True
            said = f"unexpected {type(error).__name__}: {error}"
            if isinstance(error, LedgerError):
                said = f"{error}; retrying, nothing new is started"
            self._print(f"  {said}; its pod still ends at its hard stop")

    def _tell_waiting(self, run: RunState, now: float) -> None:
        """Print once what the run waits for, where the stage alone does not say it."""
        waiting = waits_for(self._context, run) if run.state in _BEFORE_A_POD else None
        what = waiting.what if waiting is not None else None
        if what is not None and what.kind is ReasonKind.AWAITS_CAPACITY:
            what = replace(what, facts={**what.facts, "asked": 0})  # that counts on
        if what != self._waits[0]:
            self._waits = (what, now)
        if waiting is not None and now - self._waits[1] >= _WAIT_AFTER_S:
            self._waits = (what, inf)
            self._print(f"  waits for {waiting_words(waiting, now)}")

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
    """``$0.05 of $0.20``, ``stops in 2 min``, ``best step 1,200``."""
    words = [_money(run, now)]
    if run.generation is not None and beat.state != "ended":
        words.append(f"stops in {duration(lands_in_s(run, beat, now))}")
    if buys := next_buys(run, beat):
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


def lands_in_s(run: RunState, beat: Heartbeat | None, now: float) -> float:
    """Return the seconds until its trainer has to stop, by its lease or by a command's --hours."""
    assert run.generation is not None
    left_s = run.generation.soft_stop_at - now
    if run.spec.command is None or run.spec.hours is None or beat is None:
        return left_s
    lasted_s = sum(beat.seconds.values()) + now - beat.at
    return min(left_s, run.spec.hours * 3600.0 - lasted_s)


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


def _lost(run: RunState, generation: Generation) -> Reason | None:
    """Why the run has another machine after ``generation``, where that one was lost at work."""
    if run.generation == generation or generation not in lost_machines(run, run.plan):
        return None
    return make_reason(ReasonKind.MACHINE_LOST, provider=generation.provider)


def _boot_ended(run: RunState, generation: Generation) -> Reason | None:
    """Why a pod that never reported was ended from here; None where it was not, or still lives."""
    if generation.agent_at is not None or generation.ended_at is None:
        return None
    reasons = [tried.reason for tried in run.tries(generation, TERMINATE)]
    return next((reason for reason in reasons if reason is not None), None)
