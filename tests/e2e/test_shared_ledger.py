"""Two people with two homes and one ledger in PostgreSQL, by whole commands."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.user import SMALL, User, until
from tests.typist import InProcess
from trmcloud.adapters.ledger.place import ENV_LEDGER
from trmcloud.adapters.ledger.postgres import PostgresLedger
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import Outcome

PASSWORD = "s3cret-pass"


@pytest.fixture
def team(postgres_url: str, tmp_path: Path) -> Iterator[tuple[User, User]]:
    url = postgres_url.replace("//ada@", f"//ada:{PASSWORD}@")  # the server asks for none
    users = []
    for name in ("ada", "bob"):
        (tmp_path / name).mkdir()
        users.append(InProcess(tmp_path / name, environment={ENV_LEDGER: url}))
    yield users[0], users[1]
    for user in users:
        user.end_everything()


def the_run(url: str, folder: Path) -> RunState:
    (run,) = PostgresLedger(url, folder / "looker").read().runs.values()
    return run


def test_two_homes_share_a_cap_and_leave_each_others_runs_alone(
    team: tuple[User, User], postgres_url: str, tmp_path: Path
) -> None:
    ada, bob = team
    ada.run("budget", "set", "account", "1.20")
    held = ada.hold()
    process = ada.start("launch", "local", *SMALL, "--phase", "fast", "--steps", "100",
                        "--budget", "1", "-y")  # fmt: skip
    ledger = PostgresLedger(postgres_url, tmp_path / "looker")
    until(lambda: any(run.state is State.RUNNING for run in ledger.read().runs.values()))
    err = bob.fails("launch", "local", *SMALL, "--phase", "fast", "--budget", "1", "-y", code=4)
    assert "account budget of $1.20" in err
    listed = bob.json("status", "--json")
    assert [row["run"] for row in listed["runs"]] == [the_run(postgres_url, tmp_path).run_id]
    assert the_run(postgres_url, tmp_path).epoch == 1, "bob's looks took nothing over"
    machine = os.uname().nodename
    assert f"$0.00: on {machine}, not rented" in bob.run("status")
    one = bob.run("status", listed["runs"][0]["run"])
    assert f"on {machine}; its files are there" in one
    assert "not listed any more" not in one
    held.unlink()
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0, out + err
    run = the_run(postgres_url, tmp_path)
    assert run.outcome is Outcome.FINISHED
    assert run.epoch == 1
    bob.run("status")
    bob.run("report", run.run_id)
    shown = [out, err, *(said(user, "status") for user in team)]
    kept = [path.read_bytes() for user in team for path in user.home.rglob("*") if path.is_file()]
    assert not any(PASSWORD in text for text in shown)
    assert not any(PASSWORD.encode() in content for content in kept)


def test_a_run_whose_command_was_killed_is_left_to_its_own_home(
    team: tuple[User, User], postgres_url: str, tmp_path: Path
) -> None:
    ada, bob = team
    held = ada.hold()
    process = ada.start("launch", "local", *SMALL, "--phase", "fast", "--steps", "100",
                        "--budget", "1", "-y")  # fmt: skip
    ledger = PostgresLedger(postgres_url, tmp_path / "looker")
    until(lambda: any(run.state is State.RUNNING for run in ledger.read().runs.values()))
    process.kill()
    process.communicate()
    bob.run("status")
    bob.run("admin", "reap", "--yes")
    run = the_run(postgres_url, tmp_path)
    assert (run.epoch, run.state) == (1, State.RUNNING)
    held.unlink()
    ada.run("resume", "-y")
    assert the_run(postgres_url, tmp_path).outcome is Outcome.FINISHED


def said(user: User, *words: str) -> str:
    _, out, err = user.ended(*words)
    return out + err


def test_a_ledger_moves_by_command_and_back(postgres_url: str, tmp_path: Path) -> None:
    ada = InProcess(tmp_path)
    ada.run("budget", "set", "account", "7")
    ada.environment[ENV_LEDGER] = postgres_url
    assert "ledger move" in ada.fails("status", code=8)
    assert "1 records moved" in ada.run("admin", "ledger", "move", "-y")
    del ada.environment[ENV_LEDGER]
    assert "$7.00" in ada.run("budget", "show")
    moved = ada.json("admin", "ledger", "move", "--to", "sqlite", "-y", "--json")
    assert (moved["records"], moved["target"]) == (1, str(ada.ledger_path))
    assert "$7.00" in ada.run("budget", "show")
    with sqlite3.connect(ada.ledger_path) as conn:
        assert conn.execute("SELECT count(*) FROM events").fetchone() == (1,)
    conn.close()
    err = ada.fails("admin", "ledger", "move", "--to", "mysql://ada:hidden@host/db", "-y", code=2)
    assert "hidden" not in err
    assert "needs no migration" in ada.fails("admin", "ledger", "migrate", code=2)


def test_a_timer_gets_no_url_that_holds_a_password(team: tuple[User, User]) -> None:
    err = team[0].fails("admin", "guard", "install", "--cron", "-y", code=2)
    assert "holds a password" in err
    assert PASSWORD not in err
