"""The ledger's file damaged: changed bits, lengths, records and drivers are noticed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.contract.ledger_file import AT, WHO, append, begun, edit, head_of, ledger_at, open_run
from tests.reasons import quoted
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev
from trmcloud.core.errors import LedgerDamaged, LedgerError, LedgerTooNew
from trmcloud.core.money import Usd


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
        ledger_at(path).append("r1", 1, [begun("a")], AT)


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


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        ("Teleported", "{}", "Teleported"),
        ("Reserved", '{"amount": "1", "colour": "red"}', "colour"),
    ],
)
def test_a_record_of_a_newer_version_is_not_called_damage(
    path: Path, kind: str, body: str, why: str
) -> None:
    open_run(path)
    forge(path, kind, body)
    with pytest.raises(LedgerTooNew, match=why) as caught:
        ledger_at(path).read()
    assert "backup" not in f"{caught.value.what} {caught.value.next_step}"


def test_a_forged_record_that_is_legal_is_read(path: Path) -> None:
    """The forger above is right about the hash: else its tests would prove nothing."""
    open_run(path)
    forge(path, "StopRequested", '{"by": "x", "reason": "y"}')
    assert ledger_at(path).read().runs["r1"].stop == ev.StopRequested("x", quoted("y"))
