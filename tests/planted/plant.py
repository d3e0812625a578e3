"""Plant a bug in a copy of the package and let the simulator look for it.

python -m tests.planted.plant [--seeds N] [--jobs N] [--only NAME] [--tenth]
    [--page docs/soak/planted.md] [--state build/planted.json]: one that was interrupted goes on
    from there, on the same code
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.drawn import tenth
from tests.kept_state import read_state, write_state
from tests.planted.bugs import BUGS, Bug
from tests.sim.kept import KEPT
from tests.sim.soak import code_hash

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "trmcloud"
SEEDS = 10_000
_FIRST = 500
"""After so many seeds come those that are kept: what hides deep is found by them, or by the rest,
in a fraction of the time."""
_MOST_BROKEN = 5
_SEED_S = 3.0
"""The most a seed takes on average on a busy machine. One that hangs is seen by its own time."""
_START_S = 300.0
"""Likewise, of what is imported before the first."""

_LOOK = """
import json, signal, sys
from tests.sim.kept import KEPT
from tests.sim.faults import MARKET, NAMES, arm_all
from tests.sim.play import play
from tests.sim.drawing import draw, with_extensions, with_grants, with_paces, with_time_to_spare
beyond, first, broken = int(sys.argv[1]), int(sys.argv[2]), set(json.loads(sys.argv[3]))
class Stuck(BaseException):
    pass
def stuck(*what):
    raise Stuck
signal.signal(signal.SIGVTALRM, stuck)
def worlds(seed):
    yield seed, len(NAMES), ""
    # Beside it the same world in which machines are rare, or a host has other GPUs, or machines
    # time their steps, or stops are moved, or principals spend within grants.
    more, kind = seed // 4 % 2, ("paces", "boards", "extensions", "market")[seed % 4]
    yield seed, len(NAMES) if more else 0, kind
    if seed % 4 == 1:
        yield seed, len(NAMES) if more else 0, "grants"
def drawn(seed, faults, kind):
    names = ("96",) if kind == "boards" else NAMES[:faults]
    market = tuple(MARKET) if kind == "market" else ()
    made = draw(seed, names, market=market)
    if kind == "boards" and not faults:
        made = with_time_to_spare(made)
    if kind == "grants":
        return with_grants(made)
    if kind == "paces":
        return with_paces(made)
    if kind == "extensions":
        return with_extensions(made)
    return made
fresh = [list(worlds(seed)) for seed in range(beyond)]
def scenarios():
    for part in (fresh[:first], KEPT, fresh[first:]):
        for each in part:
            if part is KEPT:
                yield each.scenario.seed, each.scenario
            else:
                yield from ((row[0], drawn(*row)) for row in each)
for seed, world in scenarios():
    if seed in broken or world is None:
        continue
    signal.setitimer(signal.ITIMER_VIRTUAL, 20.0)
    try:
        played = play(world, arm_all)
    except Stuck:
        print(json.dumps([seed, "hangs"]))
        break
    if played.violation:
        print(json.dumps([seed, played.violation]))
        break
else:
    print("null")
"""


@dataclass(frozen=True)
class Verdict:
    """Whether a bug was caught, by what, and at which seed: None where its test caught it, or
    nothing did."""

    bug: Bug
    seed: int | None
    by: str

    @property
    def is_caught(self) -> bool:
        return bool(self.by)


class DoesNotApply(Exception):
    """A bug's old text does not stand in its file exactly once."""


def planted(bug: Bug, text: str) -> str:
    """The file's text with the bug in it."""
    if text.count(bug.old) != 1:
        raise DoesNotApply(f"{bug.name}: its text stands {text.count(bug.old)} times in {bug.path}")
    return text.replace(bug.old, bug.new)


def hunt(bug: Bug, seeds: int = SEEDS, broken: Sequence[int] = ()) -> Verdict:
    """Play seeds on a copy of the package that has the bug, until it is caught; ``broken`` are left
    out. One of which no world is known to break has a test in their place."""
    if bug.test:
        with _copied(bug) as folder:
            return Verdict(bug, None, bug.test if _fails(bug.test, folder) else "")
    return Verdict(bug, *_play(bug, seeds, broken))


@contextmanager
def _copied(bug: Bug | None) -> Iterator[Path]:
    """A folder with a copy of the package that has the bug."""
    with tempfile.TemporaryDirectory(prefix="planted-") as made:
        folder, copy = Path(made), Path(made) / "trmcloud"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("bundle"))
        # The families' plans, the recipes and the kept worlds stand beside the package.
        (folder / "model").symlink_to(PACKAGE.parent / "model")
        (folder / "tests").symlink_to(ROOT / "tests")
        if bug is not None:
            path = copy / bug.path
            # What is compiled saves each hunt a second; not that of the file which changes now.
            for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
                compiled.unlink()
            path.write_text(planted(bug, path.read_text(encoding="utf-8")), encoding="utf-8")
        yield folder


def _fails(test: str, folder: Path) -> bool:
    """
    Raises:
        ValueError: the test passes or fails for another reason, such as that there is none.
    """
    settings = ("-c", str(ROOT / "pyproject.toml"), "-o", f"pythonpath={folder}")
    done = subprocess.run(
        [
            *(sys.executable, "-B", "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"),
            *(*settings, "--rootdir", str(ROOT), str(ROOT / test)),
        ],
        cwd=folder,
        env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=_START_S,
    )
    if done.returncode not in (0, 1):
        raise ValueError(f"{test} cannot be run: {done.stdout[-300:]}{done.stderr[-300:]}")
    return done.returncode == 1


def _play(bug: Bug | None, seeds: int, broken: Sequence[int]) -> tuple[int | None, str]:
    """Play ``seeds`` seeds, and after the first ``_FIRST`` those that are kept since they once
    broke something, until a promise breaks. Return the seed, None where none broke, and what."""
    with _copied(bug) as folder:
        given = (str(seeds), str(_FIRST), json.dumps(list(broken)))
        try:
            done = subprocess.run(
                [sys.executable, "-B", "-c", _LOOK, *given],
                cwd=folder,
                env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(folder)},
                capture_output=True,
                text=True,
                check=False,
                timeout=_START_S + (seeds + len(KEPT)) * _SEED_S,
            )
        except subprocess.TimeoutExpired:
            return 0, "hangs"
        lines = done.stdout.split("\n")
        if done.returncode != 0 or not lines[0]:
            return 0, "cannot be imported: " + done.stderr.strip()[-80:]
        found = json.loads(lines[0])
        return (None, "") if found is None else (found[0], found[1])


def find_broken(seeds: int = SEEDS) -> dict[int, str]:
    """The seeds that break a promise of the package as it is: they would catch every bug."""
    broken: dict[int, str] = {}
    while (found := _play(None, seeds, tuple(broken)))[0] is not None:
        broken[found[0]] = found[1]
        if found[0] == 0 or len(broken) > _MOST_BROKEN:
            raise SystemExit(f"the package itself breaks its promises: {broken}")
    return broken


def page(verdicts: list[Verdict], seeds: int, date: str, broken: Mapping[int, str]) -> str:
    caught = [v for v in verdicts if v.is_caught]
    timing = [v for v in verdicts if v.bug.timing]
    timing_caught = [v for v in timing if v.is_caught]
    dated = f" on {date}" if date else ""
    lines = [
        "# Planted bugs",
        "",
        f"{len(verdicts)} small mistakes, each planted alone in a copy of the package; the",
        f"simulator plays up to {seeds:,} seeds, after the first {_FIRST} of them the {len(KEPT)}",
        "that are kept since they once broke something, and stops at the first broken promise.",
        "One that no world is known to show has a test in their place.",
        "",
        f"**Caught: {len(caught)} of {len(verdicts)}** ({len(caught) / len(verdicts):.1%}); of"
        f" those about order or crashes: {len(timing_caught)} of {len(timing)}.",
        "",
        f"Made by `python -m tests.planted.plant --seeds {seeds}`{dated};",
        f"code `{code_hash()[:16]}…`.",
        *(
            f"Seed {seed} breaks {by} without any bug, and was left out."
            for seed, by in broken.items()
        ),
        "",
        "| bug | where | order/crash | caught at seed | by |",
        "|---|---|---|---|---|",
    ]
    for v in verdicts:
        seed = "–" if v.seed is None else f"{v.seed:,}"
        seed = seed if v.is_caught else "**not caught**"
        by = v.by.replace("|", "\\|")
        lines.append(
            f"| {v.bug.name} | {v.bug.path} | {'yes' if v.bug.timing else ''} | {seed} | {by} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=1, help="bugs hunted side by side")
    parser.add_argument("--only", action="append", default=[], help="part of a bug's name")
    parser.add_argument("--tenth", action="store_true", help="a drawn tenth of them")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--date", default="", help="what the page is dated with")
    parser.add_argument("--state", type=Path, help="JSON: what is known of each bug so far")
    given = parser.parse_args()
    chosen = [b for b in BUGS if not given.only or any(part in b.name for part in given.only)]
    chosen = tenth(chosen) if given.tenth else chosen
    asked = {"code": code_hash(), "seeds": given.seeds, "kept": len(KEPT)}
    known = read_state(given.state, asked, verdicts={})
    if "broken" not in known:
        known["broken"] = {str(seed): by for seed, by in find_broken(given.seeds).items()}
    broken = {int(seed): by for seed, by in known["broken"].items()}
    for seed, by in broken.items():
        print(f"seed {seed} breaks {by} without any bug, and is left out", flush=True)
    verdicts = []

    def look(bug: Bug) -> Verdict:
        there = known["verdicts"].get(bug.name)
        return hunt(bug, given.seeds, tuple(broken)) if there is None else Verdict(bug, *there)

    with ThreadPoolExecutor(given.jobs) as pool:
        for verdict in pool.map(look, chosen):
            verdicts.append(verdict)
            known["verdicts"][verdict.bug.name] = (verdict.seed, verdict.by)
            write_state(given.state, known)
            where = f"{verdict.bug.path}: {verdict.bug.name}"
            print(f"{verdict.seed!s:>6}  {verdict.by:24} {where}", flush=True)
            if given.page is not None:
                made = page(verdicts, given.seeds, given.date, broken)
                given.page.write_text(made, encoding="utf-8")
    caught = sum(v.is_caught for v in verdicts)
    print(f"{caught} of {len(verdicts)} caught")


if __name__ == "__main__":
    main()
