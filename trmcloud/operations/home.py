"""Folders of this machine: the user's home of trmcloud, and the bundled trainer and recipes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trmcloud.core.errors import NotFoundError, UsageError
from trmcloud.io.files import is_below

# Where trmcloud keeps what is the user's: ledger, plans, runs, snapshots.

ENV_HOME = "TRMCLOUD_HOME"
ENV_PRINCIPAL = "TRMCLOUD_PRINCIPAL"
"""Whose grant pays, in a shell, say of a CI job. It can only take rights away."""


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


# Where the trainer, its recipes and its families are: beside the package in a checkout, inside it
# in a wheel.

_PACKAGE = Path(__file__).resolve().parents[1]


def bundle_root() -> Path:
    """The folder that holds ``model/recipes``: beside the package in a checkout, inside it in a
    wheel.

    Raises:
        NotFoundError: the installation is incomplete.
    """
    for root in (_PACKAGE.parent, _PACKAGE / "bundle"):
        if (root / "model" / "recipes").is_dir():
            return root
    raise NotFoundError(
        "the recipes of trmcloud are missing",
        where=str(_PACKAGE),
        next_step="install it again, from a complete clone or wheel",
    )


def families_folder() -> Path:
    return bundle_root() / "model" / "families"


def bound_principal(environ: Mapping[str, str]) -> str:
    """Return the principal to which this process is bound; empty: it is the ledger's owner's.

    Raises:
        UsageError: no principal has such a name.
    """
    principal = environ.get(ENV_PRINCIPAL, "")
    if not principal:
        return ""
    from trmcloud.core.control.grants import is_principal  # with what reads records

    if not is_principal(principal):
        raise UsageError(
            f"{ENV_PRINCIPAL}: {principal[:80]!r} is no name of a principal",
            next_step="up to 64 letters, digits and ._@-: ci-nightly; owner is taken",
        )
    return principal


# A project's options, in the folder of its script or above it.

PROJECT_FILE = "trmcloud.toml"


def find_project_file(here: Path) -> Path | None:
    """Return the file in ``here``, or in the nearest folder above it in the same git tree; None
    where there is none. Folders of another owner are not looked at."""
    here = here.resolve()
    for folder in (here, *here.parents):
        if folder.stat().st_uid != here.stat().st_uid or not is_below(folder, top_of(here)):
            return None
        if os.path.lexists(folder / PROJECT_FILE):
            return folder / PROJECT_FILE
    return None


def top_of(folder: Path) -> Path:
    """Return the top of the git tree around a folder; the folder itself where there is none."""
    above = (folder, *folder.parents)
    return next((each for each in above if os.path.lexists(each / ".git")), folder)
