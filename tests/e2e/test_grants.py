"""An agent's wallet from end to end: real commands of the owner's, real runs of the agent's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.user import User, until
from tests.standins.scripts import LISTENING
from trmcloud.api import Home, Usd
from trmcloud.core.errors import ConflictError, GrantRefused, NotFoundError, Outcome, UsageError

SHORT, LONG = ("python3", "train.py", "40"), ("python3", "train.py", "100000")
OWN: dict[str, Any] = {
    "hardware": "local", "rate": "3.60", "grace": 2.0, "checkpoints": "out",
    "checkpoint_gb": 0.001, "metric": "val_loss",
}  # fmt: skip
TRIED: dict[str, Any] = {"grace": 2.0, "checkpoints": "out", "metric": "val_loss"}


@pytest.fixture
def agent(user: User, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name, value in user.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(user.folder)
    (user.folder / "project").mkdir()
    (user.folder / "project" / "train.py").write_text(LISTENING)
    return Home(principal="agent")


def here(user: User) -> Path:
    return user.folder / "project"


def tried(agent: Home, user: User, words: tuple[str, ...]) -> None:
    trial = agent.try_command(words, here=here(user), for_s=4, **TRIED)
    assert not trial.has_failed, trial.checks


def test_an_agent_spends_its_grant_asks_for_more_and_the_receipt_names_it(
    agent: Home, user: User
) -> None:
    with pytest.raises(GrantRefused, match="no grant"):
        agent.run_command(SHORT, here=here(user), budget="0.10", **OWN)
    user.run("grant", "give", "agent", "0.30", "--per-run", "0.20")
    tried(agent, user, SHORT)
    run = agent.run_command(SHORT, here=here(user), budget="0.10", **OWN)
    ended = agent.wait(run.id)
    assert (ended.outcome, ended.principal) == (Outcome.FINISHED, "agent")
    mine = agent.grant()
    assert Usd(0) < mine.spent <= Usd("0.10")
    assert (mine.reserved, mine.live_runs) == (Usd(0), ())
    with pytest.raises(GrantRefused, match=r"\$0\.20 per run") as caught:
        agent.run_command(SHORT, here=here(user), budget="0.25", **OWN)
    assert caught.value.next_step == "a reservation of up to 0.2 USD is allowed now"

    asked = agent.ask_approval("a longer run", more="1", per_run="0.50")
    assert agent.ask_approval("the same", more="1", per_run="0.50").id == asked.id
    listed = user.json("grant", "list", "--json")
    assert [each["id"] for each in listed["requests"]] == [asked.id]
    with pytest.raises(GrantRefused, match="cannot change caps or grants"):
        agent.approve(asked.id)
    user.run("grant", "approve", asked.id)
    assert "already" in user.fails("grant", "deny", asked.id, code=ConflictError.exit_code)
    assert (agent.grant().total, agent.grant().per_run) == (Usd("1.30"), Usd("0.50"))
    again = agent.wait(agent.run_command(SHORT, here=here(user), budget="0.25", **OWN).id)
    assert again.outcome is Outcome.FINISHED

    assert ["principal", "agent"] in [
        line.split() for line in user.run("status", run.id).split("\n")
    ]
    assert user.json("report", run.id, "--json")["runs"][0]["principal"] == "agent"
    page = user.folder / "receipt.html"
    made = user.json("report", run.id, "--html", str(page), "--json")["receipt"]
    assert made["account"]["principal"] == "agent"
    assert ">agent<" in page.read_text()
    user.run("report", "--verify", str(page))
    kinds = [change["kind"] for change in user.json("grant", "history", "--json")["changes"]]
    assert kinds == ["given", "asked", "approved"]


def test_a_revoked_grants_run_lands_and_others_go_on(agent: Home, user: User) -> None:
    owner = Home()
    owner.give_grant("agent", "5", runs_at_once=1)
    tried(agent, user, LONG)
    mine = agent.run_command(LONG, here=here(user), budget="0.50", **OWN)
    theirs = owner.run_command(LONG, here=here(user), budget="0.50", **OWN)
    with pytest.raises(GrantRefused, match=f"{mine.id} has not ended"):
        agent.run_command(LONG, here=here(user), budget="0.10", **OWN)
    with pytest.raises(NotFoundError, match="has no run"):
        agent.land(theirs.id)
    assert [run.id for run in agent.runs()] == [mine.id]
    assert {event.run for event in agent.events(follow=False)} == {mine.id}

    assert f"{mine.id} lands" in user.run("grant", "revoke", "agent")
    ended = owner.wait(mine.id)
    assert ended.outcome is Outcome.STOPPED
    assert ended.reason is not None
    assert ended.reason.kind.value == "grant_revoked"
    assert owner.run(theirs.id).live
    with pytest.raises(GrantRefused, match="is revoked"):
        agent.run_command(SHORT, here=here(user), budget="0.10", **OWN)
    with pytest.raises(GrantRefused, match="revoked"):
        agent.resume(mine.id)
    owner.stop(theirs.id)
    until(lambda: not owner.run(theirs.id).live or bool(owner.wait(theirs.id)), what="its end")


def test_a_shell_that_names_its_principal_spends_within_that_grant(agent: Home, user: User) -> None:
    """``TRMCLOUD_PRINCIPAL=ci-nightly``, as a CI job has it."""
    owner = Home()
    theirs = owner.run_command(LONG, here=here(user), budget="0.30", **OWN)
    user.cwd = here(user)
    user.environment["TRMCLOUD_PRINCIPAL"] = "ci-nightly"
    words = (
        *("run", "local", "--rate", "3.60", "--grace", "2", "--checkpoints", "out"),
        *("--checkpoint-gb", "0.001", "--metric", "val_loss", "-y"),
    )
    refused = GrantRefused.exit_code
    told = user.fails(*words, "--budget", "0.10", "--", *SHORT, code=refused)
    assert "ci-nightly has no grant" in told
    owner.give_grant("ci-nightly", "0.30", per_run="0.20")
    told = user.fails(*words, "--budget", "0.25", "--", *SHORT, code=refused)
    assert "$0.20 per run" in told
    user.environment["WORD"] = "1"
    told = user.fails(*words, "--budget", "0.10", "--env", "WORD", "--", *SHORT, code=refused)
    assert "env: a grant does not cover" in told
    user.run(*words, "--budget", "0.10", "--", *SHORT)
    [mine] = user.json("status", "--all", "--json")["runs"]
    assert user.ledger().runs[mine["run"]].payer.principal == "ci-nightly"
    assert Usd(0) < owner.grant("ci-nightly").spent <= Usd("0.10")
    for line in (
        ("stop", "-y", theirs.id), ("stop", "--now", "-y", theirs.id),
        ("report", theirs.id), ("status", theirs.id), ("logs", theirs.id),
    ):  # fmt: skip
        assert "no run" in user.fails(*line, code=NotFoundError.exit_code)
    for change in (
        ("grant", "raise", "ci-nightly", "9"), ("grant", "give", "other", "9"),
        ("budget", "set", "month", "900"), ("grant", "approve", "a-1f2e3d4c"),
        ("grant", "deny", "a-1f2e3d4c"),
    ):  # fmt: skip
        assert "cannot change caps or grants" in user.fails(*change, code=refused)
    user.environment["TRMCLOUD_PRINCIPAL"] = "owner"
    assert "is no name of a principal" in user.fails("status", code=UsageError.exit_code)
    del user.environment["TRMCLOUD_PRINCIPAL"]
    assert user.ledger().runs[theirs.id].live
    owner.stop(theirs.id)
    owner.wait(theirs.id)
