"""Every screen at 40, 60 and 80 columns: no line is wider than the terminal, and nothing that
matters is cut into pieces."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli import told_home
from trmcloud.cli.main import COMMANDS, load_command, main
from trmcloud.cli.views.wrapping import padded, width, wrap
from trmcloud.core.outcome import Outcome

LANDED, FAILED = told_home.RUNS[Outcome.LANDED], told_home.RUNS[Outcome.FAILED]
RENTED = ("--recipe", "trm", "--phase", "extreme", "--budget", "1000")
SCREENS = (
    ("status",), ("status", "--all"), *(("status", run) for run in told_home.RUNS.values()),
    ("status", told_home.LIVE_RUN), ("status", told_home.LIVE_RUN, "-v"),
    ("report",), ("report", "-v"), ("report", FAILED), ("logs", LANDED), ("gate", LANDED),
    ("prune", LANDED), ("fetch-best", LANDED), ("resume", FAILED), ("stop", LANDED),
    ("save", FAILED), ("reap",), ("budget", "show"), ("budget", "history"),
    ("budget", "raise", "month", "100"), ("doctor",), ("ledger", "check"), ("ledger", "backups"),
    ("guard", "status"), ("data", "list"),
    ("data", "show", "gsm8k"), ("prices", "show", "H100-SXM"), ("prices", "list"),
    ("prices", "list", "--guides"), ("prices", "diff"), ("plan", "--budget", "1000"),
    ("plan", "--budget", "1000", "-v", "--all"), ("plan", "--budget", "15"),
    ("plan", "--budget", "1000", "--explain", "8xA100"), ("plan", "--hardware", "4xA100",
    "--provider", "aws"), ("plan", "--hardware", "8xH100", "--budget", "1"),
    ("launch", "8xA100", *RENTED, "--dry-run"), ("launch", "8xA100", *RENTED, "--dry-run", "-v"),
    ("launch", "8xA100", *RENTED), ("launch", "local", "--recipe", "d24"), ("lunch",),
    ("rehearse", "8xH100", "--budget", "400", "--runs", "3", "--faults", "none"),
    ("export", "8xA100", "--as", "bsh"), ("adopt", "."), ("volumes",),
    ("smoke", "--max-usd", "0.25"), ("tensorboard", LANDED), ("eval", LANDED), ("--help",),
    ("budget",), *((name, "--help") for name in COMMANDS),
)  # fmt: skip


class Window(io.StringIO):
    """A terminal of a number of columns, as far as what is printed to it can tell."""

    def isatty(self) -> bool:
        return True


Typed = Callable[..., str]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To be copied, never used itself."""
    made = tmp_path_factory.mktemp("told") / "home"
    told_home.write(made)
    return made


@pytest.fixture
def typed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """What a command shows in a window of so many columns, stdout and stderr as they come."""
    shutil.copytree(home, tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("TRMCLOUD_", "RUNPOD_", "AWS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)  # what is spent, and how long ago, stands still

    def type_(*words: str, columns: int) -> str:
        window = Window()
        with monkeypatch.context() as patched:
            patched.setenv("COLUMNS", str(columns))
            patched.setattr(sys, "stdout", window)
            patched.setattr(sys, "stderr", window)
            patched.setattr(sys, "stdin", io.StringIO())
            with pytest.raises(SystemExit):
                main(list(words))
        shown = window.getvalue()
        assert "unexpected" not in shown, shown
        assert shown.strip(), "a screen shows something"
        return re.sub(r"\x1b\[[0-9;]*m", "", shown)

    return type_


def too_wide(line: str, columns: int) -> bool:
    """A path, an address or a hash is not cut: it may be wider, on a line of its own."""
    return len(line) > columns and len(line.split()) > 1


@pytest.mark.parametrize("words", SCREENS, ids=" ".join)
def test_no_line_is_wider_than_the_terminal_and_nothing_is_cut(
    typed: Typed, words: tuple[str, ...]
) -> None:
    # A plan's id is new each time, and so are a doctor's figures and what a rehearsal's dice say.
    is_stable = words[0] not in ("plan", "launch", "rehearse", "doctor")
    whole = _whole(typed(*words, columns=400)) if is_stable and "--help" not in words else set()
    for columns in (80, 60, 40):
        shown = typed(*words, columns=columns)
        wide = [line for line in shown.splitlines() if too_wide(line, columns)]
        assert wide == [], f"{columns} columns:\n" + "\n".join(wide)
        assert whole <= _whole(shown), f"cut at {columns} columns"


def _whole(shown: str) -> set[str]:
    """Ids, amounts and hashes that stand on one line each."""
    return set(re.findall(r"\b[rp]-[0-9a-f]{4,6}\b|\$\d[\d,.]*\d|\b[0-9a-f]{64}\b", shown))


def test_every_command_has_a_screen_here() -> None:
    assert {words[0] for words in SCREENS} >= set(COMMANDS) - {"sample"}
    groups = {name for name in COMMANDS if hasattr(load_command(name), "commands")}
    assert groups == {"budget", "prices", "data", "guard", "ledger", "notify", "volumes"}


LONG = (
    "  hardware        8 × A100-80GB-SXM, runpod EU-RO-1, then 2 more candidates at most",
    "error: r-a10c01 has spent $104.20 of $104.20; try: trmcloud resume r-a10c01 --budget 200",
    "✔ Sending code and data        4 h 58 min · $1,234.5678 · 1.3 MB in all · and so on and on",
    "  lies in         /very/long/path" + "/and/longer" * 9,
    "                              (through SkyPilot), or so",
    "no data was found where you said that it lies, in " + "/very/long" * 12 + " as you said",
)


@pytest.mark.parametrize("columns", range(20, 100))
def test_words_stay_whole_and_in_their_order(columns: int) -> None:
    for line in LONG:
        pieces = wrap(line, columns)
        assert [word for piece in pieces for word in piece.split()] == line.split()
        assert not [piece for piece in pieces if too_wide(piece, columns)]
        assert all(piece.strip() for piece in pieces)


def test_what_belongs_together_stays_together() -> None:
    line = "x " * 12 + "trmcloud resume r-a10c01 --budget 200 · it lands in 4 h 58 min or 12.4 GB"
    shown = wrap(line, 40)
    assert any("trmcloud resume r-a10c01 --budget 200" in piece for piece in shown)
    assert any("4 h 58 min" in piece for piece in shown)
    assert any("12.4 GB" in piece for piece in shown)
    assert not any(piece.strip().startswith("·") for piece in shown)


def test_what_stands_beside_a_name_is_indented_below_it() -> None:
    assert wrap("  stops  lands 3 min 11 s after its start, killed at 3 min 17 s", 40) == [
        "  stops  lands 3 min 11 s after its",
        "         start, killed at 3 min 17 s",
    ]
    assert wrap("error: nobody in the price table offers 4xA100 at aws", 40) == [
        "error: nobody in the price table offers",
        "  4xA100 at aws",
    ]


def test_wide_characters_take_two_columns() -> None:
    assert (width("step 12"), width("模型"), width("e\u0301"), width("ａ")) == (7, 4, 1, 2)
    line = "  lies in  ~/训练/检查点 and beside it ~/训练/数据 for the next run"
    pieces = wrap(line, 30)
    assert all(width(piece) <= 30 for piece in pieces)
    assert " ".join(" ".join(pieces).split()) == " ".join(line.split())
    assert padded("模型", 6) == "模型  "


def test_a_pipe_gets_a_line_for_each(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Window, "isatty", lambda self: False)
    shown = typed("status", FAILED, columns=40)
    assert any(len(line) > 120 for line in shown.splitlines())
    rows = typed("status", "--all", columns=40).splitlines()
    assert len(rows) >= len(told_home.RUNS) + 2
    assert rows[0].split()[:2] == ["run", "state"] or any(line.startswith("run ") for line in rows)


@pytest.mark.parametrize(
    "words", [("status", "--json"), ("report", "--json"), ("report", "--csv")], ids=" ".join
)
def test_data_is_never_wrapped(
    typed: Typed, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal = typed(*words, columns=40)
    monkeypatch.setattr(Window, "isatty", lambda self: False)
    assert max(map(len, on_a_terminal.splitlines())) > 40
    assert _keys(typed(*words, columns=40)) == _keys(on_a_terminal)


def _keys(text: str) -> list[str]:
    return re.findall(r'^\s*"(\w+)":|^(run,.*)$', text, re.MULTILINE)
