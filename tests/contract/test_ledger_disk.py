"""The ledger's file: how it is made, shared by others at work, and written."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

import pytest

from tests.contract.ledger_file import AT, WHO, append, begun, edit, ledger_at, open_run
from tests.plans import plan_json
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev
from trmcloud.core.errors import LedgerError, LedgerLocked
from trmcloud.core.money import Usd

# -- making one --------------------------------------------------------------------------------


def test_it_is_made_on_first_use_for_its_owner_alone(path: Path) -> None:
    ledger = ledger_at(path)
    assert not path.parent.exists(), "nothing is touched before it is used"
    ledger.read()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(path.parent)) == ["ledger.db", "ledger.head"]
    assert ledger_at(path).ledger_id == ledger.ledger_id


def test_it_is_made_where_there_are_no_hard_links_too(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: str) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    open_run(path)
    assert set(ledger_at(path).read().runs) == {"r1"}
    assert sorted(os.listdir(path.parent)) == ["ledger.db", "ledger.head"]


def test_its_id_comes_from_the_random_source_it_is_given(path: Path) -> None:
    ledger = SqliteLedger(path, random_bytes=lambda n: b"\xab\xcd" * (n // 2))
    assert ledger.ledger_id == "abcdabcd"


def test_two_ledgers_have_two_ids(tmp_path: Path) -> None:
    assert (
        ledger_at(tmp_path / "a" / "l.db").ledger_id != ledger_at(tmp_path / "b" / "l.db").ledger_id
    )


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
def test_what_json_cannot_say_is_refused_with_nothing_written(
    path: Path, event: ev.RunEvent
) -> None:
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
    with pytest.raises(ValueError, match="instant"):
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
