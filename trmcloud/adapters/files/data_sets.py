"""Data set files: where they lie, in a checkout or inside an installed wheel, and how they load."""

from __future__ import annotations

from trmcloud.app.data import data_set_names
from trmcloud.app.home import bundle_root
from trmcloud.core.catalog.datasets import (
    DataSet,
    is_address,
    nearest_name,
    one_file,
    parse_data_set,
)
from trmcloud.core.errors import NotFoundError, UsageError
from trmcloud.core.spec.spec import DataSource


def load_data_set(name: str) -> DataSet:
    """A data set by its name.

    Raises:
        NotFoundError: no such data set (nearest name offered).
        UsageError: its file is damaged.
    """
    names = data_set_names()
    if name not in names:
        raise NotFoundError(f"no data set named {name!r}", next_step=nearest_name(name, names))
    return _load(name)


def _load(name: str) -> DataSet:
    import tomllib

    path = bundle_root() / "model" / "datasets" / f"{name}.toml"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"the data set cannot be read: {error}", where=str(path)) from None
    return parse_data_set(content, str(path))


def all_data_sets() -> list[DataSet]:
    """Every data set that goes by a name, by name."""
    return [_load(name) for name in data_set_names()]


def source_of(name: str) -> DataSource:
    """What a resolved source stands for: a data set, an address, or files of this machine.

    Raises:
        UsageError: an address that ends in no file's name.
    """
    if is_address(name):
        return DataSource(name, one_file(name))
    if name in data_set_names():
        return DataSource(name, _load(name))
    return DataSource(name)
