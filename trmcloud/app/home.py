"""Where trmcloud keeps what is the user's: ledger, plans, runs, snapshots."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Mapping

ENV_HOME = "TRMCLOUD_HOME"


def make_home(home: Path) -> None:
    """Make the folder, where it is missing, its owner's alone: it holds keys and what runs cost.

    Raises:
        OSError: it cannot be made.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)


def close_home(environ: Mapping[str, str]) -> None:
    """Shut others out of ``~/.trmcloud``, if an earlier version made it. A folder that the user has
    named is left as it is: whom it is for is theirs to say."""
    home = home_dir(environ)
    with suppress(OSError):
        if not environ.get(ENV_HOME) and home.stat().st_mode & 0o077:
            home.chmod(0o700)


def home_dir(environ: Mapping[str, str]) -> Path:
    """``$TRMCLOUD_HOME``, else ``~/.trmcloud``; not made here."""
    named = environ.get(ENV_HOME)
    if named:
        return Path(named).expanduser().absolute()
    user = environ.get("HOME")
    return (Path(user) if user else Path.home()) / ".trmcloud"
