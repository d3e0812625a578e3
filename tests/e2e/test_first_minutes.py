"""A missing package or variable, or a full GPU, ends a run in its first minutes, for cents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.e2e.test_run import log_of, run, script
from tests.e2e.user import User
from tests.standins.runpod.standin import StandIn
from trmcloud.core.errors import NO_CHECKPOINT_CODE, Outcome
from trmcloud.core.money import Usd

FAILED = Outcome.FAILED.exit_code
RESUMED = ("--budget", "0.20", "--resume", "python3 train.py")


@pytest.fixture
def user(in_project: User) -> User:
    return in_project


def test_a_missing_package_ends_it_before_it_starts_and_is_not_tried_again(user: User) -> None:
    script(user, "print('STARTED', flush=True)\nimport nowhere\n")
    (user.here.parent / "nowhere.py").touch()
    out = run(user, *RESUMED, code=FAILED)
    assert "try: --root .. sends the folder that contains it" in out
    assert "train.py, line 2: No module named 'nowhere': add the package to requirements.txt" in out
    assert "spent $0.0" in out
    assert "STARTED" not in log_of(user)
    assert user.only_run().phases["train"].attempts == 1
    assert user.only_run().reserved == Usd(0), "the rest is free again"


def test_no_check_starts_it_all_the_same(user: User) -> None:
    script(user, "print('STARTED', flush=True)\nimport os\nX = os.environ['SOME_KEY']\n")
    run(user, "--budget", "0.20", "--no-check", code=FAILED)
    assert "STARTED" in log_of(user)


def test_a_full_gpu_at_the_first_step_is_not_tried_again(user: User) -> None:
    script(
        user,
        "class OutOfMemoryError(RuntimeError): __module__ = 'torch'\n"
        "print('step 1', flush=True)\n"
        "raise OutOfMemoryError('CUDA out of memory. GPU 0 has a total capacity of 23.6 GiB')\n",
    )
    out = run(user, *RESUMED, code=FAILED)
    assert "use a smaller batch, or a larger GPU: run any --memory 46; it ended with code 1" in out
    assert user.only_run().phases["train"].attempts == 1
    assert log_of(user).count("step 1") == 1


def test_a_script_that_reads_its_own_files_is_let_be(user: User) -> None:
    script(user, "import os, json\nfrom inner import X\nprint(open('a.txt').read(), X)\n")
    (user.here / "inner.py").write_text("X = 'inner'")
    (user.here / "a.txt").write_text("read")
    run(user, "--budget", "0.20", code=NO_CHECKPOINT_CODE)
    assert "read inner" in log_of(user)


_OLD = "The NVIDIA driver on your system is too old (found version 12040)"
_FULL = "CUDA out of memory. GPU 0 has a total capacity of 23.6 GiB"


SMALL = "/dev/shm"
"""A disk with less room than the one of the home."""


class Fault(NamedTuple):
    """A fault of a command, planted: what ``train.py`` holds, other files, options, and the reason
    that the run must give."""

    text: str
    said: str
    files: Mapping[str, str] = MappingProxyType({})
    options: tuple[str, ...] = ()


def _raises(error: str) -> Mapping[str, str]:
    return {"torch.py": f"def zeros(*_, **__):\n    raise RuntimeError({error!r})\n"}


_ON_GPU = "import torch\nprint('begins', flush=True)\ntorch.zeros(1, device='cuda')\n"
FAULTS = {
    "wrong CUDA": Fault(
        _ON_GPU, "the CUDA of its torch is newer than this machine's driver, which has 12.4",
        _raises(_OLD),
    ),
    "missing package": Fault("import nowhere\n", "No module named 'nowhere': add the package to"),
    "wrong Python": Fault(
        "name = t'{1}'\n", "(Python 3.11.", {}
    ),
    "missing file": Fault(
        "print(open('data/a.txt').read())\n",
        "No such file or directory: 'data/a.txt': send it with --data DIR",
    ),
    "full GPU": Fault(
        _ON_GPU, "the GPU's memory was full before the first checkpoint: use a smaller batch",
        _raises(_FULL),
    ),
    "read-only output": Fault(
        "print(1)\n", "/sys'", {}, ("--checkpoints", "/sys/out")
    ),
    "small disk": Fault(
        "print(1)\n", "too few for two checkpoints", {},
        ("--checkpoints", SMALL, "--checkpoint-gb", f"{shutil.disk_usage(SMALL).free / 1.4e9:.2g}"),
    ),
    "no network": Fault(
        "from urllib.request import urlopen\nurlopen('http://data.invalid/a.bin')\n",
        "data.invalid:80 cannot be reached from this machine",
    ),
    "missing key": Fault(
        "import os\nKEY = os.environ['SOME_KEY']\n", "SOME_KEY is not set: pass --env SOME_KEY"
    ),
    "hang at an import": Fault(
        "import locked\nimport json5\n", "it hangs at the import of 'locked'",
        {"locked.py": "import threading\nthreading.Event().wait()\n", "json5.py": ""},
    ),
}  # fmt: skip
"""Ten faults, each of which ends within five paid minutes and 25 cents."""


@pytest.mark.more
@pytest.mark.parametrize("name", FAULTS)
def test_ten_faults_cost_five_minutes_at_most(lodger: User, runpod: StandIn, name: str) -> None:
    fault = FAULTS[name]
    lodger.cwd = lodger.folder / "project"
    lodger.cwd.mkdir()
    script(lodger, fault.text)
    for path, text in fault.files.items():
        (lodger.cwd / path).write_text(text)
    out = lodger.run(
        *("run", "1xRTX4090", "--budget", "9", "--accept-exposure", "9", "-y", *fault.options),
        *("--", "python3", "train.py"),
        code=FAILED,
    )
    assert fault.said in out
    (run,) = lodger.json("report", lodger.only_run().run_id, "--json")["runs"]
    print(f"{name}: {run['paid_s']:.0f} s, ${run['accrued_usd']}")
    assert run["paid_s"] <= 300
    assert float(run["accrued_usd"]) <= 0.25
    assert not runpod.control.live()


def test_a_variable_that_was_not_given_costs_cents_on_a_rented_gpu(
    lodger: User, runpod: StandIn
) -> None:
    lodger.cwd = lodger.folder / "project"
    lodger.cwd.mkdir()
    script(lodger, "import os\nKEY = os.environ['SOME_KEY']\n")
    words = ("--", "python3", "train.py")
    out = lodger.run(
        *("run", "1xRTX4090", "--budget", "2", "--accept-exposure", "2", "-y", *words), code=FAILED
    )
    assert "why: train.py, line 2: the variable SOME_KEY is not set: pass --env SOME_KEY" in out
    run = json.loads(lodger.run("status", lodger.only_run().run_id, "--json"))["runs"][0]
    assert float(run["spent_usd"]) < 0.06, "5 minutes"
    assert not runpod.control.live()
