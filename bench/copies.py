"""What the benchmarks of copying share: a file to copy, and our speed against the rivals'."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.row import Row


def write_random(path: Path, size: int) -> str:
    """``size`` random bytes, so that nothing is won by compressing; their SHA-256.

    ``size`` is a multiple of 16 MiB.
    """
    path.parent.mkdir(parents=True)
    digest = hashlib.sha256()
    block = os.urandom(1 << 24)
    with open(path, "wb") as file:
        for number in range(size >> 24):
            piece = number.to_bytes(8, "big") + block[8:]
            file.write(piece)
            digest.update(piece)
    return digest.hexdigest()


def timed(act: Callable[[], None]) -> float:
    """Its seconds."""
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def speed_row(what: str, size: int, best: Mapping[str, float], rivals: Sequence[str]) -> Row:
    """Our speed over that of the quickest rival.

    ``best`` is each one's least seconds for ``size`` bytes, "ours" among them; rivals that are not
    in it are said to be missing.
    """
    others = [seconds for name, seconds in best.items() if name != "ours"]
    ratio = min(others) / best["ours"] if others else float("inf")
    speeds = ", ".join(f"{n} {size / s / 1e6:.0f} MB/s" for n, s in best.items())
    missing = [name for name in rivals if name not in best]
    note = f"; not here: {', '.join(missing)}" if missing else ""
    return Row(f"{what}, speed of the best rival", ratio, 0.9, "higher", "×", speeds + note)
