"""Pieces of a training log: where they begin and end, and what is left out of hostile ones."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from trmcloud.adapters.local.run_files import LocalRunFiles
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import NotFoundError
from trmcloud.operations.context import Context
from trmcloud.operations.runs.run_logs import END_BYTES, MOST_BYTES, log_size, logs_of, read_log


class Logs:
    """A run's logs below ``home``."""

    def __init__(self, home: Path) -> None:
        self.context = cast(Context, SimpleNamespace(files=LocalRunFiles(home), home=home))
        self.folder = home / "runs" / "r-1"

    def run(self, *, live: bool = True) -> RunState:
        return cast(RunState, SimpleNamespace(run_id="r-1", live=live))

    def path(self, phase: str = "fast") -> Path:
        path = self.folder / phase / "train.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def test_a_log_is_read_on_from_where_the_last_piece_ended(logs: Logs) -> None:
    logs.path().write_text("one\ntwo\nthr")
    first = read_log(logs.context, logs.run(), "fast")
    assert (first.start, first.end, first.size, first.text) == (0, 8, 11, "one\ntwo\n")
    logs.path().open("a").write("ee\n")
    assert read_log(logs.context, logs.run(), "fast", first.end).text == "three\n"
    assert read_log(logs.context, logs.run(), "fast", 14).text == ""


def test_the_last_line_of_an_ended_run_needs_no_newline(logs: Logs) -> None:
    logs.path().write_text("one\nTraceback: é")
    assert read_log(logs.context, logs.run(live=False), "fast").text == "one\nTraceback: é"
    assert read_log(logs.context, logs.run(), "fast").text == "one\n"


def test_of_a_long_log_the_end_is_read_in_whole_lines(logs: Logs) -> None:
    lines = [f"line {number:08d} é\n" for number in range(200_000)]
    logs.path().write_text("".join(lines))
    piece = read_log(logs.context, logs.run(), "fast")
    assert piece.text == "".join(lines[-piece.text.count("\n") :])
    assert END_BYTES - 50 < piece.end - piece.start <= END_BYTES
    late = read_log(logs.context, logs.run(), "fast", 0)
    assert late == piece, "what is too far behind begins again at the end"


def test_a_line_without_an_end_is_bounded(logs: Logs) -> None:
    logs.path().write_text("x" * (3 * MOST_BYTES))
    piece = read_log(logs.context, logs.run(live=False), "fast")
    assert len(piece.text) <= MOST_BYTES
    logs.path().write_text("y" * MOST_BYTES)
    piece = read_log(logs.context, logs.run(), "fast", 0)
    assert (piece.end, len(piece.text)) == (MOST_BYTES, MOST_BYTES), "a full piece is shown as is"


@pytest.mark.parametrize("after", [-5, 10**15, 999])
def test_a_file_that_began_again_is_read_from_its_end(logs: Logs, after: int) -> None:
    logs.path().write_text("new\n")
    piece = read_log(logs.context, logs.run(), "fast", after)
    assert (piece.start, piece.text) == (0, "new\n")


def test_control_characters_are_left_out_and_progress_bars_stay(logs: Logs) -> None:
    logs.path().write_bytes(
        b"\x1b[31mred\x1b[0m\x07\x00 \xe2\x80\xae\xff\r\n10%\r20%\r<b>tab\there</b>\n"
    )
    assert read_log(logs.context, logs.run(), "fast").text == (
        "red \ufffd\n10%\r20%\r<b>tab\there</b>\n"
    )


def test_a_progress_bar_without_a_newline_is_shown(logs: Logs) -> None:
    logs.path().write_text("10%\r20%\r30")
    assert read_log(logs.context, logs.run(), "fast").text == "10%\r20%\r"


def test_only_plain_files_of_known_phases_are_logs(logs: Logs, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    logs.path().symlink_to(secret)
    os.mkfifo(logs.path("extreme"))
    assert list(logs_of(logs.context, logs.run())) == []
    for phase in ("fast", "extreme", "../..", "", "checkpoints", "/etc"):
        with pytest.raises(NotFoundError):
            read_log(logs.context, logs.run(), phase)
    logs.path().unlink()
    logs.path().write_text("plain\n")
    assert list(logs_of(logs.context, logs.run())) == ["fast"]
    assert log_size(logs.context, logs.run(), "fast") == 6
