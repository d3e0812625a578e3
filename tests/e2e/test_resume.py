"""``trmcloud resume``: what it asks, what it refuses without a change, and what it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_run import LANDED, RATE, kept, script
from tests.e2e.user import LAUNCH, User
from tests.standins import scripts
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import BudgetRefused, Outcome, UsageError
from trmcloud.core.money import Usd

SHORT = ("--budget", "0.02", "--grace", "2", "--checkpoints", "out")
HIDES_TORCH = """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "torch" else found(name, *more)
"""


@pytest.fixture
def user(in_project: User) -> User:
    return in_project


def landed(user: User, *options: str) -> RunState:
    """Its run of a script that cannot be resumed from a checkpoint."""
    script(user, scripts.PLAIN)
    user.run("run", "local", *RATE, *SHORT, *options, "--", "python3", "train.py", code=LANDED)
    return user.only_run()


def test_it_asks_with_dollars_and_says_that_a_command_starts_again(user: User) -> None:
    run = landed(user)
    before = kept(user)
    err = user.refused("resume", "--budget", "0.04", code=UsageError.exit_code)
    assert f"{run.run_id}, the newest run, and this is not a terminal" in err
    assert f"  try: trmcloud resume {run.run_id} --budget 0.04 -y\n" in err
    assert user.only_run().outcome is Outcome.LANDED
    out = user.run("resume", run.run_id, "--budget", "0.04", "-y", code=LANDED)
    assert "starts again    from its beginning: it was launched without --resume" in out
    assert "continues from" not in out
    left = Usd("0.04") - run.settled
    assert f"spends          at most {left} more" in out
    after = kept(user)
    assert set(before) <= set(after), "what the first attempt left is still there"
    assert set(after) - set(before), "and what the second one saved"
    assert user.only_run().settled <= Usd("0.04")


def test_too_little_is_refused_and_changes_nothing(user: User) -> None:
    run = landed(user)
    err = user.refused("resume", run.run_id, "-y", code=BudgetRefused.exit_code)
    assert "start-up, a step and a save need" in err
    again = err.partition("  try: ")[2].strip()
    assert again.startswith(f"trmcloud resume {run.run_id} --budget 0.0")
    assert user.only_run().outcome is Outcome.LANDED
    user.run(*again.split()[1:], "-y", code=LANDED)  # the line that it names is enough


def test_a_command_needs_no_training_extra(user: User, tmp_path: Path) -> None:
    run = landed(user)
    folder = tmp_path / "without"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HIDES_TORCH)
    user.environment["PYTHONPATH"] = f"{folder}:{user.env()['PYTHONPATH']}"
    user.run("resume", run.run_id, "--budget", "0.04", "-y", code=LANDED)


def test_a_recipe_whose_rest_trains_no_step_keeps_its_outcome(user: User) -> None:
    """It would be rented, refuse its phase with seconds left, and no longer count as landed."""
    user.run(*LAUNCH, "--budget", "0.05", code=LANDED)
    run = user.only_run()
    err = user.refused("resume", "-y", code=BudgetRefused.exit_code)
    assert f"too little of {run.run_id}'s budget is left" in err
    assert user.only_run().outcome is Outcome.LANDED
    assert user.only_run().settled == run.settled


def test_a_changed_training_is_refused_by_name_then_accepted(user: User) -> None:
    user.run(*LAUNCH, "--steps", "20", "--budget", "1")
    run = user.only_run()
    given = ("--set", "steps=30", "--set", "seed=7")
    refusal = user.refused("resume", "-y", run.run_id, *given, code=10)
    assert "trained with other settings: seed 1337 → 7" in refusal
    assert "--accept-change" in refusal
    assert user.only_run() == run, "nothing was reserved, rented or written down"
    told = user.run("resume", "-y", run.run_id, *given, "--accept-change")
    assert "accepted        seed 1337 → 7" in told
    run = user.only_run()
    assert (run.outcome, run.phases["fast"].step) == (Outcome.FINISHED, 30)
    status = user.run("status", run.run_id)
    assert "fast from here  seed = 7, steps = 30" in status
    assert "a different training from here on" in status
