"""The part of a wish that is about a sweep: what is searched, and how. Pure."""

from __future__ import annotations

from typing import Any

from trmcloud.core.contract.command import Command
from trmcloud.core.sweep.priors import EarlierSweep, FirstPoint
from trmcloud.core.values import Value, replace

METRIC = "val_bpb"
"""The metric of every bundled recipe; lower is better."""
_HANGS_AFTER_S = 1800.0


class SweepWish(Value):
    """The space of settings and the way in which its trials are chosen; dollars are the plan's."""

    space: tuple[str, ...]
    """A word for each parameter: see ``core.sweep.space``."""
    default: tuple[tuple[str, Any], ...] = ()
    """The point that all others are compared with, by name."""
    slots: int = 0
    """Trials at a time; 0: one for each GPU, one on a machine without."""
    sampler: str = ""
    """Empty: the usual one."""
    seed: int = 0
    eta: int = 3
    """One of so many trials is promoted to the next rung."""
    rungs: int = 0
    """Number of rungs; 0: as many as the budget divides into."""
    first: tuple[FirstPoint, ...] = ()
    """Points that are tried behind the default."""
    earlier: tuple[EarlierSweep, ...] = ()
    """Trials of earlier sweeps on the same code, for the sampler."""
    on: str = ""
    """``ray`` or ``ray:ADDRESS``: trials run on a cluster of the user's; empty: on the machine that
    is planned."""


def leased_command(command: Command | None) -> Command:
    """Return the terms on which an agent supervises a sweep's executor: it continues where it was
    ended, whatever its trials can do."""
    own = command or Command(words=("sweep",), silent_s=_HANGS_AFTER_S)
    return replace(own, resume=own.words)
