"""Playing simulated sweeps by the ten thousand, on one version of the code.

    python -m tests.sim.sweep_soak --worlds 20000 --page docs/soak/sweep-worlds.md --date 2026-11-27

The worlds are a range that the hash of the code draws, as in ``tests.sim.soak``.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

from tests.sim.soak import first_seed
from tests.sim.sweeps import Violated, code_hash, draw_world, play_world

_PAGE = """# Simulated sweeps

`make sweep-worlds` · {date} · code `{code}`, worlds {first:,} to {last:,}

Each world draws a space, terms, what its trials do, and faults: trials crash, overrun by the grace
period, report NaN or nothing, or are all equal; machines are lost, with their checkpoints or not;
the executor is killed after any event and reads its journal again, its last line cut; paused
checkpoints are pruned; a user stops the sweep; the machine's soft stop comes early. An oracle with
accounts of its own (`tests/sim/sweeps.py`) judges after every event.

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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", type=int, default=20_000)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--date", default="")
    asked = parser.parse_args()
    code = code_hash()
    first = first_seed(code)
    reasons: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    violated: dict[int, str] = {}
    events, refused, share = 0, 0, 0.0
    began = time.process_time()
    for number in range(asked.worlds):
        world = draw_world(first + number)
        if world is None:
            refused += 1
            continue
        try:
            played = play_world(world)
        except Violated as error:
            violated[world.seed] = str(error)
            print(f"world {world.seed}: {error}", flush=True)
            continue
        reasons[played.reason.value] += 1
        faults.update(name for name, count in played.faults.items() if count)
        events += played.events
        share = max(share, played.most_share)
        if number % 1000 == 999:
            print(f"{number + 1} worlds, {time.process_time() - began:.0f} CPU-s", flush=True)
    if asked.page:
        text = _PAGE.format(
            date=asked.date,
            code=code[:12],
            first=first,
            last=first + asked.worlds - 1,
            played=asked.worlds - refused,
            refused=refused,
            events=events,
            violated=len(violated),
            share=share,
            reasons=_rows(reasons),
            faults=_rows(faults),
        )
        asked.page.write_text(text, encoding="utf-8")
    if violated:
        raise SystemExit(f"{len(violated)} worlds break an invariant")


def _rows(counts: Counter[str]) -> str:
    return "\n".join(f"| {name.replace('_', ' ')} | {n:,} |" for name, n in counts.most_common())


if __name__ == "__main__":
    main()
