"""A user in an empty home: the real command, real processes, a stand-in trainer that is quick."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.documents import document_in
from tests.warm import Warm, can_warm
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.contract import manifest as mf
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.observation import PodSeen
from trmcloud.core.control.run_state import RunState
from trmcloud.pod.machine import processes
from trmcloud.providers.local.compute import LocalCompute

ROOT = Path(__file__).resolve().parents[2]
STANDIN = ROOT / "tests" / "standins" / "trainer"
RANKS = ROOT / "tests" / "standins" / "ranks"

#: A recipe so small that the planner reserves little for landing.
SMALL = (
    *("--recipe", "trm-tiny", "--data", "python-stdlib", "--rate", "3.60"),
    *("--set", "depth=1", "--set", "width=32", "--set", "vocab_size=256"),
    *("--set", "sequence=64", "--set", "eval_tokens=1024"),
    *("--set", "eval_every=10", "--set", "save_every=20"),
)
IMPATIENT = ("-m", "tests.e2e.impatient")
"""A program for a user."""
LAUNCH = ("launch", "local", *SMALL, "--phase", "fast", "-y")


#: A recipe that the real trainer trains on ``write_text``'s text in seconds.
TINY = (
    *("--recipe", "trm-tiny", "--data", "text.py", "--rate", "3.60", "--phase", "fast"),
    *("--set", "depth=1", "--set", "width=64", "--set", "vocab_size=512", "--set", "sequence=64"),
    *("--set", "eval_tokens=2048", "--set", "eval_every=20", "--set", "save_every=10"),
    *("--set", "log_every=1"),
)


def write_text(folder: Path) -> None:
    """100 kB of it."""
    (folder / "text.py").write_text(inspect.getsource(argparse))


def real_trainer(folder: Path) -> Path:
    """The real trainer, its ranks forked from their launcher as ``tests/standins/ranks`` says."""
    folder.mkdir()
    (folder / "model").symlink_to(ROOT / "model")
    (folder / "sitecustomize.py").symlink_to(RANKS / "sitecustomize.py")
    return folder


def python_of_ranks(folder: Path, step_s: float = 0.0, prefix: Path = Path(sys.prefix)) -> Path:
    """A folder for PATH whose ``python3`` and ``python`` are the interpreter of ``prefix``. Ranks
    begin as ``tests/standins/ranks`` says, and each step is preceded by a pause."""
    folder.mkdir()
    (folder / "step_s").write_text(str(step_s))
    shutil.copy(RANKS / "sitecustomize.py", folder)
    python = folder / "python3"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{folder}" '
        f'exec "{prefix / "bin" / "python3"}" "$@"\n'
    )
    python.chmod(0o755)
    (folder / "python").symlink_to(python)
    return folder


@dataclass
class User:
    """Runs ``trmcloud`` as a person would, in a home of their own."""

    folder: Path
    trainer: Path | None = STANDIN
    environment: dict[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    wrapper: Sequence[str] = ()
    """A command that runs each of ours, as its last arguments."""
    program: Sequence[str] = ("-m", "trmcloud")
    """What Python is to run."""
    warm: bool = True
    """Fork from a process that has imported it, where that is the same."""
    _read: tuple[list[tuple[int, int, int]], LedgerState] | None = field(default=None, repr=False)

    @property
    def home(self) -> Path:
        return self.folder / "trmcloud-home"

    @property
    def here(self) -> Path:
        """The folder in which commands are typed."""
        return self.cwd or self.folder

    def env(self) -> dict[str, str]:
        made = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "TRMCLOUD_HOME": str(self.home),
            "PYTHONPATH": str(ROOT),
            "LANG": "C.UTF-8",
        }
        if self.trainer is not None:
            made["TRMCLOUD_TRAINER"] = str(self.trainer)
        return made | self.environment

    def hold(self) -> Path:
        """A file: until it is unlinked no stand-in's training that is begun from now on gets beyond
        its 40th step."""
        path = self.folder / "hold"
        path.touch()
        self.environment["TRMCLOUD_STANDIN_HOLD"] = str(path)
        return path

    def pace(self, step_s: float) -> None:
        """Trainings of ``real_trainer`` wait so long before each step from now on: those that end
        with their budget, or are stopped, need time, and not all that a core can do in it."""
        assert self.trainer is not None
        (self.trainer / "step_s").write_text(str(step_s))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        env, words = self.env(), [*self.program, *arguments]
        warm = self.warm and not self.wrapper and can_warm(words, env)
        return (Warm if warm else subprocess.Popen)(
            [*self.wrapper, sys.executable, *words],
            cwd=self.here,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(self, *arguments: str, within_s: float = 400) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a command that ends by itself."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=within_s)
        assert "Traceback" not in err, err
        return process.returncode, out, err

    def run(self, *arguments: str, code: int | Sequence[int] = 0, within_s: float = 400) -> str:
        """stdout of a command that must end with ``code``."""
        left, out, err = self.ended(*arguments, within_s=within_s)
        wanted = (code,) if isinstance(code, int) else code
        assert left in wanted, f"{arguments}: {left}\n{out}\n{err}"
        return out

    def stop(self, *options: str) -> str:
        """stdout of ``stop`` for the newest live run, as a script gives it."""
        live = [run for run in self.ledger().runs.values() if run.live]
        return self.run("stop", max(live, key=lambda run: run.created_at).run_id, "-y", *options)

    def fails(self, *arguments: str, code: int) -> str:
        """stderr of a command that must fail with ``code``: one line, then at most a next step."""
        left, out, err = self.ended(*arguments)
        assert left == code, f"{arguments}: {left}\n{out}\n{err}"
        lines = [line for line in err.splitlines() if not line.startswith("data: ")]
        assert lines[0].startswith("error: "), err
        assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("  try: ")), err
        return err

    def refused(self, *arguments: str, code: int) -> str:
        """Like ``fails``, but what to do next must be said, too, and nothing may have changed."""
        before = self.kept()
        err = self.fails(*arguments, code=code)
        assert "\n  try: " in err, err
        after = self.kept()
        if self.ledger_path not in before and after.pop(self.ledger_path, 0):
            assert self.ledger().runs == {}  # an empty one may have been made
        assert after == before
        return err

    @property
    def ledger_path(self) -> Path:
        return self.home / "ledger.db"

    def kept(self) -> dict[Path, int]:
        """When each thing was last changed that a refused command must leave as it was."""
        paths = [self.ledger_path, *self.home.glob("runs/**/*"), *self.home.glob("pods/*")]
        return {path: path.lstat().st_mtime_ns for path in paths if os.path.lexists(path)}

    def json(self, *arguments: str, code: int | Sequence[int] = 0) -> Any:
        """The one document on stdout of a command, which is what its schema says."""
        return document_in(self.run(*arguments, code=code))

    def ledger(self) -> LedgerState:
        """What the ledger says; read again only where its files have changed since, as a test that
        waits asks twenty times a second."""
        stamps = []
        for path in sorted(self.home.glob("ledger*")):
            with contextlib.suppress(FileNotFoundError):  # a journal lives for moments
                stat = path.stat()
                stamps.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        if self._read is None or self._read[0] != stamps:
            self._read = stamps, SqliteLedger(self.ledger_path).read()
        return self._read[1]

    def only_run(self) -> RunState:
        runs = list(self.ledger().runs.values())
        assert len(runs) == 1, runs
        return runs[0]

    def checkpoints(self) -> dict[str, mf.CheckpointManifest]:
        """Every complete checkpoint here, all its files verified."""
        found = {}
        for path in self.home.glob("runs/*/*/checkpoints/step-*/manifest.json"):
            manifest = mf.from_json(path.read_bytes(), str(path))
            for file in manifest.files:
                with open(path.parent / file.name, "rb") as content:
                    assert hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
            found[manifest.label] = manifest
        return found

    def best(self) -> mf.CheckpointManifest:
        """The best of them; there must be one."""
        best = mf.pick_best(self.checkpoints().values())
        assert best is not None
        return best

    def metrics(self, kind: str) -> list[dict[str, Any]]:
        """Lines of that kind that the trainer has written, of every phase."""
        lines = []
        for path in self.home.glob("runs/*/*/metrics.jsonl"):
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the last one may be being written
                    lines.append(json.loads(line))
        return [line for line in lines if line["kind"] == kind]

    def pids(self, word: str) -> list[int]:
        """Live processes of this user's pods whose command line holds ``word``."""
        found = []
        for pod in self.live_pods():
            for pid in processes.of_pod(pod.name):
                with contextlib.suppress(OSError):
                    if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.append(pid)
        return found

    def pods(self) -> Sequence[PodSeen]:
        return LocalCompute(self.home, [str(ROOT)]).list_pods()

    def live_pods(self) -> list[PodSeen]:
        return [pod for pod in self.pods() if pod.status != "gone"]

    def end_everything(self) -> None:
        compute = LocalCompute(self.home, [str(ROOT)])
        for pod in compute.list_pods():
            compute.terminate(pod.pod_id)
            assert processes.of_pod(pod.name) == []


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], bool], *, within_s: float = 300.0, what: str = "") -> None:
    """Poll until ``condition`` holds; fails at the deadline.

    Where the question is a whole command, what is waited for needs the cores more than it does.
    """
    deadline = time.monotonic() + within_s
    while True:
        asked_at = time.monotonic()
        if condition():
            return
        answered_at = time.monotonic()
        assert answered_at < deadline, f"not within {within_s} s: {what}"
        took_s = answered_at - asked_at
        time.sleep(4 * took_s if took_s > 0.3 else 0.05)


def leave_only(user: User, *tools: str) -> None:
    """A PATH with these programs alone."""
    folder = user.folder / "bin"
    folder.mkdir()
    for tool in tools:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    user.environment["PATH"] = str(folder)
