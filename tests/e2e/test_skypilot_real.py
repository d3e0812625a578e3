"""The real ``sky launch``, end to end, on RunPod's stand-in: ``make e2e-sky``.

Minutes long and needs root, so it runs where it is asked for alone. A machine there is an overlay
of this one, with Python 3.10, without torch and without a network: what SkyPilot would install lies
ready in an image of our own; what the trainer needs is served from loopback, and is the real thing.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.bare import bare_image, old_python
from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser, TestClock, why_not
from tests.e2e.user import until
from tests.standins import sky_machines
from tests.standins.downloads import downloads
from tests.standins.runpod.containers import SYSTEM_PATH
from tests.standins.runpod.fixture import judged
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO
from trmcloud.providers.skypilot.homes import SkyHome
from trmcloud.providers.skypilot.secrets import NEVER
from trmcloud.providers.skypilot.traits import RUNPOD_BY_SKYPILOT

ENV_IMAGE = "TRMCLOUD_E2E_SKY"
"""Folder with ``root/``: uv and SkyPilot's runtime, as ``make e2e-sky`` lays it out."""
ROOT = Path(__file__).resolve().parents[2]
SKY = ROOT / ".venv-sky" / "bin" / "sky"
VIA = ("--via", "skypilot", "--provider", "runpod")
SMALL = (
    *("--set", "depth=1", "--set", "width=32", "--set", "vocab_size=300", "--set", "sequence=64"),
    *("--set", "eval_tokens=1024", "--set", "eval_every=20", "--set", "save_every=20"),
    *("--set", "log_every=5", "--budget", "0.30", "--steps", "100000"),
)
NOTICED_WITHIN_S = 180.0

pytestmark = [
    pytest.mark.skipif(ENV_IMAGE not in os.environ, reason="opt-in: make e2e-sky"),
    pytest.mark.timeout(1800),
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
    inside, kept = bare_image(tmp_path / "image", with_uv=False)
    (inside / "bin" / "bash").write_text(BASH.format(baked=baked))
    (inside / "bin" / "bash").chmod(0o755)
    environment = {"PATH": f"{inside / 'bin'}:{SYSTEM_PATH}", "UV_OFFLINE": "1"}
    with (
        downloads(tmp_path / "downloads", real=baked.parent / "wheels") as served,
        judged(
            tmp_path / "runpod",
            clock=clock,
            keep=[*kept, baked, python],
            image_env=environment,
            reach=[served.port],
        ) as standin,
    ):
        made = RentedUser(tmp_path, trainer=None, standin=standin, clock=clock)
        made.text.write_text(inspect.getsource(argparse))
        made.environment |= served.settings()
        torch = next((baked.parent / "wheels").glob("torch-*.whl")).name.split("-")[1]
        made.environment["TRMCLOUD_INSTALL_TORCH"] = torch.partition("+")[0]
        made.environment |= {
            "TRMCLOUD_SKY": str(SKY),
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        }
        del made.environment["RUNPOD_API_KEY"]
        made.looks = ("status", "--live")
        lay_home(tmp_path, standin.api_key)
        try:
            yield made
        finally:
            made.end_everything()
            with contextlib.suppress(subprocess.TimeoutExpired):
                sky(made, "api", "stop")


def home_of(user: RentedUser) -> SkyHome:
    """Where ``sky`` rents for this user: RunPod's own home."""
    return SkyHome(user.home, RUNPOD_BY_SKYPILOT, user.folder, user.env())


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
    home = home_of(user)
    home.lay()
    done = subprocess.run(
        [str(SKY), *words], env=home.environ(), cwd=user.folder, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
    )  # fmt: skip
    return done.stdout


def show(title: str, text: str) -> None:
    print(f"--- {title}\n{text}", file=sys.stderr, flush=True)


def launched(user: RentedUser, hard_stop_s: float) -> tuple[subprocess.Popen[str], float]:
    """A launch whose run trains, and when it began."""
    began = time.monotonic()
    show("sky check runpod", sky(user, "check", "runpod"))
    plan_id = user.plan_to_bind(
        *SMALL, *VIA, launch=LAUNCH, hard_stop_s=hard_stop_s, landing_s=20.0
    )
    launch = user.start("launch", plan_id, "-y", *ACCEPT, "--allow-account-key-on-pod")
    until(user.ledger_path.exists, what="a ledger")
    try:
        user.run_in(State.RUNNING, within_s=900.0)
        until(lambda: user.only_run().trains, within_s=180.0, what="training")
    except AssertionError:
        if launch.poll() is not None:
            show("launch", "\n".join(launch.communicate()))
        show("sky status", sky(user, "status"))
        show("sky logs", sky(user, "api", "logs"))
        raise
    (pod,) = user.live()
    inside = user.standin.control.inside(pod.id, "ps -eo args | grep -E '[t]rmcloud.pod|[m]odel'")
    show(f"trains after {time.monotonic() - began:.0f} s", inside)
    assert f"{old_python()} -m trmcloud.pod.boot" in inside
    assert "/workspace/trmcloud/env/" in inside
    return launch, began


def test_provision_install_sync_run_logs_and_autodown(skyfarer: RentedUser) -> None:
    """The command is killed once training goes on: the cluster ends itself."""
    launch, began = launched(skyfarer, 900.0)
    run = skyfarer.only_run()
    assert run.generation is not None
    name = run.generation.pod_name
    launch.kill()
    show("launch", launch.communicate()[0])
    show("sky status", sky(skyfarer, "status", name))
    (pod,) = skyfarer.live()
    assert pod.name.startswith(name)
    show("trmcloud status", skyfarer.run("status", run.run_id, "--live"))
    show("sky queue", sky(skyfarer, "queue", name))
    show("sky logs", sky(skyfarer, "logs", name, "--no-follow", "--tail", "8"))
    # Nobody drives it now: it lands at its soft stop, and the cluster ends itself.
    until(lambda: not skyfarer.live(), within_s=900.0, what="autodown")
    show(f"gone after {time.monotonic() - began:.0f} s", sky(skyfarer, "status", "-r", name))
    run = skyfarer.close_books()
    show("status", skyfarer.run("status", run.run_id))
    show("report", skyfarer.run("report", run.run_id))
    show("sky cost-report", sky(skyfarer, "cost-report"))
    assert 0 < float(run.settled) <= float(run.cap)


PLANTED = {
    ".aws/credentials": "[default]\naws_access_key_id = AKIA0000\naws_secret_access_key = {}\n"
    "[nebius]\naws_access_key_id = NB\naws_secret_access_key = {}-nebius\n",
    ".aws/config": "[default]\nregion = us-east-1\n[profile nebius]\nregion = {}\n",
    ".lambda_cloud/lambda_keys": "api_key = {}\n",
    ".config/vastai/vast_api_key": "{}\n",
    ".cloudflare/r2.credentials": "[r2]\naws_access_key_id = R2\naws_secret_access_key = {}\n",
    ".cloudflare/accountid": "{}\n",
    ".coreweave/cw.credentials": "[cw]\naws_access_key_id = CW\naws_secret_access_key = {}\n",
    ".coreweave/cw.config": "[profile cw]\nendpoint_url = https://{}.invalid\n",
    ".cache/huggingface/token": "hf_{}\n",
    ".huggingface/token": "hf_{}\n",
    ".config/gcloud/application_default_credentials.json":
    '{{"type": "authorized_user", "client_id": "x", "client_secret": "{}", "refresh_token": "x"}}',
    ".kube/config": "apiVersion: v1\nkind: Config\nusers: [{{name: {}}}]\n",
    ".config/doctl/config.yaml": "access-token: {}\n",
    ".verda/config.json": '{{"client_id": "x", "client_secret": "{}"}}',
    ".nebius/credentials.json": '{{"subject-credentials": {{"private-key": "{}"}}}}',
    ".git-credentials": "https://me:{}@example.invalid\n",
    ".netrc": "machine api.wandb.ai login user password {}\n",
}  # fmt: skip
"""Dummy credentials, as each cloud's own tools write them, with a mark that can be looked for."""
IN_ENVIRONMENT = ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN")
MARK = "planted-4d1c9a"


def plant(user: RentedUser) -> None:
    for path, text in PLANTED.items():
        target = user.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        mark = f"{MARK}-{path.strip('.').partition('/')[0]}"
        target.write_text(text.format(mark, mark))
    user.environment |= {name: f"{MARK}-{name.lower()}" for name in IN_ENVIRONMENT}
    user.environment["AWS_ACCESS_KEY_ID"] = "AKIA0001"


def test_one_clouds_credential_and_no_other_file_is_on_the_machine(skyfarer: RentedUser) -> None:
    """Everything else of the user's home and environment stays there."""
    plant(skyfarer)
    launch, _ = launched(skyfarer, 1200.0)
    try:
        (pod,) = skyfarer.live()
        inside = skyfarer.standin.control.inside
        places = "/root /home /tmp /var/tmp /opt /run /mnt /media /workspace /etc"
        marked = inside(pod.id, f"grep -rls {MARK} {places} || true").split()
        known = " ".join(f"'/root/{path}'" for path in NEVER)
        there = inside(pod.id, f'for f in {known}; do [ -e "$f" ] && echo "$f"; done; true')
        key = skyfarer.standin.api_key
        holding = inside(pod.id, f"grep -rls {key} /root /home /etc /opt || true").split()
        said = inside(
            pod.id,
            f"cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep -a {MARK} | sort -u || true",
        )
        listed = inside(pod.id, "find /root -maxdepth 2 -name '.*' | sort")
        show("marked files", "\n".join(marked) or "none")
        show("known places of credentials", there)
        show("files that hold RunPod's key", "\n".join(holding))
        show("hidden files", listed)
        show("marked variables", said or "none")
        assert marked == []
        assert there.split() == ["/root/.runpod"]
        assert "/root/.runpod/config.toml" in holding
        assert said.strip() == ""
        shown = skyfarer.run("status", skyfarer.only_run().run_id, "--live")
        show("trmcloud status", shown)
        (line,) = [text for text in shown.splitlines() if text.endswith(f"down {name_in(shown)}")]
        typed = line.partition("by hand")[2].strip()
        show("typed", typed)
        done = subprocess.run(
            ["bash", "-c", typed], input="y\n", env=skyfarer.env(), text=True, timeout=300,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        show("sky down, as it is shown", done.stdout)
        assert done.returncode == 0
        until(lambda: not skyfarer.live(), within_s=60.0, what="its end by hand")
        backups = sorted((home_of(skyfarer).root / "backups").iterdir())
        show("backups", "\n".join(str(p) for b in backups for p in b.glob(".sky/*.db")))
        assert 1 <= len(backups) <= 5
        assert all((backup / ".sky" / "state.db").exists() for backup in backups[-1:])
    finally:
        launch.kill()
        show("launch", launch.communicate()[0])


def name_in(shown: str) -> str:
    """Of the cluster, as the screen has it."""
    (line,) = [text for text in shown.splitlines() if " down trmc-" in text]
    return line.rpartition(" ")[2]


def test_a_pod_that_exits_while_it_trains_is_noticed_and_ended(skyfarer: RentedUser) -> None:
    """SkyPilot 0.14.1 cannot read its status, and goes on showing the cluster as it was."""
    launch, _ = launched(skyfarer, 1800.0)
    (pod,) = skyfarer.live()
    run = skyfarer.only_run()
    assert run.generation is not None
    account = {"url": skyfarer.standin.url, "key": skyfarer.standin.api_key}
    sky_machines.ask(account, "POST", f"/pods/{pod.id}/action", {"action": "stop"})
    exited = time.monotonic()
    show("sky status -r", sky(skyfarer, "status", "-r", "-o", "json", run.generation.pod_name))

    def missed() -> bool:
        generation = skyfarer.only_run().generation
        return generation is not None and generation.absence is not None

    try:
        until(missed, within_s=NOTICED_WITHIN_S, what="the end of the pod")
        show(f"noticed after {time.monotonic() - exited:.0f} s", sky(skyfarer, "status", "-r"))
        assert pod.id not in {one.id for one in skyfarer.standin.control.live()}
        out, err = skyfarer.see_out(launch, code=Outcome.LOST.exit_code, within_s=400.0)
    finally:
        if launch.poll() is None:
            launch.kill()
            out, err = launch.communicate()
            show("launch", out + err)
    show("launch", out + err)
    # While it boots it may be silent for a while, and truly answer again.
    assert "answers again" not in out.rpartition("its agent still runs")[2]
    run = skyfarer.only_run()
    assert (run.outcome, run.reserved) == (Outcome.LOST, ZERO)
