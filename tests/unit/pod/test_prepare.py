"""A rented machine becomes ready step by step, and nothing on the way blocks whoever asks."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.pod.machine import Machine, Reach
from trmcloud.core.contract import pod_contract as contract
from trmcloud.pod.machine import prepare
from trmcloud.pod.machine.prepare import PREPARED_NAME, PreparingProgress

H100 = "NVIDIA H100 80GB HBM3, 81559, 0, 570.133.20, 0\n"


def test_the_users_own_machine_is_ready_as_it_is(machine: Machine) -> None:
    preparation = machine.prepare()
    assert preparation.poll(1.0) == PreparingProgress("ready", "", {"checking": 0.0})
    setup = preparation.trainer()
    assert setup.python == sys.executable
    assert setup.over({"PYTHONPATH": "/a", "X": "y"}) == {"PYTHONPATH": "/a", "X": "y"}
    assert setup.over({"X": "y"}) == {"X": "y"}


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ("2.9.1+cu128", ""),
        ("2.9.1", ""),
        (None, ""),
        ("2.8.0+cu128", "the image has torch 2.8.0+cu128, and 2.9.1+cu128 was asked for"),
        ("2.9.1+cu130", "the image has torch 2.9.1+cu130, and 2.9.1+cu128 was asked for"),
        ("2.9.1+cpu", "the image has torch 2.9.1+cpu, and 2.9.1+cu128 was asked for"),
    ],
)
def test_an_image_that_is_not_the_one_asked_for_is_told_by_its_torch(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, found: str | None, why: str
) -> None:
    """A tag may be given to another image; one without torch gets one of ours."""
    monkeypatch.setattr("trmcloud.pod.machine.packages.installed", lambda name, path=None: found)
    machine.check(torch="2.9.1+cu128")
    said = machine.prepare().poll(machine.now)
    assert (said.state == "refused", said.message if why else "") == (bool(why), why)
    (machine.pod_dir / PREPARED_NAME).unlink()
    machine.check()
    assert machine.prepare().poll(machine.now).state != "refused", "of the user's own nobody knows"


def test_a_good_machine_waits_for_its_files_and_is_ready(machine: Machine, reach: Reach) -> None:
    answers = machine.folder / "answers"
    machine.nvidia_smi(H100 * 2, before=f'until [ -e "{answers}" ]; do sleep 0.01; done')
    machine.check(gpu="H100", count=2, min_cuda="12.8", volume=True, idle=True)
    preparation = machine.prepare()
    assert preparation.poll(machine.now).state == "checking"
    machine.now += 1.0
    answers.touch()
    waiting = reach(preparation, "waiting")
    assert waiting.message == "code and data to be sent"
    machine.now += 10.0
    assert preparation.poll(machine.now).state == "waiting"
    code = machine.stage(data=("data/x",))
    ready = preparation.poll(machine.now)
    assert ready.state == "ready"
    assert ready.seconds["checking"] >= 1.0
    assert ready.seconds["waiting"] >= 10.0
    machine.now += 99.0
    assert preparation.poll(machine.now).seconds == ready.seconds, "ready takes no time"
    setup = preparation.trainer()
    assert setup.python_path == (str(code),)
    made = setup.over({"PYTHONPATH": "/opt/trmcloud", "NCCL_DEBUG": "INFO"})
    assert made["PYTHONPATH"] == f"{code}:/opt/trmcloud"
    assert made["NCCL_DEBUG"] == "INFO", "what the user set stays"
    assert made["NCCL_SOCKET_IFNAME"] == "lo"
    assert "NCCL_P2P_LEVEL" not in made


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (H100, "2 GPUs rented, 1 found"),
        (H100 + H100.replace("H100", "A100"), "GPU 1: H100 rented, NVIDIA A100 80GB HBM3 found"),
        ("", "nvidia-smi says: nothing at all; this machine shows no GPU"),
    ],
)
def test_other_hardware_is_refused(machine: Machine, reach: Reach, rows: str, why: str) -> None:
    machine.nvidia_smi(rows)
    machine.check(gpu="H100", count=2)
    assert reach(machine.prepare(), "refused").message == why


def test_no_volume_and_an_old_driver_are_refused(machine: Machine, reach: Reach) -> None:
    machine.nvidia_smi(H100, page="CUDA Version: 12.4")
    machine.mounts.write_text("overlay / overlay rw 0 0\n")
    machine.check(count=1, min_cuda="12.8", volume=True)
    assert reach(machine.prepare(), "refused").message == (
        "CUDA 12.8 is needed, driver 570.133.20 runs 12.4;"
        " /workspace is not a volume but the container's own disk"
    )


def test_no_nvidia_smi_at_all(
    machine: Machine, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(machine.bin))
    machine.check(count=1)
    assert "nvidia-smi: No such file" in reach(machine.prepare(), "refused").message


def test_an_nvidia_smi_that_hangs_does_not_hang_the_agent(machine: Machine, reach: Reach) -> None:
    machine.nvidia_smi(H100, before="sleep 600")
    machine.check(count=1)
    preparation = machine.prepare()
    preparation.poll(machine.now)
    machine.now += 61.0
    assert "no answer within 60 s" in reach(preparation, "refused").message


def test_a_busy_gpu_is_looked_at_again(
    machine: Machine, reach: Reach, until: Callable[..., None]
) -> None:
    machine.nvidia_smi(H100.replace(", 0\n", ", 97\n"))
    machine.check(count=1, idle=True)
    began = machine.now
    assert "97 % busy" in reach(machine.prepare(), "refused").message
    assert machine.now - began >= 6.0

    (machine.pod_dir / PREPARED_NAME).unlink()
    preparation = machine.prepare()
    preparation.poll(machine.now)
    until(lambda: preparation.poll(machine.now).message, "the first look")
    machine.nvidia_smi(H100)
    assert reach(preparation, "waiting").state == "waiting"


def test_an_agent_started_anew_does_not_take_its_own_trainer_for_a_stranger(
    machine: Machine, reach: Reach
) -> None:
    machine.nvidia_smi(H100)
    machine.check(count=1, idle=True)
    reach(machine.prepare(), "waiting")
    code = machine.stage()
    machine.nvidia_smi(H100.replace("81559, 0", "81559, 70000"))
    again = machine.prepare()
    assert again.trainer().python_path == (str(code),)
    assert again.poll(machine.now).state == "ready"


def test_a_refusal_stays_across_the_agents_death_but_not_the_containers(
    machine: Machine, reach: Reach
) -> None:
    machine.nvidia_smi(H100)
    machine.check(count=2)
    refused = reach(machine.prepare(), "refused")
    machine.nvidia_smi(H100 * 2)
    assert machine.prepare().poll(machine.now) == refused
    record = json.loads((machine.pod_dir / PREPARED_NAME).read_text())
    record["container"] = "another"
    (machine.pod_dir / PREPARED_NAME).write_text(json.dumps(record))
    assert reach(machine.prepare(), "waiting").state == "waiting"


def test_damaged_files_are_no_reason_to_fall_over(machine: Machine, reach: Reach) -> None:
    for text in ("", "[]", '{"version": 1}', '{"version": 1, "gpus": 3}', "{"):
        (machine.pod_dir / PREPARED_NAME).write_text(text)
        assert machine.prepare().poll(1.0).state == "ready"
    (machine.pod_dir / contract.CHECK_NAME).write_text("{")
    refused = machine.prepare().poll(1.0)
    assert refused.state == "refused"
    assert refused.message.startswith("what was rented cannot be read")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "Staged"),
        ('{"version": 2, "code": "/x"}', "version 2"),
        ('{"version": 1}', "Staged"),
        ('{"version": 1, "code": "relative"}', "no plain absolute path"),
        ('{"version": 1, "code": "/a/../b"}', "no plain absolute path"),
        ('{"version": 1, "code": "/etc"}', "is not below"),
        ('{"version": 1, "code": "/etc", "data": "/etc"}', "data is not what it should be"),
    ],
)
def test_what_was_sent_is_read_strictly(machine: Machine, text: str, says: str) -> None:
    machine.check()
    (machine.pod_dir / contract.STAGED_NAME).write_text(text)
    preparation = machine.prepare()
    progress = preparation.poll(machine.now)
    assert progress.state == "waiting"
    assert says in progress.message
    machine.stage()
    assert preparation.poll(machine.now).state == "ready"


def test_a_link_out_of_the_pods_folder_is_not_followed(machine: Machine) -> None:
    machine.check()
    code = machine.stage()
    code.rmdir()
    code.symlink_to("/etc")
    assert "is not below" in machine.prepare().poll(machine.now).message


def test_what_was_named_must_be_there(machine: Machine) -> None:
    machine.check()
    code = machine.stage()
    code.rmdir()
    progress = machine.prepare().poll(machine.now)
    assert (progress.state, progress.message) == (
        "waiting",
        f"{code} was named as sent and is not there",
    )


def test_it_gives_up_in_time(machine: Machine) -> None:
    machine.check()
    preparation = machine.prepare(give_up_at=machine.now + 60)
    assert preparation.poll(machine.now + 59).state == "waiting"
    refused = preparation.poll(machine.now + 60)
    assert (refused.state, refused.message) == (
        "refused",
        "it was not ready in time: code and data to be sent",
    )


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            "NewConnectionError('<pip._vendor.X object at 0x7f>: Failed to establish a new "
            "connection: [Errno -3] Temporary failure in name resolution')",
            "Temporary failure in name resolution",
        ),
        (
            "ConnectTimeoutError(<pip._vendor.X object at 0x7f>, 'Connection to index timed out. "
            "(connect timeout=15)')",
            "Connection to index timed out. (connect timeout=15)",
        ),
        (
            "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate "
            "verify failed: self-signed certificate (_ssl.c:997)'))",
            "self-signed certificate (_ssl.c:997)",
        ),
    ],
)
def test_what_keeps_pip_from_its_index_is_told(tmp_path: Path, said: str, why: str) -> None:
    """pip's own lines: the cause in passing, and at last only that nothing was found."""
    made = prepare.Preparation(tmp_path, "pod")
    folder = tmp_path / contract.PODS_DIR / "pod"
    folder.mkdir(parents=True)
    (folder / prepare.INSTALL_LOG_NAME).write_text(
        f"WARNING: Retrying (Retry(total=0)) after connection broken by '{said}': /simple/x/\n"
        "ERROR: No matching distribution found for x==1.0\n"
    )
    told = made._last_words()
    assert told.startswith("the package index is out of reach: ")
    assert why in told
