"""Images without a torch, as the clouds publish those that SkyPilot 0.14.1 picks by default.

RunPod's is ``runpod/base:1.0.2-ubuntu2204`` (``sky/clouds/runpod.py``). Its Dockerfile of 2025-10
(``runpod/containers``, ``official-templates/base``) starts from Ubuntu 22.04, whose ``python3`` is
3.10; it adds Pythons 3.9 to 3.13, of which ``python`` and ``pip3`` are 3.12, copies ``uv`` into
/bin, and installs no torch. What counts of that for us is made here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.pythons import found

WANTED = (3, 10)


def old_python() -> Path:
    """A Python 3.10 of this machine's, else the system's own: neither has torch."""
    for name in (found().get(WANTED), "/usr/bin/python3"):
        words = [name, "-c", "import sys; print(sys.executable)"] if name else ["false"]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode == 0:
            return Path(done.stdout.strip()).resolve()
    raise FileNotFoundError("python3")


def bare_image(folder: Path, *, with_uv: bool = True) -> tuple[Path, list[Path]]:
    """The image's folder, whose ``bin`` comes first on its PATH, and what it needs of this machine
    beside."""
    python = old_python()
    tools = folder / "bin"
    tools.mkdir(parents=True)
    (tools / "python3").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    (tools / "python3").chmod(0o755)
    if with_uv:
        shutil.copy(Path(sys.executable).with_name("uv"), tools / "uv")
    prefix = python.parents[1]
    return folder, [folder] if prefix == Path("/usr") else [folder, prefix]
