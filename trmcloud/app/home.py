"""Where trmcloud keeps what is the user's: ledger, plans, runs, snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping

ENV_HOME = "TRMCLOUD_HOME"


def home_dir(environ: Mapping[str, str]) -> Path:
    """``$TRMCLOUD_HOME``, else ``~/.trmcloud``; not made here."""
    named = environ.get(ENV_HOME)
    if named:
        return Path(named).expanduser().absolute()
    user = environ.get("HOME")
    return (Path(user) if user else Path.home()) / ".trmcloud"
