"""Probes: what steps really took on a machine, kept to replace the planner's prior."""

from __future__ import annotations

import json
from pathlib import Path

from trmcloud.app.home import make_home
from trmcloud.core.planner.roofline import Measured
from trmcloud.io.files import write_atomic

PROBES_NAME = "probes.json"
_FAR = 1e11
"""Epoch s that no record bears, and seconds that no step takes."""
_LONGEST_ID = 80
_KEPT = 64


def load(home: Path) -> list[Measured]:
    """The probes kept under ``home``, newest first; a damaged file counts as none, and a row above
    its chip's peak as well."""
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
    since = (probe.predicted_s, probe.at)
    return (
        all(_is_number(n) and n > 0 for n in numbers)
        and all(_is_number(n) and 0 <= n < _FAR for n in since)
        and isinstance(probe.run_id, str)
        and len(probe.run_id) <= _LONGEST_ID
        and isinstance(probe.sku, str)
        and probe.is_possible
    )


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < float("inf")  # type: ignore[arg-type]
