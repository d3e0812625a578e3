"""A right or a choice that is about one run reaches no other run of the same name, at any door."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.on_page import Serving
from tests.e2e.user import LAUNCH, User, until
from trmcloud.api import Home
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import (
    ConflictError,
    GrantRefused,
    NotFoundError,
    Outcome,
    TrmcloudError,
    UsageError,
)
from trmcloud.operations.money import grants
from trmcloud.pod.machine import processes

AGENT = "agent"


def launched(user: User, name: str, *more: str, steps: int = 400) -> RunState:
    """A run of that name, which trains on without a command, or has ended with 40 steps."""
    before = set(user.ledger().runs)
    words = ("--steps", str(steps), "--budget", "0.20", "--name", name, *more)
    user.run(*LAUNCH, *words, *(["-d"] if steps > 40 else []))
    (new,) = set(user.ledger().runs) - before
    return user.ledger().runs[new]


@contextmanager
def bound(user: User, principal: str = AGENT) -> Iterator[None]:
    user.environment["TRMCLOUD_PRINCIPAL"] = principal
    try:
        yield
    finally:
        del user.environment["TRMCLOUD_PRINCIPAL"]


def given(user: User) -> None:
    user.run("grant", "give", AGENT, "5", "--runs-at-once", "0")


def is_untouched(user: User, run: RunState) -> bool:
    now = user.ledger().runs[run.run_id]
    return now.live and now.stop is None and bool(living(user, run))


def living(user: User, run: RunState) -> list[int]:
    """Processes of the run's pod."""
    generation = user.ledger().runs[run.run_id].generation
    return processes.of_pod(generation.pod_name) if generation is not None else []


def test_a_bound_shell_reaches_no_run_of_its_runs_name(user: User) -> None:
    given(user)
    with bound(user):
        mine = launched(user, "night", steps=40)
        assert (mine.payer.principal, mine.live) == (AGENT, False)
    user.hold()
    theirs = launched(user, "night", "--idempotency-key", "job-1")
    with bound(user):
        keyed = (*LAUNCH, "--steps", "40", "--budget", "0.05", "--idempotency-key", "job-1")
        told = user.fails(*keyed, code=UsageError.exit_code)
        assert f"is not {AGENT}'s" in told
        assert theirs.run_id not in told
        for words in (
            ("stop", "-y", "night"), ("stop", "--now", "-y", "night"), ("save", "night"),
        ):  # fmt: skip
            assert mine.run_id in user.fails(*words, code=ConflictError.exit_code)
        for words in (
            ("stop", "--now", "-y", theirs.run_id), ("stop", "-y", theirs.run_id),
            ("admin", "reap", theirs.run_id, "-y"), ("save", theirs.run_id),
            ("prune", theirs.run_id, "-y"),
            ("resume", theirs.run_id), ("logs", "-f", theirs.run_id), ("fetch-best", theirs.run_id),
        ):  # fmt: skip
            told = user.fails(*words, code=NotFoundError.exit_code)
            assert f"{AGENT} has no run" in told
        # One that is not named is not another's, either.
        assert mine.run_id in user.fails("stop", "--now", "-y", code=ConflictError.exit_code)
        told = user.fails(
            "admin", "reap", "--all-of", "00000000", "-y", code=GrantRefused.exit_code
        )
        assert "cannot change" in told
        assert json.loads(user.run("prune", "night", "-y", "--json"))["run"] == mine.run_id
    assert is_untouched(user, theirs)
    user.run("stop", "--now", "-y", "night")
    assert user.ledger().runs[theirs.run_id].outcome is Outcome.STOPPED


def test_who_does_not_pay_for_a_run_any_more_changes_it_at_no_door(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(user)
    user.hold()
    with bound(user):
        run = launched(user, "night")
        user.run("stop", "--now", "-y", run.run_id)
    user.run("resume", run.run_id, "--budget", "0.30", "-d", "-y")
    now = user.ledger().runs[run.run_id]
    assert (now.creator, now.payer.principal, now.live) == (AGENT, "", True)
    with bound(user):
        for words in (
            ("stop", "-y", "night"), ("stop", "--now", "-y", run.run_id), ("save", "night"),
            ("prune", "night", "-y"), ("admin", "reap", "night", "-y"), ("resume", "night"),
        ):  # fmt: skip
            assert "who pays for it" in user.fails(*words, code=ConflictError.exit_code)
        user.run("status", run.run_id)
    for name, value in user.env().items():
        monkeypatch.setenv(name, value)
    home = Home(principal=AGENT)
    for call in (home.stop, home.land, home.save, home.resume):
        with pytest.raises(ConflictError, match="who pays for it"):
            call("night")
    assert is_untouched(user, now)
    user.run("stop", "--now", "-y", run.run_id)


def test_a_name_that_looks_like_another_runs_pod_ends_its_own_run_alone(user: User) -> None:
    """``stop --now`` falls back on the pods' names where the ledger takes no record: those have a
    run's id without its dash, which may be a run's name."""
    user.hold()
    other = launched(user, "other")
    mine = launched(user, other.run_id.replace("-", ""))
    assert mine.name == other.run_id.replace("-", "")
    with locked(user.ledger_path, "IMMEDIATE"):
        began = time.monotonic()
        process = user.start("stop", "--now", "-y", mine.name)
        until(lambda: not living(user, mine), within_s=60, what="it has ended")
        took_s = time.monotonic() - began
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, out + err
        assert living(user, other), "the run with that id was ended"
    assert took_s < 30, "it did not wait for the lock again and again"
    user.run("status")
    assert is_untouched(user, other)
    user.run("stop", "--now", "-y", other.run_id)


@contextmanager
def locked(path: Path, how: str) -> Iterator[None]:
    conn = sqlite3.connect(path, isolation_level=None)
    conn.execute(f"BEGIN {how}")
    try:
        yield
    finally:
        conn.execute("ROLLBACK")
        conn.close()


def test_what_is_clicked_is_done_to_the_run_that_was_shown(user: User) -> None:
    """The question was about one run of that name; by the click another one has it."""
    pytest.importorskip("uvicorn", reason="the extra `ui`")
    user.hold()
    first = launched(user, "night")
    page = Serving(user)
    try:
        status, seen = page.ask("/api/runs/night/foreseen?verb=stop")
        assert status == 200, seen
        user.run("stop", "--now", "-y", first.run_id)
        second = launched(user, "night")
        wish = {"verb": "stop", "agreed": "1"}
        status, told = page.ask("/api/runs/night/do", wish)
        assert (status, second.run_id in told["error"]) == (422, True), told
        status, told = page.ask(f"/api/runs/{first.run_id}/do", wish)
        assert (status, first.run_id in told["error"]) == (409, True), told
        assert is_untouched(user, second)
        status, told = page.ask(f"/api/runs/{second.run_id}/do", wish)
        assert status == 202, told
        # No page is open: the click alone sees to it.
        until(lambda: not living(user, second), within_s=60, what="it has ended")
    finally:
        page.kill()


def test_mcps_tools_act_on_the_grants_own_run_of_a_name(user: User) -> None:
    pytest.importorskip("mcp", reason="the SDK of the Model Context Protocol is not installed")
    from tests.e2e.agents import connected, give, project, script, stdio

    script(user)
    give(user)
    with bound(user):
        mine = launched(user, "night", steps=40)
    user.hold()
    theirs = launched(user, "night")
    assert project(user).is_dir()
    with connected(stdio(user)) as agent:
        for tool in ("stop", "land", "save"):
            told = agent.refused(tool, run="night")["error"]
            assert mine.run_id in told["message"]
            told = agent.refused(tool, run=theirs.run_id)["error"]
            assert told["code"] == "not_found"
            assert theirs.name not in told["message"]
        assert agent.call("status", run="night")["run"] == mine.run_id
    assert is_untouched(user, theirs)
    user.run("stop", "--now", "-y", theirs.run_id)


# -- plans -----------------------------------------------------------------------------------------


def test_the_right_goes_with_the_run_that_was_judged(user: User) -> None:
    """Between the judgement and the act the name moves to another run."""
    given(user)
    user.hold()
    with bound(user):
        mine = launched(user, "night")
    home = Home(user.home, principal=AGENT)
    judged = grants.judge_run(home.context, "night")
    user.run("stop", "--now", "-y", mine.run_id)
    theirs = launched(user, "night")
    with pytest.raises(ConflictError, match=f"{mine.run_id} has already ended|it has ended"):
        home.stop(judged.run_id)
    with pytest.raises(TrmcloudError):
        home.save(judged.run_id)
    assert is_untouched(user, theirs)
    user.run("stop", "--now", "-y", theirs.run_id)
