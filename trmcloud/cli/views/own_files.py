"""A command's checkpoint as it was brought home: under its own names, and what opening it does."""

from __future__ import annotations

from trmcloud.app.checkpoints.fetching import Fetched
from trmcloud.app.checkpoints.own_names import under_own_names
from trmcloud.core.control.run_state import RunState
from trmcloud.core.plain_text import one_line

_OPENS = {
    "code": "not safe to open as it is: a pickle runs what it holds; torch.load(…, "
    "weights_only=True) refuses that",
    "unknown": "not known: nothing here has opened it",
    "data": "safe: a format that only holds data",
}


def own_files(run: RunState, fetched: Fetched, name: str, value: str) -> list[str]:
    """Its metric, its files and where they lie, a line each."""
    own, opens = under_own_names(fetched.manifest, fetched.folder)
    metric = [f"  {name:<14}  {value}"] if fetched.manifest.val_bpb is not None else []
    return [
        *metric,
        f"  largest file    sha256 {fetched.manifest.sha256}",
        f"  lies in         {one_line(str(own.absolute()))}",
        f"  opening it      {_OPENS.get(opens, _OPENS['unknown'])}",
    ]
