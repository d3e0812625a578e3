"""Seeds that once broke something, and what each taught: ``kept.json``. None is ever exchanged for
another."""

from __future__ import annotations

import json
from pathlib import Path

KEPT: dict[int, str] = {
    int(seed): taught
    for seed, taught in json.loads(
        Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    ).items()
}
