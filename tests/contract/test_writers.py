"""Who is on record for caps, grants and approvals: the role that logged in to the database, or the
user of the process. And what a team's server wrote before it was removed: it is read, and settles.
"""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

import pytest

from tests.contract.ledger_file import AT, edit_database
from tests.postgres import PostgresServer
from trmcloud.adapters.ledger.moving import move_to_database
from trmcloud.adapters.ledger.postgres import PostgresLedger
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.api import Home
from trmcloud.core.control import events as ev
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import ConflictError, GrantRefused, Outcome
from trmcloud.core.money import Usd
from trmcloud.operations.money.spending import month_view
from trmcloud.ports.ledger import Ledger

SERVED = Path(__file__).with_name("formats") / "10" / "served"
"""A home's ledger as commands left it that a server of commit 0464cda3 ran: lea leads, bob is a
member of project vision; one of bob's two runs was killed together with its command."""
ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def typed_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that anyone can set."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "mallory")


@pytest.fixture
def roles(postgres_url: str, postgres_server: PostgresServer, tmp_path: Path) -> list[Ledger]:
    """One ledger, as two roles see it: ada, and bea, who may do what ada may."""
    ada = PostgresLedger(postgres_url, tmp_path / "ada")
    ada.set_grant(ev.GrantGiven("agent", ev.GrantTerms(Usd(5))), AT)
    bea = f"bea{os.getpid()}"
    known = "SELECT 1 FROM pg_roles WHERE rolname = "
    if not postgres_server.execute(f"{known}'{bea}'"):
        postgres_server.execute(f"CREATE ROLE {bea} LOGIN", f"GRANT ada TO {bea}")
    # A role that a connection takes on is not the one that logged in.
    url = f"{postgres_url.replace('//ada@', f'//{bea}@')}&options=-c%20role%3Dada"
    assert edit_database(url, "SELECT current_user, session_user") == [("ada", bea)]
    return [ada, PostgresLedger(url, tmp_path / "bea")]


def ask(ledger: Ledger, request: str, more: int = 1) -> None:
    ledger.set_grant(ev.ApprovalAsked(request, "agent", more=Usd(more)), AT)


@pytest.mark.usefixtures("typed_names")
def test_no_role_approves_what_it_asked_for(roles: list[Ledger]) -> None:
    ada, bea = roles
    ask(ada, "a-1")
    before = ada.last_seq()
    with pytest.raises(GrantRefused, match="asked for by the role ada, which cannot") as refused:
        ada.set_grant(ev.ApprovalGiven("a-1", by=f"bea{os.getpid()}"), AT)
    assert "another role of the database" in refused.value.next_step
    assert ada.last_seq() == before, "nothing was written"
    assert ada.read().approvals["a-1"].asked.by == "ada"
    bea.set_grant(ev.ApprovalGiven("a-1", by="ada"), AT)
    answered = ada.read().approvals["a-1"]
    assert (answered.is_given, answered.by) == (True, f"bea{os.getpid()}")
    assert ada.read().grants["agent"].terms.total == Usd(6)
    with pytest.raises(ConflictError, match="approved already"):
        ada.set_grant(ev.ApprovalGiven("a-1"), AT)


@pytest.mark.usefixtures("typed_names")
def test_a_role_may_withdraw_what_it_asked_for(roles: list[Ledger]) -> None:
    ada, _ = roles
    ask(ada, "a-2")
    ada.set_grant(ev.ApprovalDenied("a-2"), AT)
    assert ada.read().approvals["a-2"].is_given is False


@pytest.mark.usefixtures("typed_names")
def test_caps_and_grants_name_the_role_that_logged_in(roles: list[Ledger]) -> None:
    ada, bea = roles
    bea.set_cap(ev.CapSet("account", "", Usd(9), by="ada"), AT)
    bea.set_grant(ev.GrantRaised("agent", ev.GrantTerms(Usd(7)), by="ada"), AT)
    bea.set_grant(ev.GrantRevoked("agent", by="ada"), AT)
    events = [record.event for record in ada.records()]
    assert [getattr(event, "by", "") for event in events] == ["ada"] + 3 * [f"bea{os.getpid()}"]


@pytest.mark.usefixtures("typed_names")
def test_a_file_names_the_processs_own_user_whatever_was_typed(tmp_path: Path) -> None:
    """Owner and agent are one user there: who is bound to a grant is what tells them apart."""
    owner = Home(tmp_path)
    owner.give_grant("agent", "5")
    agent, other = Home(tmp_path, principal="agent"), Home(tmp_path, principal="other")
    asked = agent.ask_approval("a seed", more="1")
    for bound in (agent, other):
        with pytest.raises(GrantRefused, match="cannot change caps or grants"):
            bound.approve(asked.id)
    answered = owner.approve(asked.id)
    assert (answered.state, answered.asked_by, answered.answered_by) == ("approved", ME, ME)
    owner.raise_grant("agent", "9")
    owner.revoke_grant("agent")
    ledger = SqliteLedger(tmp_path / "ledger.db")
    assert {getattr(record.event, "by", "") for record in ledger.records()} == {ME}


# -- what a server wrote ---------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    shutil.copytree(SERVED, home)
    home.chmod(0o700)
    (home / "team.db").write_bytes(b"people, tokens, audit log")
    (home / "server.json").write_text('{"url": "https://nowhere.example", "token": "gone"}')
    return home


def test_what_a_server_wrote_is_read(served: Path) -> None:
    ledger = SqliteLedger(served / "ledger.db")
    assert ledger.check() == ()
    book = ledger.read()
    caps = {("account", ""): 1500, ("project", "vision"): 200, ("project-month", "vision"): 40}
    assert book.caps == {level: Usd(cap) for level, cap in caps.items()}
    assert {getattr(record.event, "by", "") for record in book.cap_history} == {"lea"}
    bob = book.grants["bob"]
    assert (bob.terms.total, bob.terms.per_month, bob.by) == (Usd(8), Usd(4), "lea")
    assert book.grants["ci-nightly"].revoked_at is not None
    answers = [(each.is_given, each.by, each.asked.by) for each in book.approvals.values()]
    assert answers == [(True, "lea", ""), (None, "", ""), (False, "lea", "")]
    assert {(run.project, run.payer.principal) for run in book.runs.values()} == {("vision", "bob")}
    told = month_view(book, 0.0, "2026-11")
    assert [share.name for share in told.projects] == ["vision"]
    assert told.projects[0].spent_usd + told.projects[0].reserved_usd == Usd("0.753864")


def test_its_open_run_settles_and_its_open_request_is_answered(served: Path) -> None:
    home = Home(served)
    home.catch_up()
    runs = {run.name: run for run in home.runs()}
    assert runs["seed-1"].outcome == Outcome.FINISHED.value
    assert not runs["seed-2"].live
    lost = SqliteLedger(served / "ledger.db").read().runs[runs["seed-2"].id]
    assert (lost.state, lost.reserved) == (State.CLOSED, Usd(0))
    assert Usd(0) < lost.settled < Usd("0.01")
    bob = home.grant("bob")
    assert (bob.reserved, bob.live_runs) == (Usd(0), ())
    assert bob.spent == sum((run.money.proven for run in runs.values()), Usd(0))
    [waiting] = [each for each in home.approvals() if each.state == "open"]
    assert home.approve(waiting.id).answered_by == ME
    assert home.grant("bob").runs_at_once == 2
    assert (served / "team.db").read_bytes() == b"people, tokens, audit log"


def test_a_database_with_a_servers_tables_is_used_as_before(
    served: Path, postgres_url: str
) -> None:
    """They stand beside the ledger's, and nothing reads them."""
    before = SqliteLedger(served / "ledger.db").read()
    move_to_database(served, postgres_url)
    edit_database(
        postgres_url,
        "CREATE TABLE trmcloud.team_meta(version integer NOT NULL)",
        "CREATE TABLE trmcloud.team_people(name text PRIMARY KEY, role text NOT NULL)",
        "INSERT INTO trmcloud.team_people VALUES ('lea', 'lead')",
    )
    ledger = PostgresLedger(postgres_url, served)
    assert ledger.read() == before
    [waiting] = [each.id for each in before.approvals.values() if each.is_given is None]
    ledger.set_grant(ev.ApprovalGiven(waiting), AT)
    assert ledger.read().approvals[waiting].by == "ada", "the requester was not recorded"
    ledger.migrate()
    assert PostgresLedger(postgres_url, served).read().caps == before.caps
