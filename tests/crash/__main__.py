"""The soak: real writers of ledger and checkpoints, killed ``--kills`` times, checked after each.

    python -m tests.crash --kills 10000 --state FILE

Killed or stopped itself, it goes on from FILE. Ends with 1 at the first violation.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.crash import ledger_writer
from tests.crash.killing import can_trace
from tests.crash.ledger_writer import Violation
from tests.kept_state import read_state, write_state

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    *("trmcloud/adapters/ledger/sqlite.py", "trmcloud/adapters/ledger/file.py"),
    *("trmcloud/adapters/ledger/records.py", "trmcloud/core/control/bookkeeping.py"),
    *("trmcloud/core/contract/manifest.py", "model/training/checkpoint.py"),
    *("model/training/saver.py", "model/machine/tensors.py"),
)
#: kind → how large a share of the kills is its.
SHARES = {
    "ledger, at random": 0.5,
    "ledger, at each write": 0.2,
    "checkpoint, at random": 0.1,
    "checkpoint, at each write": 0.1,
    "shards, at random": 0.1,
}


def hash_of(sources: Sequence[str]) -> str:
    """Of what is tested, as it stands in the tree."""
    digest = hashlib.sha256()
    for name in sources:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()[:12]


def source_hash() -> str:
    return hash_of(SOURCES)


def writers(folder: Path, seed: int) -> dict[str, Any]:
    """The five kinds of writers, each with dice of its own."""
    from tests.crash import checkpoint_writer

    kinds = (
        *(ledger_writer.AtRandom, ledger_writer.AtEachWrite),
        *(checkpoint_writer.AtRandom, checkpoint_writer.AtEachWrite),
        checkpoint_writer.ShardsAtRandom,
    )
    made = {}
    for number, (name, kind) in enumerate(zip(SHARES, kinds, strict=True)):
        made[name] = kind(folder, random.Random(f"{seed} {number}"))
    return made


def soak(kills: int, state_path: Path, folder: Path) -> int:
    asked = {"source": source_hash()}
    state = read_state(state_path, asked, seconds=0.0, violations=[], kills={}, seeds=[])
    if state["violations"]:
        print(f"{state_path} holds a violation: {state['violations'][0]}")
        return 1
    seed = random.randrange(1 << 30)
    state["seeds"].append(seed)
    at_work = writers(folder, seed)
    if not can_trace():
        print("processes cannot be traced here: no kills at each write")
        at_work = {name: w for name, w in at_work.items() if "each" not in name}
    wanted = sum(SHARES[name] for name in at_work)
    done: dict[str, int] = state["kills"]
    began, said = time.monotonic(), 0.0
    before_s = state["seconds"]
    while sum(done.values()) < kills:
        # Whoever lags most behind its share is next.
        name = min(at_work, key=lambda each: done.get(each, 0) / (SHARES[each] / wanted))
        try:
            done[name] = done.get(name, 0) + at_work[name].round()
        except Exception as error:
            kind = "violation" if isinstance(error, Violation) else "error"
            state["violations"].append(f"{kind} in {name}, seed {seed}: {error}")
            write_state(state_path, state)
            traceback.print_exc()
            return 1
        state["seconds"] = before_s + time.monotonic() - began
        if time.monotonic() - said > 10:
            said = time.monotonic()
            write_state(state_path, state)
            print(f"{sum(done.values())} of {kills} kills, {state['seconds']:.0f} s", flush=True)
    write_state(state_path, state)
    for name, writer in at_work.items():
        swept = getattr(writer, "writes", 0)
        print(f"{name}: {done[name]} kills" + (f", {swept} writes swept" if swept else ""))
    total = sum(done.values())
    print(f"{total} kills, 0 violations, {state['seconds']:.0f} s, source {state['source']}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=10_000)
    parser.add_argument("--state", type=Path, required=True, metavar="FILE")
    parser.add_argument("--folder", type=Path, help="where the writers write; a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="crash-", dir=arguments.folder) as folder:
        return soak(arguments.kills, arguments.state, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
