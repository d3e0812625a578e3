"""Runs that an older version began, taken over by this one; opt-in: ``make older REF=v0.1``.

``TRMCLOUD_OLDER`` names a folder with that version's wheel, unpacked in ``wheel``, and its tests,
whose stand-in of a trainer fits its code on the pod.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest

from tests.e2e.runpod_user import ACCEPT, BILLED_AFTER_S, LAUNCH, RentedUser, in_hand
from tests.e2e.user import until
from trmcloud.core.contract import manifest as mf
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO

pytest.importorskip("boto3")
pytest.importorskip("moto")

from tests.standins.s3 import BUCKET, S3

OLDER = os.environ.get("TRMCLOUD_OLDER", "")
pytestmark = pytest.mark.skipif(not OLDER, reason="opt-in: make older REF=…")


HOLD = {"TRMCLOUD_STANDIN_HOLD": "/etc/passwd"}
"""In a pod of this environment no training gets beyond its 40th step while that file is there."""


@pytest.fixture
def user(renter_in: RentedUser) -> RentedUser:
    return renter_in


def of_older(user: RentedUser, *words: str) -> subprocess.Popen[str]:
    """A command of the older version, started."""
    ours, user.warm = user.environment, False
    user.environment = ours | {
        "PYTHONPATH": f"{OLDER}/wheel",
        "TRMCLOUD_TRAINER": f"{OLDER}/tests/standins/trainer",
    }
    try:
        return user.start(*words)
    finally:
        user.environment, user.warm = ours, True


def begin(user: RentedUser, *more: str) -> RunState:
    """A run that the older version launched and left alone, in training."""
    out, err = of_older(
        user, *LAUNCH, "--budget", "0.30", *user.data, *ACCEPT, *more, "-d"
    ).communicate(timeout=200)
    assert "Traceback" not in err, err
    until(lambda: bool(user.ledger().runs), what=f"a run: {out}{err}")
    run = user.only_run()
    assert run.trains, (out, err)
    return run


def settled(user: RentedUser) -> RunState:
    """The only run, once its books are closed: what it cost in truth is what it was billed."""
    run = user.close_books()
    assert ZERO < run.settled <= run.cap
    assert user.billed() == pytest.approx(float(run.settled), abs=2e-6)
    (report,) = user.json("report", "--json")["runs"]
    assert float(report["billed_usd"]) == pytest.approx(user.billed(), abs=2e-6)
    return run


def test_one_that_trains_is_watched_stopped_landed_fetched_and_settled(
    user: RentedUser, image_env: dict[str, str]
) -> None:
    version = of_older(user, "--version").communicate(timeout=60)[0]
    assert version != user.run("--version"), "the wheel is of another version"
    image_env |= HOLD
    run = begin(user, "--steps", "400", "--accept-loss")
    until(lambda: "step 40" in user.run("status", run.run_id).replace(",", ""), what="it is seen")
    assert [one["run"] for one in user.json("status", "--json")["runs"]] == [run.run_id]
    out = user.drive("stop", "-y", run.run_id)
    assert user.live() == []
    run = settled(user)
    assert run.outcome is Outcome.STOPPED, out
    best = mf.pick_best(user.checkpoints().values())
    assert best is not None
    fetched = user.json("fetch-best", "--into", str(user.folder / "best"), "--json")
    assert fetched["sha256"] == best.sha256


WAITING: dict[str, Callable[[RunState], bool]] = {
    "for its pod": lambda run: run.state is State.RENTING and bool(run.actions),
    "for its boot": lambda run: run.state is State.BOOTING,
    "for its files": lambda run: in_hand(run, "stage"),
    "for its bill": lambda run: run.generation is not None and run.generation.absence is not None,
}


@pytest.mark.parametrize("waits", WAITING)
def test_one_that_waits_is_taken_up(user: RentedUser, waits: str) -> None:
    user.standin.control.set(list_omits_new_s=3.0, provisioning_s=5.0)
    command = of_older(user, *LAUNCH, "--steps", "60", "--budget", "0.30", *user.data, *ACCEPT)
    until(user.ledger_path.exists)
    until(lambda: any(map(WAITING[waits], user.ledger().runs.values())), what=waits)
    if waits == "for its pod":
        until(lambda: bool(user.live()), what="what was asked for is made")
    command.kill()
    command.communicate()
    if waits != "for its bill":
        user.drive("resume", "-y", user.only_run().run_id)
    for _ in range(2):
        user.clock.advance(BILLED_AFTER_S)
        user.run("status")
    run = settled(user)
    assert run.outcome is Outcome.FINISHED
    assert len(user.truth()) == 1, "one pod was rented"
    best = mf.pick_best(user.checkpoints().values())
    assert best is not None
    assert best.step == 60


def test_one_in_a_bucket_goes_on_after_its_pod_was_lost(
    user: RentedUser, s3: S3, image_env: dict[str, str]
) -> None:
    name = f"s3://{BUCKET}/{user.folder.name.replace('_', '-')}"
    image_env["TRMCLOUD_STANDIN_FAULT"] = "hang@60"
    run = begin(user, "--steps", "150", "--bucket", name)
    prefix = name.removeprefix(f"s3://{BUCKET}/")

    def is_stored() -> bool:
        sizes = s3.keys(BUCKET, prefix)
        return any(key.endswith("/manifest.json") and sizes[key] for key in sizes)

    until(is_stored, within_s=60, what="a checkpoint is in the bucket")
    (pod,) = user.live()
    user.standin.control.end(pod.id)
    assert user.close_books().outcome is Outcome.UNREPORTED
    del image_env["TRMCLOUD_STANDIN_FAULT"]
    user.drive("resume", "-y", run.run_id)
    again = settled(user)
    assert again.outcome is Outcome.FINISHED
    account = again.phases["fast"]
    assert (account.generation, account.step) == (2, 150)
    fetched = user.json("fetch-best", "--into", str(user.folder / "best"), "--json")
    assert fetched["checkpoint"] == "fast/step-00000150"
