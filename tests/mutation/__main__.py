"""How good are the unit tests of what keeps the budget? ``python -m tests.mutation`` says.

Every mutant (see ``mutants``) of the modules asked for is given to their unit tests; one that no
test notices has survived. Those that can be noticed by nobody, since they do the same, stand with
their reasons in ``equivalent.toml``.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tomllib

from tests.mutation.judge import BrokenTests, Verdict, copy_tree, judge
from tests.mutation.mutants import mutants_of

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
#: Which tests answer for which module: names in ``tests/unit/core``, or paths below ``tests``.
TESTS = {
    "core.strays": ("test_strays*.py",),
    "core.governance": ("test_controller_govern.py", "test_strays*.py"),
    "core.budget": ("test_budget*.py", "test_strays*.py", "test_controller_govern.py"),
    "core.lease": ("test_lease*.py",),
    "core.bookkeeping": ("test_bookkeeping*.py", "test_budget*.py"),
    "core.exposure": ("test_exposure*.py",),
    "core.controller": ("test_controller*.py",),
    "core.actions": ("test_controller*.py",),
    "core.absence": ("test_controller*.py",),
    "core.supervisor": ("test_supervisor*.py",),
    # Parsers of what pods, buckets and providers say.
    "core.records": ("test_records.py", "test_pod_contract.py"),
    "core.manifest": ("test_contract_bounds.py", "test_manifest*.py"),
    "core.pod_contract": ("test_contract_bounds.py", "test_pod_contract.py"),
    "core.plain_text": ("test_contract_bounds.py", "test_pod_contract.py"),
}
CHIEF = (
    *("core.controller", "core.actions", "core.absence", "core.governance"),
    *("core.supervisor", "core.budget", "core.strays", "core.lease"),
)


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


def judges_of(module: str, tree: Path) -> list[Path]:
    """In the order in which they are asked."""
    named = (f"tests/{n}" if "/" in n else f"tests/unit/core/{n}" for n in TESTS[module])
    return list(dict.fromkeys(path for name in named for path in sorted(tree.glob(name))))


def score(module: str, tree: Path, jobs: int, *, quiet: bool = False) -> Score:
    source = tree / "trmcloud" / Path(*module.split(".")).with_suffix(".py")
    tests = judges_of(module, tree)
    mutants = mutants_of(module, source, tree / "trmcloud")
    started = time.monotonic()
    done = 0

    def told(verdict: Verdict) -> None:
        nonlocal done
        done += 1
        if not quiet and not verdict.killed:
            print(f"  {module} {done}/{len(mutants)}: {shown(verdict)}", flush=True)

    verdicts = judge(tree, f"trmcloud.{module}", tests, mutants, jobs=jobs, told=told)
    digest = hashlib.sha256()
    for path in (source, *tests):
        digest.update(path.read_bytes())
    took_s = time.monotonic() - started
    return Score(module, tuple(verdicts), equivalent_mutants(), digest.hexdigest()[:12], took_s)


def shown(verdict: Verdict) -> str:
    mutant = verdict.mutant
    where = f"{mutant.module.replace('.', '/')}.py:{mutant.line}"
    return f"{where} {mutant.within or 'module'}: `{mutant.before}` → `{mutant.after}`"


def page(scores: Sequence[Score], command: str, date: str) -> str:
    """The Markdown page that is published."""
    chief = [s for s in scores if s.module in CHIEF]
    lines = [
        "# Mutants: how good the unit tests are",
        "",
        "Each mutant is the module with one small mistake in it: a comparison turned round or moved"
        " by its boundary, `and` for `or`, a condition negated or left out, plus for minus, `min`"
        " for `max`, a constant one off or 0, a statement dropped, two arguments of one type"
        " swapped. The module's own unit tests must notice it."
        " Score = killed ÷ (all − equivalent).",
        "",
        f"- date: {date}",
        f"- command: `{command}`",
        f"- score of {', '.join(s.module for s in chief)} together: **{_percent(chief)}**; "
        f"{_percent(chief, of_all=True)} were none equivalent",
        "",
        "| module | mutants | killed | equivalent | survived | score | s | source and tests |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for s in scores:
        lines.append(
            f"| {s.module} | {len(s.verdicts)} | {s.killed} | {len(s.excused)} "
            f"| {len(s.survivors)} | {_percent([s])} | {s.seconds:.0f} | `{s.sources}` |"
        )
    lines += ["", "## Survivors", ""]
    lines += [f"- {shown(v)}" for s in scores for v in s.survivors] or ["None."]
    lines += ["", "## Judged equivalent", ""]
    lines += [f"- {shown(v)}: {s.equivalent[v.mutant.key]}" for s in scores for v in s.excused] or [
        "None."
    ]
    return "\n".join(lines) + "\n"


def _percent(scores: Sequence[Score], *, of_all: bool = False) -> str:
    counted = sum(len(s.verdicts if of_all else s.counted) for s in scores)
    killed = sum(s.killed for s in scores)
    return f"{100 * killed / counted:.1f} %" if counted else "–"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--module", nargs="+", choices=sorted(TESTS), default=list(TESTS))
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    parser.add_argument("--out", type=Path, help="write the page here")
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d"), help="the date on the page")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        tree = Path(folder)
        copy_tree(ROOT, tree)
        scores = []
        for module in arguments.module:
            try:
                scores.append(score(module, tree, max(1, arguments.jobs)))
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
        words = [w for w in sys.argv[1:] if not w.startswith("--date")]
        command = shlex.join(["python", "-m", "tests.mutation", *words])
        arguments.out.write_text(page(scores, command, arguments.date), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
