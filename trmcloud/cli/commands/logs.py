"""``trmcloud logs`` and ``ssh``: the training log of a run, and a shell on its pod."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.catch_up import caught_up
from trmcloud.cli.views.json_output import print_document, print_line
from trmcloud.cli.views.run import look_on
from trmcloud.cli.views.streams import documents_out, only_documents
from trmcloud.core.errors import ConflictError, NotFoundError, UsageError
from trmcloud.operations import views
from trmcloud.operations.checkpoints.sources import live_pod
from trmcloud.operations.context import Context, find_run, run_by_id
from trmcloud.operations.curves.symptoms import TrainingNews
from trmcloud.operations.run_queries import data_progress_text, is_rented, last_beat, waits_for_data
from trmcloud.wiring import build_context

_CHUNK = 1 << 16


def logs(
    run: options.RunName = "",
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Continue until the run has ended; see above.")
    ] = False,
    phase: Annotated[str, typer.Option(help="fast or extreme (default: the last one).")] = "",
    lines: Annotated[int, typer.Option("-n", "--lines", help="Only the last N lines.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Print a run's training log.

    With -f, follow it until the run has ended, with its live line and its end on
    stderr. If no command drives the run, this one does: it fetches checkpoints and
    ends the pod when the work is done. Ctrl-C leaves the run as it is. The exit
    code is the run's, also if it has ended already.

    Example: trmcloud logs -f r-1f3a9c
    """
    context = caught_up()
    state = find_run(context, run or None)
    log = RunLog(context, state.run_id, phase, as_json=as_json)
    if follow:
        if state.live and state.generation is not None:
            context.machines.require_reach(state.generation.provider)
        log.print_new(lines)
        with only_documents():
            code = look_on(context, state.run_id, as_json=as_json, above=log)
        log.end()
        sys.exit(code)
    log.require()
    if state.live and waits_for_data(state, last_beat(context, state)):
        _print_notes(state.run_id, [f"making data: {data_progress_text(context, state)}"])
    log.print_new(lines)
    log.end()
    news = log.news.new_recoveries(state)
    _print_notes(state.run_id, [f"recovered: {what}\n  by: {done}" for what, done in news])
    log.print_findings()


def _print_notes(run_id: str, notes: Iterable[str]) -> None:
    for text in notes:
        print(f"{run_id}: {text}", file=sys.stderr)


class RunLog:
    """The log of a run's newest phase, or of ``phase``, as it grows; its health findings, once
    each, on stderr."""

    def __init__(self, context: Context, run_id: str, phase: str, *, as_json: bool) -> None:
        self._context, self._run_id = context, run_id
        self._phase, self._as_json = phase, as_json
        self._log: Log | None = None
        self.news = TrainingNews(context)

    def _newest(self) -> Log | None:
        files, run_id = self._context.files, self._run_id
        phases = [self._phase] if self._phase else list(files.phases(run_id))
        if not phases:
            return None
        path = Path(files.logs(run_id, phases[-1]))
        return JsonLog(path, run_id, phases[-1]) if self._as_json else Log(path)

    def require(self) -> None:
        """
        Raises:
            NotFoundError: there is no log.
        """
        log = self._newest()
        if log is None:
            raise NotFoundError(f"{self._run_id} has no log yet", next_step="trmcloud status")
        if not log.path.exists():
            what = f"{self._run_id} has no log of {log.path.parent.name}"
            raise NotFoundError(what, where=str(log.path))

    def has_new(self) -> bool:
        newest = self._newest()
        if newest is None or self._log is None:
            return newest is not None
        is_due = self.news.is_due or not run_by_id(self._context, self._run_id).live
        return newest.path != self._log.path or self._log.has_new() or is_due

    def print_new(self, last_lines: int = 0) -> None:
        """Print what was logged since; of that, ``last_lines`` alone if it is not 0."""
        newest = self._newest()
        if self._log is not None:
            self._log.print_new()
        if newest is not None and (self._log is None or newest.path != self._log.path):
            self._log = newest
            newest.print_new(last_lines)

    def print_findings(self) -> None:
        """Print each new health finding of the training, every few seconds at most."""
        for what, advice in self.news.new_findings(run_by_id(self._context, self._run_id)):
            told = f"unwell: {what}"
            _print_notes(self._run_id, [f"{told}\n  try: {advice}" if advice else told])

    def end(self) -> None:
        """Nothing more will come."""
        if self._log is not None:
            self._log.end()


class Log:
    """A log as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin()

    def _begin(self) -> None:
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def has_new(self) -> bool:
        return self.path.exists() and self.path.stat().st_size != self._offset

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
        documents_out().write(text)

    def flush(self) -> None:
        documents_out().flush()

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
            print_line(views.LogLine(run=self._run_id, phase=self._phase, text=line))

    def flush(self) -> None:
        """Each line has been flushed."""

    def end(self) -> None:
        if self._rest:
            self.write("\n")


def ssh(
    run: options.LiveRunName = "",
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
            next_step=f"trmcloud logs -f {state.run_id}",
        )
    pod = live_pod(state)
    if pod is None:
        raise ConflictError(
            f"{state.run_id} has no pod now", next_step=f"trmcloud status {state.run_id}"
        )
    context.machines.require_reach(pod.provider)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    login = context.machines.links[pod.provider].login(pod.pod_name, words or (), terminal=terminal)
    if as_json:
        argv = tuple(map(str, login))
        made = views.Login(run=state.run_id, pod=pod.pod_name, provider=pod.provider, argv=argv)
        print_document(made)
        return
    sys.stdout.flush()
    os.execvp(login[0], list(login))
