"""A ledger cut at random bytes and flipped at random bits: other runs, caps and money hold, and no
record is believed that was not written.

A tenth of the places by default; ``TRMCLOUD_TEST_ALL_FLIPS=1`` tries all.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
from pathlib import Path

import pytest

from tests.contract.ledger_file import AT, WHO, head_of
from tests.plans import a_candidate, plan_json
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev
from trmcloud.core.control.action_key import ActionKey
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.errors import BudgetRefused, LedgerDamaged, LedgerError
from trmcloud.core.money import Usd
from trmcloud.ports.ledger import Restoration

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


def test_flipped_bits_cost_one_run_or_are_restored(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
        path = copied(whole, tmp_path, backups=True)
        damaged = bytearray(content)
        damaged[byte] ^= 1 << bit
        path.write_bytes(damaged)
        tally(found, try_one(path, before, (byte, bit)))
    with capsys.disabled():
        print(f"\n{MANY} flips: {found}")
    assert found["quarantined"] > MANY // 10
    assert found.get("refused to write", 0) <= MANY // 50
    assert found.get("refused", 0) <= MANY // 50, "a version that reads as newer, at most"


def test_a_ledger_cut_anywhere_is_restored(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = SqliteLedger(whole / "ledger.db").read()
    content = (whole / "ledger.db").read_bytes()
    rng = random.Random(30)
    found: dict[str, int] = {}
    for number in range(ALL):
        length = 0 if number == 0 else rng.randrange(len(content))
        if number >= MANY:
            continue
        path = copied(whole, tmp_path, backups=True)
        path.write_bytes(content[:length])
        what = try_one(path, before, length)
        tally(found, what)
        aside = list(path.parent.glob("ledger.db.damaged-*"))
        kept = [length] if what == "restored" else []
        assert [each.stat().st_size for each in aside] == kept, "the damaged file is kept"
    with capsys.disabled():
        print(f"\n{MANY} cuts: {found}")
    # Where nothing but the unused end of the last page is cut off, every hash is still right.
    assert set(found) <= {"restored", "whole", "quarantined"}
    assert found["restored"] > MANY * 0.8


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


COMMANDS = (
    ("status",), ("status", "--all", "--json"), ("stop", LIVE), ("stop", "--now", LIVE), ("reap",),
    ("reap", "--yes"), ("report", CLOSED[0]), ("budget", "show"), ("ledger", "check"),
    ("ledger", "backups"), ("ledger", "restore", "--yes"), ("doctor",), ("budget", "history"),
    ("fetch-best", CLOSED[1]), ("resume", CLOSED[0]), ("status", CLOSED[2]),
)  # fmt: skip


def command(*arguments: str) -> tuple[int, str]:
    from trmcloud.cli.main import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main(list(arguments))
        except SystemExit as leaving:
            return int(leaving.code or 0), said.getvalue()
    return 0, said.getvalue()


@pytest.mark.parametrize("backups", [True, False], ids=["backups", "no backups"])
def test_no_command_ends_in_a_traceback(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, backups: bool
) -> None:
    content = (whole / "ledger.db").read_bytes()
    filled = [place for place, byte in enumerate(content) if byte]
    rng = random.Random(31)
    for number in range(MANY // 10):
        path = copied(whole, tmp_path, backups=backups)
        damaged = bytearray(content)
        if number % 3 == 2:
            damaged = damaged[: rng.randrange(len(content))]
        else:
            damaged[rng.choice(filled)] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        monkeypatch.setenv("TRMCLOUD_HOME", str(path.parent))
        monkeypatch.setenv("HOME", str(tmp_path))
        for words in rng.sample(COMMANDS, 3):
            code, said = command(*words)
            assert "error: unexpected" not in said, (number, words, said)
            assert "Traceback" not in said, (number, words, said)
            assert 0 <= code <= 20, (number, words, code, said)
