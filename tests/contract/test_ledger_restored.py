"""The ledger's file newer, restored from a backup, replaced, lost, or without its head."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.ledger_file import AT, WHO, append, begun_in, edit, head_of, ledger_at, open_run
from trmcloud.adapters.ledger.records import VERSION
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev
from trmcloud.core.control.ledger_facts import Restored
from trmcloud.core.control.run_state import IllegalTransition
from trmcloud.core.errors import BudgetRefused, LedgerDamaged, LedgerError, LedgerTooNew
from trmcloud.core.money import Usd


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
    ):
        with pytest.raises(LedgerTooNew, match="newer") as caught:
            use(ledger_at(path))
        assert "upgrade" in caught.value.next_step
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "use",
    [
        lambda ledger: ledger.beat("r1", 1, AT),
        lambda ledger: ledger.release("r1", 1),
        lambda ledger: ledger.driver("r1"),
    ],
    ids=["beat", "release", "driver"],
)
def test_a_newer_ledgers_drivers_are_left_alone_too(
    path: Path, use: Callable[[SqliteLedger], object]
) -> None:
    open_run(path)
    edit(path, f"UPDATE meta SET version = {VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(LedgerTooNew):
        use(ledger_at(path))
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


def test_a_restored_backup_is_accepted_once_and_reserves_nothing_until_reconciled(
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
        assert ledger.read().restored == Restored(at=AT + 5, since=AT)
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
    restored = ledger_at(path).read().restored
    assert restored is not None
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
