"""The process that starts a user's command, watches it and its children, and stops them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.command import (
    GIVEN_NAME,
    NO_SIGNAL,
    OFFSPRING_NAME,
    PATHS,
    Command,
    is_inside,
)
from trmcloud.core.contract.command_terms import (
    ENV_DATA,
    ENV_REPORTS,
    ENV_STOP_FILE,
    MEASURED,
    PARTS_KEY_NAME,
    SETTLED_S,
    Act,
    CommandStopper,
)
from trmcloud.core.contract.manifest import LAYOUT, CheckpointManifest, step_dir_name
from trmcloud.core.contract.records import ContractError, parse
from trmcloud.core.contract.trainer_contract import (
    ENV_ATTEMPT,
    ENV_DEADLINE_AT,
    ENV_JOB,
    PhaseJob,
    load_job,
)
from trmcloud.core.errors import CheckpointError
from trmcloud.core.sweep.job import SWEEP_NAME, TRIALS_DIR
from trmcloud.core.text import first_of, one_line
from trmcloud.core.values import replace
from trmcloud.io.files import read_small, write_atomic
from trmcloud.pod.job.csv_logs import CsvLogs
from trmcloud.pod.job.first_checks import FIRST_S, FirstChecks
from trmcloud.pod.job.metric_order import REPORTED
from trmcloud.pod.job.observed import JsonLines, LowestRank, metrics_of, state_in
from trmcloud.pod.job.parts import PORT, PartsReceiver, PartsSender
from trmcloud.pod.job.readings import (
    EventFiles,
    LogPump,
    Reading,
    Readings,
    mark_in,
    of_object,
    whole_step,
)
from trmcloud.pod.job.reporting import CommandReporter, StepProbe
from trmcloud.pod.job.shelf import CheckpointTaker, CommandCheckpoints
from trmcloud.pod.job.trmcloud_observer import ENV_LOG, ENV_OBSERVED
from trmcloud.pod.job.watcher import FilesRecord, Watcher
from trmcloud.pod.job.workspace import (
    import_roots,
    install,
    lay_data,
    note_latest,
    provenance_of,
    put_back,
    unpack,
)
from trmcloud.pod.machine import processes
from trmcloud.pod.machine.packages import site_of

# A command's processes: the one that was started, and whatever it started, in whichever session.
#
# Orphans come to the process that waits for the command (it is a subreaper), so that a child that
# left its group and its parents is found by walking up from it all the same.

_ROUND_S = 0.02


def offspring(root: int) -> dict[int, str]:
    """Every live descendant of the process ``root``: pid → start time."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = _stat(entry)
                parents[int(entry)] = int(stat[stat.rindex(b")") + 2 :].split(None, 2)[1])
    found: dict[int, str] = {}
    for pid in parents:
        above, seen = pid, set()
        while above in parents and above not in seen and above != root:
            seen.add(above)
            above = parents[above]
        if above == root and pid != root and (started := processes.started(pid)) is not None:
            found[pid] = started
    return found


def newest_pid() -> str | None:
    """The id of the process or thread that was started last on this machine, as this container
    counts them; None where its kernel does not tell."""
    try:
        with open("/proc/loadavg", encoding="ascii") as file:
            told = file.read().split()[-1]
    except (OSError, ValueError, IndexError):
        return None
    return told if told.isdigit() and told != "0" else None


def _stat(pid: str) -> bytes:
    """As cheaply as it can be read: once a second for every process of the machine."""
    handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    try:
        return os.read(handle, 2048)
    finally:
        os.close(handle)


def kill_all(root: int, within_s: float) -> bool:
    """SIGKILL to every descendant until none is left, and collect them; False where some still
    live after ``within_s``, as one that hangs in a driver does."""
    give_up_at = time.monotonic() + within_s
    while True:
        left = offspring(root)
        for pid, started in left.items():
            processes.send(pid, started, signal.SIGKILL)
        reap_children()
        if not offspring(root):
            return True
        if time.monotonic() >= give_up_at:
            return False
        time.sleep(_ROUND_S)


def reap_children(own: int = -1) -> None:
    """Collect inherited children that ended; the process ``own`` stays with whoever waits for
    it."""
    while True:
        try:
            info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if info is None or info.si_pid == own:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(info.si_pid, os.WNOHANG)


# The one process that the agent knows as a trainer where that is a command of the user's own.
#
# It starts the command in a session of its own, drains its log, reads its metric, takes what it
# has saved, tells it to stop in time and ends it, children and all. The standard library is all
# it needs:
#
#     TRMCLOUD_JOB=…/job.json python -m trmcloud.pod.job.process

WORK_DIR, RESUME_DIR, ON_PATH_DIR = "work", "resume", "on-path"
FILES_NAME = "sent.json"
"""Beside the working folder: the ``FilesRecord`` of its attempts."""
SWEEP_EXECUTOR = "trmcloud.pod.sweep.executor"
"""The module that takes this one's place where a sweep's terms stand beside the code."""
_MODULES = ("trmcloud_job.py", "trmcloud_job_transformers.py", "trmcloud_job_lightning.py")
"""The modules that a script may import; the last two need the packages in their names."""
_OBSERVER, _LOADED_AS = "trmcloud_observer.py", "sitecustomize.py"
_SETTERS = ("env", "sh", "bash", "dash", "zsh")
_SETS_PATH = re.compile(r"(?<![\w${])PYTHONPATH=(?=[^\s;&|])")
"""In a word of a program that sets variables: ``PYTHONPATH=. python train.py`` of a shell."""
_TICK_S = 0.2
_WATCH_EVERY_S = 0.5
_WATCH_MOST_S = 10.0
_WATCH_SHARE = 200.0
"""A look at the files that took a second of a processor is followed by so many without one."""
_KEYS_AFTER_S = 45.0
"""From the start until a metric that has not appeared is warned of, beside the keys that have."""
_LOOK_AGAIN_S = 10.0
"""For processes, where none seems to have been started."""
_READ_FOR_S = 0.1
"""Of each tick, at most, for looking at lines of the log."""
_READ_AT_END_S = 10.0
"""The same, once the command has ended: its last lines may hold its only value."""
_MOST_KEYS = 12
"""Of the keys that were seen, in a line."""
_MOST_OPENED = 1000
_KILL_WITHIN_S = 10.0
_ENDING_S = 1.0
"""Processes that end together with the command have so long."""
_BALLAST_NAME = ".ballast"
_BALLAST_BYTES = 8 << 20
"""Kept on the disk until the command has ended, so that what follows has room on one that it has
filled: its end, its log's last lines, and on the user's own machine the ledger."""
_FULL_BYTES = 1 << 20
_PARTS_DIR = "parts"
_PARTS_IDLE_S = 20.0
"""At the end: how long files of other machines are waited for while none comes."""
_PARTS_MOST_S = 60.0
_PARTS_BYTES_PER_S = 50e6
"""Files of other machines are waited for no longer than one checkpoint takes at this pace, and
``_PARTS_MOST_S`` more."""
_LACKS_AFTER_S = 30.0
"""From the writing of an index until files that it names, and that are not here, are missed."""
_COMPUTES_SHARE, _COMPUTES_AT_MOST = 0.05, 5
"""A command without a sign that uses such a share of a processor lives, so many times in a row."""
_FROM_SILENT, _UNTIL_SILENT = 0.5, 0.8
"""The part of its time without a sign in which that share is measured."""


class _Life(NamedTuple):
    """Signs of the command's life: their number, when they changed (s, steady), how often it only
    computed since then, and its processor time (s) half-way to its time without a sign."""

    number: int
    at: float
    computed: int
    used_s: float | None


class Job:
    """One attempt of one command."""

    def __init__(
        self, job: PhaseJob, command: Command, environment: Mapping[str, str], log: int = 1
    ) -> None:
        """``log``: the descriptor that the command's output is written to."""
        self._job, self._command, self._environment = job, command, environment
        self._target = log
        self._folder = Path(job.out_dir)
        self._tree = self._folder / WORK_DIR
        self._work = self._tree / command.folder
        self._attempt = int(environment.get(ENV_ATTEMPT, "1"))
        deadline = environment.get(ENV_DEADLINE_AT, "")
        self._deadline_at = float(deadline) if deadline else float("inf")
        self._stop_file = self._folder / f"stop-{self._attempt}"
        self._reports = self._folder / f"reports-{self._attempt}.jsonl"
        self._observed = self._folder / f"observed-{self._attempt}.jsonl"
        self._heard, self._noted = JsonLines(self._reports), JsonLines(self._observed)
        self._reporting, self._observing = LowestRank(), LowestRank()
        self._reported: tuple[int | None, float] | None = None
        """The step and value of the metric that were reported last."""
        self._told = 0
        """The number of metrics and saved files that were observed."""
        self._listens = False
        self._stopping = CommandStopper(command, self._deadline_at)
        self._probing = StepProbe(command.probe_steps) if command.probe_steps else None
        self._asked = False
        self._child: subprocess.Popen[bytes] | None = None
        self._started_at = math.inf
        self._left = 0
        """Processes that still ran when the command had ended."""
        self._offspring: dict[int, str] = {}
        self._elsewhere = ""
        """The folder outside the working tree that a process of the command has gone to."""
        self._opened: set[str] = set()
        """Files that its Python processes have begun to write, those of text left out."""
        self._newest: str | None = None
        self._looked_at = 0.0
        self._tell = CommandReporter(self._folder, job, command, self._attempt, time.time())
        self._readings = Readings(command)
        self._tell.order.counters = self._readings.counters
        self._first = FirstChecks(command)
        self._log: LogPump | None = None
        self._events: EventFiles | None = None
        self._csv: CsvLogs | None = None
        self._life = _Life(0, time.monotonic(), 0, None)
        self._was_full = False
        """Whether the disk had no room left while the command ran."""
        self._is_first = environment.get("NODE_RANK", "0") == "0"
        self._receiver: PartsReceiver | None = None
        self._sender: PartsSender | None = None

    def run(self) -> None:
        processes.adopt_orphans()
        signal.signal(signal.SIGTERM, self._on_term)
        for ignored in (signal.SIGINT, signal.SIGHUP):
            # The agent's side ignores them, and what is ignored stays so in a program that is
            # started; what has a handler is at its default there, as --stop-signal INT needs.
            signal.signal(ignored, lambda signum, frame: None)
        self._tell.write(time.time(), force=True)
        try:
            words = self._prepare()
        except (OSError, ValueError, CheckpointError) as error:
            self._end("bad_config", f"the command could not be started: {error}")
            return
        is_checked = self._tell.beat.saved_step is None and self._folder.parent.name != TRIALS_DIR
        environment = self._command_environment()
        del environment[ENV_OBSERVED]  # a check is no process of the command
        if is_checked and (wrong := self._first.fails(words, str(self._work), environment)):
            self._end("bad_config", wrong)
            return
        for warning in self._first.warnings:
            self._say(f"warning: {warning}")
        try:
            self._start(words)
        except OSError as error:
            self._end(
                "bad_config", f"{words[0]}: {error.strerror or error}: it cannot be run there"
            )
            return
        self._join_machines()
        with contextlib.suppress(OSError):
            write_atomic(self._folder / _BALLAST_NAME, "." * _BALLAST_BYTES, durable=False)
        self._started_at = time.time()
        self._tell.enter("training", self._started_at)
        assert self._child is not None
        try:
            self._watch_over()
        finally:
            self._left = self._left_behind() if self._child.poll() is not None else 0
            ended = kill_all(os.getpid(), _KILL_WITHIN_S)
            self._note_room()
            (self._folder / _BALLAST_NAME).unlink(missing_ok=True)
        code = self._child.wait() if ended or self._child.poll() is not None else -signal.SIGKILL
        self._finish(code)

    # -- beginning ----------------------------------------------------------------------------

    def _prepare(self) -> tuple[str, ...]:
        """Make the working folder; the words to run in it."""
        unpack(Path(self._job.code_dir), self._tree)
        lay_data(self._tree, self._job.data_dir, self._command.data)
        self._work.mkdir(parents=True, exist_ok=True)
        self._shelf = CommandCheckpoints(
            self._folder / contract.CHECKPOINTS_DIR,
            self._job.run_id,
            self._job.phase,
            self._command,
            time.time,
        )
        command = self._command
        record = FilesRecord(self._folder / FILES_NAME)
        self._watcher = Watcher(self._work, command.checkpoints, record, self._home())
        self._taking = CheckpointTaker(
            self._work, self._watcher, self._shelf, self._tell, self._say, command.checkpoint_bytes
        )
        if not command.is_pattern:  # the log alone has what a pattern looks for
            self._events, self._csv = EventFiles(self._work), CsvLogs(self._work, time.time())
        if command.pip:
            code_dir = Path(self._job.code_dir)
            settings = {
                name: value
                for name, value in self._environment.items()
                if name.startswith(contract.ENV_INSTALL_PREFIX)
            }
            if told := install(
                code_dir,
                self._work,
                command.pip,
                self._packages,
                self._deadline_at,
                {**self._command_environment(), **settings},
            ):
                self._say(told)
        self._shelf.provenance = provenance_of(command, self._command_environment())
        for stale in (self._stop_file, self._reports, self._observed):
            stale.unlink(missing_ok=True)
        if command.stop_file and is_inside(command.stop_file):
            (self._work / command.stop_file).unlink(missing_ok=True)
        # In a folder of its own: whatever else lies beside it here is not for the command.
        on_path = self._folder / ON_PATH_DIR
        on_path.mkdir(exist_ok=True)
        for name in _MODULES:
            shutil.copyfile(Path(__file__).with_name(name), on_path / name)
        (on_path / _LOADED_AS).unlink(missing_ok=True)
        if not command.unobserved:
            shutil.copyfile(Path(__file__).with_name(_OBSERVER), on_path / _LOADED_AS)
        kept = self._shelf.to_put_back() if command.resume else []
        if not kept:
            return command.words
        latest, *others = kept
        self._shelf.continue_from(latest)
        self._tell.saved(latest.trained_to, None, time.time())
        path = self._put_back(latest, is_latest=True)
        for other in others:
            with contextlib.suppress(CheckpointError, OSError):  # it is not what is resumed from
                self._put_back(other, is_latest=False)
        return tuple(word.replace("{checkpoint}", str(path)) for word in command.resume)

    def _put_back(self, made: CheckpointManifest, *, is_latest: bool) -> Path:
        """Put a checkpoint back where the command wrote it; return where it is.

        Raises:
            CheckpointError: it is not what its manifest says. OSError: it cannot be written.
        """
        tree, root = self._shelf.tree_of(made), self._work
        if tree.place:
            # Outside the working folder what is there stays: it may be a user's own machine.
            root, is_latest = self._watcher.outside(tree) or root, False
        into = self._folder / RESUME_DIR / f"{self._attempt}" / step_dir_name(made.step)
        self._shelf.restore(made, into)
        path = put_back(into, root, tree, is_latest=is_latest)
        if path.is_relative_to(root):
            note_latest(path, str(made.extra.get(LAYOUT)))
        return path

    def _home(self) -> Path:
        """The home folder of the command."""
        return Path(self._command_environment().get("HOME") or os.path.expanduser("~"))

    @property
    def _packages(self) -> Path:
        return self._folder / "packages"

    def _start(self, words: tuple[str, ...]) -> None:
        if (setter := os.path.basename(words[0])) in _SETTERS:  # what observes it stays on the path
            own = str(self._folder / ON_PATH_DIR)
            own = own if setter == "env" else shlex.quote(own)
            words = tuple(_SETS_PATH.sub(lambda _: f"PYTHONPATH={own}:", word) for word in words)
        read, write = os.pipe()
        try:
            self._child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=subprocess.STDOUT,
                cwd=self._work,
                env={**self._command_environment(), ENV_LOG: str(os.fstat(write).st_ino)},
                start_new_session=True,
            )
        finally:
            os.close(write)
        self._log = LogPump(read, self._target)

    def _join_machines(self) -> None:
        """On several machines: this one sends its files of distributed checkpoints to the first, or
        is that."""
        nodes = self._environment.get("NNODES", "1")
        pod = self._environment.get(contract.ENV_POD, "")
        root = self._folder.parents[2]  # runs/RUN/PHASE
        try:
            key = read_small(root / contract.PODS_DIR / pod / PARTS_KEY_NAME)
            if nodes in ("", "1") or not key:
                return
            if self._is_first:
                self._receiver = PartsReceiver(self._folder / _PARTS_DIR, key, self._say)
            else:
                self._sender = PartsSender((self._environment["MASTER_ADDR"], PORT), key)
        except (OSError, ValueError, KeyError) as error:
            self._say(f"files of other machines' ranks stay there: {error}")

    def _command_environment(self) -> dict[str, str]:
        """Return the command's environment: the agent's own without our variables, and the promised
        ones."""
        kept = {
            name: value
            for name, value in self._environment.items()
            if not name.startswith("TRMCLOUD_") and name not in ("PYTHONPATH", "PYTHONHOME")
        }
        given = self._given()
        paths = [str(self._folder / ON_PATH_DIR)]
        beside = list(filter(None, self._environment.get(PATHS, "").split(os.pathsep)))
        if self._command.pip:
            # Before what the image was given for our own trainer, and before the image's programs.
            paths += [site_of(self._packages)] if beside else []
            bins = (str(self._packages / "bin"), kept.get("PATH", ""))
            kept |= {"VIRTUAL_ENV": str(self._packages), "PATH": os.pathsep.join(bins)}
        paths += beside
        paths += filter(None, given.pop("PYTHONPATH", "").split(os.pathsep))
        if self._command.folder:
            paths += import_roots(self._tree)
        ours = {
            contract.ENV_POD: self._environment.get(contract.ENV_POD, ""),
            ENV_ATTEMPT: str(self._attempt),
            ENV_STOP_FILE: str(self._stop_file),
            ENV_REPORTS: str(self._reports),
            ENV_OBSERVED: str(self._observed),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
        }
        if self._deadline_at < float("inf"):
            ours[ENV_DEADLINE_AT] = repr(self._deadline_at)
        if self._job.data_dir:
            ours[ENV_DATA] = self._job.data_dir
        return {**kept, **given, **ours}

    def _given(self) -> dict[str, str]:
        """Return the variables of --env, as they were given to this pod."""
        pod = self._environment.get(contract.ENV_POD, "")
        root = self._folder.parents[2]  # runs/RUN/PHASE
        if self._folder.parent.name == TRIALS_DIR:
            root = root.parents[1]
        path = root / contract.PODS_DIR / pod / GIVEN_NAME
        with contextlib.suppress(ValueError, ContractError):
            said = parse(read_small(path) or "{}")
            return {k: str(v) for k, v in said.items() if k in self._command.env}
        return {}

    # -- watching -----------------------------------------------------------------------------

    def _on_term(self, signum: int, frame: FrameType | None) -> None:
        self._asked = True

    def _watch_over(self) -> None:
        """Until the command has ended, or was killed."""
        assert self._child is not None
        assert self._log is not None
        watched_at, watch_every_s, looked_s = -math.inf, _WATCH_EVERY_S, 0.0
        while True:
            steady = time.monotonic()
            now = time.time()
            reap_children(self._child.pid)
            ended = self._child.poll() is not None
            self._read_log(now)
            self._read_reports(now)
            self._taking.collect()
            if steady - watched_at >= watch_every_s:
                watched_at, began = steady, time.thread_time()
                self._note_offspring(steady)
                self._note_folders()
                self._look(steady, SETTLED_S)
                self._read_events(steady, now)
                self._tell.note("; ".join(self._notes(now)))
                self._note_room()
                # One slow look, as the first or a disturbed one is, must not hide an epoch.
                before_s, looked_s = looked_s, time.thread_time() - began
                pause_s = min(before_s, looked_s) * _WATCH_SHARE
                watch_every_s = min(_WATCH_MOST_S, max(_WATCH_EVERY_S, pause_s))
            self._note_life(steady, self._log.lines_seen)
            self._tell.write(now)
            self._probe(steady)
            if ended or self._first.stuck:
                return
            if now >= self._stopping.deadline_at:
                self._stopping.deadline_at = self._moved_deadline()
            acts = self._stopping.acts(now, steady, asked=self._asked, listens=self._listens)
            if Act.FILES in acts:
                self._make_stop_files(now)
            if Act.SIGNAL in acts and self._command.stop_signal != NO_SIGNAL:
                number = getattr(signal, f"SIG{self._command.stop_signal}")
                for pid, started in offspring(os.getpid()).items():
                    processes.send(pid, started, number)
            if Act.KILL in acts:
                return
            time.sleep(_TICK_S)

    def _moved_deadline(self) -> float:
        """Return the deadline, which the agent may have moved since this began."""
        with contextlib.suppress(OSError, ValueError):
            return float((self._folder / contract.DEADLINE_NAME).read_text())
        return self._deadline_at

    def _note_life(self, steady: float, lines: int) -> None:
        """Note whatever shows that the command gets on. One that only computes, as a notebook does
        that prints at its end, has a few times as long: ranks that wait for each other for ever
        compute, too."""
        count = lines + self._taking.changes + self._heard.read_bytes + self._told
        for files in (self._events, self._csv):
            count += files.seen if files is not None else 0
        life, most_s = self._life, self._command.silent_s
        silent_s = steady - life.at
        if count != life.number:
            self._life = _Life(count, steady, 0, None)
        elif life.computed < _COMPUTES_AT_MOST and silent_s >= most_s * _FROM_SILENT:
            if life.used_s is None:  # it costs a look at each process
                self._life = life._replace(used_s=self._used_s())
            elif silent_s >= most_s * _UNTIL_SILENT:
                least_s = most_s * (_UNTIL_SILENT - _FROM_SILENT) * _COMPUTES_SHARE
                more = self._used_s() - life.used_s >= least_s
                self._life = _Life(count, steady, life.computed + more, None)
        self._tell.sign(count + self._life.computed)

    def _used_s(self) -> float:
        """Processor time of the command's processes, seconds."""
        return sum(processes.cpu_s(pid) or 0.0 for pid in self._offspring)

    def _moved_mb(self) -> float:
        """MB that the command's processes have read and written."""
        return sum(map(processes.moved_bytes, self._offspring)) / 1e6

    def _look(self, steady: float, after_s: float) -> None:
        """At what was saved, here and on other machines."""
        if self._receiver is not None:
            self._receiver.drop_stale()
        self._taking.settled(steady, after_s)
        if self._receiver is not None:
            self._receiver.look(self._taking.split)
        if self._sender is not None:
            self._sender.look(self._taking.split)

    def _note_room(self) -> None:
        with contextlib.suppress(OSError):
            self._was_full |= shutil.disk_usage(self._folder).free < _FULL_BYTES

    def _probe(self, steady: float) -> None:
        if self._probing is not None and not self._stopping.told:
            self._probing.stepped(self._tell.beat.step, steady)
            self._asked = self._asked or self._probing.done

    def _left_behind(self) -> int:
        """Return the number of processes that are alive once those that end with the command had
        time to."""
        give_up_at = time.monotonic() + _ENDING_S
        while (count := len(offspring(os.getpid()))) and time.monotonic() < give_up_at:
            reap_children()
            time.sleep(_ROUND_S)
        return count

    def _make_stop_files(self, now: float) -> None:
        self._tell.enter("landing", now)
        files = [self._stop_file]
        if self._command.stop_file and is_inside(self._command.stop_file):
            files.append(self._work / self._command.stop_file)
        for path in files:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()

    def _read_log(self, now: float, for_s: float = _READ_FOR_S) -> None:
        assert self._log is not None
        until = time.monotonic() + for_s
        lines = self._log.take()
        gave_up = self._readings.gave_up
        for number, (at, line) in enumerate(lines):
            if (mark := mark_in(line)) is not None:
                self._tell.order.mark(mark.state, is_exact=mark.is_exact)
                continue
            reading = self._readings.read(line)
            self._saw(line, reading, at)
            if reading is not None:
                if (first := self._readings.late) is not None:
                    self._readings.late = None
                    self._note(replace(first, at=at), now)
                self._note(replace(reading, at=at), now)
            if time.monotonic() > until:
                self._log.put_back(lines[number + 1 :])
                break
        if self._readings.gave_up and not gave_up:
            self._log.say("--metric's pattern takes too long for a line: it is not looked for")

    def _saw(self, line: bytes, reading: Reading | None, at: float) -> None:
        """Look at a line of the log that came ``at``, epoch seconds, and what was read of it."""
        self._first.saw(line)

    def _note(self, reading: Reading, now: float) -> None:
        self._tell.read(reading, now)

    def _read_events(self, steady: float, now: float) -> None:
        for files in (self._events, self._csv):
            for reading in files.take(steady) if files is not None else ():
                self._note(self._readings.read_events(reading), now)

    def _notes(self, now: float) -> list[str]:
        """Return the warnings for the user."""
        notes = self._taking.notes
        lacking = [
            split.index_file for split in self._taking.split if split.missing and split.index_file
        ]
        if any(now - index.written_ns / 1e9 >= _LACKS_AFTER_S for index in lacking):
            notes += self._taking.incomplete
        waited = now - self._started_at >= _KEYS_AFTER_S
        if self._lacks_metric and waited:
            notes.insert(0, self._missing_metric())
        if self._tell.beat.saved_step is None and waited:
            notes.append("no checkpoint yet")
        printed = self._tell.beat.signs > 0
        work = 0.0 if printed else self._used_s() + self._moved_mb()
        return notes + self._first.notes(
            now, printed=printed, work=work, waits=lambda: processes.is_connected(self._offspring)
        )

    @property
    def _lacks_metric(self) -> bool:
        """Whether neither the log nor a checkpoint's own files have shown the metric."""
        is_told = self._tell.metric is not None or self._tell.beat.best_bpb is not None
        return bool(self._command.metric) and not is_told

    def _missing_metric(self) -> str:
        seen = sorted(self._readings.keys, key=lambda key: -self._readings.keys[key])
        shown = ", ".join(seen[:_MOST_KEYS]) or "no numbers with a name"
        return f"--metric {self._command.metric_name} has not appeared; seen: {shown}"

    def _read_reports(self, now: float) -> None:
        """Read what the command reports, and what is observed in its Python processes."""
        for said in self._noted.take():
            if "python" in said:
                continue  # every process says that it began
            if isinstance(module := said.get("importing"), str):
                self._first.importing(module)
                continue
            if not self._observing.counts(said):
                continue
            self._told += 1
            if (state := state_in(said)) is not None:
                self._tell.order.reach(state)
            self._taking.states.note(said)
            if isinstance(path := said.get("saved"), str):
                if said.get("until") is not None:
                    self._watcher.note_saved(path)
                elif len(self._opened) < _MOST_OPENED:
                    self._opened.add(path)
            if (reading := metrics_of(said)) is not None:
                self._note(self._readings.read_events(reading), now)
        for said in self._heard.take():
            if self._reporting.counts(said):
                self._hear(said, now)

    def _hear(self, said: Mapping[str, object], now: float) -> None:
        if said.get("listens"):
            self._listens = True
        reading = self._readings.read_events(replace(of_object(said), source=REPORTED))
        value = reading.metrics.get(self._command.metric_name)
        path = said.get("checkpoint")
        if not isinstance(path, str):
            if value is not None:
                self._reported = reading.step, value
            self._note(reading, now)
            return
        if type(metric := said.get("metric")) in (int, float):
            value = float(metric)  # type: ignore[arg-type]
        elif self._reported is not None and self._reported[0] == reading.step:
            value = self._reported[1]
        at = said.get("at")
        said_at = at if type(at) is float else now
        self._taking.named(path, whole_step(said.get("step")), value, said_at)

    def _note_offspring(self, steady: float) -> None:
        # To look through all processes of a machine is the dearest part of watching, and there are
        # no new ones where none was started.
        newest = newest_pid()
        is_known = newest is not None and newest == self._newest
        if is_known and self._probing is None and steady - self._looked_at < _LOOK_AGAIN_S:
            return
        self._newest, self._looked_at = newest, steady
        found = offspring(os.getpid())
        if self._probing is not None:
            self._probing.look(found)
        if found != self._offspring:
            self._offspring = found
            with contextlib.suppress(OSError):
                path = self._folder / OFFSPRING_NAME
                write_atomic(path, json.dumps(sorted(found.items())), durable=False)

    def _note_folders(self) -> None:
        """Note where the command's processes work, while no checkpoint of theirs was seen."""
        if self._tell.beat.saved_step is not None or self._command.checkpoints:
            return
        root = os.path.realpath(self._tree)
        for pid in self._offspring:
            with contextlib.suppress(OSError):
                folder = os.readlink(f"/proc/{pid}/cwd")
                if folder != "/" and not f"{folder}/".startswith(f"{root}/"):
                    self._elsewhere = folder

    # -- the end ------------------------------------------------------------------------------

    def _finish(self, code: int) -> None:
        assert self._log is not None
        self._log.close(wait_s=2.0)
        now = time.time()
        if not self._stopping.told:
            self._tell.enter("saving", now)
        self._read_log(now, _READ_AT_END_S)
        self._read_reports(now)
        self._read_events(float("inf"), now)
        if self._command.metric and not (self._command.unobserved or self._noted.read_bytes):
            self._say("no Python process was observed: metrics are read from its log and files")
        # Nobody writes any more: what was left by one that ended by itself is whole; what was being
        # written when it was killed must have stood still before that.
        self._tell.order.has_ended = True
        self._await_parts()
        self._look(time.monotonic(), SETTLED_S if self._stopping.killed else 0.0)
        self._taking.collect(to_the_end=True)
        if self._is_first:  # from other machines nothing is brought home but such parts
            self._taking.take_outputs()
        (self._folder / OFFSPRING_NAME).unlink(missing_ok=True)
        if self._stopping.told:
            took_s = self._stopping.waited_s(time.monotonic())
            self._tell.beat = replace(self._tell.beat, landing_seconds=took_s)
        if self._probing is not None and (measured := self._probing.measured()) is not None:
            self._tell.line(MEASURED, time.time(), asdict(measured))
        outcome, message = self._judged(code)
        self._end(outcome, message)

    def _await_parts(self) -> None:
        """Until other machines' files of the last checkpoint have come, or none comes any more."""
        most_s = _PARTS_MOST_S + self._command.checkpoint_bytes / _PARTS_BYTES_PER_S
        if self._sender is not None:
            self._look(time.monotonic(), SETTLED_S)
            self._sender.end(_PARTS_IDLE_S, most_s, lambda: self._tell.write(time.time()))
        if self._receiver is None:
            return
        began = time.monotonic()
        while True:
            steady = time.monotonic()
            self._look(steady, SETTLED_S)
            idle_s = min(self._receiver.idle_s, steady - began)
            missing = any(split.missing for split in self._taking.split)
            if not missing or idle_s >= _PARTS_IDLE_S or steady - began >= most_s:
                break
            self._tell.write(time.time())
            time.sleep(_TICK_S)
        self._receiver.close()

    def _judged(self, code: int) -> tuple[str, str]:
        ended = _ended(code)
        notes = []
        if self._stopping.killed:
            notes.append(
                f"it ran {self._command.grace_s:g} s after the stop request, and was killed"
            )
        if self._was_full:
            notes.append("it filled the disk: what it wrote last may be cut off")
        if self._left and not self._stopping.told:
            many = "a process" if self._left == 1 else f"{self._left} processes"
            notes.append(f"it left {many} running, now ended: start it in the foreground")
        if self._tell.beat.saved_step is None:
            where = f" in {self._command.checkpoints}" if self._command.checkpoints else ""
            also = ": its other files come unjudged" if self._taking.has_outputs else ""
            notes.append(f"it left no checkpoint{where}{also}")
            if self._elsewhere:
                folder = one_line(self._elsewhere)[:200]
                notes.append(f"it worked in {folder}, which is watched with --checkpoints {folder}")
        notes += [*self._left_outside(), *self._taking.incomplete, *self._taking.notes]
        if self._lacks_metric:
            notes.append(self._missing_metric())
        if self._first.stuck:
            return "bad_config", self._first.stuck
        if self._probing is not None and self._probing.done:
            return "finished", ""
        if told := self._stopping.told:
            return f"landed_{told}", "; ".join(notes)
        if code == 0:
            return "finished", "; ".join(notes)
        is_first = self._tell.beat.saved_step is None and time.time() - self._started_at < FIRST_S
        if is_first and (known := self._first.crash()) is not None:
            return known[0], "; ".join([known[1], ended, *notes])
        return "crashed", "; ".join([ended, *notes])

    def _left_outside(self) -> list[str]:
        """Return a sentence on files that were written outside of all watched places, and that no
        one takes from there."""
        tree = os.path.realpath(self._tree)
        left = {os.path.realpath(path) for path in self._opened if os.path.isfile(path)}
        folders = {
            os.path.dirname(real)
            for real in left
            if not real.startswith(f"{tree}{os.sep}")
            and "/.cache/" not in real
            and not self._watcher.watches(real)
        }
        if not folders:
            return []
        shown = first_of([one_line(folder)[:200] for folder in sorted(folders)], 3)
        return [f"what it wrote in {shown} stays there: --checkpoints with that folder brings it"]

    def _end(self, outcome: str, message: str) -> None:
        self._say(f"{outcome}: {message}" if message else outcome)
        self._tell.end(outcome, one_line(message)[:1000], time.time())

    def _say(self, text: str) -> None:
        if self._log is not None:
            self._log.say(text)
        else:
            print(f"trmcloud: {text}", flush=True)


def _ended(code: int) -> str:
    if code >= 0:
        return f"it ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"it was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def main() -> None:
    job = load_job(read_small(Path(os.environ[ENV_JOB])) or "")
    is_trial = Path(job.out_dir).parent.name == TRIALS_DIR
    if (Path(job.code_dir) / SWEEP_NAME).is_file() and not is_trial:
        # The agent knows this module alone. The same process, so that the agent's records hold.
        os.execv(sys.executable, [sys.executable, "-m", SWEEP_EXECUTOR])
    if job.command is None:
        sys.exit("this job is not a command's")
    Job(job, job.command, dict(os.environ)).run()


if __name__ == "__main__":
    main()
