"""Runs as a script sees them: documents and lines of JSON, names, tags, and one run for a key."""

from __future__ import annotations

import signal
from datetime import datetime
from typing import Any

import pytest

from tests.documents import document_in, lines_in
from tests.e2e.user import LAUNCH, User
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import Usd

KILLED = ("-m", "tests.e2e.killed_launch")
"""A program for a user: it is killed between the record of a launch and what it would rent."""


def failed(user: User, *arguments: str, code: int) -> Any:
    """The document of an error."""
    left, out, err = user.ended(*arguments, "--json")
    assert left == code, (out, err)
    assert err.startswith("error: ")
    said = document_in(out)
    assert (said["schema"], said["exit_code"]) == ("error/1", code)
    return said


def test_a_script_launches_once_by_its_key_and_finds_it_by_name_and_tag(user: User) -> None:
    user.hold()
    words = (*LAUNCH, "--steps", "200", "--budget", "1", "-d", "--name", "first", "--tag", "team=a")
    keyed = (*words, "--idempotency-key", "job-1")
    first = user.json(*keyed, "--json")
    run = user.only_run()
    assert (first["schema"], first["run"], first["existing"]) == ("launch/1", run.run_id, False)
    assert (first["name"], first["tags"], first["plan"]) == ("first", {"team": "a"}, run.plan.id)
    assert (first["state"], first["live"], first["detached"]) == ("running", True, True)
    assert Usd(first["reserved_usd"]) == run.reserved
    assert Usd(first["cap_usd"]) == run.cap == Usd(1)
    generation = run.generation
    assert generation is not None
    hard_stop_at = datetime.fromisoformat(first["hard_stop_at"]).timestamp()
    assert hard_stop_at == pytest.approx(generation.hard_stop_at, abs=0.001)
    assert first["hard_stop_s"] > 0

    again = user.json(*keyed, "--json")
    assert (again["run"], again["existing"]) == (run.run_id, True)
    assert "launched with this key before: running" in user.run(*keyed)
    other = failed(user, *keyed, "--set", "depth=2", code=2)
    assert other["message"].endswith(
        f"belongs to {run.run_id}, which was launched with other arguments"
    )
    assert failed(user, *words, code=8)["code"] == "conflict", "a live run's name"
    assert len(user.live_pods()) == 1
    assert user.only_run().run_id == run.run_id

    for by in (("status", "first"), ("status", "--tag", "team=a")):
        (told,) = user.json(*by, "--json")["runs"]
        assert (told["run"], told["name"]) == (run.run_id, "first")
    assert user.json("status", "--tag", "team=b", "--json")["runs"] == []
    assert user.json("report", "--tag", "team=b", "--json")["runs"] == []
    assert f"{run.run_id} first local" in user.run("status")
    assert f"{run.run_id} first" in user.run("report", "--tag", "team=a")

    log = user.home / "runs" / run.run_id / "fast" / "train.log"
    log.write_text("step 1\nstep 2 “é”\nnot ended yet")
    logged = lines_in(user.run("logs", "first", "--json"))
    assert {(line["schema"], line["run"], line["phase"]) for line in logged} == {
        ("log/1", run.run_id, "fast")
    }
    assert [line["text"] for line in logged] == ["step 1", "step 2 “é”", "not ended yet"]

    *events, ended = lines_in(user.run("stop", "first", "-y", "--json"))
    assert [event["id"] for event in events] == sorted(event["id"] for event in events)
    assert "StopRequested" in {event["kind"] for event in events}
    assert (ended["schema"], ended["state"], ended["live"]) == ("run/1", "stopped", False)
    assert ended["outcome"] == Outcome.STOPPED.value
    assert Usd(ended["billed_usd"]) == user.only_run().settled
    over = user.json(*keyed, "--json")
    assert (over["existing"], over["state"], over["live"]) == (True, "stopped", False)


def test_a_followed_launch_is_lines_and_ends_with_the_run(user: User) -> None:
    words = (*LAUNCH, "--steps", "30", "--budget", "1", "--json")
    process = user.start(*words)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    launched, *events, ended = lines_in(out)
    assert (launched["schema"], launched["live"], launched["hard_stop_at"]) == (
        "launch/1", True, None,
    )  # fmt: skip
    kinds = [event["kind"] for event in events]
    assert kinds[:3] == ["RunPlanned", "Reserved", "PodIntended"]
    assert "Settled" in kinds
    assert (ended["schema"], ended["state"], ended["steps"]) == ("run/1", "finished", 30)
    assert "finished: every step was trained" in err, "words for people are on stderr"

    *_, again = lines_in(user.run("logs", "-f", ended["run"], "--json"))
    assert (again["schema"], again["run"], again["state"]) == ("run/1", ended["run"], "finished")
    more = ("resume", "-y", ended["run"], "--budget", "2", "--set", "steps=60")
    keyed = (*more, "--idempotency-key", "again-1", "--json")
    resumed, *_, ended = lines_in(user.run(*keyed))
    assert (resumed["schema"], resumed["cap_usd"]) == ("launch/1", "2")
    assert (ended["state"], ended["steps"]) == ("finished", 60)
    over = user.json(*keyed)
    assert (over["existing"], over["run"], over["state"]) == (True, ended["run"], "finished")
    assert len(user.only_run().generations) == 2


def test_a_command_of_ones_own_prints_lines_too(in_project: User) -> None:
    (in_project.here / "train.py").write_text("print('val_loss 1.0')\n")
    words = ("run", "local", "--rate", "3.60", "--budget", "0.10", "-y", "--json")
    out = in_project.run(*words, "--", "python3", "train.py", "--json", code=30)
    launched, *_, ended = lines_in(out)
    assert (launched["schema"], launched["recipe"]) == ("launch/1", "command")
    assert (ended["schema"], ended["state"], ended["best"]) == ("run/1", "finished", None)


def test_a_launch_that_was_killed_before_it_rented_is_gone_on_with(user: User) -> None:
    words = (*LAUNCH, "--steps", "30", "--budget", "1", "--idempotency-key", "job-1", "--json")
    user.program = KILLED
    process = user.start(*words)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    left = user.only_run()
    assert (left.state, left.generations) == (State.RESERVED, ())
    user.program = User.program
    launched, *_, ended = lines_in(user.run(*words))
    assert (launched["run"], launched["existing"]) == (left.run_id, True)
    assert (ended["run"], ended["state"]) == (left.run_id, "finished")
    run = user.only_run()
    assert len(run.generations) == 1
    assert user.json(*words)["existing"] is True
