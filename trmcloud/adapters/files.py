"""Recipe and data set files: in a checkout or an installed wheel."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trmcloud.core.catalog.datasets import (
    DataSet,
    is_address,
    nearest_name,
    one_file,
    parse_data_set,
)
from trmcloud.core.catalog.goals import Goal, parse_goals
from trmcloud.core.errors import NotFoundError, UsageError
from trmcloud.core.nearest import suggest_name
from trmcloud.core.spec.recipe import SMALL, Recipe, parse_recipe
from trmcloud.core.spec.spec import DataSource
from trmcloud.operations.home import bundle_root
from trmcloud.operations.sending.data import data_set_names
from trmcloud.ports.machine import ENV_TEST_SETTINGS

# Data set files: where they lie, in a checkout or inside an installed wheel, and how they load.


def load_data_set(name: str) -> DataSet:
    """A data set by its name.

    Raises:
        NotFoundError: no such data set (nearest name offered).
        UsageError: its file is damaged.
    """
    names = data_set_names()
    if name not in names:
        raise NotFoundError(
            f"there is no data set named {name!r}", next_step=nearest_name(name, names)
        )
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
    """Return the data source of a resolved name: a data set, an address, or files of this machine.

    Raises:
        UsageError: an address that ends in no file's name.
    """
    if is_address(name):
        return DataSource(name, one_file(name))
    if name in data_set_names():
        return DataSource(name, _load(name))
    return DataSource(name)


# Recipe files: where they lie, in a checkout or inside an installed wheel, and how they load.

_MAX_BYTES = 1 << 20


def recipe_names() -> list[str]:
    return sorted(path.stem for path in (bundle_root() / "model" / "recipes").glob("*.toml"))


def load_recipe(name_or_path: str) -> Recipe:
    """A recipe by its name, or by the path of a TOML file; ``NAME-small`` is the one that its
    ``[small]`` table makes of it.

    Raises:
        NotFoundError: no such recipe (nearest name offered).
        UsageError: the file cannot be read or is no recipe, or has no such table.
    """
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        path = Path(name_or_path)
        whole = path.with_name(path.name.replace(f"{SMALL}.toml", ".toml"))
        return _read(whole).in_small() if not path.exists() and whole.exists() else _read(path)
    names = recipe_names()
    whole_name = name_or_path.removesuffix(SMALL)
    if whole_name in names:
        recipe = _read(bundle_root() / "model" / "recipes" / f"{whole_name}.toml")
        recipe = recipe if name_or_path == whole_name else recipe.in_small()
        return _for_a_test(recipe, os.environ.get(ENV_TEST_SETTINGS, ""))
    raise NotFoundError(
        f"there is no recipe named {name_or_path!r}",
        next_step=suggest_name(name_or_path, names),
    )


def load_goals() -> dict[str, Goal]:
    """The goals that come with this version, by name."""
    path = bundle_root() / "model" / "goals.toml"
    return parse_goals(_toml(path, "goal"), str(path))


def load_goal(name_or_path: str) -> Goal:
    """A goal by its name, or by the path of a TOML file that has one.

    Raises:
        NotFoundError: no such goal (nearest name offered).
        UsageError: the file cannot be read, or does not have one goal.
    """
    if not name_or_path.endswith(".toml"):
        known = load_goals()
        if name_or_path not in known:
            raise NotFoundError(
                f"there is no goal named {name_or_path!r}",
                next_step=suggest_name(name_or_path, known),
            )
        return known[name_or_path]
    found = parse_goals(_toml(Path(name_or_path), "goal"), name_or_path)
    if len(found) != 1:
        raise UsageError(f"the file has {len(found)} goals, not one", where=name_or_path)
    return next(iter(found.values()))


def _for_a_test(recipe: Recipe, path: str) -> Recipe:
    """``recipe``, its settings replaced by those of the file at ``path``, if any."""
    return recipe.shrunk(_toml(Path(path)), path) if path else recipe


def _read(path: Path) -> Recipe:
    return parse_recipe(_toml(path), str(path))


def _toml(path: Path, what: str = "recipe") -> Mapping[str, Any]:
    import tomllib

    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise UsageError(f"the {what} file is too large", where=str(path))
        return tomllib.loads(text.decode("utf-8"))
    except FileNotFoundError:
        known = f"one of: {', '.join(recipe_names())}" if what == "recipe" else "--goal gpt2"
        raise NotFoundError(f"there is no {what} file {path}", next_step=known) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the {what} cannot be read: {error}", where=str(path)) from None
    except RecursionError:
        raise UsageError(f"the {what} is nested too deeply", where=str(path)) from None
    except ValueError as error:  # numbers of too many digits included
        raise UsageError(f"the {what} is not TOML: {error}", where=str(path)) from None
