"""Take trees of hostile contents through the doors, in pieces; write the page.

State is a JSON file; a piece that is interrupted keeps what it has done.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import queue
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.hostile import checkpoints
from tests.hostile.contents import GIT_FILES, WORDS, Tree, write_tree
from tests.hostile.doors import DOORS, GRANT, QUICK, RUN, Code, Visit, doors_of, visit_of
from tests.hostile.judge import Finding, Judge
from tests.hostile.known import KNOWN, Known
from tests.hostile.page import page
from tests.hostile.watch import Observation, find_strace, watch
from tests.hostile.world import PATH, Hosts, World, hosts, probe_record, write_sky
from tests.kept_state import read_state, write_state
from tests.standins.runpod.standin import StandIn, running

ROOT = Path(__file__).resolve().parents[2]
TREES = 5000
_TRAINER = ROOT / "tests" / "standins" / "trainer"
MOST_S = 90.0
"""Real time of a visit; a usual one takes one to six seconds on a busy machine."""


@dataclass(frozen=True)
class Result:
    """What a visit came to."""

    number: int
    door: str
    kinds: tuple[str, ...]
    words: tuple[str, ...]
    code: int
    cpu_s: float
    wall_s: float
    findings: tuple[Finding, ...]


class Place:
    """A worker's folder: the template of homes, a repository, the hosts; one visit at a time."""

    def __init__(self, code: Code, folder: Path, served: Hosts, standin: StandIn) -> None:
        self.code, self.folder, self._hosts, self._standin = code, folder, served, standin
        self.world = World(
            folder / "visit", served.user.url, served.tree.url, served.stranger.url,
            shutil.which("python3", path=PATH) or "/usr/bin/python3",
        )  # fmt: skip
        self.repository, self._template = folder / "repository", folder / "template"
        self._sky = folder / "sky"
        write_sky(self._sky, self.world.python)
        self.judge = Judge(code, self.world, self._sky)
        self.judge.own_ports = frozenset({int(standin.url.rpartition(":")[2])})
        _make_repository(self.repository)
        self._make_template()

    def _make_template(self) -> None:
        """A user's home with a grant, a finished run and a probe of the command."""
        self.world.make()
        for name, text in GIT_FILES.items():
            path = self.world.tree / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        for words in (
            ("grant", "give", GRANT, "20"),
            ("run", "local", "--rate", "3.6", "--budget", "1", *QUICK, "--metric", "val_loss",
             "--name", RUN, "-y", "--", *WORDS),
        ):  # fmt: skip
            done = subprocess.run(
                [self.code.trmcloud, *words], cwd=self.world.tree, env=self._environment(),
                capture_output=True, text=True, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            if done.returncode:
                raise SystemExit(f"{' '.join(words)}: {done.stdout}{done.stderr}")
        probes = self.world.product_home / "command_probes.json"
        probes.write_text(probe_record(WORDS, time.time()))
        shutil.copytree(self.world.home, self._template, symlinks=True)

    def _environment(self) -> dict[str, str]:
        return {**self.world.environment(), **self._standin.environment}

    def take(self, number: int, door: str, *, log: Path | None = None) -> Result:
        """Write tree ``number`` and take it through ``door``; ``log`` keeps what was recorded."""
        self.world.make(self._template)
        tree, kinds = write_tree(self.world, number, self.repository)
        if door == "fetch-best" or door == "mcp":
            kinds += checkpoints.write_checkpoints(self.world, number)
        visit = visit_of(number, door, tree)
        seen, findings = self.visit(visit, log)
        return Result(
            number, door, kinds, visit.words, seen.code, seen.cpu_s, seen.wall_s, tuple(findings)
        )

    def take_known(self, known: Known) -> list[Finding]:
        """Write a known tree and take it through its door."""
        self.world.make(self._template)
        known.write(Tree(self.world, random.Random(0), self.repository))
        return self.visit(known.visit)[1]

    def visit(self, visit: Visit, log: Path | None = None) -> tuple[Observation, list[Finding]]:
        self._hosts.clear()
        kept = log or self.folder / "log"
        kept.mkdir(parents=True, exist_ok=True)
        places = self.judge.places(visit)
        seen = watch(
            [self.code.trmcloud, *visit.words],
            environment={
                **self._environment(),
                **({"TRMCLOUD_SKY": str(self._sky)} if visit.has_sky else {}),
                **({"TRMCLOUD_TRAINER": str(_TRAINER)} if visit.has_quick_trainer else {}),
            },
            cwd=self.world.tree / visit.start,
            log=kept,
            most_s=MOST_S,
            talk=visit.talk,
        )
        return seen, self.judge.judge(visit, seen, self._hosts, places)


def _make_repository(folder: Path) -> None:
    """A ``.git`` with the files of every tree committed."""
    with tempfile.TemporaryDirectory() as made:
        for name, text in GIT_FILES.items():
            path = Path(made) / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        quiet = {"PATH": os.environ["PATH"], "HOME": made, "GIT_CONFIG_NOSYSTEM": "1"}
        who = (
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@example.com",
            "-c",
            "init.defaultBranch=main",
        )
        for words in (
            ("init", "-q", "--template="),
            ("add", *GIT_FILES),
            ("commit", "-q", "-m", "x"),
        ):
            subprocess.run(["git", *who, *words], cwd=made, env=quiet, check=True)
        shutil.copytree(Path(made) / ".git", folder)


@contextlib.contextmanager
def place(code: Code, folder: Path) -> Iterator[Place]:
    """A place below ``folder``, which is removed when the block ends."""
    folder.mkdir(parents=True)
    key = World(folder, "", "", "", "").environment()["RUNPOD_API_KEY"]
    try:
        with (
            hosts(folder / "visit" / "ran") as served,
            running(folder / "runpod", real_pods=False, api_key=key) as standin,
        ):
            yield Place(code, folder, served, standin)
    finally:
        subprocess.run(["rm", "-rf", str(folder)])  # deeper than Python's own removes


# -- pieces ------------------------------------------------------------------------------------


def _work(code: Code, folder: Path, todo: Any, done: Any) -> None:
    with place(code, folder) as here:
        while True:
            try:
                number = todo.get_nowait()
            except queue.Empty:
                break
            for door in doors_of(number):
                done.put(here.take(number, door))
    done.put(None)


def take_all(code: Code, numbers: Sequence[int], jobs: int, until: float) -> Iterator[Result]:
    """Take trees through their doors with ``jobs`` processes, as far as ``until`` (monotonic)."""
    context = multiprocessing.get_context("fork")
    todo, done = context.Queue(), context.Queue()
    for number in numbers:
        todo.put(number)
    with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as top:
        workers = [
            context.Process(target=_work, args=(code, Path(top) / str(each), todo, done))
            for each in range(jobs)
        ]
        for worker in workers:
            worker.start()
        left = len(workers)
        while left:
            try:
                result = done.get(timeout=10 * MOST_S)
            except queue.Empty:
                for worker in workers:
                    worker.kill()
                raise SystemExit("a worker gives no results") from None
            if result is None:
                left -= 1
                continue
            yield result
            if time.monotonic() > until:
                with contextlib.suppress(queue.Empty):
                    while True:
                        todo.get_nowait()
        for worker in workers:
            worker.join()


class State:
    """What was taken so far, kept in a file."""

    def __init__(self, path: Path, code: str) -> None:
        self._path = path
        self.kept = read_state(
            path, {"code": code}, cpu_s=0.0, done={}, findings=[], kinds={}, doors={}
        )

    def is_done(self, number: int) -> bool:
        return len(self.kept["done"].get(str(number), ())) == 2

    def add(self, result: Result) -> None:
        doors = self.kept["done"].setdefault(str(result.number), [])
        if result.door in doors:
            return
        doors.append(result.door)
        row = self.kept["doors"].setdefault(result.door, {"visits": 0, "cpu_s": 0.0, "codes": {}})
        row["visits"] += 1
        row["cpu_s"] += result.cpu_s
        row["codes"][str(result.code)] = row["codes"].get(str(result.code), 0) + 1
        self.kept["cpu_s"] += result.cpu_s
        for name in result.kinds:
            self.kept["kinds"].setdefault(name, {}).setdefault(result.door, 0)
            self.kept["kinds"][name][result.door] += 1
        for finding in result.findings:
            about = {"number": result.number, "door": result.door, "kinds": result.kinds}
            self.kept["findings"].append({**about, **asdict(finding)})

    def write(self) -> None:
        write_state(self._path, self.kept)


def commit_of(folder: Path) -> str:
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument(
        "--from", dest="first", type=int, default=0, help="number of the first tree"
    )
    parser.add_argument("--trees", type=int, default=TREES)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=20.0, help="of this piece")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "hostile.json")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--date", default="")
    parser.add_argument("--code", type=Path, default=ROOT, help="a checkout with a .venv")
    parser.add_argument("--only", type=int, help="replay one tree, and keep what was recorded")
    parser.add_argument("--door", choices=tuple(DOORS), help="with --only: this door alone")
    parser.add_argument("--known", action="store_true", help="the known holes of commit 0464cda3")
    given = parser.parse_args()
    if find_strace() is None:
        print("there is no strace: apt-get install strace")
        return 2
    code = Code(given.code.resolve())
    if given.known:
        return _take_known(code)
    if given.only is not None:
        return _replay(code, given.only, given.door)
    state = State(given.state, commit_of(code.folder))
    numbers = [n for n in range(given.first, given.first + given.trees) if not state.is_done(n)]
    began = time.monotonic()
    written = began
    for result in take_all(code, numbers, given.jobs, began + 60 * given.minutes):
        state.add(result)
        for finding in result.findings:
            print(f"{result.number} {result.door}: {finding.kind}: {finding.detail}", flush=True)
        if time.monotonic() - written > 10:
            state.write()
            written = time.monotonic()
    state.write()
    if given.page is not None:
        given.page.write_text(page(state.kept, given.date, given.trees), encoding="utf-8")
    visits = sum(row["visits"] for row in state.kept["doors"].values())
    left = sum(not state.is_done(number) for number in numbers)
    print(f"{visits} visits, {len(state.kept['findings'])} findings; {left} trees left")
    return 1 if left or state.kept["findings"] else 0


def _take_known(code: Code) -> int:
    """Print each known tree's findings; 0 where each has the one that is known."""
    missed = 0
    with (
        tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as top,
        place(code, Path(top) / "0") as here,
    ):
        for name, each in KNOWN.items():
            findings = here.take_known(each)
            is_there = any(f.kind == each.kind and each.part in f.detail for f in findings)
            missed += not is_there
            print(f"{name}: {'found' if is_there else 'NOT FOUND'}")
            for finding in findings:
                print(f"  {finding.kind}: {finding.detail}")
    return 1 if missed else 0


def _replay(code: Code, number: int, door: str | None) -> int:
    kept = ROOT / "build" / f"hostile-{number}"
    shutil.rmtree(kept, ignore_errors=True)
    found = 0
    with (
        tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as top,
        place(code, Path(top) / "0") as here,
    ):
        for each in (door,) if door else doors_of(number):
            log = kept / each.replace(" ", "")
            result = here.take(number, each, log=log)
            print(f"{each}: trmcloud {' '.join(result.words)}")
            print(f"  status {result.code}, {result.cpu_s:.1f} s of CPU time")
            print(f"  kinds: {'; '.join(result.kinds)}")
            print(f"  stdout, stderr and strace's record: {log}")
            subprocess.run(["cp", "-a", str(here.world.tree), str(log / "tree")])
            for finding in result.findings:
                print(f"  {finding.kind}: {finding.detail}")
            found += len(result.findings)
    return 1 if found else 0
