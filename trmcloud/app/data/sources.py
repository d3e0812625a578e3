"""What data is named by: a data set's name, an address, or a path of this machine."""

from __future__ import annotations

import os
from pathlib import Path

from trmcloud.app.staging.bundle import bundle_root
from trmcloud.core.catalog.datasets import is_address, nearest_name
from trmcloud.core.errors import DataError
from trmcloud.core.spec.settings import PhaseRecipe


def resolve_source(named: str, settings: PhaseRecipe | None = None) -> str:
    """The source to train on: the user's, else the recipe's own.

    Raises:
        DataError: there is none, or it does not exist.
    """
    source = named or (settings.data if settings is not None else "")
    if not source:
        recipe = settings.recipe if settings is not None else ""
        raise DataError(
            f"recipe {recipe} brings no data of its own",
            next_step="name a data set (trmcloud data list), or a file or folder: --data PATH",
        )
    if is_address(source) or source in data_set_names():
        return source
    path = Path(source).expanduser().absolute()
    if not path.exists():
        if "/" in source or path.suffix:
            raise DataError("no such file or folder", where=str(path), next_step="--data PATH")
        near = nearest_name(source, data_set_names())
        raise DataError(f"no data set or file is named {source!r}", next_step=near)
    if not os.access(path, os.R_OK):
        raise DataError("the data cannot be read", where=str(path), next_step="chmod +r it")
    return str(path)


def data_set_names() -> list[str]:
    """The data sets that go by a name."""
    return sorted(path.stem for path in (bundle_root() / "model" / "datasets").glob("*.toml"))
