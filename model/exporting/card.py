"""The model card of an export: what was trained on what, how well, and how it is opened."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from model.training.load import LoadedModel
from trmcloud.core.errors import UsageError
from trmcloud.core.text import one_line
from trmcloud.io.files import read_small

Rows = Sequence[tuple[str, str]]
_MOST_ROWS = 100


def read_about(path: Path | None) -> Rows:
    """Rows of a JSON file ``{"rows": [[NAME, TEXT], …]}``, which go into the card.

    Raises:
        UsageError: it is no such file.
    """
    if path is None:
        return ()
    try:
        rows = json.loads(read_small(path) or "")["rows"]
        return [(str(name), str(text)) for name, text in rows[:_MOST_ROWS]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--about is no file of rows: {error}", where=str(path)) from None


def rows_of(loaded: LoadedModel) -> Rows:
    """Return the rows that the checkpoint itself has."""
    manifest, settings = loaded.manifest, loaded.settings
    made = [
        ("recipe", f"{manifest.recipe}, phase {manifest.phase}, family {settings.family}"),
        ("run", manifest.run_id),
        ("step", f"{manifest.trained_to:,} ({manifest.tokens:,} tokens)"),
        ("validation bits per byte", _metric(manifest.val_bpb)),
        ("parameters", f"{sum(each.numel() for each in loaded.model.parameters()):,}"),
        (
            "shape",
            f"{settings.depth} × {settings.width}, {settings.heads} heads, "
            f"{settings.vocab_size:,} ids, sequence {settings.sequence}",
        ),
        ("prepared data", f"SHA-256 {manifest.data_sha256}"),
        ("checkpoint's weights", f"SHA-256 {manifest.sha256}"),
        ("tokenizer", f"{loaded.tokenizer.kind}, SHA-256 {manifest.tokenizer_sha256}"),
    ]
    return made


def _metric(value: float | None) -> str:
    known = value is not None and math.isfinite(value)
    return f"{value:.4f}" if known and value is not None else "not evaluated"


def card(title: str, rows: Rows, *, header: Rows, opening: str, notes: Sequence[str]) -> str:
    """Return ``README.md``: a table of ``rows``, ``opening`` as code, ``notes`` as paragraphs."""
    lines = ["---", *(f"{name}: {json.dumps(text)}" for name, text in header), "---", ""]
    lines += [f"# {_cell(title)}", "", "Trained with trmcloud.", "", "| | |", "|---|---|"]
    lines += [f"| {_cell(name)} | {_cell(text)} |" for name, text in rows]
    lines += ["", "## How to load it", "", "```python", opening.strip(), "```", ""]
    for note in notes:
        lines += [_cell(note), ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return one_line(text).replace("|", "\\|").replace("<", "&lt;")
