"""``trmcloud ledger``: check, backups, restore, settle, on files damaged by hand."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest

from tests.contract.ledger_file import AT, append, edit, ledger_at, open_run
from trmcloud.cli.main import main
from trmcloud.core.control import events as ev


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "home" / "ledger.db"
    epoch = open_run(path)
    append(path, "a")
    ledger_at(path).append("r1", epoch, [ev.Closed("failed")], AT + 2)
    monkeypatch.setenv("TRMCLOUD_HOME", str(path.parent))
    return path


def command(*arguments: str) -> tuple[int, str]:
    said = io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main(list(arguments))
        except SystemExit as leaving:
            code = leaving.code
    return int(str(code or 0)), said.getvalue()


def test_a_damaged_record_is_named_and_put_back(home: Path) -> None:
    assert command("ledger", "check")[0] == 0
    edit(home, "UPDATE events SET body = body || ' ' WHERE seq = 3")
    code, said = command("ledger", "check")
    assert code == 7
    assert "record 3 of r1 is not what was written" in said
    code, said = command("status")
    assert code == 0
    assert "its records are damaged; 3 of 4 could be read" in said
    code, said = command("ledger", "restore")
    assert code == 0
    assert "record 3 was put back" in said
    assert command("ledger", "check")[0] == 0


def test_a_run_that_no_backup_has_is_settled_by_hand(home: Path) -> None:
    edit(home, "UPDATE events SET body = body || ' ' WHERE seq = 3")
    for backup in (home.parent / "backups").glob("*.db"):
        backup.unlink()
    assert command("ledger", "restore", "--yes")[0] == 3
    assert command("ledger", "settle", "r9", "2")[0] == 3
    code, said = command("ledger", "settle", "r1", "2")
    assert (code, said) == (0, "r1: counted as $2.00\n")
    lines = json.loads(command("budget", "show", "--json")[1])
    assert lines[0]["settled_usd"] == 2.0
    assert lines[0]["reserved_usd"] == 0.0


def test_a_lost_file_is_restored_by_the_next_command_and_says_what_was_lost(home: Path) -> None:
    (home.parent / "runs" / "r-abcdef").mkdir(parents=True)
    append_cap(home)
    home.write_bytes(b"")
    code, said = command("status")
    assert code == 0
    assert "backup 1" in said
    assert "lost: records 5 to 5 (1)" in said
    assert "runs it does not know any more: r-abcdef" in said
    assert "nothing new is reserved until trmcloud reap --yes" in said
    assert "could not be used" not in command("status")[1]


def append_cap(path: Path) -> None:
    from trmcloud.core.money import Usd

    ledger_at(path).set_cap(ev.CapSet("account", "", Usd(5)), AT + 3)


def test_it_asks_before_it_replaces(home: Path) -> None:
    assert command("ledger", "restore")[0] == 2, "a whole ledger is not replaced"
    assert command("ledger", "restore", "1")[0] == 2, "not a terminal"
    code, said = command("ledger", "restore", "1", "--yes")
    assert code == 0
    assert "nothing was lost" in said


def test_check_reads_pages_that_only_writes_meet(home: Path) -> None:
    content = bytearray(home.read_bytes())
    for page in range(4096, len(content), 4096):
        content[page + 1 : page + 3] = b"\x0f\xfd"
    home.write_bytes(content)
    code, said = command("ledger", "check")
    assert code == 7
    assert "pages" in said
    assert command("ledger", "restore", "--yes")[0] == 0
    assert command("ledger", "check")[0] == 0
