"""The ledger's file: made, shared, raced for, killed, restored from a backup; `admin ledger`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.contract.ledger_file import (
    AT,
    WHO,
    append,
    begun,
    begun_in,
    edit,
    head_of,
    ledger_at,
    open_run,
)
from tests.documents import document_in
from tests.plans import a_candidate, plan_json
from tests.present import present
from trmcloud.adapters.ledger.records import VERSION
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.cli.main import main
from trmcloud.core.control import events as ev
from trmcloud.core.control.ledger_facts import RestoredCopy
from trmcloud.core.control.run_state import IllegalTransition
from trmcloud.core.errors import (
    BudgetRefused,
    LedgerDamaged,
    LedgerError,
    LedgerLocked,
    LedgerTooNew,
)
from trmcloud.core.money import Usd
from trmcloud.io.installation import update_command

# -- The ledger's file: how it is made, shared by others at work, and written -------------------


# -- making one --------------------------------------------------------------------------------


def test_it_is_made_on_first_use_for_its_owner_alone(path: Path) -> None:
    ledger = ledger_at(path)
    assert not path.parent.exists(), "nothing is touched before it is used"
    ledger.read()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(path.parent)) == ["ledger.db", "ledger.head"]
    assert ledger_at(path).ledger_id == ledger.ledger_id


def test_it_is_made_without_hard_links_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    open_run(path)
    assert set(ledger_at(path).read().runs) == {"r1"}
    assert sorted(os.listdir(path.parent)) == ["ledger.db", "ledger.head"]


def test_its_id_comes_from_the_random_source_it_is_given(path: Path) -> None:
    ledger = SqliteLedger(path, random_bytes=lambda n: b"\xab\xcd" * (n // 2))
    assert ledger.ledger_id == "abcdabcd"


@pytest.mark.parametrize("name", ["with space", "50%41", "what?", "#1", "naïve"])
def test_any_folder_name_will_do(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "ledger.db"
    open_run(path)
    assert set(ledger_at(path).read().runs) == {"r1"}


def test_a_folder_that_cannot_be_made_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(LedgerError, match="cannot be used"):
        ledger_at(tmp_path / "file" / "ledger.db").read()


def test_it_keeps_a_rollback_journal(path: Path) -> None:
    open_run(path)
    edit(path, "PRAGMA journal_mode = WAL")
    append(path, "a")
    conn = sqlite3.connect(path)
    assert conn.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    conn.close()


# -- others at work ----------------------------------------------------------------------------


def test_reading_goes_on_while_somebody_writes(path: Path) -> None:
    open_run(path)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM events")
    state = ledger_at(path, 0.0).read()
    assert set(state.runs) == {"r1"}
    writer.execute("ROLLBACK")
    writer.close()


def test_a_second_writer_gives_up_after_the_timeout(path: Path) -> None:
    open_run(path)
    before = ledger_at(path).records()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerLocked, match=r"0\.02 s") as caught:
        ledger_at(path, 0.02).set_cap(ev.CapSet("account", "", Usd(1)), AT)
    assert str(path) in str(caught.value)
    assert caught.value.next_step
    writer.execute("ROLLBACK")
    writer.close()
    assert ledger_at(path).records() == before
    ledger_at(path, 0.02).set_cap(ev.CapSet("account", "", Usd(1)), AT)


def test_a_file_held_whole_is_locked_for_readers_too(path: Path) -> None:
    open_run(path)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LedgerLocked):
        ledger_at(path, 0.02).read()
    writer.close()


def test_a_commit_that_readers_hold_up_is_not_half_written(path: Path) -> None:
    open_run(path)
    before = ledger_at(path).records()
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM events").fetchall()
    with pytest.raises(LedgerLocked):
        ledger_at(path, 0.02).set_cap(ev.CapSet("account", "", Usd(1)), AT)
    reader.close()
    assert ledger_at(path).records() == before


def test_one_ledger_serves_many_threads(path: Path) -> None:
    ledger = ledger_at(path, 30.0)
    epoch = open_run(path)

    def work(name: str) -> None:
        for i in range(25):
            ledger.append("r1", epoch, [begun(f"{name}{i}")], AT)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ledger.read().runs["r1"].actions) == 100
    assert ledger_at(path).read() == ledger.read()


def test_two_long_lived_ledgers_see_each_others_writes(path: Path) -> None:
    one, two = ledger_at(path), ledger_at(path)
    epoch = open_run(path)
    for i in range(4):
        (one, two)[i % 2].append("r1", epoch, [begun(f"a{i}")], AT)
        assert one.read() == two.read() == ledger_at(path).read()


# -- what is written ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        ev.PhaseEnded(1, "fast", "finished", 1, float("nan"), {}),
        ev.PhaseEnded(1, "fast", "finished", 1, 1.0, {"x": float("inf")}),
        ev.GateJudged(1, "fast", True, {"x": object()}),
    ],
)
def test_what_json_cannot_say_is_refused_unwritten(path: Path, event: ev.RunEvent) -> None:
    epoch = open_run(path)
    ledger = ledger_at(path)
    up: list[ev.RunEvent] = [
        ev.PodIntended(1, "p", "local", "c", Usd(1), AT, AT),
        ev.PodUp(1, "id", Usd(1)),
        ev.AgentUp(1),
    ]
    ledger.append("r1", epoch, up, AT)
    before = ledger.records()
    with pytest.raises((ValueError, TypeError)):
        ledger.append("r1", epoch, [event], AT)
    assert ledger.records() == before
    assert ledger_at(path).read() == ledger.read()


@pytest.mark.parametrize("at", [float("nan"), float("inf")])
def test_an_instant_is_finite(path: Path, at: float) -> None:
    epoch = open_run(path)
    with pytest.raises(ValueError, match="is not a time"):
        ledger_at(path).append("r1", epoch, [begun("a")], at)
    assert len(ledger_at(path).records()) == 2


def test_what_is_kept_in_memory_is_what_is_read_back(path: Path) -> None:
    ledger = ledger_at(path)
    planned = ev.RunPlanned(
        {**plan_json(), "tuple": (1, 2), "nested": {"b": [1.5, None]}}, Usd("0.000001"), "é\ud800"
    )
    ledger.open_run("r1", planned, Usd("0.000001"), WHO, 1)
    assert ledger.read() == ledger_at(path).read()
    (opened, _) = ledger.records("r1")
    assert isinstance(opened.event, ev.RunPlanned)
    assert opened.event.plan["tuple"] == [1, 2]


# -- The ledger under real processes: raced for, killed at random instants, on a full disk ------


SCRIPT = Path(__file__).with_name("ledger_processes.py")


def run(what: str, folder: Path, rounds: int) -> dict[str, int]:
    seed = random.randrange(1 << 30)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), what, str(folder), str(rounds), str(seed)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, f"{what} with seed {seed}:\n{done.stderr}"
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def test_of_two_processes_that_race_for_one_budget_one_wins(tmp_path: Path) -> None:
    counts = run("race", tmp_path, 60)
    assert counts["first_won"] + counts["second_won"] == 60


def test_of_two_processes_that_race_under_one_grant_one_wins(tmp_path: Path) -> None:
    counts = run("grant", tmp_path, 30)
    assert counts["first_won"] + counts["second_won"] == 30


def test_processes_that_create_one_ledger_at_once_agree_on_it(tmp_path: Path) -> None:
    assert run("create", tmp_path, 40)["rounds"] == 40


def test_a_full_disk_is_an_error_in_one_line_and_keeps_what_was_written(
    tmp_path: Path,
) -> None:
    assert run("full", tmp_path, 15)["rounds"] == 15


# -- The ledger's file newer, restored from a backup, replaced, lost, or without its head -------


def test_a_newer_ledger_is_left_alone(path: Path) -> None:
    open_run(path)
    edit(
        path,
        f"UPDATE meta SET version = {VERSION + 1}",
        "ALTER TABLE events ADD COLUMN colour TEXT",
    )
    before = path.read_bytes()
    for use in (
        SqliteLedger.read,
        SqliteLedger.records,
        lambda ledger: ledger.take_over("r1", WHO, AT),
        lambda ledger: ledger.set_cap(ev.CapSet("account", "", Usd(1)), AT),
        lambda ledger: ledger.beat("r1", 1, AT),
        lambda ledger: ledger.release("r1", 1),
        lambda ledger: ledger.driver("r1"),
    ):
        with pytest.raises(LedgerTooNew, match="newer") as caught:
            use(ledger_at(path))
        assert update_command() in caught.value.next_step
    assert path.read_bytes() == before


def test_a_restored_backup_is_noticed(path: Path) -> None:
    open_run(path)
    append(path, "a")
    backup = path.read_bytes()
    append(path, "b")
    alive = ledger_at(path)
    alive.read()
    path.write_bytes(backup)
    for ledger in (alive, ledger_at(path)):
        for use in (
            SqliteLedger.read,
            SqliteLedger.records,
            lambda ledger: ledger.take_over("r1", WHO, AT),
        ):
            with pytest.raises(LedgerDamaged, match="restored from a backup") as caught:
                use(ledger)
            assert "--accept-restored" in caught.value.next_step
    assert path.read_bytes() == backup
    head_of(path).unlink()
    append(path, "c")
    assert begun_in(ledger_at(path)) == {"a", "c"}


def test_a_restored_backup_is_accepted_once_and_then_reconciled(
    path: Path,
) -> None:
    open_run(path)
    backup = path.read_bytes()
    assert not ledger_at(path).accept_restored(AT + 4)
    append(path, "b")
    alive = ledger_at(path)
    alive.read()
    path.write_bytes(backup)
    assert ledger_at(path).accept_restored(AT + 5)
    for ledger in (alive, ledger_at(path)):
        assert ledger.read().restored == RestoredCopy(at=AT + 5, since=AT)
        assert not ledger.accept_restored(AT + 6)
        with pytest.raises(BudgetRefused, match="restored from a backup"):
            open_run(path, "r2")
    alive.note(ev.LedgerReconciled(), AT + 7)
    open_run(path, "r2")
    with pytest.raises(IllegalTransition):
        ledger_at(path).note(ev.LedgerReconciled(), AT + 8)


def test_a_backup_that_went_on_by_itself_is_noticed(path: Path, tmp_path: Path) -> None:
    """As long as the records differ, however many there are."""
    open_run(path)
    elsewhere = tmp_path / "elsewhere" / "ledger.db"
    shutil.copytree(path.parent, elsewhere.parent)
    append(path, "a")
    append(elsewhere, "b", "c", "d")
    shutil.copy(elsewhere, path)
    with pytest.raises(LedgerDamaged, match="restored from a backup"):
        ledger_at(path).read()
    assert ledger_at(path).accept_restored(AT + 5)
    restored = present(ledger_at(path).read().restored)
    assert restored.since == AT, "since its first record: what it shares is not known"


def test_another_ledger_in_its_place_is_noticed(path: Path, tmp_path: Path) -> None:
    ledger_at(path).read()
    other = tmp_path / "other" / "ledger.db"
    open_run(other)
    shutil.copy(other, path)
    with pytest.raises(LedgerDamaged, match="replaced"):
        ledger_at(path).read()


@pytest.mark.parametrize("head", ["older", "none", "empty", "zeros"])
def test_a_crash_before_the_head_was_written_is_no_error(path: Path, head: str) -> None:
    open_run(path)
    older = head_of(path).read_bytes()
    append(path, "a")
    contents = {"older": older, "empty": b"", "zeros": bytes(70)}
    if head == "none":
        head_of(path).unlink()
    else:
        head_of(path).write_bytes(contents[head])
    assert begun_in(ledger_at(path)) == {"a"}
    append(path, "b")
    assert head_of(path).read_bytes().startswith(b"4 ")


def test_a_damaged_head_is_named(path: Path) -> None:
    open_run(path)
    head_of(path).write_bytes(b"garbage")
    with pytest.raises(LedgerDamaged, match="side file") as caught:
        ledger_at(path).read()
    assert caught.value.where == str(head_of(path))


def test_a_ledger_that_vanished_is_not_made_anew(path: Path) -> None:
    open_run(path)
    alive = ledger_at(path)
    path.unlink()
    for ledger in (alive, ledger_at(path)):
        with pytest.raises(LedgerDamaged, match="missing"):
            ledger.read()
        with pytest.raises(LedgerDamaged, match="missing"):
            ledger.set_cap(ev.CapSet("account", "", Usd(1)), AT)
    assert not path.exists()


def test_what_a_killed_process_left_of_the_head_is_swept(path: Path) -> None:
    open_run(path)
    path.with_name("ledger.head.0123456789abcdef").write_bytes(b"1")
    append(path, "a")
    assert sorted(os.listdir(path.parent)) == ["ledger.db", "ledger.head"]


def test_a_head_that_cannot_be_written_does_not_undo_a_commit(path: Path) -> None:
    open_run(path)
    head_of(path).unlink()
    head_of(path).mkdir()
    (head_of(path) / "full").touch()
    before = path.stat().st_size
    with pytest.raises(LedgerError):
        append(path, "a")
    assert path.stat().st_size == before
    shutil.rmtree(head_of(path))
    append(path, "a")


# -- ``trmcloud admin ledger``: check, backups, restore, settle, on files damaged by hand -------


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
    assert command("admin", "ledger", "check")[0] == 0
    edit(home, "UPDATE events SET body = body || ' ' WHERE seq = 3")
    code, said = command("admin", "ledger", "check")
    assert code == 7
    assert "record 3 of r1 is damaged" in said
    code, said = command("status")
    assert code == 0
    assert "its records are damaged; 3 of 4 could be read" in said
    code, said = command("admin", "ledger", "restore")
    assert code == 0
    assert "record 3 was restored" in said
    assert command("admin", "ledger", "check")[0] == 0


def test_a_run_that_no_backup_has_is_settled_by_hand(home: Path) -> None:
    edit(home, "UPDATE events SET body = body || ' ' WHERE seq = 3")
    for backup in (home.parent / "backups").glob("*.db"):
        backup.unlink()
    assert command("admin", "ledger", "restore", "--yes")[0] == 3
    assert command("admin", "ledger", "settle", "r9", "2")[0] == 3
    code, said = command("admin", "ledger", "settle", "r1", "2", "--json")
    assert code == 0
    assert document_in(said)["cost_usd"] == "2"
    line = json.loads(command("budget", "show", "--json")[1])["budgets"][0]
    assert (line["settled_usd"], line["reserved_usd"]) == ("2", "0")


def test_a_lost_file_is_restored_by_the_next_command_and_says_what_was_lost(home: Path) -> None:
    (home.parent / "runs" / "r-abcdef").mkdir(parents=True)
    append_cap(home)
    home.write_bytes(b"")
    code, said = command("status")
    assert code == 0
    assert "backup 1" in said
    assert "lost: records 5 to 5 (1)" in said
    assert "runs that it no longer contains: r-abcdef" in said
    assert "no run can be launched until trmcloud admin reap --yes" in said
    assert "could not be used" not in command("status")[1]


def append_cap(path: Path) -> None:
    ledger_at(path).set_cap(ev.CapSet("account", "", Usd(5)), AT + 3)


def test_it_asks_before_it_replaces(home: Path) -> None:
    assert command("admin", "ledger", "restore")[0] == 2, "a whole ledger is not replaced"
    assert command("admin", "ledger", "restore", "1")[0] == 2, "not a terminal"
    code, said = command("admin", "ledger", "restore", "1", "--yes", "--json")
    assert code == 0
    assert (document_in(said)["backup"], document_in(said)["complete"]) == (1, True)


SWEPT_RUN = "r-aaaaaa"
SWEPT = (
    ("status", "--all"), ("stop", "-y", SWEPT_RUN), ("stop", "-y", "--now", SWEPT_RUN),
    ("admin", "reap", "--yes"), ("report",), ("report", SWEPT_RUN), ("admin", "ledger", "check"),
    ("budget", "show"),
    ("admin", "ledger", "backups"), ("fetch-best", SWEPT_RUN),
)  # fmt: skip
EXITS = {"stop": {0, 7, 8}, "fetch-best": {3, 7}}
"""Well, or the ledger's code; else those of a run that is not known or has ended."""


@pytest.mark.parametrize("live", [False, True], ids=["closed", "live"])
@pytest.mark.parametrize("backups", [True, False], ids=["backups", "no backups"])
def test_no_damaged_file_is_a_traceback(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, backups: bool, live: bool
) -> None:
    """15 files of each kind: five are cut, ten have a bit flipped."""
    shutil.rmtree(home.parent)
    planned = ev.RunPlanned(plan_json(a_candidate()), Usd(10), "thesis")
    epoch = ledger_at(home).open_run(SWEPT_RUN, planned, Usd(1), WHO, AT)
    if not live:
        ledger_at(home).append(SWEPT_RUN, epoch, [ev.Closed("failed")], AT + 2)
    content = home.read_bytes()
    filled = [place for place, byte in enumerate(content) if byte]
    rng = random.Random(32)
    found: dict[int, int] = {}
    for number in range(15):
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
            assert code in EXITS.get(words[0], {0, 7}), place
            if code == 7:
                assert said.strip(), place
                assert "name the run" not in said, place
            found[code] = found.get(code, 0) + 1
    assert found[0] > 0, found
    assert found[7] > 0, found
