"""The process that tries a command: a run's own ``Job``, bounded, in a folder of its own.

It is a process of its own, so that only its own descendants are ended:

    python -m trmcloud.operations.commands.trial_process FOLDER

``FOLDER/job.json`` says what to run; what was observed is ``FOLDER/observed.json``. Each second it
prints its progress as a line of JSON. SIGTERM ends the trial at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from types import FrameType

from trmcloud.core.contract.command import Command
from trmcloud.core.contract.command_terms import MOST_LINE_CHARS
from trmcloud.core.contract.pod_contract import CHECKPOINTS_DIR
from trmcloud.core.contract.records import dump, load, parse_lines
from trmcloud.core.contract.trainer_contract import ENV_ATTEMPT, ENV_DEADLINE_AT, PhaseJob
from trmcloud.core.text import one_line
from trmcloud.core.values import Value, replace
from trmcloud.io.files import read_small, write_atomic
from trmcloud.operations.commands.trial_checks import (
    TRACKERS,
    Attempt,
    NamedNumber,
    Observed,
    SeenKey,
    SeenPath,
    SeenSave,
    is_of_held_out,
    numbers_in,
)
from trmcloud.pod.job.artifacts import Artifact, SeenFile, metrics_in, step_in
from trmcloud.pod.job.process import WORK_DIR, Job
from trmcloud.pod.job.readings import Reading, number_of, pattern_of
from trmcloud.pod.job.trmcloud_observer import ENV_SEEN
from trmcloud.pod.machine import processes

JOB_NAME, OBSERVED_NAME, LOG_NAME, SEEN_NAME = "job.json", "observed.json", "log", "seen.jsonl"
RUN_DIR, RESUMED_DIR, HOME_DIR = "run", "resumed", "home"
_EVERY_S = 1.0
_LAST_LINES = 10
_MOST_KEYS = 64
_MOST_SAVES = 256
_MOST_BESIDE = 64
_MOST_PATHS = 1000
_MOST_SEEN_BYTES = 8 << 20
_RESUME_FOR_S = 30.0
"""A resumed attempt is stopped once its log names a step, and after so long at the latest."""
_LINE_CHARS = 400
_ROW_KEYS = frozenset(("step", "epoch", "global_step"))


class TrialJob(Value):
    """One trial: the command, its copy and environment, and the bounds of time and bytes."""

    command: Command
    code_dir: str
    data_dir: str
    temporary: str
    """The folder for temporary files; its bytes count."""
    environment: Mapping[str, str]
    for_s: float
    steps: int
    most_bytes: int
    blocks_network: bool
    resume_flag: str = ""
    """The option that resumes from a checkpoint, where the framework's is known."""
    version: int = 1


class TrialInterrupted(Exception):
    """SIGTERM came: the trial ends."""


class _Ended(Exception):
    """The attempt has shown what it was started for, or has written too much."""


class Trial:
    """Runs a job's command in ``folder``."""

    def __init__(self, folder: Path, job: TrialJob) -> None:
        self._folder, self._job = folder, job
        self._interrupted = Event()

    def run(self) -> Observed:
        """Run the command, stop it, and run it again from its checkpoint if it can resume.

        Raises:
            TrialInterrupted: SIGTERM came; nothing runs any more.
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._job.most_bytes, resource.RLIM_INFINITY))
        blocked = self._job.blocks_network and block_network()
        (self._folder / HOME_DIR).mkdir(exist_ok=True)
        first = self._attempt(RUN_DIR, 1, self._job.command)
        if first.why_not_started:
            why = first.why_not_started
            return Observed(Attempt(), why_not_started=why, network_blocked=blocked)
        others = first.other_files()
        seen = Observed(
            first.observed(),
            other_files=len(others),
            other_bytes=sum(file.size_bytes for file in others),
            trackers=first.trackers(),
            network_blocked=blocked,
        )
        return self._with_seen(self._resume(seen, first))

    def _resume(self, seen: Observed, first: TriedJob) -> Observed:
        """As a run goes on that was moved to another machine: in a fresh copy, with the
        checkpoints that were taken."""
        command, flag = self._job.command, self._job.resume_flag
        by = command.resume or ((*command.words, flag, "{checkpoint}") if flag else ())
        if not by or (latest := first.latest()) is None:
            return seen
        again = self._folder / RESUMED_DIR
        again.mkdir(exist_ok=True)
        os.rename(self._folder / RUN_DIR / CHECKPOINTS_DIR, again / CHECKPOINTS_DIR)
        second = self._attempt(RESUMED_DIR, 2, replace(command, resume=tuple(by)))
        why = second.why_not_started
        return replace(
            seen,
            resumed=Attempt(code=127, last_lines=(why,)) if why else second.observed(),
            resumed_from=latest.source,
            resumed_step=step_in(latest),
            resumed_by=tuple(by),
        )

    def _attempt(self, name: str, number: int, command: Command) -> TriedJob:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        log = os.open(self._folder / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            attempt = TriedJob(folder, self._job, command, number, self._interrupted, log)
            attempt.run()
        finally:
            os.close(log)
        if self._interrupted.is_set():
            raise TrialInterrupted
        return attempt

    def _with_seen(self, seen: Observed) -> Observed:
        """``seen`` with what the observer in its Python processes has noted."""
        pythons: dict[str, None] = {}
        modules: dict[str, None] = {}
        paths: dict[tuple[str, bool], SeenPath] = {}
        sources: dict[str, None] = {}
        below = f"{self._folder / RUN_DIR / WORK_DIR}{os.sep}"
        with contextlib.suppress(OSError), open(self._folder / SEEN_NAME, "rb") as file:
            for said in parse_lines(file.read(_MOST_SEEN_BYTES).splitlines()):
                if isinstance(name := said.get("python"), str) and name:
                    pythons[name] = None
                if isinstance(name := said.get("module"), str):
                    modules[name] = None
                if isinstance(name := said.get("path"), str) and len(paths) < _MOST_PATHS:
                    path = SeenPath(name, bool(said.get("writes")), bool(said.get("there")))
                    if path.there and name.startswith(below) and name.endswith(".py"):
                        sources[name.removeprefix(below)] = None
                    if self._is_of_interest(path):
                        paths.setdefault((path.path, path.writes), path)
        return replace(
            seen,
            pythons=tuple(pythons)[:8],
            modules=tuple(modules)[:_MOST_PATHS],
            paths=tuple(paths.values()),
            sources=tuple(sources)[:_MOST_PATHS],
        )

    def _is_of_interest(self, path: SeenPath) -> bool:
        """Of the trial's own folder, only what was missing there, the program's files and the hub's
        cache."""
        own = (f"{self._folder}{os.sep}", f"{self._job.temporary}{os.sep}")
        inside = path.path.startswith(own)
        return not inside or not path.there or "/hub/" in path.path


class TriedJob(Job):
    """One start of the command. It ends at the trial's bounds, and keeps what was observed."""

    def __init__(
        self,
        folder: Path,
        trial: TrialJob,
        command: Command,
        number: int,
        interrupted: Event,
        log: int,
    ) -> None:
        # The checks of a rented machine's first minutes are not for this one, and no package is
        # installed without a network.
        tried = replace(command, pip="", unchecked=True, probe_steps=0)
        job = PhaseJob(
            run_id="trial",
            phase="command",
            settings={},
            data_dir=trial.data_dir,
            out_dir=str(folder),
            processes=1,
            command=tried,
            code_dir=trial.code_dir,
        )
        super().__init__(job, tried, {**trial.environment, ENV_ATTEMPT: str(number)}, log)
        self._trial, self._number, self._interrupted = trial, number, interrupted
        self._is_resumed = number > 1
        self._keys: dict[str, SeenKey] = {}
        self._steps: list[tuple[float, int]] = []
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._before: dict[str, tuple[int, int, int]] = {}
        self._memory_bytes = 0
        self._looked_at_s = -_EVERY_S
        self._ran_s = 0.0
        self._waited_s = 0.0
        """From the request to stop until it had ended."""
        self._is_too_large = self._has_shown_all = False

    @property
    def why_not_started(self) -> str:
        """Return why the command could not be started; empty where it was."""
        return "" if self._child is not None else self._tell.beat.message

    def latest(self) -> Artifact | None:
        """Return the checkpoint that a run would be resumed from; None where there is none."""
        kept = [self._shelf.tree_of(made) for made in self._shelf.to_put_back()[:1]]
        taken = self._taking.taken.values()
        return next(
            (a for a in taken for t in kept if (a.place, a.source) == (t.place, t.source)), None
        )

    def other_files(self) -> list[SeenFile]:
        """Return the new files of the working folder that belong to no checkpoint, caches of
        bytecode left out."""
        return [file for file in self._watcher.others() if "__pycache__" not in file.path]

    def trackers(self) -> tuple[str, ...]:
        """Return the names of the trackers that have written offline."""
        new = [path for path, about in self._all_files() if self._before.get(path) != about]
        return tuple(each.name for each in TRACKERS if any(f"/{each.writes}" in p for p in new))

    def observed(self) -> Attempt:
        """Return what was observed, once the command has ended."""
        assert self._child is not None
        assert self._log is not None
        for _, unread in self._log.take()[-_LAST_LINES:]:
            self._show(unread.decode("utf-8", "replace"))
        stopping, ended_at = self._stopping, self._started_at + self._ran_s
        saves, saved_at = self._saves()
        by_itself = not (stopping.told or self._is_too_large or self._has_shown_all)
        return Attempt(
            ran_s=self._ran_s,
            code=self._child.returncode if by_itself else None,
            lines=self._log.lines_seen,
            last_lines=tuple(self._last),
            first_step=self._steps[0][1] if self._steps else None,
            last_step=self._steps[-1][1] if self._steps else None,
            step_s=self._step_s(),
            memory_bytes=self._memory_bytes,
            keys=tuple(self._keys.values()),
            saves=saves,
            told=bool(stopping.told),
            left_s=self._waited_s if stopping.told and not stopping.killed else None,
            saved_s=saved_at - ended_at if stopping.told and saved_at >= ended_at else None,
            left_behind=self._left if by_itself else 0,
            too_large=self._is_too_large,
        )

    # -- the trial's bounds ---------------------------------------------------------------------

    def _on_term(self, signum: int, frame: FrameType | None) -> None:
        self._interrupted.set()

    def _given(self) -> dict[str, str]:
        given = self._trial.environment
        return {name: given[name] for name in self._command.env if name in given}

    def _command_environment(self) -> dict[str, str]:
        return {
            **super()._command_environment(),
            ENV_DEADLINE_AT: repr(time.time() + self._trial.for_s),
            ENV_SEEN: str(self._folder.parent / SEEN_NAME),
        }

    def _start(self, words: tuple[str, ...]) -> None:
        self._before = dict(self._all_files())
        super()._start(words)

    def _watch_over(self) -> None:
        with contextlib.suppress(_Ended):
            super()._watch_over()
        if self._stopping.told:
            self._waited_s = self._stopping.waited_s(time.monotonic())
        self._is_too_large = self._is_too_large or self._is_full()

    def _probe(self, steady: float) -> None:
        """At each look: end it where a bound is reached."""
        if self._interrupted.is_set():
            raise TrialInterrupted
        if not self._stopping.told:
            self._ran_s = time.time() - self._started_at
        if steady - self._looked_at_s >= _EVERY_S:
            self._looked_at_s = steady
            resident = sum(processes.resident_bytes(pid) for pid in self._offspring)
            self._memory_bytes = max(self._memory_bytes, resident)
            self._is_too_large = self._is_full()
            self._show_progress()
            if self._is_too_large:
                raise _Ended
        if self._is_resumed:
            self._has_shown_all = bool(self._steps) or self._ran_s >= min(
                _RESUME_FOR_S, self._trial.for_s
            )
            if self._has_shown_all:
                raise _Ended
        made = self._steps[-1][1] - self._steps[0][1] if self._steps else 0
        is_due = self._ran_s >= self._trial.for_s or 0 < self._trial.steps <= made
        self._asked = self._asked or is_due

    def _is_full(self) -> bool:
        """Whether the bytes on disk that were written since, sparse files counted by their blocks,
        are as many as allowed: one file cannot have more."""
        new = (about for path, about in self._all_files() if self._before.get(path) != about)
        return sum(about[2] for about in new) >= self._trial.most_bytes

    def _all_files(self) -> Iterator[tuple[str, tuple[int, int, int]]]:
        """(path, (size, mtime in ns, bytes on disk)) of every regular file that it can count as
        its own."""
        pending = [str(self._tree), str(self._home()), self._trial.temporary]
        while pending:
            try:
                entries = list(os.scandir(pending.pop()))
            except OSError:
                continue
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        about = entry.stat(follow_symlinks=False)
                        yield entry.path, (about.st_size, about.st_mtime_ns, about.st_blocks * 512)

    def _show_progress(self) -> None:
        shown = {
            "attempt": self._number,
            "at_s": round(time.time() - self._started_at, 1),
            "step": self._steps[-1][1] if self._steps else None,
            "told": bool(self._stopping.told),
        }
        with contextlib.suppress(OSError):
            print(json.dumps(shown), flush=True)

    # -- what is observed -----------------------------------------------------------------------

    def _show(self, text: str) -> None:
        if shown := one_line(text.replace(f"{self._work}{os.sep}", "")).strip():
            self._last.append(shown[:_LINE_CHARS])

    def _saw(self, line: bytes, reading: Reading | None, at: float) -> None:
        super()._saw(line, reading, at)
        text = line.decode("utf-8", "replace")
        self._show(text)
        known = reading.metrics if reading is not None else {}
        for number in numbers_in(text[:MOST_LINE_CHARS]):
            if number.name not in known:
                pattern = "" if _is_read_by_name(number, text) else number.pattern
                self._note_keys({number.name: number.value}, pattern, held_out=is_of_held_out(text))

    def _note(self, reading: Reading, now: float) -> None:
        super()._note(reading, now)
        if reading.step is not None and (not self._steps or reading.step > self._steps[-1][1]):
            at_s = (reading.at or now) - self._started_at
            self._steps.append((max(0.0, at_s), reading.step))
        self._note_keys(reading.metrics)

    def _note_keys(
        self, metrics: Mapping[str, float], pattern: str = "", *, held_out: bool = False
    ) -> None:
        for name, value in metrics.items():
            if "(" in name:
                continue  # as ``--metric`` it would be a pattern
            before = self._keys.get(name)
            if before is None and len(self._keys) >= _MOST_KEYS:
                once = next((key for key, seen in self._keys.items() if seen.count == 1), None)
                if once is None:
                    continue
                del self._keys[once]
            finite = value if value == value and abs(value) != float("inf") else None
            count = before.count + 1 if before is not None else 1
            kept = pattern if before is None else before.pattern
            changes = before is None or finite != before.last or (count > 2 and before.changes)
            every = held_out and (before is None or before.held_out)
            self._keys[name] = SeenKey(name[:120], count, finite, kept[:400], changes, every)

    def _saves(self) -> tuple[tuple[SeenSave, ...], float]:
        """Return its checkpoints, and when the last of them was written, epoch seconds. The
        metrics that their layouts name are noted."""
        # A resumed attempt finds what was put back for it.
        taken = [a for a in self._taking.taken.values() if a.saved_at >= self._started_at]
        artifacts = taken[-_MOST_SAVES:]
        saves = []
        for artifact in artifacts:
            name = self._shown_name(artifact)
            below = [file.path for file in artifact.files] if artifact.is_file else []
            above = next((name.removesuffix(path) for path in below if name.endswith(path)), "")
            saves.append(
                SeenSave(
                    name[:400],
                    artifact.size_bytes,
                    step_in(artifact),
                    artifact.kind,
                    artifact.is_file,
                    tuple(above + path for path in below if above + path != name)[:_MOST_BESIDE],
                )
            )
        if not self._steps:  # its log names none
            self._steps = _steps_of(artifacts, self._started_at)
        newest = max(artifacts, key=lambda artifact: artifact.saved_at, default=None)
        for _, metrics in metrics_in(newest) if newest is not None else ():
            fresh = {name: value for name, value in metrics.items() if name not in _ROW_KEYS}
            if not fresh.keys() <= self._keys.keys():
                self._note_keys(fresh)
        return tuple(saves), newest.saved_at if newest is not None else 0.0

    def _shown_name(self, artifact: Artifact) -> str:
        """Return its path: below the working folder, below ``~``, or absolute."""
        is_place = artifact.is_file and artifact.place.endswith(f"/{artifact.source}")
        name = artifact.place if is_place else artifact.name
        home = f"{self._home()}{os.sep}"
        return f"~/{name.removeprefix(home)}" if name.startswith(home) else name

    def _step_s(self) -> float | None:
        """Seconds a step, without what came before the second time that steps were told."""
        steps = self._steps[1:] if len(self._steps) > 2 else self._steps
        if len(steps) < 2 or steps[-1][1] <= steps[0][1] or steps[-1][0] <= steps[0][0]:
            return None
        return (steps[-1][0] - steps[0][0]) / (steps[-1][1] - steps[0][1])


def _steps_of(artifacts: Sequence[Artifact], began_at: float) -> list[tuple[float, int]]:
    """(seconds since the start, step) of checkpoints whose layout or name has a step."""
    found: list[tuple[float, int]] = []
    for artifact in sorted(artifacts, key=lambda each: each.saved_at):
        step = step_in(artifact)
        if step is not None and (not found or step > found[-1][1]):
            found.append((max(0.0, artifact.saved_at - began_at), step))
    return found


def _is_read_by_name(number: NamedNumber, text: str) -> bool:
    """Whether ``--metric`` with the name alone finds the very number."""
    pattern = pattern_of(number.name)
    found = pattern.search(text) if pattern is not None else None
    return found is not None and number_of(found[1] or found[2]) == number.value


# -- isolation -------------------------------------------------------------------------------------

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFADDR, _IFF_UP = 0x8913, 0x8914, 0x8916, 1


def block_network() -> bool:
    """Move this process into a network namespace of its own, where only the loopback interface
    works; False where the system does not allow that."""
    uid, gid = os.getuid(), os.getgid()
    own_address = _own_address()
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _CLONE_NEWNET | (_CLONE_NEWUSER if uid else 0)
    try:
        if libc.unshare(flags):
            return False
        if uid:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            _bring_up(asked, b"lo", "")
            if own_address:
                # Rendezvous by this machine's own name must find it still.
                _bring_up(asked, b"lo:1", own_address)
    except (OSError, AttributeError):
        return False
    processes.die_with_parent()  # which new capabilities have switched off
    return True


def _own_address() -> str:
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""
    return "" if found.startswith("127.") else found


def _bring_up(asked: socket.socket, name: bytes, address: str) -> None:
    if address:
        place = struct.pack("16sH2s4s8s", name, socket.AF_INET, b"", socket.inet_aton(address), b"")
        fcntl.ioctl(asked, _SIOCSIFADDR, place)
    request = struct.pack("16sH14s", name, 0, b"")
    flags = struct.unpack("16sH14s", fcntl.ioctl(asked, _SIOCGIFFLAGS, request))[1]
    fcntl.ioctl(asked, _SIOCSIFFLAGS, struct.pack("16sH14s", name, flags | _IFF_UP, b""))


def main() -> None:
    processes.die_with_parent()
    folder = Path(sys.argv[1])
    job = load(TrialJob, 1, read_small(folder / JOB_NAME) or "")
    try:
        observed = Trial(folder, job).run()
    except TrialInterrupted:
        sys.exit(130)
    write_atomic(folder / OBSERVED_NAME, dump(observed), durable=False)


if __name__ == "__main__":
    main()
