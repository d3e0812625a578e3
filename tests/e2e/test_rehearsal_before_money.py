"""Failures of real trainings that a principal's rehearsal stops, and what it lets through. All
thirty: ``make rehearsal``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.failures.corpus import FAILURES, LOOP, rehearse, script
from trmcloud.api import Home, QuoteRefused
from trmcloud.core.errors import GrantRefused, TrialFailed, UsageError

SHARE = ("wrong-flag", "data-elsewhere", "wrong-metric", "no-data", "too-large")
WORDS = ("python", "train.py")


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("HOME", str(tmp_path))
    Home(tmp_path / "home").give_grant("agent", "20", runs_at_once=1)
    return Home(tmp_path / "home", principal="agent")


def test_the_corpus_is_thirty_failures() -> None:
    assert len({failure.name for failure in FAILURES}) == 30


@pytest.mark.parametrize("name", SHARE)
def test_a_failure_is_stopped_before_anything_is_rented(
    agent: Home, tmp_path: Path, name: str
) -> None:
    (failure,) = (each for each in FAILURES if each.name == name)
    assert rehearse(agent, tmp_path / name, failure)
    assert agent.runs() == ()


def project(tmp_path: Path, text: str) -> Path:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    for name, body in script(text).items():
        (work / name).write_text(body)
    return work


def test_a_command_is_paid_for_once_it_was_tried_as_it_is_now(agent: Home, tmp_path: Path) -> None:
    work = project(tmp_path, LOOP)
    local: dict[str, Any] = {"hardware": "local", "rate": "3.60", "budget": "0.50", "here": work}
    with pytest.raises(GrantRefused, match="only after a trial"):
        agent.run_command(WORDS, **local)
    assert not agent.try_command(WORDS, here=work, for_s=4).has_failed
    (work / "train.py").write_text(LOOP + "\n# changed\n")
    with pytest.raises(GrantRefused, match="only after a trial"):
        agent.run_command(WORDS, **local)
    (work / "train.py").write_text("raise SystemExit('broken')")
    assert agent.try_command(WORDS, here=work, for_s=4).has_failed
    with pytest.raises(TrialFailed, match="its trial failed: starts"):
        agent.run_command(WORDS, **local)
    assert agent.runs() == ()


def test_another_principals_trial_is_no_ones_else(agent: Home, tmp_path: Path) -> None:
    work = project(tmp_path, LOOP)
    owner = Home(tmp_path / "home")
    owner.give_grant("other", "2")
    owner.try_command(WORDS, here=work, for_s=3)
    Home(tmp_path / "home", principal="other").try_command(WORDS, here=work, for_s=3)
    with pytest.raises(GrantRefused, match="only after a trial"):
        agent.run_command(WORDS, here=work, hardware="local", rate="3.60", budget="0.50")


def test_a_quote_is_for_its_command_alone_and_refused_with_a_new_one_once_it_expired(
    agent: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = project(tmp_path, LOOP)
    wish: dict[str, Any] = {"hardware": "local", "rate": "3.60", "budget": "0.50", "here": work}
    quote = agent.plan_command(WORDS, **wish)
    with pytest.raises(UsageError, match="is for another command"):
        agent.run_command(("python", "train.py", "--fast"), quote=quote.id, **wish)
    with pytest.raises(UsageError, match="is for another command"):
        agent.run_command(WORDS, quote=quote.id, **{**wish, "budget": "0.60"})
    recipe = {"recipe": "trm-tiny", "phase": "fast", "rate": "3.60", "budget": "0.50"}
    plan = agent.plan(hardware="local", **recipe)
    later = agent.context.wall() + 30 * 86_400
    clock = type(agent.context.clock)
    now = agent.context.clock.now()
    monkeypatch.setattr(clock, "now", lambda self: type(now)(later, now.boot, now.boot_id))
    with pytest.raises(QuoteRefused, match="has expired") as caught:
        agent.launch(plan.id)
    assert caught.value.plan.id != plan.id
    assert caught.value.plan.id in caught.value.next_step
    with pytest.raises(QuoteRefused, match="has expired"):
        agent.run_command(WORDS, quote=quote.id, **wish)
    assert agent.runs() == ()
