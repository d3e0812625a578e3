"""Which of the trainer's packages a machine lacks, and where they are put.

They go into a folder of their own below the pod's root, ahead of the image's: no image's policy
about its system packages is in the way, an environment that the image's Python itself lives in
keeps its torch, and a volume carries the folder to the next pod. It appears under its name only
when it is whole, so that a killed installation leaves nothing half done.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

LIST = Path(__file__).with_name("environment.txt")

_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([0-9][0-9.]*)\s+#\s*(\S+)")
_BOUND = re.compile(r"(>=|<)([0-9]+(?:\.[0-9]+)*)")


class Package(NamedTuple):
    """``pin`` is what is installed where nothing within ``bounds`` is there."""

    name: str
    pin: str
    bounds: tuple[tuple[str, tuple[int, ...]], ...]

    def accepts(self, version: str) -> bool:
        """Whether a version is in range; of its number, only the leading digits count."""
        match = re.match(r"\d+(\.\d+)*", version)
        if match is None:
            return False
        release = _padded(match[0])
        for sign, bound in self.bounds:
            if sign == ">=" and release < bound:
                return False
            if sign == "<" and release >= bound:
                return False
        return True


def read_list(text: str) -> tuple[Package, ...]:
    """
    Raises:
        ValueError: a line that is neither ``name==pin  # bounds`` nor a comment.
    """
    packages = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"environment.txt: {line!r}")
        bounds = []
        for part in match[3].split(","):
            bound = _BOUND.fullmatch(part)
            if bound is None:
                raise ValueError(f"environment.txt: {line!r}")
            bounds.append((bound[1], _padded(bound[2])))
        packages.append(Package(match[1], match[2], tuple(bounds)))
    return tuple(packages)


def missing(wanted: Iterable[Package], path: Sequence[str] | None = None) -> tuple[Package, ...]:
    """Those that are not importable in a good version from ``path`` (this interpreter's own)."""
    searched = list(path if path is not None else sys.path)
    lacking = []
    for package in wanted:
        found = importlib.metadata.distributions(name=package.name, path=searched)
        # The first on the path is the one that an import would meet.
        first = next((dist.version for dist in found if dist.version), None)
        if first is None or not package.accepts(first):
            lacking.append(package)
    return tuple(lacking)


def folder_for(root: Path, packages: Sequence[Package]) -> Path:
    """Where just these packages belong, for just this Python on this kind of machine."""
    words = [
        sys.implementation.cache_tag or "",
        sys.platform,
        *(f"{p.name}=={p.pin}" for p in packages),
    ]
    return root / "env" / hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def install_command(packages: Sequence[Package], target: Path) -> list[str]:
    """pip's command line: the pins and nothing else, ready-built, into an empty folder."""
    return [
        *(sys.executable, "-m", "pip", "install", "--target", str(target), "--no-deps"),
        *("--only-binary", ":all:", "--no-input", "--disable-pip-version-check"),
        *("--no-warn-script-location", "--progress-bar", "off", "--retries", "3"),
        *(f"{package.name}=={package.pin}" for package in packages),
    ]


def _padded(text: str) -> tuple[int, ...]:
    numbers = tuple(map(int, text.split(".")))
    return numbers + (0,) * (6 - len(numbers))
