"""A command's last lines, and what it did not find though it is here."""

from __future__ import annotations

from pathlib import Path

import pytest

from trmcloud.core.contract.command import Command
from trmcloud.operations.commands.failed_commands import last_lines, missing_in

COMMAND = Command(("python", "train.py"))


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder in a repository with a package, and files that were not sent."""
    (tmp_path / ".git").mkdir()
    for name in ("small/__init__.py", "words.txt", "work/data/train.bin", "work/key.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path / "work"


@pytest.mark.parametrize(
    ("line", "missing", "fix"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'",
         "data/train.bin", "--data data sends"),
        ("cat: data/train.bin: No such file or directory", "data/train.bin", "--data data sends"),
        ("python: can't open file '/x/runs/r-1/train/work/key.json': [Errno 2]", "key.json",
         "git add -f key.json"),
        ("No such file or directory: '../words.txt'", "../words.txt", "--root .. sends"),
        ("ModuleNotFoundError: No module named 'small.parts'", "small", "--root .. sends"),
        ("ModuleNotFoundError: No module named 'elsewhere'", "", ""),
        ("No such file or directory: 'nowhere.bin'", "", ""),
        ("No such file or directory: 'sent.txt'", "", ""),
    ],
)  # fmt: skip
def test_what_is_here_and_was_not_sent_is_named_with_the_option_that_sends_it(
    here: Path, line: str, missing: str, fix: str
) -> None:
    (here / "sent.txt").touch()
    found, option = missing_in([line, "another line"], COMMAND, here, {"sent.txt", "train.py"})
    assert found == missing
    assert option.startswith(fix) or fix in option


def test_the_last_lines_are_the_commands_own(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    rows = [f"line {number}" for number in range(20)]
    log.write_text("\n".join([*rows, "10 %\r50 %\r90 %", "trmcloud: crashed: code 1", ""]))
    assert last_lines(log) == (*rows[-9:], "90 %")
    assert last_lines(tmp_path / "none.log") == ()
