"""The ledger's file damaged: changed bits, lengths, records and drivers are noticed; other runs
hold."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import shutil
import sqlite3
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
from tests.plans import a_candidate, plan_json
from tests.present import present
from tests.reasons import quoted
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.events import ActionKey
from trmcloud.core.errors import (
    BudgetRefused,
    LedgerDamaged,
    LedgerError,
    LedgerTooNew,
    RunQuarantined,
    StaleEpoch,
)
from trmcloud.core.money import Usd
from trmcloud.ports.ledger import Restoration

# -- The ledger's file damaged: changed bits, lengths, records and drivers are noticed ----------


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
        assert "trmcloud admin ledger restore" in caught.value.next_step
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


def test_a_name_that_is_no_text_is_damage(path: Path) -> None:
    """SQLite quotes it as it is."""
    open_run(path)
    path.write_bytes(path.read_bytes().replace(b"tableevents", b"table\xe5vents"))
    with pytest.raises(LedgerDamaged, match="codec"):
        ledger_at(path).read()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET seq = 9 WHERE seq = 5",
        "DELETE FROM events WHERE seq = 1",
        "DELETE FROM events WHERE seq = 3",
        "DELETE FROM events WHERE seq = 5",
        "DELETE FROM events",
        "DELETE FROM meta",
        "INSERT INTO meta VALUES (1, 'abcd1234')",
        "UPDATE meta SET ledger_id = 'HELLO'",
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
    told = present(ledger_at(path).driver("r1"))
    assert told.controller is None
    assert told.epoch > 2
    for epoch in (1, 2):
        with pytest.raises(StaleEpoch):
            ledger_at(path).append("r1", epoch, [begun("a")], AT)
    assert ledger_at(path).take_over("r1", WHO, AT) > told.epoch


def test_a_lost_driver_is_not_taken_for_a_run_that_nobody_ever_drove(path: Path) -> None:
    open_run(path)
    edit(path, "DELETE FROM drivers")
    assert ledger_at(path).take_over("r1", WHO, AT) > 2
    with pytest.raises(StaleEpoch):
        ledger_at(path).append("r1", 1, [begun("a")], AT)


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
    ("kind", "body"),
    [
        ("Reserved", "{}"),
        ("Reserved", '{"amount": "ten"}'),
        ("Reserved", "not json"),
        ("Reserved", "[]"),
        ("Reserved", "null"),
        ("AgentUp", '{"generation": 1}'),
    ],
)
def test_a_record_not_understood_is_never_skipped(path: Path, kind: str, body: str) -> None:
    open_run(path)
    forge(path, kind, body)
    hurt = ledger_at(path).read().quarantined["r1"]
    assert hurt.lost == (3,)
    assert hurt.most == Usd(10) if kind == "Reserved" else Usd(1)


@pytest.mark.parametrize(
    ("statement", "most"),
    [
        ("UPDATE events SET body = replace(body, '\"1\"', '\"0\"') WHERE seq = 2", Usd(10)),
        ("UPDATE events SET at = at + 1 WHERE seq = 3", Usd(1)),
        ("UPDATE events SET epoch = 7 WHERE seq = 3", Usd(1)),
        ("UPDATE events SET n = n + 1 WHERE seq = 3", Usd(1)),
        ("UPDATE events SET run_id = 'r2' WHERE seq = 3", Usd(1)),
        ("UPDATE events SET kind = 'Closex' WHERE seq = 3", None),
        ("UPDATE events SET body = 5 WHERE seq = 3", Usd(1)),
        ("UPDATE events SET body = x'ff' WHERE seq = 3", Usd(1)),
        ("UPDATE events SET body = cast(x'ff' AS TEXT) WHERE seq = 3", Usd(1)),
    ],
)
def test_a_changed_record_costs_its_run_alone(path: Path, statement: str, most: Usd | None) -> None:
    open_run(path)
    append(path, "a", "b", "c")
    open_run(path, "r9")
    ledger_at(path).set_cap(ev.CapSet("account", "", Usd(20)), AT)
    other = ledger_at(path).read().runs["r9"]
    edit(path, statement)
    state = ledger_at(path).read()
    assert set(state.quarantined) == {"r1"}
    hurt = state.quarantined["r1"]
    assert hurt.most == most, "what cannot be proven less counts"
    assert len(hurt.lost) == 1
    assert hurt.read == 4
    assert "4 of 5 could be read" in hurt.words
    assert dict(state.runs) == {"r9": other}
    line = state.line("account", "")
    assert line.cap == Usd(20)
    assert line.reserved == (most or Usd(0)) + Usd(1)
    before = path.read_bytes()
    for use in (
        lambda ledger: ledger.take_over("r1", WHO, AT),
        lambda ledger: ledger.append("r1", 1, [begun("x")], AT),
        lambda ledger: ledger.request("r1", ev.StopRequested("x", quoted("y")), AT),
    ):
        with pytest.raises(RunQuarantined, match="could be read"):
            use(ledger_at(path))
    assert path.read_bytes() == before
    if most is None:
        with pytest.raises(BudgetRefused, match="not known"):
            open_run(path, "r2")
        ledger_at(path).note(ev.DamageSettled("r1", Usd(2)), AT + 5)
        assert ledger_at(path).read().line("account", "").settled == Usd(2)
    open_run(path, "r2")
    ledger_at(path).append("r9", 1, [ev.StopRequested("x", quoted("y"))], AT + 6)


def test_a_damaged_cap_stops_reservations_until_it_is_set_again(path: Path) -> None:
    ledger_at(path).set_cap(ev.CapSet("account", "", Usd(20)), AT)
    open_run(path)
    edit(path, "UPDATE events SET body = replace(body, '20', '90') WHERE seq = 1")
    assert set(ledger_at(path).read().runs) == {"r1"}
    with pytest.raises(BudgetRefused, match="which sets a cap"):
        open_run(path, "r2")
    ledger_at(path).set_cap(ev.CapSet("project", "thesis", Usd(20)), AT)
    with pytest.raises(BudgetRefused, match="which sets a cap"):
        open_run(path, "r2")
    ledger_at(path).note(ev.DamageSettled("#1", Usd(0)), AT)
    open_run(path, "r2")


def test_a_damaged_hash_is_proven_by_the_next(path: Path) -> None:
    open_run(path)
    append(path, "a", "b")
    state = ledger_at(path).read()
    for seq in (1, 4):  # by the next record, and by the head
        edit(path, f"UPDATE events SET chain = 'f' || substr(chain, 2) WHERE seq = {seq}")
    assert ledger_at(path).read() == state
    append(path, "c")
    assert not ledger_at(path).read().quarantined


@pytest.mark.parametrize(
    "statement", ["version = 0", "version = 'x'", "ledger_id = 'x' || substr(ledger_id, 2)"]
)
def test_a_damaged_first_page_is_proven_by_the_first_record(path: Path, statement: str) -> None:
    open_run(path)
    state = ledger_at(path).read()
    edit(path, f"UPDATE meta SET {statement}")
    assert ledger_at(path).read() == state
    append(path, "a")
    assert ledger_at(path).ledger_id == state.ledger_id


@pytest.mark.parametrize("place", [0, 1, 2, 30, 66])
def test_a_damaged_head_is_proven_by_the_record_that_it_names(path: Path, place: int) -> None:
    open_run(path)
    state = ledger_at(path).read()
    text = bytearray(head_of(path).read_bytes())
    text[place] ^= 4
    head_of(path).write_bytes(text)
    assert ledger_at(path).read() == state
    append(path, "a")
    assert head_of(path).read_bytes().startswith(b"3 ")


def test_damaged_records_are_put_back_from_a_backup(path: Path) -> None:
    open_run(path)
    append(path, "a")
    assert ledger_at(path).back_up() is not None
    append(path, "b")
    state = ledger_at(path).read()
    edit(path, "UPDATE events SET body = replace(body, '1', '2') WHERE seq = 3")
    assert [lost.seq for lost in ledger_at(path).check()] == [3]
    assert [lost.seq for lost in ledger_at(path).mend()] == [3]
    assert ledger_at(path).read() == state


def test_five_backups_are_kept_each_whole_and_its_owners_alone(path: Path) -> None:
    open_run(path)
    for number in range(7):
        append(path, f"a{number}")
        assert ledger_at(path).back_up() is not None
    found = ledger_at(path).backups()
    assert [(each.number, each.seq, each.why) for each in found] == [
        (7, 9, ""), (6, 8, ""), (5, 7, ""), (4, 6, ""), (3, 5, ""),
    ]  # fmt: skip
    assert all(each.path.stat().st_mode & 0o777 == 0o600 for each in found)
    edit(path, "UPDATE events SET at = at + 1 WHERE seq = 3")
    assert ledger_at(path).back_up() is None, "a damaged ledger displaces no whole backup"
    assert len(ledger_at(path).backups()) == 5


def test_pods_of_one_run_push_out_no_backup_of_runs_that_have_ended(path: Path) -> None:
    for name in ("r2", "r3"):
        epoch = open_run(path, name)
        ledger_at(path).append(name, epoch, [ev.Closed("failed")], AT + 1)
    open_run(path)
    for number in range(9):
        append(path, f"a{number}")
        assert ledger_at(path).back_up(for_pod=True) is not None
    assert [each.number for each in ledger_at(path).backups()] == [11, 10, 9, 2, 1]
    for number in range(4):
        append(path, f"b{number}")
        assert ledger_at(path).back_up() is not None
    assert [each.number for each in ledger_at(path).backups()] == [15, 14, 13, 12, 2]


def intended(generation: int = 1) -> ev.PodIntended:
    rate, stop_at = Usd("1.5"), AT + 3600
    name = f"trmc-00000000-r1-{generation}"
    return ev.PodIntended(generation, name, "runpod", "c1", rate, stop_at, stop_at + 60)


def test_a_pod_is_in_a_backup_before_it_is_asked_for(path: Path) -> None:
    """A loss of the ledger forgets no run whose pod lives: it is driven on, by later epochs."""
    epoch = open_run(path)
    ledger = ledger_at(path)
    ledger.append("r1", epoch, [intended()], AT + 1)
    path.write_bytes(path.read_bytes()[:5000])
    done: list[Restoration] = []
    again = SqliteLedger(path, wall=lambda: AT + 9.5, on_restored=done.append)
    run = again.read().runs["r1"]
    assert [each.is_complete for each in done] == [True]
    assert run.live
    assert run.generation is not None
    assert run.generation.pod_name == "trmc-00000000-r1-1"
    assert run.reserved == Usd(1)


def test_a_later_driver_that_was_forgotten_stays_fenced(path: Path) -> None:
    epoch = open_run(path)
    ledger_at(path).append("r1", epoch, [intended()], AT + 1)
    forgotten = ledger_at(path).take_over("r1", WHO, AT + 2)
    append(path, "a")
    path.write_bytes(b"")
    again = SqliteLedger(path, wall=lambda: AT + 9.5)
    assert again.read().restored is not None
    assert present(again.driver("r1")).controller is None
    newer = again.take_over("r1", WHO, AT + 10)
    with pytest.raises(StaleEpoch):
        again.append("r1", forgotten, [begun("b")], AT + 11)
    assert newer > forgotten
    again.append("r1", newer, [begun("b")], AT + 11)


@pytest.mark.parametrize("pod", [True, False], ids=["a pod", "a closed run"])
def test_what_no_backup_holds_is_told(path: Path, pod: bool) -> None:
    epoch = open_run(path)
    (path.parent / "backups").write_bytes(b"in the way")
    event: ev.RunEvent = intended() if pod else ev.Closed("failed")
    ledger_at(path).append("r1", epoch, [event], AT + 1)
    assert ("the pod of r1" if pod else "no backup") in ledger_at(path).backup_trouble()
    (path.parent / "backups").unlink()
    assert ledger_at(path).back_up(for_pod=pod) is not None
    assert ledger_at(path).backup_trouble() == ""


def test_a_process_that_is_stopped_with_the_backups_locked_stops_no_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = open_run(path)
    assert ledger_at(path).back_up() is not None
    monkeypatch.setattr("trmcloud.adapters.ledger.backups._LOCK_WAIT_S", 0.1)
    with open(path.parent / "backups" / "lock", "r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ledger_at(path).append("r1", epoch, [intended()], AT + 1)
        assert "the pod of r1" in ledger_at(path).backup_trouble()


@pytest.mark.parametrize("kind", [0x0D, 0x0A], ids=["records", "drivers"])
def test_a_page_that_only_writes_meet_is_found_and_restored(path: Path, kind: int) -> None:
    """The free space of a page is damaged: each record can be read, and none be written."""
    epoch = open_run(path)
    ledger_at(path).append("r1", epoch, [intended()], AT + 1)
    content = bytearray(path.read_bytes())
    hurt = [page for page in range(4096, len(content), 4096) if content[page] == kind]
    for page in hurt:
        content[page + 1 : page + 3] = b"\x0f\xfd"
    assert hurt
    path.write_bytes(content)
    plain = ledger_at(path)
    assert plain.read().runs["r1"].live, "each record can be read"
    with pytest.raises(LedgerDamaged, match="pages"):
        plain.check()
    done: list[Restoration] = []
    again = SqliteLedger(path, wall=lambda: AT + 9, on_restored=done.append)
    newer = again.take_over("r1", WHO, AT + 10)
    assert newer > epoch
    if not done:
        with pytest.raises(StaleEpoch):  # which driver was the newest is lost with the file
            again.append("r1", newer, [begun("b")], AT + 11)
        newer = again.take_over("r1", WHO, AT + 11)
    again.append("r1", newer, [begun("b")], AT + 12)
    assert len(done) == 1
    assert done[0].is_complete
    assert done[0].aside is not None
    assert ledger_at(path).check() == ()
    assert begun_in(ledger_at(path)) == {"b"}


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        ("Teleported", "{}", "Teleported"),
        ("Reserved", '{"amount": "1", "colour": "red"}', "colour"),
    ],
)
def test_a_newer_versions_record_is_no_damage(path: Path, kind: str, body: str, why: str) -> None:
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


# -- ledger sweep -------------------------------------------------------------------------------
# A ledger cut at random bytes and flipped at random bits: other runs, caps and money hold, and no
# record is believed that was not written. A tenth of the places by default;
# ``TRMCLOUD_TEST_ALL_FLIPS=1`` tries all.


ALL = 1000
MANY = ALL if os.environ.get("TRMCLOUD_TEST_ALL_FLIPS") else 100
CLOSED = ("r-aaaaaa", "r-bbbbbb", "r-cccccc")
LIVE = "r-dddddd"


def planned() -> ev.RunPlanned:
    return ev.RunPlanned({**plan_json(a_candidate()), "text": "é" * 300}, Usd(10), "thesis")


def begun_by(run_id: str, name: str) -> ev.ActionStarted:
    return ev.ActionStarted(str(ActionKey(run_id, 1, "pull", 1, name)), "pull")


def closed_run(ledger: SqliteLedger, run_id: str) -> None:
    epoch = ledger.open_run(run_id, planned(), Usd(3), WHO, AT)
    ledger.append(run_id, epoch, [ev.Closed("failed", None)], AT + 1)
    ledger.release(run_id, epoch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with three closed runs, a live one, caps, a charge, and a backup after each close."""
    path = tmp_path_factory.mktemp("whole") / "home" / "ledger.db"
    ledger = SqliteLedger(path)
    ledger.set_cap(ev.CapSet("account", "", Usd(100)), AT)
    for run_id in CLOSED:
        closed_run(ledger, run_id)
    ledger.set_cap(ev.CapSet("project", "thesis", Usd(50)), AT)
    epoch = ledger.open_run(LIVE, planned(), Usd(3), WHO, AT + 2)
    for number in range(8):
        ledger.append(LIVE, epoch, [begun_by(LIVE, f"a{number}")], AT + 3)
    ledger.note(ev.StrayCharged("local", "p1", "trmcloud-none", "", AT, Usd("0.5")), AT + 4)
    return path.parent


def copied(whole: Path, tmp_path: Path, *, backups: bool) -> Path:
    home = tmp_path / "home"
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(whole, home)
    if not backups:
        shutil.rmtree(home / "backups")
    return home / "ledger.db"


def judge(before: LedgerState, after: LedgerState, restored: bool, place: object) -> None:
    """What is read after damage may lack things; it never holds less money, or more freedom."""
    assert after.ledger_id == before.ledger_id, place
    for run_id, run in after.runs.items():
        assert run == before.runs[run_id] or restored, (place, run_id)
    if restored:
        assert after.restored is not None or after.runs == before.runs, place
        return
    lost = {*before.runs} - {*after.runs}
    assert lost <= {*after.quarantined}, (place, lost)
    held = after.line("account", "")
    asked = before.line("account", "")
    free = all(not hurt.is_open for hurt in after.quarantined.values()) and not after.unread
    if free:
        assert held.settled + held.reserved >= asked.settled + asked.reserved, place
        assert held.cap is not None, place
        assert held.cap <= (asked.cap or Usd(0)), place


def try_one(path: Path, before: LedgerState, place: object) -> str:
    done: list[Restoration] = []
    ledger = SqliteLedger(path, busy_timeout_s=0.0, wall=lambda: AT + 9, on_restored=done.append)
    try:
        for run_id in ledger.read().runs:
            ledger.driver(run_id)
        after = ledger.read()
    except LedgerError:
        return "refused"
    judge(before, after, bool(done), place)
    for run_id in after.runs:
        if after.runs[run_id].live:
            try:
                ledger.take_over(run_id, WHO, AT + 10)
            except LedgerDamaged:
                return "refused to write"
    free = not after.unread and all(not hurt.is_open for hurt in after.quarantined.values())
    pending = after.restored is not None and after.restored.reconciled_at is None
    were_done = len(done)
    try:
        ledger.open_run("r-eeeeee", planned(), Usd(1), WHO, AT + 11)
    except BudgetRefused:
        if len(done) > were_done:  # only a write meets such a page: the file was restored for it
            after = ledger.read()
            judge(before, after, restored=True, place=place)
            pending = after.restored is not None and after.restored.reconciled_at is None
        assert pending or not free, place
    except LedgerDamaged:
        return "refused to write"  # a page that no read needs is damaged: nothing was changed
    else:
        assert free, place
        assert not pending, place
        assert "r-eeeeee" in SqliteLedger(path).read().runs, place
    if done:
        return "restored"
    return "quarantined" if after.quarantined or after.unread else "whole"


def tally(found: dict[str, int], what: str) -> None:
    found[what] = found.get(what, 0) + 1


@pytest.mark.parametrize("backups", [True, False], ids=["backups", "no backups"])
def test_flipped_bits_cost_one_run_or_are_restored(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, backups: bool
) -> None:
    before = SqliteLedger(whole / "ledger.db").read()
    content = (whole / "ledger.db").read_bytes()
    filled = [place for place, byte in enumerate(content) if byte]
    rng = random.Random(29)
    found: dict[str, int] = {}
    for number in range(ALL):
        byte = rng.choice(filled) if number % 2 else rng.randrange(len(content))
        bit = rng.randrange(8)
        if number >= MANY:
            continue
        path = copied(whole, tmp_path, backups=backups)
        damaged = bytearray(content)
        damaged[byte] ^= 1 << bit
        path.write_bytes(damaged)
        tally(found, try_one(path, before, (byte, bit)))
    with capsys.disabled():
        print(f"\n{MANY} flips: {found}")
    assert found["quarantined"] > MANY // 10
    assert found.get("refused to write", 0) <= MANY // 50
    if backups:
        assert found.get("refused", 0) <= MANY // 50, "a version that reads as newer, at most"


@pytest.mark.parametrize("backups", [True, False], ids=["backups", "no backups"])
def test_a_ledger_cut_anywhere_is_restored_or_left_alone(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, backups: bool
) -> None:
    before = SqliteLedger(whole / "ledger.db").read()
    content = (whole / "ledger.db").read_bytes()
    rng = random.Random(30)
    found: dict[str, int] = {}
    for number in range(ALL):
        length = 0 if number == 0 else rng.randrange(len(content))
        if number >= MANY:
            continue
        path = copied(whole, tmp_path, backups=backups)
        path.write_bytes(content[:length])
        what = try_one(path, before, length)
        tally(found, what)
        aside = list(path.parent.glob("ledger.db.damaged-*"))
        kept = [length] if what == "restored" else []
        assert [each.stat().st_size for each in aside] == kept, "the damaged file is kept"
        assert what != "refused" or path.stat().st_size == length
    with capsys.disabled():
        print(f"\n{MANY} cuts: {found}")
    # Where nothing but the unused end of the last page is cut off, every hash is still right.
    usual = "restored" if backups else "refused"
    assert set(found) <= {usual, "whole", "quarantined"}
    assert found[usual] > MANY * 0.8


@pytest.mark.parametrize("lost", ["header", "file", "file and head"])
def test_a_lost_ledger_is_restored(whole: Path, tmp_path: Path, lost: str) -> None:
    before = SqliteLedger(whole / "ledger.db").read()
    path = copied(whole, tmp_path, backups=True)
    if lost == "header":
        path.write_bytes(bytes(100) + path.read_bytes()[100:])
    else:
        path.unlink()
    if lost == "file and head":
        head_of(path).unlink()
    assert try_one(path, before, lost) == "restored"
    assert set(SqliteLedger(path).read().runs) == set(CLOSED)
