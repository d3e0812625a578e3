"""Where the trainer, its recipes and its families are: beside the package in a checkout, inside it
in a wheel."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trmcloud.core.errors import NotFoundError
from trmcloud.core.spec.settings import PhaseRecipe

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


class FamilyFolders(Mapping[str, type[PhaseRecipe]]):
    """The families of ``model/families/NAME/plan.py``, each read when it is first asked for.

    A wheel has no package ``model``, and another one may be on the path: so each is read as a file.
    It gets the name that it has in the trainer, where both are in one process.
    """

    def __init__(self) -> None:
        self._read: dict[str, type[PhaseRecipe]] = {}

    def __getitem__(self, name: str) -> type[PhaseRecipe]:
        if name not in self._read:
            path = _families() / name / "plan.py"
            if not name.isidentifier() or not path.is_file():
                raise KeyError(name)
            self._read[name] = _module(f"model.families.{name}.plan", path).Settings
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(path.parent.name for path in _families().glob("*/plan.py")))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _families() -> Path:
    return bundle_root() / "model" / "families"


def _module(name: str, path: Path) -> Any:
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for a class's own names
    spec.loader.exec_module(module)
    return module
