"""The folders of families of models, as files: what a plan needs of one is read without torch."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

_LOADING = threading.RLock()
"""A module is known to all threads from the beginning of its load on."""


class FamilyFolders(Mapping[str, Any]):
    """The ``Settings`` of each ``NAME/plan.py``, by name, read when they are first asked for.

    A wheel has no package ``model``, and another one may be on the path: so each is read as a file.
    It gets the name that it has in the trainer, where both are in one process.

    Args:
        folder: finds the folder of them all.
    """

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder
        self._read: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._read:
            path = self._folder() / name / "plan.py"
            if not name.isidentifier() or not path.is_file():
                raise KeyError(name)
            with _LOADING:
                self._read[name] = _module(f"model.families.{name}.plan", path).Settings
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(path.parent.name for path in self._folder().glob("*/plan.py")))

    def __len__(self) -> int:
        return sum(1 for _ in self)


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
