"""Learning rates that go with the whole batch: by a root's law, or by a recipe's own table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from trmcloud.core.errors import UsageError

OFF = "off"
SCALES = (OFF, "sqrt", "table")
"""off: rates are what they are; sqrt: the table's first times √(batch ÷ the first's); table: its
rows, and between two of them the power law that joins them."""
RATES = ("matrix_lr", "embedding_lr", "head_lr")


def rate_for(sequences: int, rule: str, rows: Mapping[int, float], where: str) -> float:
    """The rate for a step of so many sequences.

    Args:
        rows: the table: sequences a step → rate.

    Raises:
        UsageError: there is no table, or its rows do not reach so far.
    """
    if not rows:
        raise UsageError(
            f"{where} has no [rates]: at which batch its rates hold is not known",
            next_step="--set matrix_lr=… embedding_lr=… head_lr=… by hand",
        )
    known = sorted(rows.items())
    base, rate = known[0]
    if rule == "sqrt":
        return rate * math.sqrt(sequences / base)
    if sequences in rows:
        return rows[sequences]
    for (low, first), (high, last) in pairwise(known):
        if low < sequences < high:
            share = math.log(sequences / low) / math.log(high / low)
            return first * math.pow(last / first, share)
    raise UsageError(
        f"{where}'s table of rates goes from {base} to {known[-1][0]} sequences a step, "
        f"and these are {sequences}",
        next_step="--scale-lr sqrt",
    )


def scaled(
    settings: Mapping[str, float], sequences: int, rule: str, rows: Mapping[int, float], where: str
) -> dict[str, float]:
    """Every rate of ``settings``, times what brings ``matrix_lr`` to the one for ``sequences``."""
    factor = rate_for(sequences, rule, rows, where) / settings[RATES[0]]
    return {key: settings[key] * factor for key in RATES}
