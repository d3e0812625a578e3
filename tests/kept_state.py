"""What a long run has done so far, in a file: the next piece goes on from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trmcloud.io.files import write_atomic


def read_state(path: Path | None, asked: Mapping[str, Any], **fresh: Any) -> dict[str, Any]:
    """Return what ``path`` keeps, or ``fresh`` where it keeps nothing that was ``asked`` alike.

    ``asked`` names what a run's results hold for, such as the hash of the code.
    """
    if path is not None and path.exists():
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if all(kept.get(name) == value for name, value in asked.items()):
            return kept
        print(f"{path} is of something else; beginning anew")
    return {**asked, **fresh}


def write_state(path: Path | None, state: Mapping[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(state))
