"""``trmcloud logs`` and ``ssh``: the training log of a run, and a shell on its pod."""

from __future__ import annotations

import codecs
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.app.checkpoints.sources import live_pod
from trmcloud.app.context import Context, find_run, require_reach, run_by_id
from trmcloud.app.run_queries import data_progress_text, is_rented, last_beat, waits_for_data
from trmcloud.app.symptoms import TrainingNews
from trmcloud.cli import documents as doc
from trmcloud.cli import options
from trmcloud.cli.catch_up import find_caught_up, look_again
from trmcloud.cli.views.json_output import print_document, print_line
from trmcloud.cli.views.streams import as_is
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import ConflictError, NotFoundError, UsageError
from trmcloud.wiring import build_context

_CHUNK = 1 << 16
_DATA_EVERY_S = 5.0
_GONE_AFTER_S = 20.0
"""A pod that its provider's lists lack for so long writes no more, proven to be gone or not."""


def logs(
    run: options.RunName = "",
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Continue as the log grows.")
    ] = False,
    phase: Annotated[str, typer.Option(help="fast or extreme (default: the last one).")] = "",
    lines: Annotated[int, typer.Option("-n", "--lines", help="Only the last N lines.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Print a run's training log; with -f, continue until the run has ended or its pod is gone.

    Example: trmcloud logs -f r-1f3a9c
    """
    context, state = find_caught_up(run)
    phases = [phase] if phase else list(context.files.phases(state.run_id))
    if not phases and not (follow and state.live):
        raise NotFoundError(f"{state.run_id} has no log yet", next_step="trmcloud status")

    def log_of(name: str) -> Log:
        path = Path(context.files.logs(state.run_id, name))
        return JsonLog(path, state.run_id, name) if as_json else Log(path)

    log = log_of(phases[-1]) if phases else None
    data = DataLines(context)
    data.print_new(state)
    if log is not None and not log.path.exists() and not (follow and state.live):
        raise NotFoundError(f"{state.run_id} has no log of {phases[-1]}", where=str(log.path))
    if log is not None:
        log.print_new(lines)
    news = TrainingNews(context)
    _tell_news(news, state)
    while follow:
        state = run_by_id(context, state.run_id)
        newest = [phase] if phase else list(context.files.phases(state.run_id))
        if newest and (log is None or newest[-1] != phases[-1]):
            if log is not None:
                log.print_new()
            phases, log = newest, log_of(newest[-1])
        if log is not None:
            log.print_new()
        data.print_new(state)
        _tell_news(news, state)
        if not state.live:
            break
        gone = _why_no_more(context, state)
        if gone:
            print(f"{state.run_id}: {gone}", file=sys.stderr)
            break
        look_again(context, state)
    if log is not None:
        log.end()


def _tell_news(news: TrainingNews, run: RunState) -> None:
    """Print to stderr each recovery and each finding of a run's trainings, once."""
    for what, done in news.new_recoveries(run):
        print(f"{run.run_id}: recovered: {what}\n  by: {done}", file=sys.stderr)
    for what, advice in news.new_findings(run):
        told = f"{run.run_id}: unwell: {what}"
        print(f"{told}\n  try: {advice}" if advice else told, file=sys.stderr)


def _why_no_more(context: Context, run: RunState) -> str:
    """Why a rented run's log will not grow any more; empty while it may."""
    generation = run.generation
    if generation is None or not is_rented(run):
        return ""
    if run.state in (State.SETTLING, State.SETTLED):
        return "its pod is gone; this is the part of its log that was fetched"
    missed_at = generation.missed_at
    if missed_at is not None and context.wall() - missed_at >= _GONE_AFTER_S:
        return (
            f"its pod is not listed by {generation.provider}; this is the part of its log that "
            "was fetched"
        )
    return ""


class DataLines:
    """Print to stderr what is made for the trainer while its own log is empty."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._said_at = -_DATA_EVERY_S
        self._said = ""

    def print_new(self, run: RunState) -> None:
        now = self._context.clock.now().boot
        if not run.live or now - self._said_at < _DATA_EVERY_S:
            return
        if not waits_for_data(run, last_beat(self._context, run)):
            return
        told = data_progress_text(self._context, run)
        if told and told != self._said:
            self._said, self._said_at = told, now
            print(f"{run.run_id}: making data: {told}", file=sys.stderr)


class Log:
    """A log as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin()

    def _begin(self) -> None:
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def print_new(self, last_lines: int = 0) -> None:
        """Print what has come since; of that, ``last_lines`` alone where it is not 0."""
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            if file.seek(0, 2) < self._offset:
                self._begin()  # it was begun anew, by another pod
            file.seek(self._offset)
            if last_lines > 0:
                text = self._decoder.decode(file.read())
                self.write("\n".join(text.splitlines()[-last_lines:]) + "\n")
            else:
                while chunk := file.read(_CHUNK):
                    self.write(self._decoder.decode(chunk))
            self._offset = file.tell()
            self.flush()

    def write(self, text: str) -> None:
        as_is().write(text)

    def flush(self) -> None:
        sys.stdout.flush()

    def end(self) -> None:
        """Nothing more will come."""


class JsonLog(Log):
    """A log as lines of JSON; a line is printed once it is whole, or nothing more will come."""

    def __init__(self, path: Path, run_id: str, phase: str) -> None:
        super().__init__(path)
        self._run_id, self._phase, self._rest = run_id, phase, ""

    def write(self, text: str) -> None:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            print_line(doc.LogLine(run=self._run_id, phase=self._phase, text=line))

    def flush(self) -> None:
        """Each line has been flushed."""

    def end(self) -> None:
        if self._rest:
            self.write("\n")


def ssh(
    run: options.RunName = "",
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="Command to run there (default: a shell)."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the command that logs in, as JSON, and exit.")
    ] = False,
) -> None:
    """Log in to a run's pod, with the key that was made for it.

    The pod's host key was set when it was rented: another machine at its address is refused. Your
    SSH agent and environment are not forwarded. The pod still ends at its hard stop while you are
    logged in.

    Example: trmcloud ssh r-1f3a9c -- nvidia-smi
    """
    context = build_context()
    state = find_run(context, run or None)
    if state.generation is not None and not is_rented(state):
        raise UsageError(
            f"{state.run_id} runs on this machine: no login is needed",
            where=context.files.folder(state.run_id),
            next_step=f"trmcloud attach {state.run_id}; trmcloud logs -f {state.run_id}",
        )
    pod = live_pod(state)
    if pod is None:
        raise ConflictError(
            f"{state.run_id} has no pod now", next_step=f"trmcloud status {state.run_id}"
        )
    require_reach(context, pod.provider)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    login = context.links[pod.provider].login(pod.pod_name, words or (), terminal=terminal)
    if as_json:
        argv = tuple(map(str, login))
        made = doc.Login(run=state.run_id, pod=pod.pod_name, provider=pod.provider, argv=argv)
        print_document(made)
        return
    sys.stdout.flush()
    os.execvp(login[0], list(login))
