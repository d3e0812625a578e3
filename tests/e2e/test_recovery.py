"""What goes wrong in a real training and goes on by itself: what happened, what was changed, and
what it cost stand on every screen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.impatient import HANG_AFTER_S
from tests.e2e.user import IMPATIENT, LAUNCH, ROOT, TINY, User, until, write_text
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.recovery import Recovery
from trmcloud.core.errors import Outcome

ONE = ("--processes", "1")
STRICKEN = """
import os
if os.environ.get("RANK") and os.environ.get("TRMCLOUD_JOB"):
    import math
    import model.training.loop, torch
    torch.set_num_threads(1)  # two that wait for one another starve on a busy machine
    torch.set_num_threads = lambda number: None
    from model.families.trm.model import TRM
    step_of, loss_of = [0], TRM.loss
    taken = model.training.loop.Trainer._step
    own = os.environ["TRMCLOUD_OVERRIDES"] == "{}"
    fault = "FAULT"
    def step(self):
        step_of[0] = self._progress.step + 1
        return taken(self)
    def loss(self, *batch):
        made = loss_of(self, *batch)
        if fault == "nan" and own and step_of[0] >= 25:
            made = made._replace(loss=made.loss * math.nan)
        return made
    model.training.loop.Trainer._step, TRM.loss = step, loss
"""
"""The real trainer, and what befalls it."""


@pytest.fixture
def stricken(tmp_path: Path) -> Iterator[Callable[[str], User]]:
    """A user with the real trainer, and a fault that strikes it."""
    folder = tmp_path / "trainer"
    folder.mkdir()
    (folder / "model").symlink_to(ROOT / "model")
    write_text(tmp_path)
    user = User(tmp_path, trainer=folder, environment={"OMP_NUM_THREADS": "1"})

    def by(fault: str) -> User:
        # In its own code: a trainer is given no more of an environment than it needs.
        (folder / "sitecustomize.py").write_text(STRICKEN.replace("FAULT", fault))
        return user

    yield by
    user.end_everything()


def launch(user: User, steps: int, *more: str, within_s: float = 900) -> str:
    words = ("launch", "local", *TINY, "--steps", str(steps), "--budget", "5", "-y", *more)
    return user.run(*words, within_s=within_s)


def rows(user: User) -> list[Recovery]:
    """The agent's account, from its own report."""
    [path] = user.home.glob(f"{contract.PODS_DIR}/*/{contract.REPORT_NAME}")
    return list(contract.load_report(path.read_bytes()).phases[0].recoveries)


def told(user: User, out: str, *words: str) -> dict[str, Any]:
    """The last thing that was mended, as JSON: ``words`` stand on every screen."""
    run = user.only_run()
    assert run.outcome is Outcome.FINISHED, out
    for screen in (out, user.run("status", run.run_id)):
        for each in (*words, " lost\n"):
            assert each in screen, screen
    found = user.json("status", run.run_id, "--json")["runs"][0]["recoveries"][-1]
    logs = user.start("logs", run.run_id)
    assert "recovered: fast step" in logs.communicate(timeout=60)[1]
    assert float(found["lost_usd"]) == pytest.approx(found["lost_s"] * 3.60 / 3600, abs=2e-6)
    return dict(found)


@pytest.mark.more
def test_a_loss_that_is_lost_goes_back_at_half_the_rate(stricken: Callable[[str], User]) -> None:
    user = stricken("nan")
    out = launch(user, 40, *ONE)
    found = told(user, out, "loss or gradients were not finite", "learning rates × 0.5")
    assert (found["code"], found["rung"], found["changed"]) == ("non_finite", "rate", {"rate": 0.5})
    assert found["lost_steps"] == 8, "from the checkpoint at 20 to the last of five"
    assert [line["from_step"] for line in user.metrics("start")] == [0, 20]


def test_a_trainer_that_stands_still_is_started_again(user: User) -> None:
    user.program = IMPATIENT
    user.environment["TRMCLOUD_STANDIN_FAULT"] = "stall@27"
    out = user.run(*LAUNCH, "--steps", "60", "--budget", "5")
    found = told(user, out, "the trainer made no progress (no step for ")
    assert (found["code"], found["rung"]) == ("lost", "again")
    assert found["lost_s"] >= HANG_AFTER_S


NVIDIA_SMI = """#!/bin/sh
case "$1" in
--query-gpu=utilization.gpu,memory.used,memory.total,clocks.sm) echo "97, 20000, 81559, 1980" ;;
*) exit 9 ;;
esac
"""
"""It answers to what the agent samples, and to nothing else: this machine has no GPUs."""


@pytest.mark.more
def test_memory_to_spare_is_climbed_into(stricken: Callable[[str], User], tmp_path: Path) -> None:
    """A machine that says a quarter of its memory is in use, and days of training ahead."""
    user = stricken("none")
    tool, settings = tmp_path / "bin" / "nvidia-smi", tmp_path / "settings.toml"
    tool.parent.mkdir()
    tool.write_text(NVIDIA_SMI)
    tool.chmod(0o755)
    settings.write_text("accumulation = 6\n")  # not --set: what is set by hand stays
    user.environment["TRMCLOUD_GPU_SAMPLE_S"] = "1"
    user.environment["PATH"] = f"{tool.parent}:{os.environ['PATH']}"
    user.environment["TRMCLOUD_TEST_SETTINGS"] = str(settings)
    words = ("launch", "local", *TINY, "--steps", "9000000", "--budget", "400", "-y", *ONE)
    driver = user.start(*words)
    reports = f"{contract.PODS_DIR}/*/{contract.REPORT_NAME}"
    until(lambda: any(user.home.glob(reports)) and bool(rows(user)), within_s=900, what="a climb")
    [row] = rows(user)
    assert (row.what, row.rung, row.lost_steps) == ("memory_spare", "aggressive", 0)
    assert row.changed == {"batch": 6, "accumulation": 4}
    until(lambda: len(user.metrics("start")) == 2, within_s=600, what="its second start")
    assert user.metrics("start")[1]["from_step"] == row.step > 0
    run = user.only_run()
    screen = user.run("status", run.run_id)
    assert f"fast step {row.step:,}: memory was free" in screen
    assert "restarted with batch 6 × accumulation 4 (aggressive) · 0 steps · " in screen
    user.run("stop", "-y", run.run_id)
    out = driver.communicate(timeout=600)[0]
    assert user.only_run().outcome is Outcome.STOPPED, out
    assert "memory was free" in out
