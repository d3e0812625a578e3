"""Playing simulated sweeps by the ten thousand, on one version of the code.

    python -m tests.sim.sweep_soak --state build/sweep-worlds.json [--worlds 20000]
        [--page docs/soak/sweep-worlds.md --date 2026-11-27]

The worlds are a range that the hash of the code draws, as in ``tests.sim.soak``; a range that was
interrupted is continued.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.sim.soak import first_seed
from tests.sim.sweeps import Violated, code_hash, draw_world, play_world

_PAGE = """# Simulated sweeps

`make sweep-worlds` · {date} · code `{code}`, worlds {first:,} to {last:,}

Each world draws a space, terms, what its trials do, and faults: trials crash, overrun by the grace
period, report NaN or nothing, or are all equal; machines are lost, with their checkpoints or not,
some with their slots for the rest of the sweep; the executor is killed after any event and reads
its journal again, its last line cut; paused checkpoints are pruned; a user stops the sweep; the
machine's soft stop comes early. An oracle with accounts of its own (`tests/sim/sweeps.py`) judges
after every event.

| what | number |
|---|---:|
| worlds played | {played:,} |
| refused before the start, as the budget buys no rung | {refused:,} |
| events | {events:,} |
| violated invariants | {violated:,} |
| highest share of the budget that was spent, running at its most, or reserved | {share:.4f} |

Invariants: spent + the most of what runs + what is reserved ≤ the budget, after every event; no
interval costs more than its most; never more trials than slots; no interval begins that could not
end before the soft stop; trial 1 is the default; no point twice; the winner has the best metric of
the checkpoints that there are; without crash, loss and stop the winner is trained to the end; the
journal read again gives the same state, and the same state the same moves; each sweep ends, with a
reason.

| ended by | worlds |
|---|---:|
{reasons}

| worlds with this fault | number |
|---|---:|
{faults}
"""

_KEPT_EVERY = 200


@dataclass
class Tally:
    """What the worlds so far came to, of one version of the code."""

    code: str
    done: int = 0
    refused: int = 0
    events: int = 0
    share: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    violated: dict[str, str] = field(default_factory=dict)

    def play(self, seed: int) -> None:
        self.done += 1
        world = draw_world(seed)
        if world is None:
            self.refused += 1
            return
        try:
            played = play_world(world)
        except Violated as error:
            self.violated[str(seed)] = str(error)
            print(f"world {seed}: {error}", flush=True)
            return
        self.reasons[played.reason.value] += 1
        self.faults.update(name for name, count in played.faults.items() if count)
        self.events += played.events
        self.share = max(self.share, played.most_share)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", type=int, default=20_000)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--date", default="")
    asked = parser.parse_args()
    tally = _read(asked.state)
    first = first_seed(tally.code)
    began = time.process_time()
    while tally.done < asked.worlds:
        tally.play(first + tally.done)
        if tally.done % _KEPT_EVERY == 0 or tally.done == asked.worlds:
            asked.state.write_text(json.dumps(tally.__dict__), encoding="utf-8")
            print(f"{tally.done} worlds, {time.process_time() - began:.0f} CPU-s", flush=True)
    if asked.page:
        text = _PAGE.format(
            date=asked.date,
            code=tally.code[:12],
            first=first,
            last=first + tally.done - 1,
            played=tally.done - tally.refused,
            refused=tally.refused,
            events=tally.events,
            violated=len(tally.violated),
            share=tally.share,
            reasons=_rows(tally.reasons),
            faults=_rows(tally.faults),
        )
        asked.page.write_text(text, encoding="utf-8")
    if tally.violated:
        raise SystemExit(f"{len(tally.violated)} worlds break an invariant")


def _read(path: Path) -> Tally:
    """Return what was played with this code; nothing, where the code is another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = code_hash()
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["code"] == code:
            for name in ("reasons", "faults"):
                kept[name] = Counter(kept[name])
            return Tally(**kept)
    return Tally(code)


def _rows(counts: Counter[str]) -> str:
    return "\n".join(f"| {name.replace('_', ' ')} | {n:,} |" for name, n in counts.most_common())


if __name__ == "__main__":
    main()
