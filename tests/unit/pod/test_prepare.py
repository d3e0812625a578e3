"""A rented machine becomes ready step by step, and nothing on the way blocks whoever asks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

import pytest
import tomllib

from trmcloud.core import pod_contract as contract
from trmcloud.pod import packages
from trmcloud.pod.prepare import PREPARED_NAME, Preparation, Progress

ROOT = Path(__file__).resolve().parents[3]
MOUNTS = "overlay / overlay rw 0 0\n/dev/sda1 /workspace ext4 rw 0 0\n"


class Machine:
    """A pod's folder, an ``nvidia-smi``, a local index of packages, and a clock."""

    def __init__(self, folder: Path, pod_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.pod_dir = folder, pod_dir
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        self.mounts = folder / "mounts"
        self.mounts.write_text(MOUNTS)
        self.wanted = folder / "environment.txt"
        self.wanted.write_text("# nothing is wanted\n")
        self.now = 100.0
        monkeypatch.setenv("PATH", f"{self.bin}:{os.environ['PATH']}")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(self.wheels))
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        self.made: list[Preparation] = []

    def nvidia_smi(self, rows: str, page: str = "CUDA Version: 12.8", before: str = "") -> None:
        (self.folder / "rows").write_text(rows)
        (self.folder / "page").write_text(page)
        script = self.bin / "nvidia-smi"
        script.write_text(
            f"#!/bin/sh\n{before}\n"
            f'if [ $# -gt 0 ]; then cat "{self.folder}/rows"; else cat "{self.folder}/page"; fi\n'
        )
        script.chmod(0o755)

    def wheel(self, name: str, version: str) -> None:
        info = f"{name}-{version}.dist-info"
        path = self.wheels / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(f"{name}.py", f"version = {version!r}\n")
            wheel.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
            wheel.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{info}/RECORD", "")

    def check(self, **asked: object) -> None:
        (self.pod_dir / contract.CHECK_NAME).write_text(json.dumps(asked))

    def stage(self, code: str = "code/abc", data: tuple[str, ...] = ()) -> Path:
        root = self.pod_dir.parents[1]
        folder = root / code
        folder.mkdir(parents=True, exist_ok=True)
        for each in data:
            (root / each).mkdir(parents=True, exist_ok=True)
        paths = tuple(str(root / each) for each in data)
        text = contract.dump(contract.Staged(str(folder), paths))
        (self.pod_dir / contract.STAGED_NAME).write_text(text)
        return folder

    def prepare(self, give_up_at: float = 1e9) -> Preparation:
        made = Preparation(
            self.pod_dir.parents[1],
            self.pod_dir.name,
            give_up_at=give_up_at,
            wanted=self.wanted,
            mounts=self.mounts,
        )
        self.made.append(made)
        return made


@pytest.fixture
def machine(tmp_path: Path, pod_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    folder = tmp_path / "machine"
    folder.mkdir()
    made = Machine(folder, pod_dir, monkeypatch)
    return made


@pytest.fixture
def reach(machine: Machine, until: Callable[..., None]) -> Callable[..., Progress]:
    """Poll, half a second of the machine's clock at a time, until a state is reached."""

    def poll(preparation: Preparation, state: str) -> Progress:
        progress = preparation.poll(machine.now)

        def there() -> bool:
            nonlocal progress
            machine.now += 0.5
            progress = preparation.poll(machine.now)
            return progress.state == state

        if progress.state != state:
            until(there, state)
        return progress

    yield poll
    for preparation in machine.made:
        preparation.stop()


Reach = Callable[[Preparation, str], Progress]
H100 = "NVIDIA H100 80GB HBM3, 81559, 0, 570.133.20, 0\n"


def test_the_users_own_machine_is_ready_as_it_is(machine: Machine) -> None:
    preparation = machine.prepare()
    assert preparation.poll(1.0) == Progress("ready", "", {"checking": 0.0})
    setup = preparation.trainer()
    assert setup.python == sys.executable
    assert setup.over({"PYTHONPATH": "/a", "X": "y"}) == {"PYTHONPATH": "/a", "X": "y"}
    assert setup.over({"X": "y"}) == {"X": "y"}


def test_a_good_machine_waits_for_its_files_and_is_ready(machine: Machine, reach: Reach) -> None:
    machine.nvidia_smi(H100 * 2)
    machine.check(gpu="H100", count=2, min_cuda="12.8", volume=True, idle=True)
    preparation = machine.prepare()
    assert preparation.poll(machine.now).state == "checking"
    waiting = reach(preparation, "waiting")
    assert waiting.message == "code and data to be sent"
    machine.now += 10.0
    assert preparation.poll(machine.now).state == "waiting"
    code = machine.stage(data=("data/x",))
    ready = preparation.poll(machine.now)
    assert ready.state == "ready"
    assert ready.seconds["checking"] > 0
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


# -- packages ---------------------------------------------------------------------------------
def test_what_lacks_is_installed_once_and_comes_before_the_rest(
    machine: Machine, reach: Reach
) -> None:
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


def test_what_cannot_be_installed_is_refused_after_three_tries(
    machine: Machine, reach: Reach
) -> None:
    machine.wanted.write_text("trmcloud-probe-c==1.0  # >=1\n")
    machine.check()
    refused = reach(machine.prepare(), "refused")
    assert refused.message.startswith("packages could not be installed: ERROR: No matching")
    log = (machine.pod_dir / "install.log").read_text()
    assert log.count("ERROR: No matching distribution found") == 3


def test_a_package_that_installs_as_something_else_is_refused(
    machine: Machine, reach: Reach
) -> None:
    machine.wheel("trmcloud_probe_d", "1.0")
    machine.wanted.write_text("trmcloud-probe-d==1.0  # >=2\n")
    machine.check()
    assert reach(machine.prepare(), "refused").state == "refused"


def test_versions_are_told_apart() -> None:
    (package,) = packages.read_list("a==1.5  # >=1.2,<2\n")
    good = ("1.2", "1.2.0", "1.10", "1.99.9", "1.3rc1", "1.2.post1")
    bad = ("1.1.9", "2", "2.0", "2.0.0", "0.9", "10", "unknown", "")
    assert [v for v in good if not package.accepts(v)] == []
    assert [v for v in bad if package.accepts(v)] == []


@pytest.mark.parametrize("line", ["a", "a==1", "a>=1  # >=1", "a==1  # ~=1", "-r /etc/passwd"])
def test_the_list_is_read_strictly(line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(line)):
        packages.read_list(line)


def test_the_shipped_list_agrees_with_the_projects_own() -> None:
    """Pins are those that the tests run with, and every direct need of training but torch is in."""
    shipped = packages.read_list(packages.LIST.read_text())
    lines = (ROOT / "constraints.txt").read_text().lower().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    assert {p.name.lower(): p.pin for p in shipped if pins.get(p.name.lower()) != p.pin} == {}
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
                (site / top).symlink_to(found.locate_file(top))
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
