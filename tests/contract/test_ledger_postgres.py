"""Faults that only a ledger in a database meets: cut connections, a lost answer to a commit, other
homes, tables of other versions, moves from a file and back."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract.ledger_file import AT, WHO, begun, edit_database
from tests.contract.ledger_processes import drain, exit_code, plan, spawn
from tests.postgres import PostgresServer, Proxy, require_postgres
from tests.present import present
from tests.reasons import quoted
from trmcloud.adapters.ledger import database, moving
from trmcloud.adapters.ledger.moving import move_to_database, move_to_file
from trmcloud.adapters.ledger.place import ENV_LEDGER, keep_url, ledger_url, open_ledger
from trmcloud.adapters.ledger.postgres import PostgresLedger
from trmcloud.adapters.ledger.recorded import RecordedLedger
from trmcloud.adapters.ledger.records import LedgerMoved
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev
from trmcloud.core.errors import (
    BudgetRefused,
    ConflictError,
    LedgerError,
    LedgerLocked,
    LedgerOlder,
    LedgerTooNew,
    MissingExtra,
    RunQuarantined,
    StaleEpoch,
    TrmcloudError,
    UsageError,
)
from trmcloud.core.money import Usd

SECRET = "s3cret-pass"
_PATIENCE_S = 150.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def ledger(postgres_url: str, home: Path) -> PostgresLedger:
    return PostgresLedger(postgres_url, home)


def one_line(error: TrmcloudError) -> str:
    """Return the line that a command prints of it, and its next step."""
    text = f"{error} → {error.next_step}"
    assert "\n" not in text
    assert error.next_step
    assert SECRET not in text
    return text


# -- connections ---------------------------------------------------------------------------------


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[Proxy]:
    made = Proxy(postgres_server, SECRET)
    yield made
    made.close()


def database_of(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_cut_at_the_commit_writes_once(
    proxy: Proxy, postgres_url: str, home: Path, when: str
) -> None:
    ledger = PostgresLedger(proxy.url(database_of(postgres_url)), home, patience_s=_PATIENCE_S)
    ledger.set_cap(ev.CapSet("account", "", Usd(5)), AT)
    proxy.cut_at_commit = when
    epoch = ledger.open_run("r1", plan(), Usd(3), WHO, AT)
    proxy.cut_at_commit = when
    ledger.append("r1", epoch, [begun("a")], AT)
    proxy.cut_at_commit = when
    assert ledger.take_over("r1", WHO, AT) == epoch + 1
    assert proxy.cuts == 3
    others = PostgresLedger(postgres_url, home.parent / "other")
    kinds = [type(record.event).__name__ for record in others.records()]
    assert kinds == ["CapSet", "RunPlanned", "Reserved", "ActionStarted"]
    assert present(others.driver("r1")).epoch == epoch + 1


def test_ended_sessions_and_a_restarted_server_are_met_by_a_new_connection(
    home: Path, tmp_path: Path
) -> None:
    require_postgres()
    server = PostgresServer()
    try:
        url = server.new_database()
        ledger = PostgresLedger(url, home, patience_s=_PATIENCE_S)
        epoch = ledger.open_run("r1", plan(), Usd(3), WHO, AT)
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ="
            " 'trmcloud'"
        )
        ledger.append("r1", epoch, [begun("a")], AT)
        server.restart()
        ledger.beat("r1", epoch, AT + 1)
        ledger.append("r1", epoch, [begun("b")], AT)
        assert len(PostgresLedger(url, tmp_path / "other").records()) == 4
        server.stop()
        # A client that has waited long enough gives up; time passes with each look at the clock.
        clock = iter(range(10**6))
        gone = PostgresLedger(url, home, monotonic=lambda: float(next(clock)), sleep=lambda s: None)
        with pytest.raises(LedgerError, match="does not answer") as caught:
            gone.read()
        assert caught.value.exit_code == 7
        assert "hard stop" in one_line(caught.value)
    finally:
        server.remove()


def test_a_client_that_was_never_connected_gives_up_at_once(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"postgresql://ada:{SECRET}@127.0.0.1:{port}/db"

    def no_sleep(seconds: float) -> None:
        raise AssertionError("it waited")

    with pytest.raises(LedgerError, match="does not answer") as caught:
        PostgresLedger(url, home, sleep=no_sleep).read()
    assert f"ada@127.0.0.1:{port}/db" in one_line(caught.value)


def test_a_forked_child_has_a_connection_of_its_own(ledger: PostgresLedger) -> None:
    epoch = ledger.open_run("r1", plan(), Usd(3), WHO, AT)

    def work(pipe: int) -> int:
        ledger.append("r1", epoch, [begun("child")], AT)
        return 0

    pid, pipe = spawn(work)
    ledger.append("r1", epoch, [begun("parent")], AT)
    assert exit_code(pid) == 0
    os.close(pipe)
    ledger.append("r1", epoch, [begun("later")], AT)
    assert {key.item for key in ledger.read().runs["r1"].actions} == {"child", "parent", "later"}


def test_a_server_that_answers_late_holds_up_nobody_for_ever(
    ledger: PostgresLedger, postgres_url: str, home: Path
) -> None:
    import psycopg

    epoch = ledger.open_run("r1", plan(), Usd(3), WHO, AT)
    hasty = PostgresLedger(postgres_url, home, lock_timeout_s=0.2)
    late: list[BaseException | None] = []

    def append() -> None:
        try:
            ledger.append("r1", epoch, [begun("late")], AT)
            late.append(None)
        except BaseException as error:
            late.append(error)

    with psycopg.connect(postgres_url) as holder:
        holder.execute("SELECT 1 FROM trmcloud.meta FOR UPDATE")
        waiting = threading.Thread(target=append)
        waiting.start()
        with pytest.raises(LedgerLocked, match=r"for 0\.2 s") as caught:
            hasty.append("r1", epoch, [begun("hasty")], AT)
        assert "pg_stat_activity" in one_line(caught.value)
        hasty.beat("r1", epoch, AT + 1)
        assert len(hasty.records()) == 2, "reads and heartbeats do not wait for the lock"
    waiting.join(_PATIENCE_S)
    assert late == [None]


# -- what a database refuses ---------------------------------------------------------------------


def test_a_full_disk_writes_nothing(ledger: PostgresLedger, postgres_url: str) -> None:
    epoch = ledger.open_run("r1", plan(), Usd(3), WHO, AT)
    edit_database(
        postgres_url,
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'could not extend file: No space left on device'"
        " USING ERRCODE = '53100'; END $$",
        "CREATE TRIGGER full_disk BEFORE INSERT ON events EXECUTE FUNCTION full_disk()",
    )
    with pytest.raises(LedgerError, match="its disk is full") as caught:
        ledger.append("r1", epoch, [begun("a")], AT)
    assert caught.value.exit_code == 7
    assert "free space" in one_line(caught.value)
    assert len(ledger.records()) == 2
    edit_database(postgres_url, "DROP TRIGGER full_disk ON events")
    ledger.append("r1", epoch, [begun("a")], AT)
    assert len(ledger.records()) == 3


def test_a_read_only_server_is_refused(home: Path) -> None:
    require_postgres()
    server = PostgresServer()
    try:
        url = server.new_database()
        PostgresLedger(url, home).set_cap(ev.CapSet("account", "", Usd(5)), AT)
        server.stop("fast")
        (server.data / "standby.signal").touch()
        server.start()
        with pytest.raises(LedgerError, match="read-only") as caught:
            PostgresLedger(url, home).read()
        assert "primary" in one_line(caught.value)
    finally:
        server.remove()


def test_a_user_without_rights_is_told_which(
    ledger: PostgresLedger, postgres_server: PostgresServer, postgres_url: str, home: Path
) -> None:
    ledger.set_cap(ev.CapSet("account", "", Usd(5)), AT)
    name = f"eve{os.getpid()}"
    postgres_server.execute(f"CREATE ROLE {name} LOGIN")
    poor = PostgresLedger(postgres_url.replace("//ada@", f"//{name}@"), home)
    with pytest.raises(LedgerError, match="permission denied") as caught:
        poor.read()
    assert "grant" in one_line(caught.value)
    edit_database(
        postgres_url,
        f"GRANT USAGE ON SCHEMA trmcloud TO {name}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA trmcloud TO {name}",
    )
    epoch = poor.open_run("r1", plan(), Usd(3), WHO, AT)
    poor.append("r1", epoch, [begun("a")], AT)
    poor.beat("r1", epoch, AT)


@pytest.mark.parametrize(
    ("statement", "error", "said"),
    [
        ("UPDATE meta SET schema_version = 99", LedgerTooNew, "of version 99"),
        ("UPDATE meta SET schema_version = 0", LedgerError, "trmcloud admin ledger migrate"),
        ("UPDATE meta SET version = 99", LedgerTooNew, "its format is 99"),
        ("UPDATE meta SET moved_to = 'elsewhere'", LedgerMoved, "was moved to elsewhere"),
        ("DELETE FROM meta", LedgerError, "it has no id"),
    ],
)
def test_tables_of_another_version_are_refused(
    ledger: PostgresLedger, postgres_url: str, statement: str, error: type[LedgerError], said: str
) -> None:
    epoch = ledger.open_run("r1", plan(), Usd(3), WHO, AT)
    edit_database(postgres_url, statement)
    uses: list[Callable[[], object]] = [
        ledger.read,
        lambda: ledger.append("r1", epoch, [begun("a")], AT),
        lambda: ledger.driver("r1"),
        lambda: ledger.beat("r1", epoch, AT),
        lambda: ledger.release("r1", epoch),
    ]
    for use in uses:
        with pytest.raises(error) as caught:
            use()
        assert said in one_line(caught.value)


def test_a_migration_is_a_step_forward_that_earlier_versions_refuse(
    ledger: PostgresLedger, postgres_url: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.open_run("r1", plan(), Usd(3), WHO, AT)
    assert ledger.migrate() == (1, 1)
    next_ones = (*database.MIGRATIONS, "ALTER TABLE events ADD COLUMN note text")
    monkeypatch.setattr(database, "MIGRATIONS", next_ones)
    monkeypatch.setattr("trmcloud.adapters.ledger.postgres.MIGRATIONS", next_ones)
    with pytest.raises(LedgerError, match="of version 1"):
        ledger.read()
    assert ledger.migrate() == (1, 2)
    later = PostgresLedger(postgres_url, home)
    assert len(later.records()) == 2
    monkeypatch.undo()
    with pytest.raises(LedgerTooNew):
        PostgresLedger(postgres_url, home).read()
    with pytest.raises(LedgerTooNew):
        ledger.migrate()


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://ada:{SECRET}@host/db",
        f"postgresql://ada:{SECRET}@host:port:port/db?x",
        SECRET,
        f"postgresql://ada:{SECRET}@host/db?unknown_word=1",
    ],
)
def test_a_url_that_cannot_be_read_is_not_quoted(url: str, home: Path) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(UsageError, match="cannot be read") as caught:
        open_ledger(home, {ENV_LEDGER: url})
    one_line(caught.value)


def test_without_psycopg_the_extra_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match="postgres") as caught:
        open_ledger(home, {ENV_LEDGER: f"postgresql://ada:{SECRET}@host/db"})
    assert "install" in one_line(caught.value)


def test_a_wrong_password_is_not_shown(home: Path) -> None:
    require_postgres()
    server = PostgresServer()
    try:
        url = server.new_database()
        server.execute("ALTER ROLE ada PASSWORD 'right'")
        (server.data / "pg_hba.conf").write_text("local all all scram-sha-256\n")
        server.restart()
        wrong = url.replace("//ada@", f"//ada:{SECRET}@")
        with pytest.raises(LedgerError, match="password authentication failed") as caught:
            PostgresLedger(wrong, home).read()
        one_line(caught.value)
        right = PostgresLedger(url.replace("//ada@", "//ada:right@"), home)
        right.set_cap(ev.CapSet("account", "", Usd(5)), AT)
        shown = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
        assert shown
        assert not any(b"right" in text for text in shown)
    finally:
        server.remove()


# -- several homes -------------------------------------------------------------------------------


def test_a_heartbeats_age_is_told_by_the_databases_clock(postgres_url: str, tmp_path: Path) -> None:
    ahead = AT + 86_400.0
    ada = PostgresLedger(postgres_url, tmp_path / "ada", wall=lambda: ahead)
    bob = PostgresLedger(postgres_url, tmp_path / "bob", wall=lambda: AT)
    epoch = ada.open_run("r1", plan(), Usd(3), WHO, ahead)
    ada.beat("r1", epoch, ahead)
    assert 0 <= AT - present(bob.driver("r1")).beat_at < 3_600
    edit_database(postgres_url, "UPDATE drivers SET touched_at = touched_at - 40000")
    assert 40_000 <= AT - present(bob.driver("r1")).beat_at < 43_600


def test_processes_that_create_one_ledger_at_once_share_it(postgres_url: str, home: Path) -> None:
    def maker(pipe: int) -> int:
        os.write(pipe, PostgresLedger(postgres_url, home).ledger_id.encode())
        return 0

    children = [spawn(maker) for _ in range(4)]
    os.kill(children[0][0], signal.SIGKILL)
    codes = [exit_code(pid) for pid, _ in children]
    assert codes[1:] == [0, 0, 0]
    said = {drain(pipe).decode() for _, pipe in children} - {""}
    assert said == {PostgresLedger(postgres_url, home).ledger_id}


def test_of_processes_that_race_for_one_reservation_one_gets_it(
    postgres_url: str, home: Path
) -> None:
    PostgresLedger(postgres_url, home).set_cap(ev.CapSet("account", "", Usd(5)), AT)
    go_read, go_write = os.pipe()

    def contender(name: str) -> Callable[[int], int]:
        def work(pipe: int) -> int:
            os.close(go_write)
            ledger = PostgresLedger(postgres_url, home, lock_timeout_s=_PATIENCE_S)
            os.write(pipe, b"ready")
            os.read(go_read, 1)  # returns once the parent has closed the other end
            try:
                ledger.open_run(name, plan(), Usd(3), WHO, AT)
            except BudgetRefused as error:
                return error.exit_code
            return 0

        return work

    children = [spawn(contender(f"r{number}")) for number in range(6)]
    for _, pipe in children:
        os.read(pipe, 5)
    os.close(go_write)
    codes = sorted(exit_code(pid) for pid, _ in children)
    for _, pipe in children:
        os.close(pipe)
    os.close(go_read)
    assert codes == [0, 4, 4, 4, 4, 4]
    assert PostgresLedger(postgres_url, home).read().line("account", "").reserved == Usd(3)


def test_an_older_copy_of_the_database_is_found_out_and_accepted_once(
    postgres_url: str, tmp_path: Path
) -> None:
    ada, bob = (PostgresLedger(postgres_url, tmp_path / name) for name in ("ada", "bob"))
    epoch = ada.open_run("r1", plan(), Usd(3), WHO, AT)
    ada.append("r1", epoch, [begun("lost")], AT)
    bob.read()
    edit_database(postgres_url, "DELETE FROM events WHERE seq = 3")
    for ledger in (ada, bob, PostgresLedger(postgres_url, tmp_path / "ada")):
        with pytest.raises(LedgerOlder) as caught:
            ledger.read()
        assert "--accept-restored" in one_line(caught.value)
    with pytest.raises(LedgerOlder):
        bob.append("r1", epoch, [begun("other")], AT)
    assert ada.accept_restored(AT + 10)
    assert not ada.accept_restored(AT + 11)
    with pytest.raises(BudgetRefused, match="restored from a backup"):
        bob.open_run("r2", plan(), Usd(1), WHO, AT + 12)
    # A home that has never seen it has nothing to compare.
    assert len(PostgresLedger(postgres_url, tmp_path / "carol").records()) == 3


def test_a_database_with_another_ledger_is_not_taken_for_the_same(
    ledger: PostgresLedger, postgres_url: str
) -> None:
    ledger.open_run("r1", plan(), Usd(3), WHO, AT)
    edit_database(postgres_url, "DROP SCHEMA trmcloud CASCADE")
    ledger.close()
    with pytest.raises(LedgerError, match="this home has used") as caught:
        ledger.read()
    one_line(caught.value)


def test_a_transactions_number_alone_proves_no_commit(
    ledger: PostgresLedger, postgres_server: PostgresServer, postgres_url: str
) -> None:
    """A server that has crashed may give a lost transaction's number to another."""
    ledger.set_cap(ev.CapSet("account", "", Usd(5)), AT)
    ((done,),) = postgres_server.execute("SELECT xmin::text FROM trmcloud.events", url=postgres_url)
    has_landed = ledger.database._has_landed
    assert has_landed(done, lambda session: True)
    assert not has_landed(done, lambda session: False)
    assert not has_landed(str(10**15), lambda session: True), "it was never given"


# -- backups -------------------------------------------------------------------------------------


def test_a_damaged_record_is_put_back_from_an_exported_backup(
    ledger: PostgresLedger, postgres_url: str, home: Path
) -> None:
    epoch = ledger.open_run("r1", plan(), Usd(3), WHO, AT)
    backup = present(ledger.back_up())
    assert backup.seq == 2
    assert SqliteLedger(backup.path).records() == ledger.records(), "it is a ledger by itself"
    edit_database(postgres_url, "UPDATE events SET body = body || ' ' WHERE seq = 2")
    assert [lost.seq for lost in ledger.check()] == [2]
    with pytest.raises(RunQuarantined):
        ledger.append("r1", epoch, [begun("a")], AT)
    assert [lost.seq for lost in ledger.mend()] == [2]
    assert ledger.check() == ()
    ledger.append("r1", epoch, [begun("a")], AT)


def test_a_backup_takes_the_place_of_damaged_tables(
    ledger: PostgresLedger, postgres_url: str, home: Path
) -> None:
    epoch = ledger.open_run("r1", plan(), Usd(3), WHO, AT)
    ledger.back_up()
    ledger.append("r1", epoch, [begun("lost")], AT)
    edit_database(postgres_url, "DELETE FROM events WHERE seq = 1")
    with pytest.raises(LedgerError):
        PostgresLedger(postgres_url, home).read()
    done = present(PostgresLedger(postgres_url, home).restore(AT + 10, "damaged"))
    assert done.newest_seq == 3
    restored = PostgresLedger(postgres_url, home)
    assert [type(r.event).__name__ for r in restored.records()] == [
        "RunPlanned", "Reserved", "LedgerRestored",
    ]  # fmt: skip
    with pytest.raises(StaleEpoch):
        restored.append("r1", epoch, [begun("a")], AT)
    assert done.aside is not None
    kept = edit_database(postgres_url, f"SELECT count(*) FROM {done.aside.name.lower()}")
    assert kept == [(2,)]


# -- moves ---------------------------------------------------------------------------------------


@pytest.fixture
def filled(home: Path) -> SqliteLedger:
    ledger = SqliteLedger(home / "ledger.db")
    ledger.set_cap(ev.CapSet("account", "", Usd(50)), AT)
    for run_id in ("r1", "r2"):
        epoch = ledger.open_run(run_id, plan(), Usd(3), WHO, AT)
        ledger.append(run_id, epoch, [begun("a"), begun("b")], AT + 0.1)
    ledger.request("r2", ev.StopRequested("user", quoted("enough é")), AT + 1 / 3)
    ledger.take_over("r2", WHO, AT + 2)
    return ledger


def test_a_ledger_moves_to_a_database_and_back(
    filled: SqliteLedger, postgres_url: str, home: Path
) -> None:
    records, links, state = filled.records(), filled.links(), filled.read()
    driver = filled.driver("r2")
    done = move_to_database(home, postgres_url)
    assert (done.ledger_id, done.records) == (state.ledger_id, len(records))
    moved = open_ledger(home, {})
    assert isinstance(moved, PostgresLedger)
    assert (moved.records(), moved.links(), moved.read()) == (records, links, state)
    assert moved.driver("r2") == driver
    assert stat.S_IMODE((home / "ledger-url").stat().st_mode) == 0o600
    for use in (filled.read, lambda: filled.open_run("r9", plan(), Usd(1), WHO, AT)):
        with pytest.raises(LedgerMoved, match="was moved to postgresql://"):
            use()
    moved.open_run("r3", plan(), Usd(1), WHO, AT + 5)
    back = move_to_file(home, {})
    assert back.records == len(records) + 2
    again = open_ledger(home, {})
    assert isinstance(again, SqliteLedger)
    assert len(again.records()) == back.records
    assert again.driver("r2") == driver
    again.open_run("r4", plan(), Usd(1), WHO, AT + 6)
    with pytest.raises(LedgerMoved, match=str(home)):
        PostgresLedger(postgres_url, home.parent / "other").read()
    # There once more: the database holds an older copy that is marked.
    assert move_to_database(home, postgres_url).records == back.records + 2
    assert len(open_ledger(home, {}).records()) == back.records + 2


def test_an_earlier_version_writes_to_no_file_that_was_moved(
    filled: SqliteLedger, postgres_url: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_to_database(home, postgres_url)
    # An earlier version knows no such mark, and reads the file's number alone.
    monkeypatch.setattr("trmcloud.adapters.ledger.records.MOVED_VERSION", -1)
    for use in (filled.read, lambda: filled.set_cap(ev.CapSet("account", "", None), AT)):
        with pytest.raises(LedgerTooNew):
            use()


class Killed(BaseException):
    """A process ends here."""


@contextmanager
def killed_at(monkeypatch: pytest.MonkeyPatch, name: str, *, after: bool) -> Iterator[None]:
    real = getattr(moving, name)

    def dying(*args: object, **named: object) -> object:
        if not after:
            raise Killed
        real(*args, **named)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(moving, name, dying)
        with pytest.raises(Killed):
            yield


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", ["load", "_require_same", "_mark_file", "_unmark", "keep_url"])
def test_a_move_that_is_killed_is_finished_by_the_next(
    filled: SqliteLedger,
    postgres_url: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    after: bool,
) -> None:
    records = filled.records()
    with killed_at(monkeypatch, step, after=after):
        move_to_database(home, postgres_url)
    places: list[RecordedLedger] = [filled, PostgresLedger(postgres_url, home.parent / "other")]
    assert sum(map(can_write, places)) <= 1
    move_to_database(home, postgres_url)
    assert open_ledger(home, {}).records()[: len(records)] == records
    assert [can_write(place) for place in places] == [False, True]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", ["store", "_require_same", "_mark_file", "keep_url"])
def test_a_move_back_that_is_killed_is_finished_by_the_next(
    filled: SqliteLedger,
    postgres_url: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    after: bool,
) -> None:
    records = filled.records()
    move_to_database(home, postgres_url)
    with killed_at(monkeypatch, step, after=after):
        move_to_file(home, {})
    places: list[RecordedLedger] = [filled, PostgresLedger(postgres_url, home.parent / "other")]
    assert sum(map(can_write, places)) <= 1
    if (home / "ledger-url").exists():
        move_to_file(home, {})
    assert open_ledger(home, {}).records()[: len(records)] == records
    assert [can_write(place) for place in places] == [True, False]
    assert not list(home.glob("ledger.db.new-*"))


def can_write(ledger: RecordedLedger) -> bool:
    """Whether the ledger is there, and takes a record."""
    try:
        if not ledger.read().runs:
            return False
        ledger.set_cap(ev.CapSet("project", "thesis", Usd(40)), AT + 3)
    except LedgerMoved:
        return False
    return True


def test_a_database_with_another_ledger_is_not_overwritten(
    filled: SqliteLedger, postgres_url: str, home: Path
) -> None:
    PostgresLedger(postgres_url, home.parent / "other").open_run("r1", plan(), Usd(1), WHO, AT)
    with pytest.raises(ConflictError, match="holds ledger") as caught:
        move_to_database(home, postgres_url)
    one_line(caught.value)
    assert len(filled.records()) > 0
    assert ledger_url(home, {}) == ""


def test_a_copy_that_went_on_is_not_overwritten(
    filled: SqliteLedger, postgres_url: str, home: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "ledger.db").write_bytes((home / "ledger.db").read_bytes())
    move_to_database(copy, postgres_url)
    open_ledger(copy, {}).open_run("r7", plan(), Usd(1), WHO, AT + 9)
    with pytest.raises(ConflictError, match="was written to since") as caught:
        move_to_database(home, postgres_url)
    one_line(caught.value)
    assert len(filled.records()) > 0


@pytest.mark.parametrize("has_file", [False, True])
def test_a_home_without_records_joins_a_teams_ledger(
    postgres_url: str, home: Path, tmp_path: Path, has_file: bool
) -> None:
    ada = PostgresLedger(postgres_url, tmp_path / "ada")
    ada.open_run("r1", plan(), Usd(3), WHO, AT)
    home.mkdir()
    if has_file:
        assert SqliteLedger(home / "ledger.db").records() == ()
        assert isinstance(open_ledger(home, {ENV_LEDGER: postgres_url}), PostgresLedger)
    done = move_to_database(home, postgres_url)
    assert (done.ledger_id, done.records, done.source) == (ada.ledger_id, 2, "")
    assert open_ledger(home, {}).records() == ada.records()
    if has_file:
        with pytest.raises(LedgerMoved):
            SqliteLedger(home / "ledger.db").read()
    assert move_to_file(home, {}).records == 2
    assert open_ledger(home, {}).ledger_id == done.ledger_id


def test_a_damaged_ledger_is_not_moved(filled: SqliteLedger, postgres_url: str, home: Path) -> None:
    with sqlite3.connect(home / "ledger.db") as conn:
        conn.execute("UPDATE events SET body = body || ' ' WHERE seq = 2")
    conn.close()
    with pytest.raises(LedgerError, match="record 2 is damaged"):
        move_to_database(home, postgres_url)
    assert ledger_url(home, {}) == ""


def test_a_variable_beside_a_homes_own_ledger_is_refused(
    filled: SqliteLedger, postgres_url: str, home: Path
) -> None:
    with pytest.raises(ConflictError, match="a ledger of its own") as caught:
        open_ledger(home, {ENV_LEDGER: postgres_url})
    assert "trmcloud admin ledger move" in one_line(caught.value)
    move_to_database(home, postgres_url)
    keep_url(home, "")
    assert isinstance(open_ledger(home, {ENV_LEDGER: postgres_url}), PostgresLedger)
