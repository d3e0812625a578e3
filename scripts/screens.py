"""Draws docs/screens: what the commands show in a window, with colour and without, each a picture
made by a run.

.venv/bin/python scripts/screens.py        # some minutes; writes docs/screens/*.svg and README.md
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import sys
import tempfile
import termios
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "screens"
_MOVES = re.compile(r"\x1b\[(?:2?K|1A|\?25[lh])|\r|\n")
_SHOWN = re.compile(
    r'(<text class="walk-[^"]*-r\d+" x=")([\d.]+)(" [^>]*?textLength=")([\d.]+)'
    r'("[^>]*>)([^<]*)</text>'
)
_SPACE, _CELL = "&#160;", 12.2
_TINY = (
    "--recipe trm-tiny --data python-stdlib --rate 3.60 --phase fast --set depth=1 --set width=32"
    " --set vocab_size=256 --set sequence=64 --set eval_tokens=1024 --set eval_every=10"
    " --set save_every=20"
)


@dataclass(frozen=True)
class Screen:
    """One picture: what is typed, in how wide a window. ``RUN`` in ``typed`` is the newest run."""

    name: str
    typed: str
    about: str
    columns: int = 80
    answer: str = ""
    """What is typed where the command asks."""
    again: bool = True
    """Whether it can be typed again, for the picture without colour."""
    shown: str = ""
    """The command as the picture shows it, where it is shorter."""
    moment: str = ""
    """A pattern: the picture is of the window when it first stands there; empty: at the end."""


WALK = (
    Screen("help", "", "All commands."),
    Screen("launch-help", "launch --help", "The options of one command, in groups."),
    Screen("doctor", "doctor", "What is missing on this machine, with fixes."),
    Screen("plan", "plan --budget 1000", "What a budget buys."),
    Screen("plan-narrow", "plan --budget 1000", "What a budget buys.", columns=40),
    Screen("plan-wide", "plan --budget 1000", "What a budget buys, as a table.", columns=130),
    Screen(
        "dry-run", "launch 8xA100 --phase extreme --budget 1000 --dry-run",
        "A launch before it starts: hardware, cost, place of the checkpoints.",
    ),
    Screen(
        "dry-run-verbose", "launch 8xA100 --phase extreme --budget 1000 --dry-run -v",
        "The same with every default.",
    ),
    Screen(
        "rehearse", "rehearse 8xH100 --budget 400 --runs 20 --faults preempted",
        "The same launch, simulated.",
    ),
    Screen(
        "launch", f"launch local {_TINY} --steps 300 --budget 1",
        "A launch on this machine, from the question to its end.", answer="y\n", again=False,
        shown="launch local --recipe trm-tiny --phase fast --steps 300 --budget 1 …",
    ),
    Screen("fetch-best", "fetch-best --into best", "The best checkpoint.", again=False),
    Screen(
        "detach", f"launch local {_TINY} --steps 100000 --budget 1 -y -d",
        "A launch in the background.", again=False,
        shown="launch local --recipe trm-tiny --phase fast --steps 100000 --budget 1 -y -d …",
    ),
    Screen("status", "status", "Live runs."),
    Screen("status-wide", "status --all", "All runs, as a table.", columns=130),
    Screen("status-run", "status RUN", "One run: money, training, checkpoints, kill layers."),
    Screen("status-run-verbose", "status RUN -v", "The same, with missing kill layers."),
    Screen("status-narrow", "status RUN", "One run.", columns=40),
    Screen("save", "save RUN", "Save a checkpoint now.", again=False),
    Screen("stop", "stop RUN -y", "Stop: save, evaluate, end.", again=False),
    Screen("resume", "resume RUN -d", "Resume the run.", again=False),
    Screen("stop-again", "stop RUN -y", "Stop it again.", again=False),
    Screen("report", "report", "Cost, result and time of each run."),
    Screen("budget", "budget show", "Caps, and the spending in each."),
    Screen("prices", "prices show A100-80GB-SXM", "Offers, with source and age."),
    Screen("data", "data list", "Data sets by name."),
    Screen("lunch", "lunch 8xA100", "A command that does not exist."),
    Screen("option", "plan --buget 1000", "An option that does not exist."),
    Screen("too-little", "plan --hardware 8xH100 --budget 1", "A budget that buys nothing."),
    Screen("nearest", "plan --budget 15", "A budget that is too small."),
    Screen(
        "sweep",
        f"sweep local {_TINY} --rate 36 --budget 2 --processes 2 --slots 2 -y lr=log:1e-4,1",
        "A sweep while it runs: its best trials.", again=False,
        moment=r"[6-9] trials, 2 running[\s\S]*to rung[\s\S]*to rung",
        shown="sweep local --recipe trm-tiny --phase fast --budget 2 --slots 2 -y lr=log:1e-4,1 …",
    ),
)  # fmt: skip


#: Screens of an earlier commit, which nothing makes again.
BEFORE = ("help", "plan", "launch", "status")
_BEFORE_DAY = "mid-November 2026"


def main() -> None:
    for old in FOLDER.glob("walk-*.svg"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="you-") as made:
        home = Path(made)
        for screen in WALK:
            _draw(screen, home, "", {})
            if screen.again:
                _draw(screen, home, "-plain", {"NO_COLOR": "1"})
            print(screen.name, flush=True)
    (FOLDER / "README.md").write_text(page(), encoding="utf-8")


def _draw(screen: Screen, home: Path, suffix: str, environment: dict[str, str]) -> None:
    typed = screen.typed.replace("RUN", _newest(home))
    drawn = _show(typed.split(), home, screen, environment)
    drawn = drawn.replace(str(home), "~").replace(str(ROOT), "~/trmcloud")
    shown = typed if not screen.shown else screen.shown
    text = Text(f"$ trmcloud {shown}".rstrip() + "\n", style="bold" if not suffix else "")
    text.append_text(Text.from_ansi(drawn.rstrip("\n")))
    console = Console(
        record=True, width=screen.columns, file=io.StringIO(), force_terminal=True,
        color_system="truecolor",
    )  # fmt: skip
    console.print(text)
    name = f"walk-{screen.name}{suffix}"
    svg = console.export_svg(title="trmcloud", theme=MONOKAI, unique_id=name)
    (FOLDER / f"{name}.svg").write_text(_SHOWN.sub(_placed, svg), encoding="utf-8")


def _placed(found: re.Match[str]) -> str:
    """A piece of a line without the spaces around it, which some viewers leave out and then
    stretch the rest: it begins where its first word does."""
    before, x, between, length, after, text = found.groups()
    left = (len(text) - len(re.sub(f"^(?:{_SPACE})+", "", text))) // len(_SPACE)
    bare = re.sub(f"^(?:{_SPACE})+|(?:{_SPACE})+$", "", text)
    if not bare:
        return ""
    gone = (len(text) - len(bare)) // len(_SPACE)
    x_now, length_now = float(x) + left * _CELL, float(length) - gone * _CELL
    return f"{before}{x_now:.1f}{between}{length_now:.1f}{after}{bare}</text>"


def _newest(home: Path) -> str:
    runs = sorted((home / ".trmcloud" / "runs").glob("r-*"), key=lambda path: path.stat().st_ctime)
    return runs[-1].name if runs else ""


def _show(words: list[str], home: Path, screen: Screen, environment: dict[str, str]) -> str:
    """What stands in a window of so many columns when the command has ended, colours included."""
    pid, master = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 50, screen.columns, 0, 0))
        os.chdir(home)
        made = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "TRMCLOUD_TRAINER": str(ROOT / "tests" / "standins" / "trainer"),
        }
        os.execve(sys.executable, [sys.executable, "-m", "trmcloud", *words], made | environment)
    told, then = b"", ""
    answer = screen.answer.encode()
    while True:
        try:
            data = os.read(master, 1 << 16)
        except OSError:  # how Linux says that nobody holds the other end
            break
        if screen.moment and not then:
            stood = stands(told.decode("utf-8", "replace"))
            then = stood if re.search(screen.moment, stood) else ""
        told += data
        if answer and b"[y/N]" in told:
            os.write(master, answer)
            answer = b""
        if not data:
            break
    os.waitpid(pid, 0)
    os.close(master)
    return then or stands(told.decode("utf-8", "replace"))


def stands(told: str) -> str:
    """The lines that stand there at last, after all that moved: a bar clears its lines and draws
    them again."""
    lines, row, at = [""], 0, 0
    for move in [*_MOVES.finditer(told), None]:
        text = told[at : move.start() if move is not None else None]
        lines[row] += text
        if move is None:
            break
        at = move.end()
        if move.group(0) == "\n":
            row += 1
            if row == len(lines):
                lines.append("")
        elif move.group(0) in ("\x1b[2K", "\x1b[K"):
            lines[row] = ""
        elif move.group(0) == "\x1b[1A":
            row = max(0, row - 1)
    return "\n".join(lines)


def page() -> str:
    """The index: each screen with what it is, in the order of the walk."""
    parts = [
        "# A walk through the screens",
        "",
        "`scripts/screens.py` made each picture: it runs the real commands one after another in one"
        " new home, each in its own window. The runs are real launches on this machine. Their"
        " trainer is the tests' stand-in, so losses and times are invented. Prices are those of the"
        " shipped table. A second picture shows a command that can be repeated with `NO_COLOR=1`.",
        "",
    ]
    for screen in WALK:
        wide = "" if screen.columns == 80 else f", {screen.columns} columns"
        parts += [f"## {screen.about.rstrip('.')}{wide}", ""]
        parts += [
            f"![{f'trmcloud {screen.shown or screen.typed}'.strip()}](walk-{screen.name}.svg)",
            "",
        ]
        if screen.again:
            parts += [f"![the same without colour](walk-{screen.name}-plain.svg)", ""]
    parts += ["## Before", "", f"The same screens in {_BEFORE_DAY}, kept for comparison.", ""]
    for name in BEFORE:
        parts += [f"![{name}, before](before-{name}.svg)", ""]
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    main()
