"""The Pythons of this machine, by where one usually finds them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

OLDEST_ON_A_POD = (3, 10)


@cache
def found(oldest: tuple[int, int] = OLDEST_ON_A_POD) -> dict[tuple[int, int], Path]:
    """One CPython of each minor version from ``oldest`` on, this one among them: of pyenv, of uv,
    on the PATH, of the system. What does not start, as a shim of pyenv's may not, is none."""
    home = Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT") or home / ".pyenv")
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or home / ".local/share/uv/python")
    path = filter(None, os.environ.get("PATH", "").split(os.pathsep))
    folders = [*map(Path, path), Path("/usr/bin"), Path("/usr/local/bin")]
    places = sorted(pyenv.glob("versions/3.*/bin/python3"))
    places += sorted(uv.glob("cpython-3.*/bin/python3"))
    places += [file for folder in folders for file in sorted(folder.glob("python3.*"))]
    pythons = {sys.version_info[:2]: Path(sys.executable)}
    for place in places:
        named = _by_name(place)
        if "-" in place.name or named in pythons or (named and named < oldest):
            continue  # each start takes time
        version = _version(place)
        if version is not None and version >= oldest:
            pythons.setdefault(version, place)
    return dict(sorted(pythons.items()))


def _by_name(python: Path) -> tuple[int, int] | None:
    """What it is said to be, by its own name or by that of its folder."""
    named = re.search(r"(?:python|cpython-|versions/)(\d+)\.(\d+)", str(python))
    return (int(named[1]), int(named[2])) if named else None


def _version(python: Path) -> tuple[int, int] | None:
    code = "import sys; print(sys.implementation.name, *sys.version_info[:2])"
    try:
        told = subprocess.run(
            [python, "-I", "-c", code], capture_output=True, text=True, timeout=60
        )
    except OSError:
        return None
    words = told.stdout.split()
    return (int(words[1]), int(words[2])) if words[:1] == ["cpython"] else None
