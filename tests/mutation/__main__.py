"""How good are the unit tests of what keeps the budget? ``python -m tests.mutation`` says.

Every mutant (see ``mutants``) of the modules asked for (see ``targets``) is given to their unit
tests; one that no test notices has survived. Those that can be noticed by nobody, since they do the
same, stand with their reasons in ``equivalent.toml``.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tomllib

from tests.drawn import tenth
from tests.imports import reached_from, source_of
from tests.kept_state import read_state, write_state
from tests.mutation.judge import BrokenTests, Verdict, copy_tree, judge
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.targets import CHIEF, READERS, TARGETS, Target

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
_JUDGED_BY = [Path(__file__).with_name(name) for name in ("judge.py", "mutants.py", "swap.py")]


@dataclass(frozen=True)
class Score:
    """One module's mutants."""

    module: str
    verdicts: tuple[Verdict, ...]
    equivalent: dict[str, str]
    sources: str
    seconds: float

    @property
    def counted(self) -> list[Verdict]:
        return [v for v in self.verdicts if v.killed or v.mutant.key not in self.equivalent]

    @property
    def killed(self) -> int:
        return sum(v.killed for v in self.counted)

    @property
    def survivors(self) -> list[Verdict]:
        return [v for v in self.counted if not v.killed]

    @property
    def excused(self) -> list[Verdict]:
        return [v for v in self.verdicts if not v.killed and v.mutant.key in self.equivalent]


def equivalent_mutants(path: Path = EQUIVALENT) -> dict[str, str]:
    """Key of a mutant that does the same as the original → why."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return {row["mutant"]: row["why"] for row in table.get("equivalent", ())}


class Known:
    """Verdicts of an earlier run, module by module: they hold as long as nothing has changed that
    the module and its tests lead to."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._rows = path, read_state(path, {})

    def verdicts(self, module: str, sources: str, mutants: Sequence[Mutant]) -> Score | None:
        row = self._rows.get(module)
        if row is None or row["sources"] != sources or set(row["how"]) != {m.key for m in mutants}:
            return None
        verdicts = tuple(Verdict(mutant, row["how"][mutant.key]) for mutant in mutants)
        return Score(module, verdicts, equivalent_mutants(), sources, row["seconds"])

    def keep(self, score: Score) -> None:
        how = {v.mutant.key: v.how for v in score.verdicts}
        self._rows[score.module] = {"sources": score.sources, "seconds": score.seconds, "how": how}
        write_state(self._path, self._rows)


def score(module: str, target: Target, tree: Path, jobs: int, known: Known) -> Score:
    source = source_of(f"trmcloud.{module}", tree)
    tests = target.judges(tree)
    mutants = [m for m in mutants_of(module, source, tree / "trmcloud") if target.holds(m.within)]
    digest = hashlib.sha256(repr(target).encode())
    for path in (*_JUDGED_BY, *reached_from([source, *tests], tree)):
        digest.update(path.read_bytes())
    sources = digest.hexdigest()[:12]
    there = known.verdicts(module, sources, mutants)
    if there is not None:
        return there
    started = time.monotonic()
    done = 0

    def told(verdict: Verdict) -> None:
        nonlocal done
        done += 1
        if not verdict.killed and verdict.mutant.key not in equivalent:
            print(f"  {module} {done}/{len(mutants)}: {shown(verdict)}", flush=True)

    equivalent = equivalent_mutants()
    verdicts = judge(tree, f"trmcloud.{module}", tests, mutants, jobs=jobs, told=told)
    made = Score(module, tuple(verdicts), equivalent, sources, time.monotonic() - started)
    known.keep(made)
    return made


def shown(verdict: Verdict) -> str:
    mutant = verdict.mutant
    where = f"{mutant.module.replace('.', '/')}.py:{mutant.line}"
    return f"{where} {mutant.within or 'module'}: `{mutant.before}` → `{mutant.after}`"


def page(scores: Sequence[Score], command: str, date: str) -> str:
    """The Markdown page that is published."""
    chief = [s for s in scores if s.module in CHIEF]
    readers = [s for s in scores if s.module in READERS]
    lines = [
        "# Mutants: how good the unit tests are",
        "",
        "Each mutant is the module with one small mistake in it: a comparison turned round or moved"
        " by its boundary, `and` for `or`, a condition negated or left out, plus for minus, `min`"
        " for `max`, a constant one off or 0, a statement dropped, two arguments of one type"
        " swapped. The module's own unit tests must notice it."
        " Score = killed ÷ (all − equivalent). Of a module with names behind it those functions"
        " alone are judged, which take an answer apart. The last column is a hash of the module,"
        " its tests, all of ours that they import, and the judge.",
        "",
        f"- date: {date}",
        f"- command: `{command}`",
        f"- score of {', '.join(s.module for s in chief)} together: **{_percent(chief)}**; "
        f"{_percent(chief, of_all=True)} were none equivalent",
        f"- score of the {len(readers)} readers of foreign words: **{_percent(readers)}**; "
        f"{_percent(readers, of_all=True)} were none equivalent",
        "",
        "| module | mutants | killed | equivalent | survived | score | s | sources |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for s in scores:
        lines.append(
            f"| {_named(s.module)} | {len(s.verdicts)} | {s.killed} | {len(s.excused)} "
            f"| {len(s.survivors)} | {_percent([s])} | {s.seconds:.0f} | `{s.sources}` |"
        )
    lines += ["", "## Survivors", ""]
    lines += [f"- {shown(v)}" for s in scores for v in s.survivors] or ["None."]
    lines += ["", "## Judged equivalent", ""]
    lines += [f"- {shown(v)}: {s.equivalent[v.mutant.key]}" for s in scores for v in s.excused] or [
        "None."
    ]
    return "\n".join(lines) + "\n"


def _named(module: str) -> str:
    parts = TARGETS[module].parts
    return f"{module}: {', '.join(parts)}" if parts else module


def _percent(scores: Sequence[Score], *, of_all: bool = False) -> str:
    counted = sum(len(s.verdicts if of_all else s.counted) for s in scores)
    killed = sum(s.killed for s in scores)
    return f"{100 * killed / counted:.1f} %" if counted else "–"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--module", nargs="+", choices=sorted(TARGETS), default=list(TARGETS))
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    parser.add_argument("--out", type=Path, help="write the page here")
    parser.add_argument("--state", type=Path, help="JSON: what is known so far, and holds still")
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d"), help="the date on the page")
    parser.add_argument("--tenth", action="store_true", help="a drawn tenth of the modules")
    arguments = parser.parse_args()
    if arguments.tenth:
        arguments.module = tenth(arguments.module)
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        tree = Path(folder)
        copy_tree(ROOT, tree)
        scores, known = [], Known(arguments.state)
        for module in arguments.module:
            try:
                scores.append(score(module, TARGETS[module], tree, max(1, arguments.jobs), known))
            except BrokenTests as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
            last = scores[-1]
            print(
                f"{module}: {last.killed} of {len(last.counted)} killed, {_percent([last])}, "
                f"{len(last.excused)} equivalent, {last.seconds:.0f} s",
                flush=True,
            )
    unknown = set(equivalent_mutants()) - {v.mutant.key for s in scores for v in s.verdicts}
    for key in sorted(unknown):
        if key.partition(":")[0] in arguments.module:
            print(f"equivalent.toml names a mutant that is no more: {key}")
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        words = shlex.join(["python", "-m", "tests.mutation", *sys.argv[1:]])
        command = re.sub(r" --date[ =]\S+", "", words)
        arguments.out.write_text(page(scores, command, arguments.date), encoding="utf-8")
    survived = sum(len(each.survivors) for each in scores)
    print(f"{_percent(scores)} of {len(scores)} modules' mutants killed, {survived} survived")
    return 0


if __name__ == "__main__":
    sys.exit(main())
