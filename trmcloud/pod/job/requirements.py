"""What ``--pip`` names, installed into a folder of the run before the command starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from trmcloud.pod.machine import packages

_LOG_BYTES = 400


def install(wanted: Path, target: Path, deadline_at: float) -> None:
    """By the pip of the Python that the command finds first; once, for every attempt after it.

    Raises:
        ValueError: there is no such file, no Python, or it could not be installed by
            ``deadline_at`` (epoch s).
    """
    if target.is_dir():
        return
    if not wanted.is_file():
        raise ValueError(f"--pip {wanted.name}: no such file in the working tree")
    python = shutil.which("python") or shutil.which("python3")
    if python is None:
        raise ValueError("--pip: there is no Python here")
    making = target.with_name(f".{target.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    words = [python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    words += ["--target", str(making), "-r", str(wanted)]
    left_s = min(3600.0, deadline_at - time.time())
    environment = packages.install_environment(os.environ, making)
    try:
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=max(1.0, left_s)
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"--pip {wanted.name}: it could not be installed in time") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[-_LOG_BYTES:]
        raise ValueError(f"--pip {wanted.name}: {said}")
    making.mkdir(exist_ok=True)
    os.rename(making, target)
