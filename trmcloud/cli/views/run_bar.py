"""The live line of a run: what is drawn of its stages."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from shutil import get_terminal_size
from typing import Any

from trmcloud.cli.views.metrics import (
    best_words,
    buys_words,
    losses_words,
    metric_words,
    steps_words,
)
from trmcloud.cli.views.streams import columns, drawn_on, outlive_the_reader, paint, wrap
from trmcloud.cli.views.text import duration
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.text import one_line
from trmcloud.operations.context import Context
from trmcloud.operations.runs.live_run import (
    GONE,
    SENDING,
    STARTING,
    LiveRun,
    LiveView,
    Paid,
    Progress,
)

_ENDINGS = ("Ending", "Settling", "Pulling", GONE)
_PLAIN_EVERY_S = 10.0
_MOST_TRIALS = 8
_BESIDE_TRIALS = 8
"""Lines of the terminal that are no trials: the bar's, the header, and what was printed last."""
_BAR_WIDTH = 16


class RunBar(AbstractContextManager["RunBar"]):
    """``watch`` is given every state of the run; nothing moves where stdout is no terminal."""

    def __init__(self, context: Context) -> None:
        self.watch = LiveRun(context, self._show).watch
        self._stage = ""
        self._stage_at = context.wall()
        self._stage_words = ""
        self._said_at = 0.0
        self._live: Any = None

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

    def _show(self, view: LiveView) -> None:
        for line in view.news:
            self._print(f"  {line}")
        if view.stage and view.stage != self._stage:
            self._end_stage(view)
            self._stage, self._stage_at, self._stage_words = view.stage, view.at, ""
        for line in view.in_the_way:
            self._print(f"  {line}")
        if view.progress is not None:
            self._stage_words = _progress(view.progress)
            self._show_progress(view, view.progress)
        elif view.making:
            self._stage_words = view.making
            self._show_stage(view, [f"data: {view.making}", *view.pulling])
        elif view.live:
            self._show_stage(view, view.pulling)
        if not view.live:
            self._end_stage(view)
            self.pause()

    # -- lines that stay ----------------------------------------------------------------------

    def _end_stage(self, view: LiveView) -> None:
        if self._stage:
            is_bad = view.ends_badly and not self._stage.startswith(_ENDINGS)
            mark = "✘" if view.fell_back or is_bad else "✔"
            took = duration(view.at - self._stage_at)
            line = f"{mark} {self._stage:<22} {took:>12} · {view.paid.spent}"
            self._print(" · ".join(filter(None, (line, self._stage_words))))
        self._stage = ""

    def _print(self, text: str) -> None:
        text = one_line(text)
        if self._live is not None:
            from rich.text import Text

            for line in wrap(text, columns()):
                self._live.console.print(Text.from_ansi(paint(line)), soft_wrap=True)
        else:
            print(text, flush=True)

    # -- what moves ---------------------------------------------------------------------------

    def _show_stage(self, view: LiveView, pulling: Sequence[str]) -> None:
        """Show the present stage, with what is transferred in it."""
        if self._stage in (SENDING, STARTING) and view.sending:
            self._stage_words = view.sending.partition(" · ")[0].partition(" of ")[2] + " in all"
        if self._stage in ("Renting", "Starting") and view.where:
            self._stage_words = view.where
        doing = {SENDING: view.sending, GONE: view.absence}.get(self._stage, "")
        if sys.stdout.isatty():
            from rich.console import Group

            took = duration(view.at - self._stage_at)
            words = (f"{self._stage}… {took}", _money(view.paid), doing)
            line = _shown(" · ".join(filter(None, words)))
            self._update(Group(line, *_lines(pulling)), lasting=False)
        elif (doing or pulling) and view.at - self._said_at >= _PLAIN_EVERY_S:
            self._said_at = view.at
            told = " · ".join(filter(None, (self._stage, doing, *pulling)))
            print(one_line(f"  {told}"), flush=True)

    def _show_progress(self, view: LiveView, made: Progress) -> None:
        below = [*money_words(view.paid, made), *view.pulling]
        if sys.stdout.isatty():
            self._draw(made, [" · ".join(below)])
        elif view.at - self._said_at >= _PLAIN_EVERY_S:
            self._said_at = view.at
            self._print(" · ".join([*training_words(made), *below]))

    def _draw(self, made: Progress, below: list[str]) -> None:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        line = Table.grid(padding=(0, 1))
        first, *rest = training_words(made)
        beside = columns() - len(first) - _BAR_WIDTH - len("100 % of steps") - 4
        if len(" · ".join(rest)) > beside:  # the long list of losses gets a line of its own
            below = [word for word in rest if "ℓ " in word] + below
            rest = [word for word in rest if "ℓ " not in word]
        if len(" · ".join(rest)) > beside:
            below, rest = [" · ".join(rest), *below], []
        bar = ProgressBar(total=1.0, completed=made.share, width=_BAR_WIDTH)
        told = f"{100 * made.share:.0f} % of {made.of_what}"
        line.add_row(_shown(first), bar, _shown(told), _shown(" · ".join(rest)))
        rows = [_row(each) for each in _trial_rows(made)]
        self._update(Group(line, *_lines(below), *rows), lasting=True)

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


def _trial_rows(made: Progress) -> list[str]:
    """The table of a sweep's trials, as many as the terminal has room for."""
    if made.trials is None:
        return []
    from trmcloud.cli.views.sweep import trial_lines

    most = max(1, min(_MOST_TRIALS, get_terminal_size().lines - _BESIDE_TRIALS))
    return trial_lines(made.trials, most=most)


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


def _progress(made: Progress) -> str:
    steps = made.beat.checked(_trials_words) if made.is_sweep else _steps(made)
    return f"{steps} · {metric_words(made.command, made.beat)}"


def _steps(made: Progress) -> str:
    return made.beat.checked(lambda beat: f"step {steps_words(beat)}")


def training_words(made: Progress) -> list[str]:
    """``fast step 120/3,000``, ``0.11 s/step``, ``ℓ 5.9 > 4.7``, ``pod's bpb 2.31``."""
    return made.beat.checked(lambda beat: _training_words(made, beat))


def _training_words(made: Progress, beat: Heartbeat) -> list[str]:
    state = "" if beat.state == "training" else f" {beat.state}"
    metric = metric_words(made.command, made.beat)
    if made.is_sweep:
        return [f"sweep{state}: {_trials_words(beat)}", metric]
    words = [f"{beat.phase}{state} step {steps_words(beat)}"]
    if beat.step_seconds:
        words.append(f"{beat.step_seconds:.2f} s/step")
    return [*words, *filter(None, [losses_words(made.beat)]), metric]


def _trials_words(beat: Heartbeat) -> str:
    """``7 trials, 2 running``, of a sweep's executor."""
    begun, running = (int(beat.parts.get(name, 0)) for name in ("trials", "running"))
    return f"{begun} trial{'s' if begun != 1 else ''}, {running} running"


def _money(paid: Paid) -> str:
    """``$0.05 of $0.20``; of a machine without a price, that no budget can end the run."""
    return "free (no --rate)" if paid.is_free else f"{paid.spent} of {paid.cap}"


_MOST_NOTE = 200
"""Characters of a trainer's note."""


def money_words(paid: Paid, made: Progress) -> list[str]:
    """``$0.05 of $0.20``, ``asks to stop at 14:02 (budget), …``, ``best step 1,200``."""
    best = best_words(made.command, made.beat)
    if best and made.is_best_fetched:
        best += ", fetched"
    saved, note = made.beat.checked(lambda beat: (beat.saved_step, beat.note))
    whose = "" if made.beat.here else "pod "
    words = (
        _money(paid),
        made.clock,
        buys_words(*made.gains),
        "" if saved is None else f"{whose}saved step {saved:,}",
        best,
        one_line(note)[:_MOST_NOTE],
    )
    return list(filter(None, words))
