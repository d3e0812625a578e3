"""The part of ``wiring`` that a press of Tab needs: names of runs, and nothing that takes long to
import."""

from __future__ import annotations

import os
from collections.abc import Sequence

from trmcloud.adapters.ledger.names import RunNames, read_names
from trmcloud.adapters.ledger.place import ledger_url
from trmcloud.operations.home import home_dir


def run_names() -> Sequence[RunNames]:
    """The runs of this home, the newest first; none where a database would have to be asked."""
    home = home_dir(os.environ)
    if ledger_url(home, os.environ):
        return ()
    return read_names(home / "ledger.db")
