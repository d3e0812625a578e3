"""Probes: what steps really took on a machine, kept to replace the planner's prior."""

from __future__ import annotations

import json
from pathlib import Path

from trmcloud.app.home import make_home
from trmcloud.core.planner.calibrated import Measured
from trmcloud.io.files import write_atomic

PROBES_NAME = "probes.json"
_KEPT = 64


def load(home: Path) -> list[Measured]:
    """The probes kept under ``home``, newest first; a damaged file counts as none."""
    try:
        rows = json.loads((home / PROBES_NAME).read_text(encoding="utf-8"))
        found = [Measured(**row) for row in rows]
    except (OSError, ValueError, TypeError):
        return []
    return [probe for probe in found if _sane(probe)]


def record(home: Path, probe: Measured) -> None:
    """Keeps ``probe``, in place of an older one of the same chip."""
    kept = [probe, *(old for old in load(home) if old.sku != probe.sku)][:_KEPT]
    path = home / PROBES_NAME
    make_home(home)
    write_atomic(path, json.dumps([old._asdict() for old in kept], indent=1))


def _sane(probe: Measured) -> bool:
    numbers = (probe.step_s, probe.tokens_per_step, probe.flops_per_token, probe.gpus, probe.steps)
    return all(isinstance(n, int | float) and 0 < n < float("inf") for n in numbers)
