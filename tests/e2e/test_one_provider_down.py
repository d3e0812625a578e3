"""One provider that cannot be had leaves everything else working, and is told in one line."""

from __future__ import annotations

import os

import pytest

from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser
from tests.e2e.user import SMALL, until
from trmcloud.core.control.run_state import State

NOT_SEEN = "runpod was not checked: there is no RunPod key"
LOCALLY = ("launch", "local", *SMALL, "--phase", "fast", "--steps", "20", "--budget", "0.05", "-y")


def said(user: RentedUser, *arguments: str, code: int = 0) -> tuple[str, str]:
    """(stdout, stderr)"""
    process = user.start(*arguments)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, f"{arguments}: {process.returncode}\n{out}\n{err}"
    assert "Traceback" not in err, err
    return out, err


@pytest.fixture
def keyless(renter: RentedUser) -> RentedUser:
    """One whose pod boots, whose launch was killed, and who has a key no more."""
    launch = renter.start(*LAUNCH, "--steps", "60", "--budget", "0.30", *renter.data, *ACCEPT)
    renter.run_in(State.BOOTING)
    os.kill(launch.pid, 9)
    launch.communicate()
    renter.environment["RUNPOD_API_KEY"] = ""
    return renter


def test_without_its_key_it_is_told_in_one_line_and_all_else_works(keyless: RentedUser) -> None:
    rented = keyless.only_run().run_id
    for look in ("status", "status --json", "budget show", "report"):
        out, err = said(keyless, *look.split())
        assert err.splitlines() == [NOT_SEEN]
        assert rented in out or look == "budget show"
        assert keyless.only_run().live, "nothing is concluded from what was not seen"
    out, err = said(keyless, "admin", "reap", "--yes", "--guard-every", "5", code=11)
    assert "runpod gave no list: there is no RunPod key" in err
    assert "as far as could be seen" in out
    visit, _ = said(keyless, "admin", "guard", "status", code=3)
    assert "it reached local" in visit
    for command in (f"stop -y {rented}", f"resume {rented}", "admin volumes"):
        _, err = said(keyless, *command.split(), code=15)
        assert "error: there is no RunPod key" in err
        assert "  try: export RUNPOD_API_KEY=" in err
    # This machine trains on without it.
    _, err = said(keyless, *LOCALLY)
    assert NOT_SEEN in err
    runs = keyless.ledger().runs
    assert {run.outcome.value for run in runs.values() if run.outcome} == {"finished"}
    assert runs[rented].live


def test_once_the_key_is_back_everything_is_settled(keyless: RentedUser) -> None:
    said(keyless, "stop", "-y", keyless.only_run().run_id, code=15)
    keyless.environment["RUNPOD_API_KEY"] = keyless.standin.api_key
    keyless.clock.advance(1000.0)
    keyless.run("status")
    until(lambda: not keyless.live(), what="the pod ends")
    run = keyless.close_books()
    assert run.stop is not None, "the wish was on record all the time"
    assert keyless.billed() <= float(run.settled) + 2e-6
