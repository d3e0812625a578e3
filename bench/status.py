"""What one ``trmcloud status`` asks of others: over fifty rented pods, of RunPod's stand-in; over a
run at a cloud of SkyPilot's, nothing.

Nobody drives the runs, so that the command looks at every one of them. The pods are on paper: none
answers over SSH, which is the slower case.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from bench.row import Row, paired_ratio
from tests.standins.runpod.standin import running
from tests.unit.skypilot.rig import stand_in
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import State
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import Plan
from trmcloud.core.spec.spec import RunSpec
from trmcloud.operations.driving.drive import wish_to_stop
from trmcloud.operations.launch import launching
from trmcloud.operations.pod_request import LaunchData
from trmcloud.wiring import build_context
from trmcloud.wiring_plans import build_planner

PODS = 50
_MOST_CALLS = 2
_WITHIN_S = 120.0
_MOST_RATIO = 1.5


def run() -> list[Row]:
    return [*_over_pods(), _beside_skypilot()]


def _beside_skypilot() -> Row:
    """``status`` where a run goes on at a cloud of SkyPilot's, over ``status`` where none does."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        without, beside = folder / "without", folder / "beside"
        program = stand_in(folder / "sky", folder / "sky.json")
        (folder / "sky.json").write_text('{"enabled": ["AWS"]}')
        environment = {"HOME": name, "TRMCLOUD_SKY": str(program)}
        with mock.patch.dict(os.environ, environment | {"TRMCLOUD_HOME": str(without)}):
            world = build_context()
            driver = launching.start(world, _plan(world.home, "aws"), data=LaunchData())
            wish_to_stop(
                world, driver.run_id, by="user", reason=make_reason(ReasonKind.STOP_COMMAND)
            )
            assert driver.step().state is State.CLOSED
            world.ledger.release(driver.run_id, driver.epoch)
        shutil.copytree(without, beside)
        with mock.patch.dict(os.environ, environment | {"TRMCLOUD_HOME": str(beside)}):
            world = build_context()
            driver = launching.start(world, _plan(world.home, "aws"), data=LaunchData())
            until = time.monotonic() + _WITHIN_S
            while driver.step().state is not State.BOOTING:
                assert time.monotonic() < until, "its cluster is listed"
                time.sleep(0.1)
            world.ledger.release(driver.run_id, driver.epoch)
        program.unlink()
        status = (sys.executable, "-m", "trmcloud", "status")
        ratio, ours, baseline = paired_ratio(
            ("env", f"TRMCLOUD_HOME={beside}", *status),
            ("env", f"TRMCLOUD_HOME={without}", *status),
            environment=environment | {"PYTHONPATH": os.getcwd()},
        )
    detail = f"{ours * 1e3:,.0f} over {baseline * 1e3:,.0f} ms; there is no sky to be found"
    return Row(
        "status with a run at SkyPilot's, over without", ratio, _MOST_RATIO, "lower", "", detail
    )


def _plan(home: Path, provider: str) -> Plan:
    spec = RunSpec(
        recipe="trm-tiny", phases=("fast",), hardware="8xH100", budget=Usd("90"), steps=60,
        providers=(provider,),
    )  # fmt: skip
    return build_planner(home).plan(spec)


def _over_pods() -> list[Row]:
    """How many requests RunPod was sent, and how long the command took."""
    with (
        tempfile.TemporaryDirectory() as name,
        running(
            Path(name) / "runpod", real_pods=False, balance=10_000.0, spend_limit=1000.0
        ) as standin,
    ):
        environment = {
            "HOME": name,
            "TRMCLOUD_HOME": str(Path(name) / "home"),
            "TRMCLOUD_RUNPOD_API": standin.url,
            "RUNPOD_API_BASE_URL": standin.url,
            "RUNPOD_API_KEY": standin.api_key,
        }
        with mock.patch.dict(os.environ, environment):
            _rent()
        standin.requests.clear()
        begun = time.perf_counter()
        shown = subprocess.run(
            [sys.executable, "-m", "trmcloud", "status"],
            env={**os.environ, **environment}, check=True, text=True, stdout=subprocess.PIPE,
        ).stdout  # fmt: skip
        seconds = time.perf_counter() - begun
        asked = [f"{each.method} {each.path}" for each in standin.requests]
    assert shown.count("1xRTX4090") == PODS, shown
    told = " · ".join(f"{asked.count(one)} × {one}" for one in dict.fromkeys(asked))
    detail = f"{told}; {seconds:.1f} s, none of the pods answers"
    return [
        Row(f"API calls of status over {PODS} pods", len(asked), _MOST_CALLS, "lower", "", detail)
    ]


def _rent() -> None:
    """Fifty pods of fifty runs, all left by whoever launched them."""
    world = build_context()
    spec = RunSpec(
        recipe="trm-tiny", phases=("fast",), hardware="1xRTX4090", budget=Usd("0.30"), steps=60,
        providers=("runpod",),
    )  # fmt: skip
    plan = build_planner(world.home).plan(spec)
    drivers = [launching.start(world, plan, data=LaunchData()) for _ in range(PODS)]
    for driver in drivers:
        until = time.monotonic() + _WITHIN_S
        while driver.step().state is not State.BOOTING:
            assert time.monotonic() < until, "its pod is listed"
            time.sleep(0.1)
    while not all(pod.port for pod in world.machines.computes["runpod"].list_pods()):
        assert time.monotonic() < until, "every pod has an address"
        time.sleep(0.5)
    for driver in drivers:
        world.ledger.release(driver.run_id, driver.epoch)
