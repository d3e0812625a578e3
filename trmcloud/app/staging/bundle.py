"""Where the trainer, its recipes and its families are: beside the package in a checkout, inside it
in a wheel."""

from __future__ import annotations

from pathlib import Path

from trmcloud.core.errors import NotFoundError

_PACKAGE = Path(__file__).resolve().parents[2]


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
        "the recipes that belong to trmcloud are missing",
        where=str(_PACKAGE),
        next_step="pip install --force-reinstall trmcloud",
    )


def families_folder() -> Path:
    return bundle_root() / "model" / "families"
