"""One run on two machines of a cloud: SkyPilot's stand-in makes them and joins their networks; the
trainer and its torchrun are the real ones."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import inspect
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e import web_corpus
from tests.e2e.rented import image
from tests.e2e.runpod_user import RentedUser, TestClock, why_not
from tests.e2e.user import RANKS, until
from tests.standins.data_host import DataHost, serving
from tests.standins.runpod.containers import SYSTEM_PATH
from tests.standins.runpod.fixture import judged
from tests.unit.skypilot.rig import stand_in
from trmcloud.adapters.files import load_data_set
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, cost

LAUNCH = (
    *("launch", "2x1xL40S", "--provider", "digitalocean", "--recipe", "trm-tiny"),
    *("--phase", "fast", "--set", "depth=1", "--set", "width=32", "--set", "vocab_size=300"),
    *("--set", "sequence=64", "--set", "eval_tokens=1024", "--set", "eval_every=20"),
    *("--set", "save_every=20", "--set", "log_every=5", "--steps", "100000", "-y"),
)
ACCEPT = ("--accept-exposure", "6")
LOST_AFTER_S = 16.0


class Sailor(RentedUser):
    """Who trains on a text of their own, or else on a corpus of the web that machines fetch."""

    trains_on_the_web = False
    machine_environment: dict[str, str]
    """Of every machine that is made from now on."""

    @property
    def data(self) -> tuple[str, str]:
        if not self.trains_on_the_web:
            return super().data
        return ("--data", load_data_set(web_corpus.NAME).address("shard_00000.parquet"))


@pytest.fixture
def sailor(tmp_path: Path) -> Iterator[Sailor]:
    missing = why_not() or ("" if shutil.which("ip") else "no ip command")
    if missing:
        pytest.skip(f"machines with networks of their own: {missing}")
    with sailing(tmp_path) as made:
        yield made
        made.end_everything()


@contextlib.contextmanager
def sailing(folder: Path) -> Iterator[Sailor]:
    """A user of a cloud whose machines reach each other."""
    clock = TestClock(folder / "clock")
    inside = image(folder / "image")
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    site = Path(torch.origin).parents[1]
    python = inside / "bin" / "python3"
    python.write_text(python.read_text().replace(f"{inside / 'site'}", f"{site}:{inside / 'site'}"))
    shutil.copy(RANKS / "sitecustomize.py", inside / "site")
    (inside / "site" / "step_s").write_text("0.2")
    path = {"PATH": f"{inside / 'bin'}:{SYSTEM_PATH}"}
    host = web_corpus.put_on(DataHost(), folder / "corpus")
    with (
        serving(host),
        judged(
            folder / "machines",
            clock=clock,
            keep=[inside, site],
            image_env=path,
            reach=[urlsplit(url).port or 0 for url in (host.hub, host.cdn)],
        ) as standin,
    ):
        looks = ("status", "--live")
        made = Sailor(folder, trainer=None, standin=standin, clock=clock, looks=looks)
        made.machine_environment = path
        made.environment |= host.environment
        made.text.write_text(inspect.getsource(argparse))
        account = {"url": standin.url, "key": standin.api_key}
        state = folder / "sky.json"
        state.write_text(json.dumps({"runpod": account, "enabled": ["DO"]}))
        made.environment["TRMCLOUD_SKY"] = str(stand_in(folder / "sky", state, folder / "clock"))
        del made.environment["RUNPOD_API_KEY"]
        yield made


@pytest.mark.more
def test_two_machines_train_together_until_one_is_lost_and_go_on_anew(sailor: Sailor) -> None:
    sailor.trains_on_the_web = True
    plan_id = sailor.plan_to_bind("--budget", "3", launch=LAUNCH, hard_stop_s=900.0, landing_s=20.0)
    began = time.monotonic()
    launch = sailor.start("launch", plan_id, "-y", *ACCEPT)
    try:
        sailor.run_in(State.RUNNING, within_s=60.0)
    except AssertionError:
        if launch.poll() is not None:
            print("\n".join(launch.communicate()), file=sys.stderr)
        raise
    until(lambda: bool(sailor.checkpoints()), within_s=120.0, what="a checkpoint here")
    head, other = sorted(sailor.live(), key=lambda pod: pod.name)
    assert (head.name.endswith("-head"), other.name.endswith("-worker1")) == (True, True)
    log = sailor.standin.control.inside(head.id, "cat /workspace/trmcloud/runs/*/fast/train.log")
    assert "on 2 × " in log
    there = sailor.standin.control.inside(other.id, "cat /workspace/trmcloud/pods/*/lease.json")
    assert json.loads(there)["hold"] is True
    assert sailor.standin.control.inside(other.id, "ls /workspace/trmcloud/runs/*/fast")
    # Each made the data for itself, and both the very same.
    made = [
        sailor.standin.control.inside(pod.id, "sha256sum /workspace/trmcloud/data/*/shard-*.bin")
        for pod in (head, other)
    ]
    assert "shard-00000.bin" in made[0]
    assert made[0] == made[1]
    # One is lost: the other's trainer ends at once, and with it the cluster.
    sailor.standin.control.lose_host(other.id)
    sailor.see_out(launch, code=24, within_s=120.0)
    assert sailor.live() == []
    run = sailor.only_run()
    assert run.outcome is Outcome.FAILED
    assert ZERO < run.settled <= run.cap
    reached = _furthest(sailor)
    # Two others go on from what was pulled, and land when they are told to.
    again = sailor.start("resume", "-y", run.run_id)
    until(lambda: sailor.only_run().live, what="it is reopened")
    until(lambda: _furthest(sailor) > reached, within_s=120.0, what="a newer checkpoint")
    assert len(sailor.live()) == 2
    sailor.run("stop", "-y", run.run_id)
    sailor.see_out(again, code=21, within_s=120.0)
    assert sailor.live() == []
    best = sailor.best()
    fetched = sailor.json("fetch-best", "--into", str(sailor.folder / "best"), "--json")
    assert fetched["sha256"] == best.sha256
    (report,) = sailor.json("report", "--json")["runs"]
    assert 0 < float(report["billed_usd"]) <= float(run.cap)
    # What the test added to the clock was lived through by no machine.
    (rate,) = {generation.rate for generation in sailor.only_run().generations}
    assert float(report["billed_usd"]) <= float(cost(rate, time.monotonic() - began))


def _train_until_a_checkpoint(user: RentedUser) -> subprocess.Popen[str]:
    plan_id = user.plan_to_bind("--budget", "3", launch=LAUNCH, hard_stop_s=900.0, landing_s=20.0)
    launch = user.start("launch", plan_id, "-y", *ACCEPT)
    until(lambda: bool(user.checkpoints()), within_s=200.0, what="a checkpoint here")
    return launch


@pytest.mark.more
def test_where_the_first_is_lost_and_nobody_drives_the_other_ends_them_all(
    sailor: Sailor,
) -> None:
    sailor.machine_environment["TRMCLOUD_HEAD_LOST_S"] = str(LOST_AFTER_S)
    launch = _train_until_a_checkpoint(sailor)
    launch.kill()
    head, _ = sorted(sailor.live(), key=lambda pod: pod.name)
    sailor.standin.control.lose_host(head.id)
    lost_at = time.monotonic()
    until(lambda: not sailor.live(), within_s=200.0, what="the other ends them")
    print(f"ended {time.monotonic() - lost_at:.0f} s after the loss of the first")
    # Not before the first one had its time to come back, and long before the hard stop.
    assert 0.5 * LOST_AFTER_S < time.monotonic() - lost_at < 300.0
    run = sailor.close_books()
    assert ZERO < run.settled <= run.cap
    assert sailor.checkpoints()


def _furthest(user: RentedUser) -> int:
    return max(manifest.step for manifest in user.checkpoints().values())
