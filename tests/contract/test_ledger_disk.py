"""The ledger's file: what is noticed when it is damaged, locked, newer, or an old backup."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from trmcloud.adapters.ledger_sqlite import SqliteLedger
from trmcloud.core import events as ev
from trmcloud.core.errors import (
    BudgetRefused,
    LedgerDamaged,
    LedgerError,
    LedgerLocked,
    LedgerTooNew,
)
from trmcloud.core.money import Usd
from trmcloud.core.run_state import IllegalTransition
from trmcloud.core.strays import Restored
from trmcloud.ports.ledger import ControllerId

WHO = ControllerId("laptop", 101, "boot-1")
AT = 1_790_000_000.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "ledger.db"


def ledger_at(path: Path, busy_timeout_s: float = 5.0) -> SqliteLedger:
    return SqliteLedger(path, busy_timeout_s=busy_timeout_s)


def open_run(path: Path, run_id: str = "r1") -> int:
    planned = ev.RunPlanned({"id": "p1", "text": "é" * 300}, Usd(10), "thesis")
    return ledger_at(path).open_run(run_id, planned, Usd(1), WHO, AT)


def append(path: Path, *names: str) -> None:
    ledger = ledger_at(path)
    driver = ledger.driver("r1")
    assert driver is not None
    for name in names:
        ledger.append("r1", driver.epoch, [ev.ActionStarted(name, "create")], AT + 1)


def edit(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as conn:
        for statement in statements:
            conn.execute(statement)
    conn.close()


def head_of(path: Path) -> Path:
    return path.with_name("ledger.head")


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
            ledger.append("r1", epoch, [ev.ActionStarted(f"{name}{i}", "create")], AT)

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
        (one, two)[i % 2].append("r1", epoch, [ev.ActionStarted(f"a{i}", "create")], AT)
        assert one.read() == two.read() == ledger_at(path).read()


# -- damage ------------------------------------------------------------------------------------


def test_an_empty_file_is_damage_and_stays_as_it_is(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    for use in (
        SqliteLedger.read,
        lambda ledger: ledger.set_cap(ev.CapSet("account", "", Usd(1)), AT),
    ):
        with pytest.raises(LedgerDamaged, match="empty") as caught:
            use(ledger_at(path))
        assert caught.value.where == str(path)
        assert str(path) in caught.value.next_step
    assert path.stat().st_size == 0


@pytest.mark.parametrize("content", [b"x", b"not a database\n" * 600, bytes(8192)])
def test_garbage_is_damage_and_stays_as_it_is(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    for use in (
        SqliteLedger.read,
        lambda ledger: ledger.set_cap(ev.CapSet("account", "", Usd(1)), AT),
    ):
        with pytest.raises(LedgerDamaged):
            use(ledger_at(path))
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == ["ledger.db"]


def test_an_sqlite_file_of_somebody_else_is_damage(path: Path) -> None:
    path.parent.mkdir()
    edit(path, "CREATE TABLE songs(name TEXT)", "INSERT INTO songs VALUES ('x')")
    with pytest.raises(LedgerDamaged):
        ledger_at(path).read()


def test_flipped_bits_are_noticed_or_harmless(path: Path, tmp_path: Path) -> None:
    open_run(path)
    append(path, *(f"a{i}" for i in range(12)))
    ledger_at(path).take_over("r1", WHO, AT + 1)
    state, records = ledger_at(path).read(), ledger_at(path).records()
    driver = ledger_at(path).driver("r1")
    whole = path.read_bytes()
    flipped = tmp_path / "flipped" / "ledger.db"
    flipped.parent.mkdir()
    shutil.copy(head_of(path), head_of(flipped))
    rng = random.Random(1)
    # Half of the flips where the content is: an SQLite page is filled from both its ends.
    places = [i for i, byte in enumerate(whole) if byte]
    noticed = 0
    for n in range(600):
        place = rng.choice(places) if n % 2 else rng.randrange(len(whole))
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        flipped.write_bytes(damaged)
        try:
            ledger = ledger_at(flipped, 0.0)
            assert ledger.read() == state, place
            assert ledger.records() == records, place
            assert ledger.driver("r1") == driver, place
        except LedgerError:
            noticed += 1
        for leftover in flipped.parent.glob("ledger.db-*"):
            leftover.unlink()
    assert noticed > 200


def use_all_of(ledger: SqliteLedger) -> None:
    ledger.read()
    ledger.driver("r1")


def test_a_truncated_file_is_noticed_at_every_length(path: Path, tmp_path: Path) -> None:
    open_run(path)
    append(path, *(f"a{i}" for i in range(12)))
    whole = path.read_bytes()
    short = tmp_path / "short" / "ledger.db"
    short.parent.mkdir()
    rng = random.Random(2)
    lengths = {*range(0, len(whole), 512), *(rng.randrange(len(whole)) for _ in range(40))}
    for with_head in (True, False):
        if with_head:
            shutil.copy(head_of(path), head_of(short))
        else:
            head_of(short).unlink()
        for length in sorted(lengths):
            short.write_bytes(whole[:length])
            with pytest.raises(LedgerDamaged):
                use_all_of(ledger_at(short))
            assert short.stat().st_size == length


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET body = replace(body, '\"1\"', '\"0\"') WHERE seq = 2",
        "UPDATE events SET at = at + 1 WHERE seq = 3",
        "UPDATE events SET epoch = 7 WHERE seq = 3",
        "UPDATE events SET n = n + 1 WHERE seq = 3",
        "UPDATE events SET run_id = 'r2' WHERE seq = 3",
        "UPDATE events SET kind = 'Closed' WHERE seq = 3",
        "UPDATE events SET body = 5 WHERE seq = 3",
        "UPDATE events SET body = x'ff' WHERE seq = 3",
        "UPDATE events SET body = cast(x'ff' AS TEXT) WHERE seq = 3",
        "UPDATE events SET seq = 9 WHERE seq = 5",
        "DELETE FROM events WHERE seq = 1",
        "DELETE FROM events WHERE seq = 3",
        "DELETE FROM events WHERE seq = 5",
        "DELETE FROM events",
        "DELETE FROM meta",
        "INSERT INTO meta VALUES (1, 'abcd1234')",
        "UPDATE meta SET ledger_id = 'abcd1234'",
        "UPDATE meta SET ledger_id = 'HELLO'",
        "UPDATE meta SET version = 0",
        "UPDATE meta SET version = 'x'",
        "DROP TABLE events",
        "ALTER TABLE events RENAME COLUMN body TO corpse",
    ],
)
def test_a_record_changed_by_hand_is_noticed(path: Path, statement: str) -> None:
    open_run(path)
    append(path, "a", "b", "c")
    alive = ledger_at(path)
    assert alive.ledger_id
    edit(path, statement)
    for use in (
        SqliteLedger.read,
        SqliteLedger.records,
        lambda ledger: ledger.take_over("r1", WHO, AT),
    ):
        with pytest.raises(LedgerDamaged):
            use(ledger_at(path))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE drivers SET epoch = 1",
        "UPDATE drivers SET released = 1",
        "UPDATE drivers SET pid = 1",
        "UPDATE drivers SET beat_at = beat_at + 1",
        "UPDATE drivers SET host = x'00'",
    ],
)
def test_a_driver_changed_by_hand_is_noticed(path: Path, statement: str) -> None:
    open_run(path)
    ledger_at(path).take_over("r1", WHO, AT)
    edit(path, statement)
    with pytest.raises(LedgerDamaged, match="driver"):
        ledger_at(path).driver("r1")
    with pytest.raises(LedgerDamaged, match="driver"):
        ledger_at(path).append("r1", 1, [ev.ActionStarted("a", "create")], AT)


def test_a_lost_driver_is_not_taken_for_a_run_that_nobody_ever_drove(path: Path) -> None:
    open_run(path)
    edit(path, "DELETE FROM drivers")
    with pytest.raises(LedgerDamaged, match="drives r1"):
        ledger_at(path).take_over("r1", WHO, AT)


def forge(path: Path, kind: str, body: str) -> None:
    """Append a record whose hash is right, as a broken or newer program might."""
    conn = sqlite3.connect(path)
    seq, chain = conn.execute("SELECT max(seq), chain FROM events").fetchone()
    header = json.dumps([chain, seq + 1, "r1", seq + 1, 1, AT, kind])
    link = hashlib.sha256(f"{header}\n{body}".encode()).hexdigest()
    row = (seq + 1, "r1", seq + 1, 1, AT, kind, body, link)
    conn.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    conn.commit()
    conn.close()


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        ("Teleported", "{}", "Teleported"),
        ("Reserved", '{"amount": "1", "colour": "red"}', "colour"),
        ("Reserved", "{}", "amount"),
        ("Reserved", '{"amount": "ten"}', "ten"),
        ("Reserved", "not json", "record 3"),
        ("Reserved", "[]", "record 3"),
        ("Reserved", "null", "record 3"),
        ("AgentUp", '{"generation": 1}', "contradict"),
    ],
)
def test_a_record_that_cannot_be_understood_is_never_skipped(
    path: Path, kind: str, body: str, why: str
) -> None:
    open_run(path)
    forge(path, kind, body)
    with pytest.raises(LedgerDamaged, match=why):
        ledger_at(path).read()


def test_a_forged_record_that_is_legal_is_read(path: Path) -> None:
    """The forger above is right about the hash: else its tests would prove nothing."""
    open_run(path)
    forge(path, "StopRequested", '{"by": "x", "reason": "y"}')
    assert ledger_at(path).read().runs["r1"].stop == ev.StopRequested("x", "y")


# -- newer, older, elsewhere -------------------------------------------------------------------


def test_a_newer_ledger_is_left_alone(path: Path) -> None:
    open_run(path)
    edit(path, "UPDATE meta SET version = 2", "ALTER TABLE events ADD COLUMN colour TEXT")
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
    edit(path, "UPDATE meta SET version = 2")
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
    assert set(ledger_at(path).read().runs["r1"].actions) == {"a", "c"}


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
    assert set(ledger_at(path).read().runs["r1"].actions) == {"a"}
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
        ledger_at(path).append("r1", epoch, [ev.ActionStarted("a", "create")], at)
    assert len(ledger_at(path).records()) == 2


def test_what_is_kept_in_memory_is_what_is_read_back(path: Path) -> None:
    ledger = ledger_at(path)
    planned = ev.RunPlanned(
        {"tuple": (1, 2), "nested": {"b": [1.5, None]}}, Usd("0.000001"), "é\ud800"
    )
    ledger.open_run("r1", planned, Usd("0.000001"), WHO, 1)
    assert ledger.read() == ledger_at(path).read()
    assert ledger.read().runs["r1"].plan["tuple"] == [1, 2]
