"""A training by ``launch local`` on one process, as a bench starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def asked(folder: str) -> tuple[Path, Path]:
    """The text that TEXT names, and where trainings are kept: what OUT names, or ``folder``.

    Raises:
        SystemExit: no text.
    """
    text = Path(os.environ.get("TEXT", ""))
    if not text.is_file():
        raise SystemExit(f"TEXT={text} is no file: name Shakespeare's text")
    return text, Path(os.environ.get("OUT") or folder).absolute()


def launched(
    home: Path,
    recipe: str,
    phase: str,
    data: Path,
    steps: int,
    settings: Mapping[str, object],
    *options: str,
) -> list[dict[str, Any]]:
    """The lines of its metrics; what a former call made in this home is read again."""
    if not list(home.glob(f"runs/*/{phase}/metrics.jsonl")):
        home.mkdir(parents=True, exist_ok=True)
        command = [
            *(str(Path(sys.executable).parent / "trmcloud"), "launch", "local", "-y"),
            *("--recipe", recipe, "--phase", phase, "--processes", "1"),
            *("--rate", "3.60", "--budget", "20", "--data", str(data), "--steps", str(steps)),
            *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
            *options,
        ]
        environment = {**os.environ, "TRMCLOUD_HOME": str(home), "OMP_NUM_THREADS": "1"}
        with open(home / "screen.txt", "w", encoding="utf-8") as screen:
            subprocess.run(command, env=environment, stdout=screen, check=True)
    path = next(home.glob(f"runs/*/{phase}/metrics.jsonl"))
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
