"""Recipe files: where they lie, in a checkout or inside an installed wheel, and how they load."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trmcloud.app.bundle import bundle_root
from trmcloud.core.errors import NotFoundError, UsageError
from trmcloud.core.recipe import Recipe, parse_recipe

ENV_TEST_SETTINGS = "TRMCLOUD_TEST_SETTINGS"
"""For tests alone: a TOML file of settings (``depth = 1``) that take the place of every recipe's
own, in each phase and on all hardware, so that a whole run ends in seconds on two cores. Whatever
else happens is real. Each plan made so says it."""
_MAX_BYTES = 1 << 20


def recipe_names() -> list[str]:
    return sorted(path.stem for path in (bundle_root() / "model" / "recipes").glob("*.toml"))


def load_recipe(name_or_path: str) -> Recipe:
    """A recipe by its name, or by the path of a TOML file.

    Raises:
        NotFoundError: no such recipe (nearest name offered).
        UsageError: the file cannot be read or is no recipe.
    """
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        return _read(Path(name_or_path))
    names = recipe_names()
    if name_or_path in names:
        recipe = _read(bundle_root() / "model" / "recipes" / f"{name_or_path}.toml")
        return _for_a_test(recipe, os.environ.get(ENV_TEST_SETTINGS, ""))
    found = difflib.get_close_matches(name_or_path, names, n=1, cutoff=0.4)
    raise NotFoundError(
        f"no recipe named {name_or_path!r}",
        next_step=f"did you mean {found[0]}?" if found else f"one of: {', '.join(names)}",
    )


def _for_a_test(recipe: Recipe, path: str) -> Recipe:
    """``recipe``, its settings replaced by those of the file at ``path``, if any."""
    return recipe.shrunk(_toml(Path(path)), path) if path else recipe


def _read(path: Path) -> Recipe:
    return parse_recipe(_toml(path), str(path))


def _toml(path: Path) -> Mapping[str, Any]:
    import tomllib

    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise UsageError("the recipe is larger than any real one", where=str(path))
        return tomllib.loads(text.decode("utf-8"))
    except FileNotFoundError:
        known = ", ".join(recipe_names())
        raise NotFoundError(f"no recipe file {path}", next_step=f"one of: {known}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the recipe cannot be read: {error}", where=str(path)) from None
    except RecursionError:
        raise UsageError("the recipe nests deeper than any real one", where=str(path)) from None
    except ValueError as error:  # numbers of too many digits included
        raise UsageError(f"the recipe is no TOML: {error}", where=str(path)) from None
