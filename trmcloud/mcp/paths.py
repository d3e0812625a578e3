"""Which files of this machine an agent's arguments may name: those of the project, and no others.

A name is resolved with its links before it is compared, and the resolved name is what is used. A
folder of data is looked through, since its links would be followed when it is sent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trmcloud.core.errors import UsageError

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]{1,15}://", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MOST_ENTRIES = 200_000


class Project:
    """The folder that an agent works in."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(os.path.realpath(folder))

    def inside(self, name: str, text: str) -> Path:
        """Return the resolved path of ``text``, which the argument ``name`` has.

        Raises:
            UsageError: it is outside the project.
        """
        if text.startswith("~") or "\0" in text:
            raise self._refusal(name, text)
        return self._require_inside(name, text, Path(os.path.realpath(self.folder / text)))

    def folder_named(self, name: str, text: str) -> Path:
        """
        Raises:
            UsageError: it is outside the project, or no folder.
        """
        found = self.inside(name, text)
        if not found.is_dir():
            raise UsageError(
                f"{name}: the project has no folder {text[:80]!r}",
                next_step=f"{name}: a folder, relative to the project's",
            )
        return found

    def new_folder(self, name: str, text: str) -> Path:
        """Return the path of a folder that is to be made.

        Raises:
            UsageError: it is outside the project, or exists.
        """
        found = self.inside(name, text)
        if os.path.lexists(self.folder / text) or os.path.lexists(found):
            raise UsageError(
                f"{name}: {text[:80]!r} already exists", next_step=f"{name}: a new folder's name"
            )
        return found

    def resolve(self, wish: Mapping[str, Any], here: Path) -> dict[str, Any]:
        """Return the options of a plan with every path resolved; ``here`` is the folder that the
        command is started in, to which its own paths are relative.

        Raises:
            UsageError: one leads outside the project.
        """
        made = dict(wish)
        for name, how in _RULES.items():
            if made.get(name):
                made[name] = how(self, here, name, made[name])
        return made

    # -- one rule for each option that names files -------------------------------------------------

    def _source(self, here: Path, name: str, text: str) -> str:
        """A known name, an address of the web, or files of the project."""
        if _ADDRESS.match(text):
            if not text.lower().startswith(("https://", "hf://", "s3://")):
                raise UsageError(
                    f"{name} takes https:// addresses, not {text[:80]!r}", next_step="https://…"
                )
            return text
        if text.startswith("~"):
            raise self._refusal(name, text)
        found = self.inside(name, os.path.join(here, text))
        if not found.exists():
            if _WORD.fullmatch(text):
                return text  # a data set, a recipe or a run by its name
            raise UsageError(f"{name}: the project has no {text[:80]!r}")
        self._require_links_inside(name, found)
        return str(found)

    def _inside_here(self, here: Path, name: str, text: str) -> str:
        """A path below the command's folder, as it is."""
        for part in text.partition("[")[0].split(os.pathsep):
            if part.startswith(("/", "~")):
                raise self._refusal(name, part)
            self.inside(name, os.path.join(here, part.split("*")[0]))
        return text

    def _above(self, here: Path, name: str, text: str) -> str:
        if text.startswith("~"):
            raise self._refusal(name, text)
        return str(self.inside(name, os.path.join(here, text)))

    def _require_links_inside(self, name: str, found: Path) -> None:
        count = 0
        for folder, folders, files in os.walk(found):
            for entry in (*folders, *files):
                count += 1
                path = os.path.join(folder, entry)
                if os.path.islink(path):
                    self._require_inside(name, path, Path(os.path.realpath(path)))
                if count > _MOST_ENTRIES:
                    raise UsageError(f"{name}: the folder has more than {_MOST_ENTRIES:,} entries")

    def _require_inside(self, name: str, text: str, found: Path) -> Path:
        if found != self.folder and self.folder not in found.parents:
            raise self._refusal(name, text)
        return found

    def _refusal(self, name: str, text: str) -> UsageError:
        return UsageError(
            f"{name}: {text[:80]!r} is outside the project's folder",
            next_step=f"{name}: a path inside the project's folder, relative to it",
        )


_Rule = Callable[[Project, Path, str, str], str]
_RULES: Mapping[str, _Rule] = {
    "recipe": Project._source,
    "data": Project._source,
    "chat_data": Project._source,
    "goal": Project._source,
    "initial_from": Project._source,
    "pip": Project._inside_here,
    "checkpoints": Project._inside_here,
    "stop_file": Project._inside_here,
    "root": Project._above,
}
"""By option. Every other option's text names no file of this machine."""
