"""The long targets: what is too long for ``make test``, and whether its last result still counts.

    python -m tests.targets                 each with its state, and what changed since its result
    python -m tests.targets stale           one line: which are stale (--fail: and an error)
    python -m tests.targets run NAME        one piece of it; with --tenth, of a drawn tenth

A target is stale where one of its paths has changed since its last result. Its paths are the files
that its tests import or name as modules, what these import, and so on, with the files beside them.
Results stand in ``docs/soak/targets.json``; only a run that ended well writes one there.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.imports import imported_by, named_in, reached_from

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "soak" / "targets.json"
PIECE_MINUTES = 20.0
_EVERY_TEST = ROOT / "tests" / "conftest.py"
_PRODUCT = (ROOT / "trmcloud", ROOT / "model")
_TIMED_OUT = (124, 137)
"""Exit status of ``timeout``."""


@dataclass(frozen=True)
class Target:
    """``make`` is what runs it, ``tests`` where its tests begin: files, folders, or files with a
    marker. ``beside``: what it reads that no import leads to. ``page``: where its figures stand.
    ``in_process``: its tests start no other module of ours, so what such a module does is none of
    its paths.
    """

    make: str
    tests: tuple[str, ...]
    beside: tuple[str, ...] = ()
    page: str = ""
    in_process: bool = False


COMMAND = "trmcloud/__main__.py"
"""For tests that start it by the name under which it is installed."""
TARGETS = {
    "written-commands": Target(
        "written-commands", ("tests/e2e/test_written_commands.py",), ("README.md", "docs/guide")
    ),
    "corpus": Target(
        "own-all", ("tests/own/cells.py",), ("tests/own/scripts", "constraints-own.txt"),
        "docs/soak/own.md",
    ),
    "planted": Target(
        "planted",
        ("tests/planted/plant.py",),
        ("tests/sim/kept", "model/families", "model/recipes"),
        "docs/soak/planted.md",
        in_process=True,
    ),
    "mutants": Target(
        "mutants", ("tests/mutation", "tests/unit"), page="docs/soak/mutants.md",
        in_process=True,
    ),
    "crashes": Target(
        "soak-crashes",
        ("tests/crash/__main__.py", "tests/crash/test_each_write.py", "tests/e2e/test_crashes.py"),
        page="docs/soak/crashes.md",
    ),
    "hostile-contents": Target(
        "hostile-contents", ("tests/hostile/soak.py", COMMAND), page="docs/soak/hostile.md"
    ),
    "plans-grid": Target(
        "plans-grid", ("tests/plans_grid.py",),
        ("model/families", "model/recipes", "model/goals.toml"), "docs/bench/plans-grid.md",
        in_process=True,
    ),
    "ray": Target(
        "ray", ("tests/unit/pod/test_ray_tune.py", "tests/e2e/test_sweep_ray.py"),
        page="docs/soak/ray.md",
    ),
    "several-machines": Target(
        "several-machines",
        tuple(f"tests/e2e/test_{name}.py" for name in (
            "several_machines", "run_several", "nodes",
        )),
    ),
    "slurm": Target("e2e-slurm", ("tests/e2e/test_slurm.py",)),
    "compiled": Target("compiled", (
        "tests/model/test_selective_compiled.py", "tests/model/test_compiled_runs.py",
    )),
    "pythons": Target(
        "pythons",
        ("scripts/pythons.py", *(
            f"tests/unit/{name}" for name in ("core", "planner", "operations", "cli", "pod")
        )),
        ("constraints.txt",),
    ),
    "variants": Target("test-all", ("mark.more",)),
    "stress": Target(
        "stress",
        ("tests/stress.py", *(
            f"tests/{name}" for name in ("e2e", "crash", "contract", "unit/pod", "model")
        )),
        page="docs/soak/stress.md",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """The last run of a target that ended well. ``paths`` is the hash of its paths, empty where
    none was taken; ``share``: "whole" or "a drawn tenth"."""

    date: str
    commit: str
    paths: str
    share: str
    result: str


def paths_of(target: Target) -> list[Path]:
    """Return the files that make a target's result stale when they change."""

    def follow(path: Path, tree: Path) -> Iterable[Path]:
        """What every test begins with leads a target to nothing that is its own."""
        if path == _EVERY_TEST:
            return ()
        return imported_by(path, tree) | named_in(path, tree, started=not target.in_process)

    found = set(reached_from(_begins(target), ROOT, follow))
    for folder in {path.parent for path in found}:
        if any(folder.is_relative_to(room) for room in _PRODUCT):
            found |= _data_in(folder)
    for name in target.beside:
        found |= set(_files_in(ROOT / name))
    return sorted(found)


def hash_of(paths: Iterable[Path]) -> str:
    """Return a hash of the files' names and contents."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + _content(path) + b"\0")
    return digest.hexdigest()[:16]


def _begins(target: Target) -> list[Path]:
    found: list[Path] = []
    for name in target.tests:
        if name.startswith("mark."):
            every = (ROOT / "tests").rglob("test_*.py")
            found += [path for path in every if name.encode() in _content(path)]
        else:
            found += _files_in(ROOT / name, "*.py")
    return found


def _files_in(path: Path, pattern: str = "*") -> list[Path]:
    if path.is_file():
        return [path]
    return [each for each in path.rglob(pattern) if each.is_file() and each.suffix != ".pyc"]


@functools.cache
def _data_in(folder: Path) -> frozenset[Path]:
    """Return what no import leads to: a folder's files, and its subfolders without modules."""
    found = set()
    for path in folder.iterdir():
        if path.is_file() and path.suffix not in (".py", ".pyc"):
            found.add(path)
        elif path.is_dir() and path.name not in ("__pycache__", "bundle"):
            inner = _files_in(path)
            found |= set() if any(each.suffix == ".py" for each in inner) else set(inner)
    return frozenset(found)


@functools.cache
def _content(path: Path) -> bytes:
    return path.read_bytes()


def results() -> dict[str, Result]:
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return {name: Result(**row) for name, row in kept.items()}


def keep(name: str, result: Result) -> None:
    """Write a target's result into the table."""
    rows = {key: asdict(row) for key, row in sorted({**results(), name: result}.items())}
    RESULTS.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def why_stale(target: Target, result: Result | None) -> str:
    """Return why a result does not count for today's tree; empty where it does."""
    if result is None:
        return "never run"
    paths = paths_of(target)
    if hash_of(paths) == result.paths:
        return ""
    changed = _changed_since(result.commit) & set(paths)
    names = sorted(str(path.relative_to(ROOT)) for path in changed)
    listed = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"{len(names)} of {len(paths)} files changed: {listed}" if names else "files changed"


@functools.cache
def _changed_since(commit: str) -> frozenset[Path]:
    words = ["git", "diff", "--name-only", commit, "--"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    return frozenset(ROOT / line for line in done.stdout.splitlines())


def show_all() -> None:
    """Print each target with its last result."""
    known = results()
    for name, target in TARGETS.items():
        last, why = known.get(name), why_stale(target, known.get(name))
        print(f"{name:17} {f'stale ({why})' if why else 'fresh'}")
        if last is not None:
            print(f"{'':17} {last.date}, {last.share}, {last.commit[:10]}: {last.result}")


def show_stale(*, fail: bool) -> int:
    """Print one line that names the stale targets; return 1 where that is an error."""
    known = results()
    stale = [n for n, target in TARGETS.items() if why_stale(target, known.get(n))]
    part = [n for n, row in known.items() if n in TARGETS and row.share != "whole"]
    bad = list(dict.fromkeys([*stale, *part])) if fail else stale
    if not bad:
        print("long targets: all fresh")
        return 0
    what = "stale or not whole" if fail else "stale"
    print(f"{'error: ' * fail}long targets {what}, see make targets: {', '.join(bad)}")
    return 1 if fail else 0


def run(name: str, *, tenth: bool, minutes: float) -> int:
    """Run one piece of a target; keep its result where it came to its end and nothing failed."""
    target = TARGETS[name]
    paths, commit = hash_of(paths_of(target)), _commit()
    limit = ("timeout", "--signal=INT", "--kill-after=30", f"{60 * minutes}")
    words = (*limit, "make", "-s", target.make, *(["TENTH=1"] if tenth else []))
    lines: list[str] = []
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.strip())
    code = process.returncode
    if code in _TIMED_OUT:
        print(f"{name}: {minutes:g} minutes are over; run it again to continue")
        return code
    said = last_words(lines)
    if code != 0 or not said:
        print(f"{name}: no result (exit status {code})")
        return code or 1
    share = "a drawn tenth" if tenth else "whole"
    keep(name, Result(time.strftime("%F"), commit, paths, share, said))
    print(f"{name}: kept in {RESULTS.relative_to(ROOT)}: {said}")
    return 0


def last_words(lines: list[str]) -> str:
    """Return a run's result line; empty where pytest passed no test."""
    of_pytest = [m[1] for line in lines if (m := re.search(r"(\d+ \w.*) in [\d.]+s", line))]
    if of_pytest:
        passed = [each for each in of_pytest if "passed" in each]
        return "; ".join(passed) if len(passed) == len(of_pytest) else ""
    return next((line for line in reversed(lines) if line), "")


def _commit() -> str:
    words = ["git", "rev-parse", "HEAD"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.targets", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    stale = commands.add_parser("stale")
    stale.add_argument("--fail", action="store_true", help="an error where one is stale or a part")
    one = commands.add_parser("run")
    one.add_argument("name", choices=tuple(TARGETS))
    one.add_argument("--tenth", action="store_true", help="of a drawn tenth, where it is long")
    one.add_argument("--minutes", type=float, default=PIECE_MINUTES)
    given = parser.parse_args()
    if given.command == "run":
        return run(given.name, tenth=given.tenth, minutes=given.minutes)
    if given.command == "stale":
        return show_stale(fail=given.fail)
    show_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
