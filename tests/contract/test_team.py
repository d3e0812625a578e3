"""``Team`` over both databases: people, tokens, the audit log, raises that wait."""

from __future__ import annotations

import sqlite3
import stat
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from trmcloud.adapters.ledger.database import LedgerDatabase, parse_address
from trmcloud.adapters.ledger.records import Session
from trmcloud.adapters.ledger.team import StoredTeam, database_store, file_store
from trmcloud.core.errors import AuthError, LedgerError, LedgerTooNew, NotFoundError, UsageError
from trmcloud.core.values import replace
from trmcloud.ports.team import Act, Raise, Role, Ticket, broken_at
from trmcloud.server.people import (
    FAILURES_S,
    LOGIN_S,
    MOST_FAILURES,
    People,
    hash_password,
    is_password,
)

PASSWORD = "correct horse battery staple"
Open = Callable[[], StoredTeam]


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the store again, as another server would."""
    if request.param == "sqlite":
        return lambda: StoredTeam(file_store(tmp_path / "home" / "team.db"))
    url = request.getfixturevalue("postgres_url")
    return lambda: StoredTeam(database_store(LedgerDatabase(parse_address(url))))


class Now:
    def __init__(self) -> None:
        self.at = 1_800_000_000.0

    def __call__(self) -> float:
        return self.at


def act(what: str, at: float = 1.0) -> Act:
    return Act(at, "ada", "lead", "0011", "::1", what, "done", {"runs": {"r-1": "0.5"}})


def test_people_and_tokens_are_those_of_all_servers(opened: Open) -> None:
    now = Now()
    here, there = People(opened(), now), People(opened(), now)
    here.add("ada", Role.LEAD, projects=("vision", "audio"), password=PASSWORD)
    assert there.require("ada") == here.require("ada")
    assert there.require("ada").projects == ("vision", "audio")
    token, shown = here.log_in("ada", PASSWORD)
    assert there.session(shown, "::1").person.role is Role.LEAD
    here.add("ada", Role.VIEWER)
    assert there.session(shown, "::1").person.role is Role.VIEWER, "a role counts at once"
    assert there.log_in("ada", PASSWORD), "its password stays"
    assert there.revoke(token.id) == 1
    with pytest.raises(AuthError, match="revoked"):
        here.session(shown, "::1")
    assert there.revoke("ada") == 1
    assert there.revoke("ada") == 0
    with pytest.raises(NotFoundError):
        here.revoke("eve")


def test_servers_whose_clocks_are_minutes_apart_know_the_same_tokens(opened: Open) -> None:
    now, later = Now(), Now()
    later.at += 600.0
    behind, ahead = People(opened(), now), People(opened(), later)
    ahead.add("ada", Role.LEAD)
    token, shown = ahead.make_token("ada", lasts_s=LOGIN_S)
    assert behind.session(shown, "").token == token.id, "made in its future"
    ahead.revoke(token.id)
    with pytest.raises(AuthError, match="revoked"):
        behind.session(shown, "")  # though its clock has not come to that moment
    team = ahead.team
    team.keep_ticket(Ticket("t", later.at + 600.0, {"of": "login"}), later.at)
    assert behind.team.take_ticket("t", now.at) is not None
    assert team.take_ticket("t", later.at) is None, "once, on whichever server"


def test_a_ticket_is_used_once_and_in_time_by_one_of_many(opened: Open) -> None:
    teams = [opened() for _ in range(4)]
    teams[0].keep_ticket(Ticket("one", 100.0, {"of": "login"}), 0.0)
    assert teams[1].ticket("one", 99.0) == Ticket("one", 100.0, {"of": "login"})
    got: list[Ticket | None] = []
    takers = [
        threading.Thread(target=lambda t=team: got.append(t.take_ticket("one", 1.0)))
        for team in teams
    ]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert sorted(each is not None for each in got) == [False, False, False, True]
    teams[0].keep_ticket(Ticket("two", 100.0, {}), 0.0)
    assert teams[1].ticket("two", 100.0) is None
    assert teams[1].take_ticket("two", 100.0) is None
    assert teams[0].bind_subject("ada", "https://a", "1")
    assert teams[1].bind_subject("ada", "https://a", "1")
    assert not teams[2].bind_subject("ada", "https://a", "2")
    assert not teams[2].bind_subject("ada", "https://b", "1")
    teams[3].free_subject("ada")
    assert teams[2].bind_subject("ada", "https://b", "1")


def test_a_token_ends_with_its_time_and_with_its_person(opened: Open) -> None:
    now = Now()
    people = People(opened(), now)
    people.add("ci", Role.MEMBER, is_service=True)
    _, shown = people.make_token("ci", lasts_s=60.0)
    now.at += 59.9
    assert people.session(shown, "").person.is_service
    now.at += 0.1
    with pytest.raises(AuthError, match="too old"):
        people.session(shown, "")
    _, another = people.make_token("ci")
    people.disable("ci")
    for wrong in (another, "", "trmc_", another + "x"):
        with pytest.raises(AuthError):
            people.session(wrong, "")


def test_what_is_kept_opens_nothing(opened: Open, tmp_path: Path) -> None:
    people = People(opened(), Now())
    people.add("ada", Role.LEAD, password=PASSWORD)
    _, shown = people.log_in("ada", PASSWORD)
    kept = repr((list(people.team.people()), list(people.team.tokens())))
    assert PASSWORD not in kept
    assert shown not in kept
    assert "scrypt$131072$8$1$" in kept
    path = tmp_path / "home" / "team.db"
    assert not path.exists() or stat.S_IMODE(path.stat().st_mode) == 0o600


def test_passwords_by_rfc_7914() -> None:
    """The RFC's own vector of these kinds of parameters is hashlib's; ours are held to salting."""
    made = hash_password(PASSWORD, b"0" * 16)
    assert is_password(PASSWORD, made)
    assert not is_password(PASSWORD + " ", made)
    assert not is_password(PASSWORD, hash_password("another password", b"0" * 16))
    assert not is_password("", "")
    assert made != hash_password(PASSWORD, b"1" * 16)


def test_guesses_are_bounded_and_tell_no_names(opened: Open) -> None:
    now = Now()
    people = People(opened(), now)
    people.add("ada", Role.MEMBER, password=PASSWORD)
    people.add("ci", Role.MEMBER, is_service=True)
    told = set()
    for name in ("ada", "ci", "eve", "owner", "../x"):
        with pytest.raises(AuthError) as refused:
            people.log_in(name, "wrong password")
        told.add(str(refused.value))
    assert len(told) == 1
    people._failures["ada"] = [now.at] * MOST_FAILURES
    with pytest.raises(AuthError, match="wrong passwords within"):
        people.log_in("ada", PASSWORD)
    now.at += FAILURES_S + 1
    token, _ = people.log_in("ada", PASSWORD)
    assert token.expires_at == now.at + LOGIN_S
    with pytest.raises(UsageError):
        people.add("ada", Role.MEMBER, password="short")
    for name in ("owner", "", "a b", "../x", "x" * 65):
        with pytest.raises(UsageError):
            people.add(name, Role.MEMBER)


def test_the_audit_log_shows_each_change(opened: Open) -> None:
    team = opened()
    for number in range(5):
        assert team.add_act(act(f"act {number}", number)).seq == number + 1
    records = list(opened().acts())
    assert [record.act.what for record in records] == [f"act {number}" for number in range(5)]
    assert broken_at(records) is None
    assert [record.seq for record in team.acts(after=3)] == [4, 5]
    forged = replace(records[2], act=replace(records[2].act, person="eve"))
    assert broken_at([*records[:2], forged, *records[3:]]) == 3
    assert broken_at(records[1:]) == 1
    assert broken_at([*records[:1], *records[2:]]) == 2


def test_the_database_itself_keeps_the_audit_log(opened: Open) -> None:
    team = opened()
    team.add_act(act("one"))
    for sql in ("UPDATE team_audit SET body = '{}'", "DELETE FROM team_audit"):
        with pytest.raises(LedgerError, match="append-only"):
            team._write(partial(_execute, sql))
    assert [record.act.what for record in team.acts()] == ["one"]


def _execute(sql: str, session: Session) -> None:
    session.execute(sql)


def test_servers_that_write_at_once_lose_no_act(opened: Open) -> None:
    opened().add_act(act("first"))

    def write(name: str) -> None:
        team = opened()
        for number in range(20):
            team.add_act(act(f"{name} {number}"))

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = list(opened().acts())
    assert len(records) == 81
    assert broken_at(records) is None
    assert len({record.act.what for record in records}) == 81


def test_one_of_two_answers_counts(opened: Open) -> None:
    here, there = opened(), opened()
    here.add_raise(Raise("c-1", "ada", ("budget", "raise", "account", "900"), "900", 1.0))
    assert there.raises()[0].words == ("budget", "raise", "account", "900")
    assert there.answer_raise("c-1", "bob", 2.0, approved=True)
    assert not here.answer_raise("c-1", "eve", 3.0, approved=False)
    assert not here.answer_raise("c-2", "eve", 3.0, approved=True)
    assert (here.raises()[0].answered_by, here.raises()[0].approved) == ("bob", True)


def test_a_later_versions_tables_are_refused(opened: Open) -> None:
    team = opened()
    team.people()
    team._store.write(lambda session: session.execute("UPDATE team_meta SET version = 99"))
    with pytest.raises(LedgerTooNew, match="version 99"):
        opened().people()


def test_a_file_that_is_no_database_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "team.db"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(LedgerError) as refused:
        StoredTeam(file_store(path)).people()
    assert "\n" not in str(refused.value)
    assert not isinstance(refused.value.__cause__, sqlite3.Error)
