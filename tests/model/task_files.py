"""Files of tasks of each kind, and the tasks that they are of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trmcloud.core.catalog.eval_tasks import LINE, EvalTask

TEXT = "".join(map(chr, range(32, 127))) + "\nüé漢字"


def task_of(kind: str, path: Path, shots: int = 0, **changes: Any) -> EvalTask:
    """A task whose file is the one at ``path``."""
    content = path.read_bytes()
    return EvalTask(
        path.stem, kind, shots, LINE, 0.5, path.name, len(content.splitlines()),
        hashlib.sha256(content).hexdigest(), **changes,
    )  # fmt: skip


def write(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def choices(count: int) -> list[Any]:
    return [
        {"query": f"Is {n} even?", "choices": ["yes", "no"], "gold": n % 2} for n in range(count)
    ]


def schemas(count: int) -> list[Any]:
    return [
        {"context_options": [f"The dog {n} and", f"A cat {n} and"], "continuation": "ran.",
         "gold": n % 2}
        for n in range(count)
    ]  # fmt: skip


def continued(count: int) -> list[Any]:
    return [{"context": f" {n} and then ", "continuation": f"{n + 1} ünder"} for n in range(count)]
