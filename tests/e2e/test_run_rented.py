"""``trmcloud run`` on rented pods: RunPod's stand-in, whose pods are processes of their own."""

from __future__ import annotations

import json

import pytest

from tests.e2e.test_run import script
from tests.e2e.user import User, until
from tests.standins.runpod.standin import StandIn

OPTIONS = (
    *("--budget", "2", "--accept-exposure", "2", "--checkpoint-gb", "0.001"),
    *("--checkpoints", "out", "--metric", "val_loss=([0-9.]+)"),
)
#: Looks for its data where it lies in the working tree, and for what it was given.
ENDING = """
import os, time, trmcloud_job
print("TOKEN", os.environ["TOKEN"], os.environ.get("RUNPOD_API_KEY"))
print("DATA", open("data/tiny/words.txt").read(), os.environ["TRMCLOUD_DATA"])
os.makedirs("out")
for step in range(1, 61):
    time.sleep(0.1)
    print(f"step {step} val_loss={100 / step:.4f}")
    if step % 20 == 0:
        with open(f"out/step-{step}.pt", "wb") as file:
            file.write(os.urandom(5000))
        time.sleep(2)
"""


@pytest.fixture
def rented(lodger: User, runpod: StandIn) -> tuple[User, StandIn]:
    lodger.cwd = lodger.folder / "project"
    lodger.cwd.mkdir()
    return lodger, runpod


def test_a_strangers_script_trains_on_a_rented_pod(rented: tuple[User, StandIn]) -> None:
    user, standin = rented
    script(user, ENDING)
    (user.here / ".env").write_text("SECRET=never-leaves")
    (user.here / "data" / "tiny").mkdir(parents=True)
    (user.here / "data" / "tiny" / "words.txt").write_text("to be or not")
    user.environment["TOKEN"] = "open-sesame"
    image = ("--image", "somebody/trainer:7")
    command = ("--env", "TOKEN", "--data", "data/tiny", *image, "-y", "--", "python3", "train.py")
    dry = user.run("run", "1xA100", *OPTIONS, "--dry-run", *command)
    assert "hours per dollar; asked to stop when" in dry
    assert "1 file, " in dry, "neither .env nor what --data sends"
    launch = user.start("run", "1xA100", *OPTIONS, *command)
    until(lambda: bool(standin.control.live()))
    told = json.dumps(standin.control.live()[0].body)
    out, err = launch.communicate(timeout=200)
    assert launch.returncode == 0, out + err
    run = user.only_run()
    assert run.phases["train"].outcome == "finished", out
    assert f"{run.run_id} finished: the command ended normally" in out
    log = user.run("logs")
    assert "TOKEN open-sesame None" in log, "and no key of the account"
    assert "DATA to be or not /workspace/trmcloud/data/" in log
    assert json.loads(told)["image"] == "somebody/trainer:7"
    assert "open-sesame" not in told, "the provider is told of no value"
    assert "never-leaves" not in told + log
    kept = [path for path in user.home.rglob("*") if path.is_file()]
    holders = [path for path in kept if b"open-sesame" in path.read_bytes()]
    assert {path.name for path in holders} <= {"train.log"}, "the script printed it"
    fetched = user.run("fetch-best", "--into", "best")
    assert "step-00000060: fetched and verified" in fetched
    assert (user.here / "best" / "own" / "step-60.pt").stat().st_size == 5000
    assert "val_loss        1.667 by the pod's report\n" in fetched
    assert "opening it      unknown: treat it as code" in fetched
    assert "val_loss 1.667 by the pod's report" in user.run("status", run.run_id)
    told = user.run("report")
    assert "1.667*" in told
    assert "* by the pod's report: measure a fetched checkpoint" in told
