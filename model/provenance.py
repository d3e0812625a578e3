"""What a checkpoint was trained with: the trainer's own sources, Python, torch, the packages."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

import torch

from trmcloud.io.hashing import tree_sha256

SUFFIXES = (".py", ".toml", ".txt", ".csv")
"""Of what is sent to a pod of the trainer's package."""


@cache
def provenance() -> dict[str, str]:
    """What a manifest says of it. ``code_sha256`` is that of the trainer's package wherever it
    lies, ``packages_sha256`` of the sorted lines ``name==version`` of all that is installed.
    Computed once; takes about a tenth of a second."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "code_sha256": tree_sha256(Path(__file__).resolve().parent, SUFFIXES),
        "packages_sha256": packages_sha256(),
    }


def packages_sha256() -> str:
    lines = {f"{found.name.lower()}=={found.version}\n" for found in distributions() if found.name}
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
