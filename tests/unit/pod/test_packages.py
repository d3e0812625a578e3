"""What a machine lacks is installed once, and the list of what is wanted is whole."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
import tomllib

from tests.unit.pod.machine import Machine, Reach
from trmcloud.pod.machine import packages
from trmcloud.pod.machine.prepare import PREPARED_NAME

ROOT = Path(__file__).resolve().parents[3]


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
