"""Playing seeds by the hundred thousand: resumable, and on one version of the code.

    python -m tests.sim.soak --state build/soak.json [--seeds 200000] [--jobs 2]
        [--page docs/soak/README.md]

The seeds are a range that the hash of core, app, pod, sim and judges draws: no version of the code
has played its own range before, and no person chooses it. The state names that hash: where it
differs, counting starts anew. ``--from`` names a range by hand.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trmcloud
from tests.sim.drawing import draw, with_balance
from tests.sim.faults import ALL, IMPOSSIBLE, NAMES, PAIRS, arm_all
from tests.sim.grants import granted_scenario
from tests.sim.kept import KEEP_IT, KEPT
from tests.sim.play import PlayResult, play
from trmcloud.sim.scenario import Scenario

_PACKAGE = Path(trmcloud.__file__).resolve().parent
_HERE = Path(__file__).resolve().parent
_PARTS = ("drawing.py", "faults.py", "hostile.py", "play.py", "users.py")
_ROOMS = ("core", "io", "ports", "operations", "pod", "sim", "providers")
SEEDS = 200_000
_BATCH = 500
_RANGES, _RANGE_SEEDS = 1_000_000, 1_000_000
_KEPT_FAILURES = 50


@dataclass
class Tally:
    """What many seeds came to. ``done`` counts seeds; money in USD, time in simulated hours."""

    code: str
    done: int = 0
    hours: float = 0.0
    events: int = 0
    observed: Counter[str] = field(default_factory=Counter)
    pairs: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    ended_by: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    worst_over_exposed_usd: float = 0.0
    worst_exposed_s: float = 0.0
    ranges: list[list[int]] = field(default_factory=list)

    def add(self, played: PlayResult) -> None:
        self.done += 1
        self.hours += played.hours
        self.events += played.events
        self.observed.update(played.observed)
        observed = sorted(played.observed, key=int)
        self.pairs.update(f"{a}+{b}" for a, b in itertools.combinations(observed, 2))
        self.outcomes.update(outcome for _, outcome, _, _ in played.runs)
        self.ended_by.update(by or "nobody" for by in played.ended_by)
        self.worst_over_exposed_usd = max(self.worst_over_exposed_usd, played.over_exposed_usd)
        self.worst_exposed_s = max(self.worst_exposed_s, played.exposed_s)
        if played.violation:
            self.violations[played.violation] += 1
            if len(self.failures) < _KEPT_FAILURES:
                self.failures.append({"seed": played.seed, "what": played.detail})

    def merge(self, other: Tally) -> None:
        self.done += other.done
        self.hours += other.hours
        self.events += other.events
        for name in ("observed", "pairs", "outcomes", "ended_by", "violations"):
            getattr(self, name).update(getattr(other, name))
        self.failures = (self.failures + other.failures)[:_KEPT_FAILURES]
        self.worst_over_exposed_usd = max(self.worst_over_exposed_usd, other.worst_over_exposed_usd)
        self.worst_exposed_s = max(self.worst_exposed_s, other.worst_exposed_s)
        self.ranges += other.ranges

    def to_json(self) -> dict[str, Any]:
        return {
            name: dict(value) if isinstance(value, Counter) else value
            for name, value in self.__dict__.items()
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Tally:
        counters = ("observed", "pairs", "outcomes", "ended_by", "violations")
        values: dict[str, Any] = {k: Counter(v) if k in counters else v for k, v in data.items()}
        return cls(**values)


def code_hash() -> str:
    """SHA-256 over every source file that is simulated, simulates, judges or draws."""
    digest = hashlib.sha256()
    for room in _ROOMS:
        for path in sorted((_PACKAGE / room).rglob("*.py")):
            digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0")
            digest.update(path.read_bytes() + b"\0")
    for path in (*sorted((_HERE / "oracle").glob("*.py")), *(_HERE / name for name in _PARTS)):
        digest.update(path.relative_to(_HERE).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def first_seed(code: str) -> int:
    """Where the range begins that ``code``, a hash of the code, draws: one of a million ranges of a
    million seeds, none of which reaches below the first million."""
    return (1 + int(code[:16], 16) % _RANGES) * _RANGE_SEEDS


def soak_scenario(seed: int) -> Scenario:
    """The world of ``seed``: every fourth with balances that end, every eighth with principals that
    spend within grants."""
    drawn = granted_scenario(seed) if seed % 8 == 2 else draw(seed, NAMES)
    return with_balance(drawn) if seed % 4 == 0 else drawn


def run_seeds(first: int, beyond: int, tally: Tally) -> Tally:
    """Play seeds ``first`` ≤ seed < ``beyond`` into ``tally``."""
    for seed in range(first, beyond):
        tally.add(play(soak_scenario(seed), arm_all))
    return tally


def page(tally: Tally, *, date: str, command: str) -> str:
    """The published page, as Markdown."""
    at_least_100 = sum(count >= 100 for count in tally.pairs.values())
    rarest = sorted(PAIRS, key=lambda pair: tally.pairs[f"{pair[0]}+{pair[1]}"])[:10]
    bad = sum(tally.violations.values())
    lines = [
        "# Soak: many simulated worlds, every fault enabled",
        "",
        "Each seed is one world: up to two runs, up to seven faults, users and controllers that",
        "start and stop. Every invariant is checked after every event, against the provider's",
        "bill. A fault or a pair counts only if it changed an observation or a bill.",
        "",
        "| | |",
        "|---|---|",
        f"| date | {date} |",
        f"| command | `{command}` |",
        f"| code (SHA-256 of core, app, pod, sim, judges) | `{tally.code[:16]}…` |",
        f"| seeds | {_words_of(tally)} |",
        f"| worlds played | {tally.done:,} |",
        f"| violations | {bad} |",
        f"| simulated hours | {tally.hours:,.0f} |",
        f"| events | {tally.events:,} |",
        f"| faults felt, of {len(NAMES)} | {sum(n in tally.observed for n in NAMES)} |",
        f"| pairs felt, of {len(PAIRS):,} | {len(tally.pairs):,} |",
        f"| pairs felt 100 times or more | {at_least_100:,} |",
        "| most a bill was over its budget while some layer could act | "
        + ("see violations |" if tally.violations["I1"] else "$0 (within one billing quantum) |"),
        "| most a bill was over its budget, exposed time included | "
        f"${tally.worst_over_exposed_usd:,.2f} |",
        f"| longest exposed time of one pod | {tally.worst_exposed_s / 3600:,.1f} h |",
        "",
        "**Exposed** is time in which no layer could act: no live controller that reaches the",
        "provider and may write its ledger, *and* no live watchdog on the pod that could end it.",
        "There the bill may exceed the budget by at most rate × that time, which is counted apart.",
        "",
        "How runs ended: " + _shares(tally.outcomes) + ".",
        "",
        "Who ended pods: " + _shares(tally.ended_by) + ".",
        "",
        "Pairs that are rare: "
        + ", ".join(f"{a}+{b} ({tally.pairs[f'{a}+{b}']})" for a, b in rarest)
        + ".",
        "",
    ]
    if IMPOSSIBLE:
        lines += ["Pairs that cannot coexist:", ""]
        lines += [f"- {a}+{b}: {why}" for (a, b), why in sorted(IMPOSSIBLE.items())]
        lines.append("")
    lines += ["| fault | | felt in worlds |", "|---|---|---|"]
    lines += [f"| {name} | {ALL[name][0]} | {tally.observed[name]:,} |" for name in NAMES]
    if tally.failures:
        lines += ["", "Violations:", ""]
        lines += [f"- seed {f['seed']}: {f['what']}" for f in tally.failures]
    lines += ["", "Worlds that once broke something are kept. Every test run plays them.", ""]
    lines += ["| world | what it taught |", "|---|---|"]
    lines += [f"| {kept.name} | {kept.taught} |" for kept in KEPT]
    return "\n".join(lines) + "\n"


def _words_of(tally: Tally) -> str:
    """Which seeds were played, and who chose them."""
    played = ", ".join(f"{low:,} to {high - 1:,}" for low, high in tally.ranges)
    first = first_seed(tally.code)
    drawn = all(first <= low and high <= first + _RANGE_SEEDS for low, high in tally.ranges)
    return f"{played}{', drawn by the hash' if drawn and tally.ranges else ''}"


def _shares(counts: Counter[str]) -> str:
    whole = max(1, sum(counts.values()))
    return ", ".join(f"{name} {count / whole:.1%}" for name, count in counts.most_common())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.sim.soak", description=__doc__)
    parser.add_argument("--from", dest="first", type=int, help="the hash of the code draws it else")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many, from the first on")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--date", default="", help="what the page is dated with")
    given = parser.parse_args(arguments)
    code = code_hash()
    first = first_seed(code) if given.first is None else given.first
    tally = _read(given.state, code)
    _play(tally, first, first + given.seeds, given.jobs, given.state)
    if given.page is not None:
        command = "python -m tests.sim.soak" + (
            f" --from {first}" if given.first is not None else ""
        )
        given.page.parent.mkdir(parents=True, exist_ok=True)
        text = page(tally, date=given.date, command=f"{command} --seeds {given.seeds}")
        given.page.write_text(text, encoding="utf-8")
    return 1 if tally.violations else 0


def _read(state: Path, code: str) -> Tally:
    if state.exists():
        kept = Tally.from_json(json.loads(state.read_text(encoding="utf-8")))
        if kept.code == code:
            return kept
        print("the code has changed since: counting starts anew", file=sys.stderr)
    return Tally(code)


def _play(tally: Tally, first: int, beyond: int, jobs: int, state: Path) -> None:
    """What is missing of the range, batch by batch; the state is saved after each."""
    with ProcessPoolExecutor(jobs) as pool:
        batches = [
            pool.submit(_batch, low, high, tally.code)
            for low, high in _missing(tally.ranges, first, beyond)
        ]
        try:
            for done in as_completed(batches):
                tally.merge(done.result())
                tally.ranges = _joined(tally.ranges)
                _save(state, tally)
                bad, hours = sum(tally.violations.values()), tally.hours
                print(f"{tally.done:,} worlds, {hours:,.0f} simulated hours, {bad} violations")
                print(
                    f"  exposed: {tally.worst_exposed_s:,.0f} s of one pod at most, "
                    f"${tally.worst_over_exposed_usd:,.2f} over one budget at most"
                )
                for failure in done.result().failures:
                    print(f"  seed {failure['seed']}: {failure['what']}", flush=True)
                    print("  " + KEEP_IT.format(seed=failure["seed"], kind="soak"), flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _batch(low: int, high: int, code: str) -> Tally:
    if code_hash() != code:
        raise SystemExit("the code has changed meanwhile: begin again")
    return run_seeds(low, high, Tally(code, ranges=[[low, high]]))


def _missing(played: list[list[int]], first: int, beyond: int) -> list[tuple[int, int]]:
    """Batches of the range from ``first`` to below ``beyond`` that were not played yet."""
    made, seed = [], first
    for low, high in [*sorted(played), [beyond, beyond]]:
        while seed < min(low, beyond):
            made.append((seed, min(seed + _BATCH, low, beyond)))
            seed = made[-1][1]
        seed = max(seed, high)
    return made


def _joined(ranges: list[list[int]]) -> list[list[int]]:
    made: list[list[int]] = []
    for low, high in sorted(ranges):
        if made and low <= made[-1][1]:
            made[-1][1] = max(made[-1][1], high)
        else:
            made.append([low, high])
    return made


def _save(path: Path, tally: Tally) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".part")
    scratch.write_text(json.dumps(tally.to_json()), encoding="utf-8")
    scratch.replace(path)


if __name__ == "__main__":
    sys.exit(main())
