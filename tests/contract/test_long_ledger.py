"""A long ledger, of which a home keeps what it has verified: it says the same as a ledger that is
read in full, whatever becomes of the file beside it.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.contract import test_ledger_model as model_script
from tests.contract.ledger_file import AT, WHO, edit
from tests.plans import plan_json
from trmcloud.adapters.ledger import fold_file
from trmcloud.adapters.ledger.fold_file import FOLDER
from trmcloud.adapters.ledger.postgres import PostgresLedger
from trmcloud.adapters.ledger.recorded import RecordedLedger
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import bookkeeping
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import fold_ledger, is_owned
from trmcloud.core.control.grants import month_of
from trmcloud.core.control.run_book import RunBook, present_runs
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import LedgerDamaged, LedgerError, RunQuarantined
from trmcloud.core.money import Usd
from trmcloud.sim.world.ledger_memory import MemoryLedger

Opener = Callable[[int], RecordedLedger]


def _in_parts(ledger: RecordedLedger) -> RecordedLedger:
    ledger.kept_at, ledger.read_at_once = 7, 11
    return ledger


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the ledger anew for a home; in a file there is one home."""
    if request.param == "sqlite":
        yield lambda home: _in_parts(SqliteLedger(tmp_path / "home" / "ledger.db"))
        return
    url = request.getfixturevalue("postgres_url")
    yield lambda home: _in_parts(PostgresLedger(url, tmp_path / f"home-{home}"))


def fold_files(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.glob(f"*/{FOLDER}/*.db"))


def _truncate(path: Path, rng: random.Random) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: rng.randrange(len(whole) + 1)])


def _flip(path: Path, rng: random.Random) -> None:
    whole = bytearray(path.read_bytes())
    for _ in range(30):
        whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    path.write_bytes(whole)


def _change_a_sum(path: Path, rng: random.Random) -> None:
    with suppress(sqlite3.DatabaseError):  # it is no database any more
        edit(path, "UPDATE head SET text = replace(text, '000', '001')")


def _remove(path: Path, rng: random.Random) -> None:
    path.unlink()


def _replace_by_older(path: Path, rng: random.Random) -> None:
    kept = path.with_suffix(".older")
    if kept.exists():
        shutil.copyfile(kept, path)
    else:
        shutil.copyfile(path, kept)


_HURT = (_truncate, _change_a_sum, _remove, _replace_by_older)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_kept_of_a_ledger_says_what_its_records_add_up_to(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(model_script, "RUNS", tuple(f"r{number}" for number in range(12)))
    ledgers = [opened(0), opened(1)]
    model = MemoryLedger(ledgers[0].ledger_id)
    script = model_script.a_script(rng, 240, model_script.user_of(ledgers[0]))
    has_kept = hurt = 0
    for number, step in enumerate(script):
        expected = model_script.answer(step, model)
        which = rng.randrange(2)
        if rng.random() < 0.15:
            ledgers[which] = opened(which)
        if rng.random() < 0.05 and (files := fold_files(tmp_path)):
            # As another process finds it: who has read it before may be told to try again.
            rng.choice(_HURT)(rng.choice(files), rng)
            ledgers, hurt = [opened(0), opened(1)], hurt + 1
        if rng.random() < 0.03:
            code = f"code-{rng.randrange(3)}"
            monkeypatch.setattr(fold_file, "fold_format", lambda code=code: code)
            ledgers = [opened(0), opened(1)]
        assert model_script.answer(step, ledgers[which]) == expected, f"step {number}"
        state, whole = ledgers[which].read(), model.read()
        has_kept += isinstance(state.runs, RunBook)
        if number % 10 == 0:
            assert state == whole, f"step {number}"
            assert list(state.runs) == list(whole.runs)
            for level, key in (
                ("account", ""),
                ("month", month_of(AT)),
                *_projects(),
                *_runs(whole),
            ):
                assert state.line(level, key) == whole.line(level, key), f"step {number}: {level}"
    assert has_kept > 20
    assert hurt > 2
    assert tuple(opened(0).records()) == tuple(model.records())


def _projects() -> list[tuple[str, str]]:
    return [("project", name) for name in "pqx"]


def _runs(state: object) -> list[tuple[str, str]]:
    return [("run", run_id) for run_id in getattr(state, "runs", ())]


def live_through(ledger: RecordedLedger, run_id: str, *, key: str = "", to_end: bool = True) -> int:
    """A run that is rented for, and ends and is billed unless it is left to train."""
    planned = ev.RunPlanned(plan_json(), Usd(10), "thesis", name=f"named-{run_id}", key=key)
    epoch = ledger.open_run(run_id, planned, Usd(1), WHO, AT)
    rented: list[ev.RunEvent] = [
        ev.PodIntended(1, f"pod-{run_id}", "local", "c1", Usd(1), AT, AT),
        ev.PodUp(1, f"id-{run_id}", Usd(1)),
    ]
    ended = [ev.PodGone(1, AT), ev.Settled(1, Usd(1), Usd(1)), ev.Closed("stopped")]
    ledger.append(run_id, epoch, [*rented, *(ended if to_end else [])], AT)
    return epoch


def test_a_run_at_rest_is_found_by_all_that_names_it(opened: Opener) -> None:
    ledger = opened(0)
    for number in range(6):
        live_through(ledger, f"r{number}", key=f"key-{number}", to_end=number != 4)
    state = opened(0).read()
    assert isinstance(state.runs, RunBook)
    present = {run.run_id for run in present_runs(state.runs)}
    assert "r4" in present
    assert "r0" not in present
    with pytest.raises(bookkeeping.KeyUsed):
        bookkeeping.require_unused(state, "key-0")
    assert is_owned(state.runs, "id-r0")
    assert not is_owned(state.runs, "id-r9")
    assert state.runs["r0"].state is State.CLOSED
    assert [record.run_id for record in ledger.records("r0")] == ["r0"] * 7
    assert tuple(opened(0).records_after(3)) == tuple(ledger.records())[3:]
    assert len(state.runs) == 6
    assert "r9" not in state.runs
    epoch = opened(0).reopen_run("r0", ev.Reopened(Usd(9)), Usd(2), WHO, AT + 5)
    assert epoch == 2
    again = opened(0)
    assert again.read() == fold_ledger(again.ledger_id, again.records())
    assert again.read().line("account", "").reserved == Usd(3)


def hurt_record(ledger: RecordedLedger, tmp_path: Path, run_id: str) -> None:
    """Change what a record of that run says, behind the ledger's back."""
    statement = (
        f"UPDATE events SET body = replace(body, 'thesis', 'theses') WHERE run_id = '{run_id}'"
    )
    if isinstance(ledger, PostgresLedger):
        ledger.database.write(lambda session: session.execute(statement))
    else:
        edit(tmp_path / "home" / "ledger.db", statement)


def test_damage_of_a_run_at_rest_is_found_as_it_is_read(opened: Opener, tmp_path: Path) -> None:
    ledger = opened(0)
    for number in range(4):
        live_through(ledger, f"r{number}")
    assert isinstance(opened(0).read().runs, RunBook)
    hurt_record(ledger, tmp_path, "r1")
    state = opened(0).read()
    assert state.line("account", "").settled == Usd(4), "what it was when it was verified"
    with pytest.raises(LedgerDamaged) as told:
        state.runs["r1"]
    assert "record 8 is not what was verified" in told.value.what
    # That removed the file: the next reader reads the whole ledger.
    state = opened(0).read()
    assert set(state.quarantined) == {"r1"}
    with pytest.raises(RunQuarantined):
        opened(0).take_over("r1", WHO, AT)
    assert fold_files(tmp_path) == []


def test_a_check_reads_all_of_it(opened: Opener, tmp_path: Path) -> None:
    ledger = opened(0)
    for number in range(4):
        live_through(ledger, f"r{number}")
    ledger = opened(0)
    hurt_record(ledger, tmp_path, "r1")
    assert [lost.run_id for lost in ledger.check()] == ["r1"]
    assert set(opened(0).read().quarantined) == {"r1"}


def test_damage_of_a_live_run_is_found_at_once(opened: Opener, tmp_path: Path) -> None:
    ledger = opened(0)
    for number in range(4):
        live_through(ledger, f"r{number}", to_end=number != 2)
    hurt_record(ledger, tmp_path, "r2")
    assert set(opened(0).read().quarantined) == {"r2"}


def test_a_process_whose_file_was_removed_is_told_to_try_again(
    opened: Opener, tmp_path: Path
) -> None:
    ledger = opened(0)
    for number in range(4):
        live_through(ledger, f"r{number}")
    ledger = opened(0)
    state = ledger.read()
    for path in fold_files(tmp_path):
        path.unlink()
    with pytest.raises(LedgerError) as told:
        state.runs["r0"]
    assert str(told.value.next_step).startswith("try again")
    assert ledger.read().runs["r0"].state is State.CLOSED


def test_a_write_goes_on_where_its_file_was_removed(opened: Opener, tmp_path: Path) -> None:
    """As another process removes it that reads an older snapshot of the ledger."""
    ledger = opened(0)
    for number in range(4):
        live_through(ledger, f"r{number}")
    ledger = opened(0)
    ledger.read()
    for path in fold_files(tmp_path):
        path.unlink()
    live_through(ledger, "r4")
    state = opened(1).read()
    assert [state.runs[f"r{number}"].state for number in range(5)] == [State.CLOSED] * 5


def test_a_file_that_cannot_be_written_costs_time_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    ledger = _in_parts(SqliteLedger(home / "ledger.db"))
    home.mkdir(exist_ok=True)
    (home / FOLDER).write_text("no folder")
    for number in range(4):
        live_through(ledger, f"r{number}")
    assert len(_in_parts(SqliteLedger(home / "ledger.db")).read().runs) == 4


def test_flipped_bits_of_the_file_change_no_amount(tmp_path: Path) -> None:
    home = tmp_path / "home"
    opened = lambda: _in_parts(SqliteLedger(home / "ledger.db"))  # noqa: E731
    for number in range(6):
        live_through(opened(), f"r{number}", key=f"key-{number}")
    whole = opened()
    expected = fold_ledger(whole.ledger_id, whole.records())
    rng = random.Random(5)
    (path,) = fold_files(tmp_path)
    good = path.read_bytes()
    for _ in range(40):
        path.write_bytes(good)
        _flip(path, rng)
        try:
            state = opened().read()
            assert state == expected
        except LedgerError:  # found by the search for a run; reported once
            assert opened().read() == expected
        assert state.line("account", "") == expected.line("account", "")


def test_a_short_ledger_keeps_nothing(tmp_path: Path) -> None:
    path = tmp_path / "home" / "ledger.db"
    for number in range(6):
        live_through(SqliteLedger(path), f"r{number}")
    assert not (path.parent / FOLDER).exists()
    with sqlite3.connect(path) as conn:
        conn.execute("UPDATE events SET body = '{}' WHERE seq = 8")
    conn.close()
    assert set(SqliteLedger(path).read().quarantined) == {"r1"}
