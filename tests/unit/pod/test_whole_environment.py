"""Where the image has no torch, or an old Python, a whole environment is made by the real uv."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standins.downloads import VERSION, Downloads, downloads
from tests.standins.loopback import free_port
from tests.unit.pod.machine import Machine, Reach
from trmcloud.pod.machine import packages
from trmcloud.pod.machine.prepare import PREPARED_NAME

UV = Path(sys.executable).with_name("uv")

pytestmark = pytest.mark.skipif(not UV.exists(), reason="uv is not installed: make install")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Downloads]:
    with downloads(tmp_path_factory.mktemp("downloads")) as made:
        yield made


@pytest.fixture
def bare(machine: Machine, served: Downloads, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Its Python is too old for the trainer; SkyPilot has put uv into its user's home."""
    monkeypatch.setattr(packages, "OLDEST_PYTHON", (99, 0))
    home = machine.folder / "home"
    (home / ".local" / "bin").mkdir(parents=True)
    (home / ".local" / "bin" / "uv").symlink_to(UV)
    monkeypatch.setenv("TRMCLOUD_SKY_HOME", str(home))
    monkeypatch.setenv("HOME", str(machine.folder / "root"))
    monkeypatch.setenv("PATH", f"{machine.bin}:/usr/bin:/bin")
    for name, value in served.settings().items():
        monkeypatch.setenv(name, value)
    # An image's own settings of uv are not ours: this is how SkyPilot's test image is kept offline.
    monkeypatch.setenv("UV_OFFLINE", "1")
    machine.wanted.write_text(packages.LIST.read_text())
    machine.check()
    return machine


def test_python_torch_and_all_that_is_pinned_come_from_where_the_user_says(
    bare: Machine, reach: Reach, served: Downloads
) -> None:
    code = bare.stage()
    preparation = bare.prepare()
    assert preparation.poll(bare.now).state == "installing"
    ready = reach(preparation, "ready")
    assert ready.seconds["installing"] > 0
    setup = preparation.trainer()
    assert setup.python_path == (str(code),)
    environment = Path(setup.python).parents[1]
    words = "import sys, torch; print(*sys.version_info[:2], sep='.'); print(torch.__file__)"
    told = subprocess.run(
        [setup.python, "-c", words], capture_output=True, text=True, check=True
    ).stdout.split()
    assert told[0] == VERSION
    assert told[1].startswith(str(environment))
    assert (
        packages.missing(
            packages.read_list(packages.LIST.read_text()), [packages.site_of(environment)]
        )
        == ()
    )
    assert {path.name for path in environment.parent.iterdir()} == {environment.name, "python"}
    asked = len(served.asked)
    again = bare.prepare()
    assert again.trainer().python == setup.python, "an agent that is started anew"
    (bare.pod_dir / PREPARED_NAME).unlink()
    assert bare.prepare().poll(bare.now).state == "ready", "a second pod finds it on the volume"
    assert len(served.asked) == asked


def test_another_torch_may_be_asked_for(
    bare: Machine, reach: Reach, served: Downloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.add_wheel("torch", "2.8.0", {"torch/__init__.py": b"__version__ = '2.8.0'\n"})
    monkeypatch.setenv("TRMCLOUD_INSTALL_TORCH", "2.8.0")
    bare.stage()
    preparation = bare.prepare()
    reach(preparation, "ready")
    words = [preparation.trainer().python, "-c", "import torch; print(torch.__version__)"]
    assert subprocess.run(words, capture_output=True, text=True).stdout == "2.8.0\n"


def test_what_has_another_hash_than_the_lists_is_refused_by_uv(
    bare: Machine, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is served bears the names of the real packages, and is not them."""
    monkeypatch.delenv("TRMCLOUD_INSTALL_HASHES")
    refused = reach(bare.prepare(), "refused")
    assert "Hash mismatch for `" in (bare.pod_dir / "install.log").read_text()
    assert "could not be installed" in refused.message


def test_no_torch_is_no_trainers_python(bare: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "OLDEST_PYTHON", (3, 0))
    torch, numpy = packages.read_list("torch==2.9.1  # >=2\nnumpy==2.4.6  # >=1.26\n")
    assert packages.needs_python([torch])
    assert not packages.needs_python([numpy])


def test_no_network_is_one_line_that_names_the_place(
    bare: Machine, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("TRMCLOUD_INSTALL_UV_DEFAULT_INDEX", f"{nowhere}/simple/")
    monkeypatch.setenv("TRMCLOUD_INSTALL_UV_HTTP_RETRIES", "0")
    refused = reach(bare.prepare(), "refused")
    assert refused.message.startswith(
        f"Python {packages.PYTHON} and torch could not be installed: Failed to fetch: {nowhere}/"
    )
    assert refused.message.endswith(": Connection refused (os error 111)")
    record = json.loads((bare.pod_dir / PREPARED_NAME).read_text())
    assert record["refused"] == refused.message


def test_no_uv_and_no_pip(bare: Machine, reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRMCLOUD_SKY_HOME")
    python = bare.bin / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    if shutil.which("uv") is not None:
        pytest.skip("this machine has a uv of its own in /usr/bin")
    assert reach(bare.prepare(), "refused").message.endswith(
        "could not be installed: this image has neither uv nor pip to install with"
    )


@pytest.mark.more
def test_a_uv_that_is_not_there_is_brought_by_pip(
    bare: Machine, reach: Reach, served: Downloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRMCLOUD_SKY_HOME")
    link = f'#!/bin/sh\nexec {UV} "$@"\n'.encode()
    served.add_wheel("uv", "0.13.9", {"uv-0.13.9.data/scripts/uv": link})
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRMCLOUD_INSTALL_PIP_INDEX_URL", f"{served.url}/simple/")
    assert packages.find_uv(os.environ) == ""
    bare.stage()
    assert reach(bare.prepare(), "ready").state == "ready"
