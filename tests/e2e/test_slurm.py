"""An exported sbatch script under a real Slurm of one node: ``make e2e-slurm``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.test_export import TINY
from tests.e2e.user import User
from tests.standins.slurm import missing, slurm

pytestmark = [
    pytest.mark.skipif("TRMCLOUD_E2E_SLURM" not in os.environ, reason="opt-in: make e2e-slurm"),
    pytest.mark.skipif(bool(missing()), reason=missing() or "it is here"),
    pytest.mark.timeout(900),
]


def test_a_requeued_job_goes_on_with_what_is_left_and_lands_at_its_budget(tmp_path: Path) -> None:
    user = User(tmp_path / "user", trainer=None)
    user.folder.mkdir()
    text = user.folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog.\n" * 4000)
    longer = (*TINY, "--budget", "0.15", "--set", "eval_every=10", "--set", "save_every=10")
    user.run("export", "local", *longer, "--as", "sbatch", "--data", str(text), "-o", "t.sbatch")
    (tmp_path / "slurm").mkdir()
    with slurm(tmp_path / "slurm") as environment:

        def command(*words: str) -> str:
            done = subprocess.run(
                words, env={**environment, "PYTHON": sys.executable}, cwd=user.folder,
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            return done.stdout

        command("sbatch", "t.sbatch")
        log = user.folder / "slurm-1.out"

        def job() -> str:
            return command("scontrol", "show", "job", "1")

        until(lambda: "saved step" in written(log), log)
        command("scontrol", "requeue", "1")
        # Slurm holds a requeued job back for two minutes, which are not counted.
        until(lambda: "Restarts=1" in job(), log)
        until(lambda: not re.search(r"JobState=(RUNNING|PENDING|COMPLETING)", job()), log)
        ended = job()
    print(ended, written(log))
    assert "ExitCode=20:0" in ended  # landed at its budget
    assert len(re.findall(r"^r-[0-9a-f]+: lands in", written(log), re.MULTILINE)) == 2
    assert re.search(r"fast: .* from step [1-9]", written(log))  # where the first one was saved
    assert "stopped at its budget or time limit, evaluated and saved" in written(log)


def written(log: Path) -> str:
    return log.read_text() if log.exists() else ""


def until(is_so: Callable[[], bool], log: Path) -> None:
    give_up_at = time.monotonic() + 400
    while not is_so():
        assert time.monotonic() < give_up_at, written(log)
        time.sleep(0.5)
