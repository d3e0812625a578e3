"""The names under which TensorBoard and Weights & Biases show what a trainer logs. Pure.

A figure is called ``kind/field``, as its line of ``metrics.jsonl`` has it, but for the few that
are known by another name, or in another unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

KNOWN_AS: Mapping[str, tuple[str, float]] = {
    "train/tokens_per_second": ("train/throughput", 1.0),
    "train/gpu_memory_bytes": ("system/gpu_memory_allocated", 1e9),  # GB
}
"""``kind/field`` → (its name there, what its value is divided by)."""
SPENT_USD, PAID_HOURS = "cost/usd", "cost/hours"
"""The run's cost at the time of a line; its trainer does not know it."""
MOST_VALUES = 64
"""Of one list: a longer one is no row of losses."""
_NO_FIGURES = frozenset({"kind", "step", "at"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def figures_of(kind: str, line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(name, value) of each finite number in a line; of a list ``name/0``, ``name/1``, … The line
    may be hostile: what is no plain name is passed over."""
    if not _NAME.fullmatch(kind):
        return
    own = line.get("metric")
    if isinstance(own, Mapping) and "val_bpb" in line:  # of a command: by its own name
        name = own.get("name")
        named = name if isinstance(name, str) and _NAME.fullmatch(name) else "metric"
        line = {key: said for key, said in line.items() if key != "val_bpb"}
        line = {**line, named: own.get("value")}
    for key, value in line.items():
        if key in _NO_FIGURES or not _NAME.fullmatch(key):
            continue
        name, unit = KNOWN_AS.get(f"{kind}/{key}", (f"{kind}/{key}", 1.0))
        if isinstance(value, (list, tuple)):
            rows = [(f"{name}/{number}", each) for number, each in enumerate(value[:MOST_VALUES])]
        else:
            rows = [(name, value)]
        for each, said in rows:
            number = _finite(said)
            if number is not None:
                yield each, number / unit


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
