"""A command's checkpoint as it was brought home: its own names, and the effect of opening it."""

from __future__ import annotations

from trmcloud.app.checkpoints.fetching import Fetched
from trmcloud.app.checkpoints.opening import Effect, worst
from trmcloud.app.checkpoints.own_names import OwnNames, under_own_names
from trmcloud.core.plain_text import one_line

_WIDEST_NAME = 40


def own_files(fetched: Fetched, metric: list[str]) -> list[str]:
    """Its metric, its files and where they are, a line each."""
    own = under_own_names(fetched.manifest, fetched.folder)
    return [
        *metric,
        f"  largest file    sha256 {fetched.manifest.sha256}",
        f"  lies in         {one_line(str(own.path.absolute()))}",
        *(f"  {name:<14}  {text}" for name, text in _rows(own)),
    ]


def _rows(own: OwnNames) -> list[tuple[str, str]]:
    """By the bytes that were fetched: a pod's opinion of them is not asked."""
    effect = worst(opening for _, opening in own.files)
    if effect is Effect.DATA:
        formats = ", ".join(sorted({opening.format for _, opening in own.files}))
        return [("opening it", f"safe: only data, by its bytes ({formats})")]
    name, found = next(each for each in own.files if each[1].effect is effect)
    shown = name if len(name) <= _WIDEST_NAME else f"…{name[1 - _WIDEST_NAME :]}"
    if effect is Effect.UNKNOWN:
        told = f"not known: treat it as code ({found.format})"
        return [("opening it", told), ("", one_line(shown))]
    rows = [("opening it", f"not safe: {found.format} may run code"), ("", one_line(shown))]
    if "pickle" in found.format:
        rows.append(("", "torch.load(…, weights_only=True) refuses code"))
    return rows
