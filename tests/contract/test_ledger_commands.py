"""``trmcloud ledger``: check, backups, restore, settle, on files damaged by hand."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
from pathlib import Path

import pytest

from tests.contract.ledger_file import AT, WHO, append, edit, ledger_at, open_run
from tests.plans import a_candidate, plan_json
from trmcloud.cli.main import main
from trmcloud.core.control import events as ev
from trmcloud.core.money import Usd


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


SWEPT_RUN = "r-aaaaaa"
SWEPT = (
    ("status", "--all"), ("stop", SWEPT_RUN), ("stop", "--now", SWEPT_RUN), ("reap", "--yes"),
    ("report",), ("report", SWEPT_RUN), ("ledger", "check"),
)  # fmt: skip
EXITS = {"status": {0, 7}, "stop": {0, 7, 8}, "reap": {0, 7}, "report": {0, 7}, "ledger": {0, 7}}
"""Well, or the ledger's code; ``stop`` has that of a conflict, too, for a run that has ended."""


@pytest.mark.parametrize("live", [False, True], ids=["closed", "live"])
@pytest.mark.parametrize("backups", [True, False], ids=["backups", "no backups"])
def test_no_damaged_file_is_a_traceback(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, backups: bool, live: bool
) -> None:
    """30 files of each kind: ten are cut, twenty have a bit flipped."""
    shutil.rmtree(home.parent)
    planned = ev.RunPlanned(plan_json(a_candidate()), Usd(10), "thesis")
    epoch = ledger_at(home).open_run(SWEPT_RUN, planned, Usd(1), WHO, AT)
    if not live:
        ledger_at(home).append(SWEPT_RUN, epoch, [ev.Closed("failed")], AT + 2)
    content = home.read_bytes()
    filled = [place for place, byte in enumerate(content) if byte]
    rng = random.Random(32)
    found: dict[int, int] = {}
    for number in range(30):
        damaged = bytearray(content)
        if number % 3 == 0:
            damaged = damaged[: rng.randrange(len(content))]
        else:
            damaged[rng.choice(filled)] ^= 1 << rng.randrange(8)
        for words in SWEPT:
            folder = tmp_path / "swept"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(home.parent, folder)
            if not backups:
                shutil.rmtree(folder / "backups", ignore_errors=True)
            (folder / "ledger.db").write_bytes(damaged)
            monkeypatch.setenv("TRMCLOUD_HOME", str(folder))
            code, said = command(*words)
            place = (number, words, code, said)
            assert "Traceback" not in said, place
            assert "error: unexpected" not in said, place
            assert code in EXITS[words[0]], place
            if code == 7:
                assert said.strip(), place
                assert "name the run" not in said, place
            found[code] = found.get(code, 0) + 1
    assert found[0] > 0, found
    assert found[7] > 0, found
