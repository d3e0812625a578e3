"""How long commands and presses of Tab take as whole processes in an empty home, against an empty
Typer app."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench.row import Row, paired_ratio

_EMPTY = str(Path(__file__).parent / "empty_app.py")
_TAB_S = 0.3
_ENTRY = str(Path(sys.executable).parent / "trmcloud")


def run() -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as home:
        environment = {
            "TRMCLOUD_HOME": str(Path(home, "none")),
            "HOME": home,
            "PYTHONDONTWRITEBYTECODE": "",  # what is installed has been compiled
        }
        for name, arguments, empty, target in (
            ("trmcloud --help", ["--help"], ["--help"], 1.1),
            ("trmcloud status", ["status"], ["nothing"], 1.35),
            ("trmcloud plan --budget 1000", ["plan", "--budget", "1000"], ["nothing"], 1.5),
        ):
            ratio, ours, theirs = paired_ratio(
                [_ENTRY, *arguments], [sys.executable, _EMPTY, *empty], environment=environment
            )
            detail = f"{ours * 1000:.0f} ms against {theirs * 1000:.0f} ms"
            rows.append(Row(name, ratio, target, "lower", "×", detail))
        for words in ("st", "launch local --re", "sweep local --b", "report --ver", "stop "):
            _, ours, theirs = paired_ratio(
                [_ENTRY], [sys.executable, _EMPTY], environment=environment | _completes(words)
            )
            detail = f"{ours * 1000:.0f} ms against {theirs * 1000:.0f} ms"
            rows.append(Row(f"Tab after trmcloud {words}", ours, _TAB_S, "lower", "s", detail))
    return rows


def _completes(words: str) -> dict[str, str]:
    """The variables that bash sets for both apps when Tab is pressed after ``words``."""
    return {
        "_TRMCLOUD_COMPLETE": "complete_bash",
        f"_{Path(_EMPTY).name}_COMPLETE".upper(): "complete_bash",
        "COMP_WORDS": f"app {words}",
        "COMP_CWORD": str(words.count(" ") + 1),
    }
