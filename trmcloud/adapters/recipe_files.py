"""Recipe files: where they lie, in a checkout or inside an installed wheel, and how they load."""

from __future__ import annotations

import difflib
from pathlib import Path

from trmcloud.app.bundle import bundle_root
from trmcloud.core.errors import NotFoundError, UsageError
from trmcloud.core.recipe import Recipe, parse_recipe

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
        return _read(bundle_root() / "model" / "recipes" / f"{name_or_path}.toml")
    found = difflib.get_close_matches(name_or_path, names, n=1, cutoff=0.4)
    raise NotFoundError(
        f"no recipe named {name_or_path!r}",
        next_step=f"did you mean {found[0]}?" if found else f"one of: {', '.join(names)}",
    )


def _read(path: Path) -> Recipe:
    import tomllib

    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise UsageError("the recipe is larger than any real one", where=str(path))
        content = tomllib.loads(text.decode("utf-8"))
    except FileNotFoundError:
        known = ", ".join(recipe_names())
        raise NotFoundError(f"no recipe file {path}", next_step=f"one of: {known}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the recipe cannot be read: {error}", where=str(path)) from None
    except RecursionError:
        raise UsageError("the recipe nests deeper than any real one", where=str(path)) from None
    except ValueError as error:  # numbers of too many digits included
        raise UsageError(f"the recipe is no TOML: {error}", where=str(path)) from None
    return parse_recipe(content, str(path))
