"""How long commands take as whole processes, against an empty Typer app doing the same."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench.row import Row, paired_ratio

_EMPTY = str(Path(__file__).parent / "empty_app.py")
_ENTRY = str(Path(sys.executable).parent / "trmcloud")


def run() -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as home:
        environment = {"TRMCLOUD_HOME": home, "HOME": home}
        subprocess.run(
            [_ENTRY, "budget", "set", "month", "500"],
            env={"PATH": "/usr/bin:/bin", **environment},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        for name, arguments, empty, target in (
            ("trmcloud --help", ["--help"], ["--help"], 1.15),
            ("trmcloud status", ["status"], ["nothing"], 1.5),
            ("trmcloud plan --budget 1000", ["plan", "--budget", "1000"], ["nothing"], 2.0),
        ):
            ratio, ours, theirs = paired_ratio(
                [_ENTRY, *arguments], [sys.executable, _EMPTY, *empty], environment=environment
            )
            detail = f"{ours * 1000:.0f} ms against {theirs * 1000:.0f} ms"
            rows.append(Row(name, ratio, target, "lower", "×", detail))
    return rows
