"""Ids and names of a ledger's runs, read at a glance: for completion, and never for a decision.

No hash is checked and nothing is folded, so that it takes milliseconds with thousands of records.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_MOST = 100
_TAIL_CHARS = 4096
"""The part of a run's record behind its plan, in which the name stands."""
_NAME = re.compile(r'"detached": (?:true|false), "name": "([A-Za-z0-9._-]+)"')
_BUSY_S = 0.2


class RunNames(NamedTuple):
    run_id: str
    name: str
    """Empty where it has none."""
    live: bool


def read_names(path: Path) -> Sequence[RunNames]:
    """The newest runs first; none where the ledger cannot be read now."""
    if not path.is_file():
        return ()
    conn = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=_BUSY_S)
    try:
        ended = dict(
            conn.execute(
                "SELECT run_id, max(seq) FROM events WHERE kind = 'Closed' GROUP BY run_id"
            ).fetchall()
        )
        again = dict(
            conn.execute(
                "SELECT run_id, max(seq) FROM events WHERE kind = 'Reopened' GROUP BY run_id"
            ).fetchall()
        )
        rows = conn.execute(
            "SELECT run_id, substr(body, ?) FROM events WHERE kind = 'RunPlanned'"
            " ORDER BY seq DESC LIMIT ?",
            (-_TAIL_CHARS, _MOST),
        ).fetchall()
    except sqlite3.Error:
        return ()
    finally:
        conn.close()
    return [
        RunNames(
            run_id,
            found[1] if (found := _NAME.search(str(tail))) else "",
            again.get(run_id, 0) >= ended.get(run_id, 0),
        )
        for run_id, tail in rows
    ]
