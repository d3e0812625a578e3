"""The real ``sky launch``, end to end, on RunPod's stand-in: ``make e2e-sky``.

Minutes long and needs root, so it runs where it is asked for alone. A machine there is an overlay
of this one without a network: what SkyPilot would install lies ready in an image of our own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.rented import image
from tests.e2e.runpod_user import ACCEPT, RentedUser, TestClock, why_not
from tests.e2e.user import until
from tests.standins.runpod.containers import SYSTEM_PATH
from tests.standins.runpod.fixture import judged
from tests.standins.sshd import free_port
from trmcloud.core.run_state import State

ENV_IMAGE = "TRMCLOUD_E2E_SKY"
"""Folder with ``root/``: uv and SkyPilot's runtime, as ``make e2e-sky`` lays it out."""
ROOT = Path(__file__).resolve().parents[2]
SKY = ROOT / ".venv-sky" / "bin" / "sky"
VIA = ("--via", "skypilot", "--provider", "runpod")

pytestmark = [
    pytest.mark.skipif(ENV_IMAGE not in os.environ, reason="opt-in: make e2e-sky"),
    pytest.mark.timeout(900),
]

#: The machine's first command finds its home empty: what the image has there is laid in.
BASH = """#!/bin/sh
[ -e /root/skypilot-runtime ] || cp -a {baked}/. /root/
exec /bin/bash "$@"
"""
_CATALOGUE = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,"
    "AvailabilityZone,GpuInfo\n"
    "1x_RTX4090_SECURE,RTX4090,1,5,29,0.69,,US,US-KS-2,\n"
)


@pytest.fixture
def skyfarer(tmp_path: Path) -> Iterator[RentedUser]:
    if missing := why_not():
        pytest.skip(missing)
    baked = Path(os.environ[ENV_IMAGE]) / "root"
    python = (baked / "skypilot-runtime" / "bin" / "python").resolve().parents[1]
    clock = TestClock(tmp_path / "clock")
    inside = image(tmp_path / "image")
    (inside / "bin" / "bash").write_text(BASH.format(baked=baked))
    (inside / "bin" / "bash").chmod(0o755)
    environment = {"PATH": f"{inside / 'bin'}:{SYSTEM_PATH}", "UV_OFFLINE": "1"}
    with judged(
        tmp_path / "runpod",
        clock=clock,
        isolated=True,
        keep=[inside, baked, python],
        image_env=environment,
    ) as standin:
        made = RentedUser(tmp_path, standin=standin, clock=clock)
        made.environment |= {
            "TRMCLOUD_SKY": str(SKY),
            "SKYPILOT_API_SERVER_LOCAL_PORT": str(free_port()),
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        }
        del made.environment["RUNPOD_API_KEY"]
        lay_home(tmp_path, standin.api_key)
        try:
            yield made
        finally:
            made.end_everything()
            with contextlib.suppress(subprocess.TimeoutExpired):
                sky(made, "api", "stop")


def lay_home(home: Path, key: str) -> None:
    """What SkyPilot finds in the user's home: RunPod's key, and a catalogue of one machine."""
    (home / ".runpod").mkdir()
    (home / ".runpod" / "config.toml").write_text(f'[default]\napi_key = "{key}"\n')
    catalogue = home / ".sky" / "catalogs" / "v8"
    (catalogue / "runpod").mkdir(parents=True)
    (catalogue / "runpod" / "vms.csv").write_text(_CATALOGUE)
    (catalogue / "common").mkdir()
    (catalogue / "common" / "accelerators.csv").write_text(
        "AcceleratorName,Clouds\nRTX4090,\"['RunPod']\"\n"
    )


def sky(user: RentedUser, *words: str) -> str:
    environment = {name: value for name, value in user.env().items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(SKY), *words], env=environment, cwd=user.folder, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
    )  # fmt: skip
    return done.stdout


def show(title: str, text: str) -> None:
    print(f"--- {title}\n{text}", file=sys.stderr, flush=True)


def test_provision_sync_run_logs_and_autodown(skyfarer: RentedUser) -> None:
    """The command is killed once training goes on: the cluster ends itself."""
    began = time.monotonic()
    show("sky check runpod", sky(skyfarer, "check", "runpod"))
    arguments = ("--budget", "0.30", "--steps", "100000", *VIA)
    plan_id = skyfarer.plan_to_bind(*arguments, hard_stop_s=420.0, landing_s=20.0)
    launch = skyfarer.start("launch", plan_id, "-y", *ACCEPT, "--allow-account-key-on-pod")
    until(skyfarer.ledger_path.exists, what="a ledger")
    try:
        skyfarer.run_in(State.RUNNING, within_s=460.0)
        until(lambda: skyfarer.only_run().trains, within_s=60.0, what="training")
    except AssertionError:
        if launch.poll() is not None:
            show("launch", "\n".join(launch.communicate()))
        show("sky status", sky(skyfarer, "status"))
        show("sky logs", sky(skyfarer, "api", "logs"))
        raise
    run = skyfarer.only_run()
    assert run.generation is not None
    name = run.generation.pod_name
    launch.kill()
    launch.wait()
    show(f"trains after {time.monotonic() - began:.0f} s", sky(skyfarer, "status", name))
    (pod,) = skyfarer.live()
    assert pod.name.startswith(name)
    show("trmcloud status", skyfarer.run("status", run.run_id))
    show("sky queue", sky(skyfarer, "queue", name))
    show("sky logs", sky(skyfarer, "logs", name, "--no-follow", "--tail", "8"))
    # Nobody drives it now: it lands at its soft stop, and the cluster ends itself.
    until(lambda: not skyfarer.live(), within_s=420.0, what="autodown")
    show(f"gone after {time.monotonic() - began:.0f} s", sky(skyfarer, "status", "-r", name))
    skyfarer.run("status")
    run = skyfarer.close_books()
    show("status", skyfarer.run("status", run.run_id))
    show("report", skyfarer.run("report", run.run_id))
    show("sky cost-report", sky(skyfarer, "cost-report"))
    assert 0 < float(run.settled) <= float(run.cap)
