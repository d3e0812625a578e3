"""A rented machine becomes ready step by step; what it lacks is installed once."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
import tomllib

from tests.present import present
from tests.unit.pod.machine import Machine, Reach
from tests.waiting import until
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.boards import BOARD_NOTE, BoardSeen, board_from
from trmcloud.pod.machine import packages, prepare
from trmcloud.pod.machine.prepare import PREPARED_NAME, PreparingProgress

# -- prepare ------------------------------------------------------------------------------------
# A rented machine becomes ready step by step, and nothing on the way blocks whoever asks.


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
        ("2.8.0+cu128", "the image has torch 2.8.0+cu128, not 2.9.1+cu128"),
        ("2.9.1+cu130", "the image has torch 2.9.1+cu130, not 2.9.1+cu128"),
        ("2.9.1+cpu", "the image has torch 2.9.1+cpu, not 2.9.1+cu128"),
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
    machine.check(gpu="H100", count=2, board="SXM", volume=True, idle=True)
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


LINKS = "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: <inactive>\n\t Link 1: <inactive>\n"


def test_no_volume_and_another_board_are_refused(machine: Machine, reach: Reach) -> None:
    machine.nvidia_smi(H100, board="350.00, 9.0\n", links=LINKS)
    machine.mounts.write_text("overlay / overlay rw 0 0\n")
    machine.check(count=1, board="SXM", volume=True)
    preparation = machine.prepare()
    assert reach(preparation, "refused").message == (
        "H100 SXM rented, H100 PCIe found (by 350 W and 0 links, which its name contradicts); "
        "/workspace is not a volume but the container's own disk"
    )
    told = BoardSeen("NVIDIA H100 80GB HBM3", 350.0, 0, "570.133.20")
    assert board_from(preparation.notes()[BOARD_NOTE]) == told
    assert machine.prepare().notes() == preparation.notes(), "a new agent says the same"


@pytest.mark.parametrize(
    ("found", "driver", "why"),
    [
        ("2.9.1+cu128", "535.129.03", ""),
        ("2.9.1+cu130", "535.129.03", "cu130 needs driver 580 or newer, 535.129.03 found"),
        ("2.9.1+cu126", "580.65.06", "cu126 has no kernels for sm_100"),
        ("2.9.1+cpu", "470.82.01", ""),
    ],
)
def test_a_torch_of_the_users_is_kept_or_refused_by_driver_and_gpu(
    machine: Machine,
    reach: Reach,
    monkeypatch: pytest.MonkeyPatch,
    found: str,
    driver: str,
    why: str,
) -> None:
    monkeypatch.setattr("trmcloud.pod.machine.packages.installed", lambda name, path=None: found)
    machine.nvidia_smi(f"NVIDIA B200, 183359, 0, {driver}, 0\n", board="1000.00, 10.0\n")
    machine.check(count=1, keeps_torch=True)
    preparation = machine.prepare()
    if why:
        said = reach(preparation, "refused").message
        assert said == f"torch {found} does not run on this machine: {why}"
    else:
        assert reach(preparation, "waiting").state == "waiting"


@pytest.mark.parametrize(
    ("found", "driver", "asked", "build"),
    [
        ("2.9.1+cu128", "470.82.01", "torch==2.7.1", "cu118"),
        ("2.9.1+cu130", "535.129.03", "torch==2.9.1", "cu128"),
        (None, "470.82.01", "torch==2.7.1", "cu118"),
    ],
)
def test_a_driver_too_old_for_the_images_torch_gets_a_build_that_runs_there(
    machine: Machine,
    reach: Reach,
    monkeypatch: pytest.MonkeyPatch,
    found: str | None,
    driver: str,
    asked: str,
    build: str,
) -> None:
    def installed(name: str, path: object = None) -> str | None:
        return found if name == "torch" and path is None else None

    monkeypatch.setattr("trmcloud.pod.machine.packages.installed", installed)
    said = machine.folder / "said"
    uv = machine.bin / "uv"
    uv.write_text(f'#!/bin/sh\necho "$UV_TORCH_BACKEND $*" >>"{said}"\n[ "$1" = venv ]\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{machine.bin}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(machine.folder))
    machine.wanted.write_text("torch==2.9.1  # >=2\n")
    machine.nvidia_smi(f"NVIDIA A100-SXM4-80GB, 81920, 0, {driver}, 0\n", board="400.00, 8.0\n")
    machine.check(count=1)
    preparation = machine.prepare()
    assert "could not be installed" in reach(preparation, "refused").message
    calls = said.read_text().splitlines()
    assert calls[0].startswith(f"{build} venv ")
    told = present(board_from(preparation.notes()[BOARD_NOTE]))
    assert told.torch == f"{asked.partition('==')[2]}+{build}"


def test_a_torch_of_the_users_own_index_is_judged_once_it_is_there(
    machine: Machine, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(name: str, path: object = None) -> str | None:
        return None if path is None else "2.9.1+cu130"

    monkeypatch.setattr("trmcloud.pod.machine.packages.installed", installed)
    monkeypatch.setenv("TRMCLOUD_INSTALL_UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setattr(packages, "whole_command", lambda *_: ["true"])
    machine.wanted.write_text("torch==2.9.1  # >=2\n")
    machine.nvidia_smi("NVIDIA A100-SXM4-80GB, 81920, 0, 535.129.03, 0\n", board="400.00, 8.0\n")
    machine.check(count=1)
    assert reach(machine.prepare(), "refused").message == (
        "torch 2.9.1+cu130 does not run on this machine:"
        " cu130 needs driver 580 or newer, 535.129.03 found"
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


def test_a_busy_gpu_is_looked_at_again(machine: Machine, reach: Reach) -> None:
    machine.nvidia_smi(H100.replace(", 0\n", ", 97\n"))
    machine.check(count=1, idle=True)
    began = machine.now
    assert "97 % busy" in reach(machine.prepare(), "refused").message
    assert machine.now - began >= 6.0

    (machine.pod_dir / PREPARED_NAME).unlink()
    preparation = machine.prepare()
    preparation.poll(machine.now)
    until(lambda: preparation.poll(machine.now).message, what="the first look")
    machine.nvidia_smi(H100)
    assert reach(preparation, "waiting").state == "waiting"


def test_a_new_agent_knows_its_own_trainer_as_no_stranger(machine: Machine, reach: Reach) -> None:
    machine.nvidia_smi(H100)
    machine.check(count=1, idle=True)
    reach(machine.prepare(), "waiting")
    code = machine.stage()
    machine.nvidia_smi(H100.replace("81559, 0", "81559, 70000"))
    again = machine.prepare()
    assert again.trainer().python_path == (str(code),)
    assert again.poll(machine.now).state == "ready"


def test_a_refusal_outlives_the_agent_but_not_the_container(machine: Machine, reach: Reach) -> None:
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


# -- What a machine lacks is installed once, and the list of what is wanted is whole ------------


ROOT = Path(__file__).resolve().parents[3]


def test_what_lacks_is_installed_once_and_first(machine: Machine, reach: Reach) -> None:
    machine.wheel("trmcloud_probe_a", "1.2")
    machine.wanted.write_text("pytest==1.0  # >=1\ntrmcloud-probe-a==1.2  # >=1,<2\n")
    machine.check()
    code = machine.stage()
    preparation = machine.prepare()
    assert preparation.poll(machine.now).state == "installing"
    ready = reach(preparation, "ready")
    assert ready.seconds["installing"] > 0
    paths = preparation.trainer().python_path
    assert paths[0] == str(code)
    assert (Path(paths[1]) / "trmcloud_probe_a.py").exists()
    assert not (Path(paths[1]) / "pytest").exists(), "what was there stays"
    assert not list(Path(paths[1]).parent.glob(".*")), "nothing half done is left"
    log = (machine.pod_dir / "install.log").read_text()
    assert "Successfully installed" in log

    (machine.pod_dir / PREPARED_NAME).unlink()
    machine.wheels.joinpath("trmcloud_probe_a-1.2-py3-none-any.whl").unlink()
    again = machine.prepare()
    assert again.poll(machine.now).state == "ready", "a second pod finds it on the volume"
    assert again.trainer().python_path == paths


def test_a_killed_installation_is_done_again(machine: Machine, reach: Reach) -> None:
    machine.wheel("trmcloud_probe_b", "1.0")
    machine.wanted.write_text("trmcloud-probe-b==1.0  # >=1\n")
    machine.check()
    machine.stage()
    killed = machine.prepare()
    assert killed.poll(machine.now).state == "installing"
    killed.stop()
    (part,) = (machine.pod_dir.parents[1] / "env").glob(".*.part")
    (part / "rubbish").write_text("half a package")
    ready = machine.prepare()
    reach(ready, "ready")
    assert not (Path(ready.trainer().python_path[1]) / "rubbish").exists()


def test_what_cannot_be_installed_is_refused_in_the_end(machine: Machine, reach: Reach) -> None:
    machine.wanted.write_text("trmcloud-probe-c==1.0  # >=1\n")
    machine.check()
    refused = reach(machine.prepare(), "refused")
    assert refused.message.startswith("packages could not be installed: ERROR: No matching")
    log = (machine.pod_dir / "install.log").read_text()
    assert log.count("ERROR: No matching distribution found") == 3


def test_a_package_that_installs_as_another_is_refused(machine: Machine, reach: Reach) -> None:
    machine.wheel("trmcloud_probe_d", "1.0")
    machine.wanted.write_text("trmcloud-probe-d==1.0  # >=2\n")
    machine.check()
    assert reach(machine.prepare(), "refused").state == "refused"


def test_a_file_of_another_hash_is_not_installed(
    machine: Machine, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.wheel("trmcloud_probe_e", "1.0")
    wheel = machine.wheels / "trmcloud_probe_e-1.0-py3-none-any.whl"
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    pin = "trmcloud-probe-e==1.0  # >=1\n"
    machine.wanted.write_text(f"{pin}  {'0' * 64}\n")
    machine.check()
    machine.stage()
    refused = reach(machine.prepare(), "refused").message
    assert refused.startswith("packages could not be installed: ERROR: THESE PACKAGES DO NOT MATCH")
    (machine.pod_dir / PREPARED_NAME).unlink()
    machine.wanted.write_text(f"{pin}  {'0' * 64}\n  {right}\n")
    reach(machine.prepare(), "ready")
    (machine.pod_dir / PREPARED_NAME).unlink()
    shutil.rmtree(machine.pod_dir.parents[1] / "env")
    machine.wanted.write_text(f"{pin}  {'0' * 64}\n")
    monkeypatch.setenv("TRMCLOUD_INSTALL_HASHES", "off")
    reach(machine.prepare(), "ready")


def test_every_package_of_a_pod_but_torch_is_held_to_hashes() -> None:
    """Of all platforms that pods have, and none that the lock of this project does not know."""
    shipped = packages.read_list(packages.LIST.read_text())
    assert [package.name for package in shipped if not package.hashes] == ["torch"]
    assert "uv" not in [package.name for package in shipped]
    text = (ROOT / "constraints.txt").read_text()
    assert {h for p in shipped for h in p.hashes if f"--hash=sha256:{h}" not in text} == set()
    numpy = next(package for package in shipped if package.name == "numpy")
    assert len(numpy.hashes) == 8, "two machines, four Pythons"
    *_, tool = packages.whole_command(shipped, Path("/x/env"), {})
    assert re.fullmatch(r"uv==[0-9.]+( --hash=sha256:[0-9a-f]{64}){2,}", tool)


def test_all_that_is_installed_here_but_torch_is_held_to_hashes() -> None:
    for name in ("constraints.txt", "constraints-sdk.txt"):
        lines = (ROOT / name).read_text().splitlines()
        pins = [line for line in lines if not line.startswith(("#", " "))]
        assert pins
        assert [line for line in pins if not re.match(r"\S+==\S+ (; .*)?\\$", line)] == []
        held = [n for n, line in enumerate(lines) if line in pins]
        assert all("--hash=sha256:" in lines[n + 1] for n in held), name
    torch = re.findall(r"(?m)^torch==.*$", (ROOT / "constraints-torch.txt").read_text())
    assert len(torch) == 1


def test_versions_are_told_apart() -> None:
    (package,) = packages.read_list("a==1.5  # >=1.2,<2\n")
    good = ("1.2", "1.2.0", "1.10", "1.99.9", "1.3rc1", "1.2.post1")
    bad = ("1.1.9", "2", "2.0", "2.0.0", "0.9", "10", "unknown", "")
    assert [v for v in good if not package.accepts(v)] == []
    assert [v for v in bad if package.accepts(v)] == []


@pytest.mark.parametrize("line", ["a", "a==1", "a>=1  # >=1", "a==1  # ~=1", "-r /etc/passwd",
                                  "  " + "0" * 64, "a==1  # >=1 --hash=x"])  # fmt: skip
def test_the_list_is_read_strictly(line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(line)):
        packages.read_list(line)


def test_the_shipped_list_agrees_with_the_projects_own() -> None:
    """Pins are those that the tests run with, and every direct need of training is in. Of torch it
    is the exported script's: built for CUDA 12.8, it runs on drivers that newer ones refuse."""
    *shipped, torch = sorted(
        packages.read_list(packages.LIST.read_text()), key=lambda package: package.name == "torch"
    )
    script = (ROOT / "trmcloud" / "export" / "standalone.sh").read_text()
    assert f'TORCH="${{TORCH:-{torch.pin}}}"' in script
    locked = re.findall(r"(?m)^(\S+)==(\S+)", (ROOT / "constraints.txt").read_text())
    pins = {name.replace("-", "_"): pin for name, pin in locked}
    odd = [p for p in shipped if pins.get(p.name.lower().replace("-", "_")) != p.pin]
    assert odd == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = dict(line.split(">=") for line in project["optional-dependencies"]["train"])
    del needs["torch"]
    bounds = {p.name: p.bounds for p in shipped}
    for name, least in needs.items():
        padded = packages.read_list(f"{name}==0  # >={least}")[0].bounds[0]
        assert padded in bounds[name], name
    assert packages.missing(shipped) == (), "a machine that can train lacks nothing"


def test_the_shipped_list_is_whole(tmp_path: Path) -> None:
    """What the trainer imports can be imported from the listed packages and the stdlib alone."""
    shipped = packages.read_list(packages.LIST.read_text())
    site = tmp_path / "site"
    site.mkdir()
    for package in shipped:
        found = distribution(package.name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            if top not in ("__pycache__",) and not (site / top).exists():
                (site / top).symlink_to(str(found.locate_file(top)))
    words = "import numpy, safetensors.numpy, tokenizers, tensorboard.main, tensorboard.summary"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(site)!r}); {words}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_folder_is_that_of_the_packages_and_the_python(tmp_path: Path) -> None:
    one, two = packages.read_list("a==1  # >=1\nb==1  # >=1\n")
    folder = packages.folder_for(tmp_path, (one,))
    assert folder == packages.folder_for(tmp_path, (one,))
    assert folder != packages.folder_for(tmp_path, (two,))
    assert folder != packages.folder_for(tmp_path, (one, two))
    assert re.fullmatch(r"[0-9a-f]{16}", folder.name)
