"""The process that runs a tried command, observes it and ends it with all that it started.

It is a process of its own, so that only its own descendants are ended:

    python -m trmcloud.operations.commands.trial_process FOLDER

``FOLDER/job.json`` says what to run; what was observed is ``FOLDER/observed.json``. Each second it
prints its progress as a line of JSON. SIGTERM ends the trial at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from trmcloud.core.contract.command import NO_SIGNAL, Command, is_inside
from trmcloud.core.contract.command_resuming import MODELS_ALONE
from trmcloud.core.contract.command_terms import (
    ENV_DATA,
    ENV_REPORTS,
    ENV_STOP_FILE,
    MOST_LINE_CHARS,
    Act,
    CommandStopper,
)
from trmcloud.core.contract.records import dump, load, parse_lines
from trmcloud.core.contract.trainer_contract import ENV_ATTEMPT, ENV_DEADLINE_AT
from trmcloud.core.text import one_line
from trmcloud.core.values import Value, replace
from trmcloud.io.files import read_small, write_atomic
from trmcloud.operations.commands.trial_checks import (
    Attempt,
    NamedNumber,
    Observed,
    SeenKey,
    SeenPath,
    SeenSave,
    is_of_held_out,
    numbers_in,
)
from trmcloud.pod.job.artifacts import (
    Artifact,
    files_below,
    find_artifacts,
    metrics_in,
    names_best,
    step_in,
)
from trmcloud.pod.job.csv_logs import CsvLogs
from trmcloud.pod.job.observed import JsonLines, metrics_of
from trmcloud.pod.job.process import kill_all, offspring, reap_children, signal_all
from trmcloud.pod.job.readings import (
    EventFiles,
    LogPump,
    Reading,
    Readings,
    number_of,
    of_object,
    pattern_of,
)
from trmcloud.pod.job.trmcloud_observer import ENV_OBSERVED, ENV_SEEN
from trmcloud.pod.job.workspace import import_roots, lay_data, note_latest, unpack
from trmcloud.pod.machine import processes

JOB_NAME, OBSERVED_NAME, LOG_NAME, SEEN_NAME = "job.json", "observed.json", "log", "seen.jsonl"
WORK_DIR, RESUMED_DIR, HOME_DIR, TMP_DIR = "work", "resumed", "home", "tmp"
ON_PATH_DIR, OBSERVER_DIR = "on-path", "observer"
MODULES = ("trmcloud_job.py", "trmcloud_job_transformers.py", "trmcloud_job_lightning.py")
_TICK_S = 0.1
_LOOK_EVERY_S = 1.0
_READ_FOR_S, _READ_AT_END_S = 0.3, 10.0
"""For looking at lines of the log: of each tick, and once the command has ended."""
_KILL_WITHIN_S = 10.0
_LOG_BYTES = 1 << 20
_LAST_LINES = 10
_MOST_KEYS = 64
_MOST_SAVES = 256
_MOST_BESIDE = 64
_MOST_PATHS = 1000
_MOST_SEEN_BYTES = 8 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_RESUME_FOR_S = 30.0
"""A resumed attempt is stopped once its log names a step, and after so long at the latest."""
_LINE_CHARS = 400
_LIBRARY_CACHES = frozenset(
    ("huggingface", "torch", "triton", "inductor", "matplotlib", "cuda", "pip", "uv", "wandb")
)
_ROW_KEYS = frozenset(("step", "epoch", "global_step"))
_ENDING_S = 1.0
"""Processes that end together with the command have so long."""


class TrialJob(Value):
    """One trial: the command, its copy and environment, and the bounds of time and bytes."""

    command: Command
    code_dir: str
    data_dir: str
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


class Trial:
    """Runs a job's command in ``folder``."""

    def __init__(self, folder: Path, job: TrialJob) -> None:
        self._folder, self._job = folder, job
        self._interrupted = False

    def run(self) -> Observed:
        """Run the command, stop it, and run it again from its checkpoint if it can resume.

        Raises:
            Interrupted: SIGTERM came; nothing runs any more.
        """
        processes.adopt_orphans()
        signal.signal(signal.SIGTERM, self._on_term)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._job.most_bytes, resource.RLIM_INFINITY))
        command, blocked = self._job.command, False
        if self._job.blocks_network:
            blocked = block_network()
        try:
            unpack(Path(self._job.code_dir), self._folder / WORK_DIR)
            lay_data(self._folder / WORK_DIR, self._job.data_dir, command.data)
            (self._folder / WORK_DIR / command.folder).mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            return Observed(Attempt(), why_not_started=f"no copy could be made: {error}")
        self._lay_modules()
        files = _Files(self._folder, WORK_DIR, command.folder)
        attempt = _Attempt(self._folder, self._job, WORK_DIR, 1, self._is_interrupted)
        try:
            first = attempt.run(command.words, files, resumes=False)
        except OSError as error:
            why = f"{command.words[0][:80]}: {error.strerror or error}: it cannot run here"
            return Observed(Attempt(), why_not_started=why, network_blocked=blocked)
        made = files.artifacts()
        others = files.others(made)
        seen = Observed(
            first,
            other_files=len(others),
            other_bytes=sum(others.values()),
            network_blocked=blocked,
        )
        seen = self._resume(seen, [artifact for _, artifact in made if not artifact.place])
        return self._with_seen(seen)

    def _resume(self, seen: Observed, artifacts: Sequence[Artifact]) -> Observed:
        """In a fresh copy with the newest checkpoint, and the others that a run puts back, where
        the command wrote them."""
        if not artifacts:
            return seen
        command, flag = self._job.command, self._job.resume_flag
        by = command.resume or ((*command.words, flag, "{checkpoint}") if flag else ())
        if not by:
            return seen
        # A final model has no state to train on with.
        whole = [a for a in artifacts if a.kind not in MODELS_ALONE]
        newest = max(whole or artifacts, key=lambda artifact: artifact.saved_at)
        last = [a for a in whole or artifacts if not names_best(a.source)]
        if last and names_best(newest.source):  # as a run does: a best may hold no state
            newest = max(last, key=lambda artifact: artifact.saved_at)
        copy = self._folder / RESUMED_DIR
        try:
            unpack(Path(self._job.code_dir), copy)
            lay_data(copy, self._job.data_dir, self._job.command.data)
            below = copy / command.folder
            below.mkdir(parents=True, exist_ok=True)
            others = [
                [a for a in artifacts if names_best(a.source) is best] for best in (True, False)
            ]
            for each in [max(found, key=lambda a: a.saved_at) for found in others if found]:
                _put_back(each, self._folder / WORK_DIR / command.folder, below)
            path = _put_back(newest, self._folder / WORK_DIR / command.folder, below)
            note_latest(path, newest.kind)
        except (OSError, ValueError):
            return seen
        words = [word.replace("{checkpoint}", str(path)) for word in by]
        again = _Attempt(self._folder, self._job, RESUMED_DIR, 2, self._is_interrupted)
        try:
            attempt = again.run(
                words, _Files(self._folder, RESUMED_DIR, command.folder), resumes=True
            )
        except OSError as error:
            attempt = Attempt(code=127, last_lines=(str(error),))
        return replace(
            seen,
            resumed=attempt,
            resumed_from=newest.source,
            resumed_step=step_in(newest),
            resumed_by=tuple(by),
        )

    def _with_seen(self, seen: Observed) -> Observed:
        """``seen`` with what the observer in its Python processes has noted."""
        pythons: dict[str, None] = {}
        modules: dict[str, None] = {}
        paths: dict[tuple[str, bool], SeenPath] = {}
        sources: dict[str, None] = {}
        below = f"{self._folder / WORK_DIR}{os.sep}"
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
        inside = path.path.startswith(str(self._folder) + os.sep)
        return not inside or not path.there or "/hub/" in path.path

    def _lay_modules(self) -> None:
        """The modules that a run lays on the command's path, and the observer before them."""
        from_here = Path(sys.modules[Readings.__module__].__file__ or "").parent
        for folder in (ON_PATH_DIR, OBSERVER_DIR, HOME_DIR, TMP_DIR):
            (self._folder / folder).mkdir(exist_ok=True)
        for name in MODULES:
            shutil.copyfile(from_here / name, self._folder / ON_PATH_DIR / name)
        observer = self._folder / OBSERVER_DIR / "sitecustomize.py"
        shutil.copyfile(from_here / "trmcloud_observer.py", observer)

    def _on_term(self, signum: int, frame: FrameType | None) -> None:
        self._interrupted = True

    def _is_interrupted(self) -> bool:
        return self._interrupted


class _Attempt:
    """One start of the command."""

    def __init__(
        self,
        folder: Path,
        job: TrialJob,
        work: str,
        number: int,
        is_interrupted: Callable[[], bool],
    ) -> None:
        self._folder, self._job, self._number = folder, job, number
        self._tree = folder / work
        self._work = self._tree / job.command.folder
        self._is_interrupted = is_interrupted
        self._stop_file = folder / f"stop-{number}"
        self._reports = folder / f"reports-{number}.jsonl"
        self._observed = folder / f"observed-{number}.jsonl"
        self._heard, self._noted = JsonLines(self._reports), JsonLines(self._observed)
        self._listens = False
        self._keys: dict[str, SeenKey] = {}
        self._steps: list[tuple[float, int]] = []
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._memory_bytes = 0
        self._began_at = 0.0

    def run(self, words: Sequence[str], files: _Files, *, resumes: bool) -> Attempt:
        """
        Raises:
            OSError: it cannot be started. Interrupted: SIGTERM came.
        """
        command = self._job.command
        read, write = os.pipe()
        log = os.open(self._folder / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        began, self._began_at = time.monotonic(), time.time()
        try:
            child = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=subprocess.STDOUT,
                cwd=self._work,
                env=self._environment(),
                start_new_session=True,
            )
        except OSError:
            os.close(read)
            raise
        finally:
            os.close(write)
        pump = LogPump(read, log, _LOG_BYTES)
        readings = Readings(command)
        logs = EventFiles(self._work), CsvLogs(self._work, time.time())
        stopper = CommandStopper(command, float("inf"))
        looked = -_LOOK_EVERY_S
        told_at: float | None = None
        ran_s, told, too_large, killed, asked = 0.0, 0.0, False, False, False
        try:
            while True:
                steady = time.monotonic()
                reap_children(child.pid)
                ended = child.poll() is not None
                self._read(pump, readings, steady - began)
                if steady - looked >= _LOOK_EVERY_S or ended:
                    looked = steady
                    self._read_files(logs, steady if not ended else float("inf"), steady - began)
                    self._note_memory()
                    too_large = too_large or files.size_bytes() > self._job.most_bytes
                    self._progress(steady - began, told_at is not None)
                if told_at is None:
                    ran_s = steady - began
                if self._is_interrupted():
                    raise TrialInterrupted
                if ended or too_large:
                    break
                asked = asked or self._is_due(ran_s, resumes=resumes)
                acts = stopper.acts(time.time(), steady, asked=asked, listens=self._listens)
                if acts and told_at is None:
                    told_at, told = time.time(), steady
                    if resumes:  # it has shown what it was started for
                        break
                if Act.FILES in acts:
                    self._make_stop_files()
                if Act.SIGNAL in acts and command.stop_signal != NO_SIGNAL:
                    signal_all(os.getpid(), getattr(signal, f"SIG{command.stop_signal}"))
                if Act.KILL in acts:
                    killed = True
                    break
                time.sleep(_TICK_S)
            left_s = time.monotonic() - told if told_at is not None and not killed else None
            left_behind = self._left_behind() if child.poll() is not None else 0
        finally:
            kill_all(os.getpid(), _KILL_WITHIN_S)
            pump.close(wait_s=2.0)
            os.close(log)
        self._read(pump, readings, time.monotonic() - began, _READ_AT_END_S)
        self._read_files(logs, float("inf"), time.monotonic() - began)
        saves, saved_at = self._saves(files.artifacts(), time.monotonic() - began)
        too_large = too_large or files.size_bytes() > self._job.most_bytes
        by_itself = told_at is None and not too_large
        return Attempt(
            ran_s=ran_s,
            code=child.returncode if by_itself else None,
            lines=pump.lines_seen,
            last_lines=tuple(self._last),
            first_step=self._steps[0][1] if self._steps else None,
            last_step=self._steps[-1][1] if self._steps else None,
            step_s=self._step_s(),
            memory_bytes=self._memory_bytes,
            keys=tuple(self._keys.values()),
            saves=saves,
            told=told_at is not None,
            left_s=left_s,
            saved_s=max(0.0, saved_at - told_at)
            if told_at is not None and saved_at >= told_at
            else None,
            left_behind=left_behind if by_itself else 0,
            too_large=too_large,
        )

    def _saves(
        self, artifacts: Sequence[tuple[str, Artifact]], at_s: float
    ) -> tuple[tuple[SeenSave, ...], float]:
        """(its checkpoints, when the last of them was written: epoch s); the metrics that their
        layouts name are noted."""
        saves, last = [], 0.0
        for name, artifact in artifacts:
            last = max(last, artifact.saved_at)
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
            self._steps = _steps_of([artifact for _, artifact in artifacts], self._began_at)
        if artifacts:
            newest = max((artifact for _, artifact in artifacts), key=lambda a: a.saved_at)
            for _, metrics in metrics_in(newest):
                fresh = {name: v for name, v in metrics.items() if name not in _ROW_KEYS}
                if not fresh.keys() <= self._keys.keys():
                    self._note(Reading(None, fresh), at_s, None)
        return tuple(saves), last

    def _left_behind(self) -> int:
        """The processes that are alive still, once those that were ending had time to."""
        give_up_at = time.monotonic() + _ENDING_S
        while (count := len(offspring(os.getpid()))) and time.monotonic() < give_up_at:
            reap_children()
            time.sleep(_TICK_S)
        return count

    def _is_due(self, ran_s: float, *, resumes: bool) -> bool:
        """Whether it has run for long enough."""
        if resumes:
            return bool(self._steps) or ran_s >= min(_RESUME_FOR_S, self._job.for_s)
        made = self._steps[-1][1] - self._steps[0][1] if self._steps else 0
        return ran_s >= self._job.for_s or 0 < self._job.steps <= made

    def _environment(self) -> dict[str, str]:
        """The job's, with what a run promises its command, and the observer's place."""
        given = dict(self._job.environment)
        paths = [self._folder / OBSERVER_DIR, self._folder / ON_PATH_DIR]
        paths += [Path(p) for p in given.pop("PYTHONPATH", "").split(os.pathsep) if p]
        if self._job.command.folder:
            paths += map(Path, import_roots(self._tree))
        promised = {
            ENV_ATTEMPT: str(self._number),
            ENV_STOP_FILE: str(self._stop_file),
            ENV_REPORTS: str(self._reports),
            ENV_DEADLINE_AT: repr(time.time() + self._job.for_s),
            ENV_SEEN: str(self._folder / SEEN_NAME),
            ENV_OBSERVED: str(self._observed),
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYTHONUNBUFFERED": "1",
        }
        if self._job.data_dir:
            promised[ENV_DATA] = self._job.data_dir
        return {**given, **promised}

    def _make_stop_files(self) -> None:
        paths = [self._stop_file]
        if self._job.command.stop_file and is_inside(self._job.command.stop_file):
            paths.append(self._work / self._job.command.stop_file)
        for path in paths:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()

    # -- what it says ---------------------------------------------------------------------------

    def _show(self, text: str) -> None:
        if shown := one_line(text.replace(f"{self._work}{os.sep}", "")).strip():
            self._last.append(shown[:_LINE_CHARS])

    def _read(
        self, pump: LogPump, readings: Readings, at_s: float, within_s: float = _READ_FOR_S
    ) -> None:
        until, lines = time.monotonic() + within_s, pump.take()
        for at, (came_at, line) in enumerate(lines):
            if time.monotonic() > until:  # it writes faster than that can be read
                pump.put_back(lines[at:])
                for _, unread in lines[at:][-_LAST_LINES:]:
                    self._show(unread.decode("utf-8", "replace"))
                break
            line_s = max(0.0, came_at - self._began_at)
            text = line.decode("utf-8", "replace")
            self._show(text)
            if (reading := readings.read(line)) is not None:
                self._note(reading, line_s, None)
            known = reading.metrics if reading is not None else {}
            for number in numbers_in(text[:MOST_LINE_CHARS]):
                if number.name not in known:
                    held_out = is_of_held_out(text)
                    pattern = "" if _is_read_by_name(number, text) else number.pattern
                    self._note(
                        Reading(None, {number.name: number.value}), line_s, pattern, held_out
                    )
        for said in self._heard.take():
            self._listens = self._listens or bool(said.get("listens"))
            self._note(of_object(said), at_s, None)
        for said in self._noted.take():
            if (observed := metrics_of(said)) is not None:
                self._note(observed, at_s, None)

    def _read_files(self, logs: tuple[EventFiles, CsvLogs], now: float, at_s: float) -> None:
        for reading in itertools.chain.from_iterable(files.take(now) for files in logs):
            self._note(reading, at_s, None)

    def _note(
        self, reading: Reading, at_s: float, pattern: str | None, held_out: bool = False
    ) -> None:
        if reading.step is not None and (not self._steps or reading.step > self._steps[-1][1]):
            self._steps.append((at_s, reading.step))
        for name, value in reading.metrics.items():
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
            kept = pattern or "" if before is None else before.pattern
            changes = before is None or finite != before.last or (count > 2 and before.changes)
            every = held_out and (before is None or before.held_out)
            self._keys[name] = SeenKey(name[:120], count, finite, kept[:400], changes, every)

    def _step_s(self) -> float | None:
        """Seconds a step, without what came before the second time that steps were told."""
        steps = self._steps[1:] if len(self._steps) > 2 else self._steps
        if len(steps) < 2 or steps[-1][1] <= steps[0][1] or steps[-1][0] <= steps[0][0]:
            return None
        return (steps[-1][0] - steps[0][0]) / (steps[-1][1] - steps[0][1])

    def _note_memory(self) -> None:
        resident = 0
        for pid in offspring(os.getpid()):
            with contextlib.suppress(OSError, ValueError, IndexError):
                pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
                resident += int(pages) * _PAGE_BYTES
        self._memory_bytes = max(self._memory_bytes, resident)

    def _progress(self, at_s: float, told: bool) -> None:
        said = {
            "attempt": self._number,
            "at_s": round(at_s, 1),
            "step": self._steps[-1][1] if self._steps else None,
            "told": told,
        }
        with contextlib.suppress(OSError):
            print(json.dumps(said), flush=True)


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


class _Files:
    """The files of a trial's folder, against how they were before the command started."""

    def __init__(self, folder: Path, work: str, below: str) -> None:
        self._folder, self._work = folder, folder / work / below
        self._before = dict(self._all())
        self._sent = files_below(self._work)

    def size_bytes(self) -> int:
        """Bytes on disk that were written since, sparse files counted by their blocks."""
        return sum(about[2] for path, about in self._all() if self._before.get(path) != about)

    def artifacts(self) -> list[tuple[str, Artifact]]:
        """(name, artifact) of each checkpoint that was written in the working folder and in HOME;
        one in HOME is named with ``~/``."""
        found = find_artifacts(self._work, but=self._sent).artifacts
        named = [(artifact.source, artifact) for artifact in found]
        for place in _places_in(self._folder / HOME_DIR):
            shown = f"~/{place.relative_to(self._folder / HOME_DIR).as_posix()}"
            made = find_artifacts(place, place=shown).artifacts
            named += [(artifact.name, artifact) for artifact in made]
        return named[:_MOST_SAVES]

    def others(self, artifacts: Sequence[tuple[str, Artifact]]) -> dict[str, int]:
        """By path, the bytes of new files in the working folder that belong to no checkpoint,
        caches of bytecode left out."""
        owned = {
            str(artifact.root / file.path) for _, artifact in artifacts for file in artifact.files
        }
        below = f"{self._work}{os.sep}"
        return {
            path.removeprefix(below): about[0]
            for path, about in self._all()
            if path.startswith(below)
            and path not in owned
            and self._before.get(path) != about
            and "__pycache__" not in path
        }

    def _all(self) -> Iterator[tuple[str, tuple[int, int, int]]]:
        """(path, (size, mtime in ns, bytes on disk)) of every regular file."""
        pending = [str(self._folder)]
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


def _places_in(home: Path) -> list[Path]:
    """The folders of HOME in which a command may keep checkpoints: those of libraries' caches
    left out."""
    found = []
    for folder in (home, home / ".cache", home / ".local" / "share"):
        with contextlib.suppress(OSError):
            found += [
                Path(entry.path)
                for entry in os.scandir(folder)
                if entry.is_dir(follow_symlinks=False)
                and not entry.name.startswith(".")
                and entry.name not in _LIBRARY_CACHES
            ]
    return sorted(found)


def _put_back(artifact: Artifact, work: Path, copy: Path) -> Path:
    """Copy a checkpoint's files to the same places in another copy of the tree; return the file or
    folder there that it is."""
    at = artifact.root.relative_to(work)
    for file in artifact.files:
        target = copy / at / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(artifact.root / file.path, target)
    return copy / artifact.source


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
