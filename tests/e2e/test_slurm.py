"""An exported sbatch script under a real Slurm of one node: ``make e2e-slurm``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_export import TINY
from tests.e2e.user import User
from tests.standins.slurm import missing, slurm
from trmcloud.core.contract.manifest import from_json
from trmcloud.core.sweep import events as ev
from trmcloud.core.sweep.state import fold

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
    log = user.folder / "slurm-1.out"
    ended = requeued(user, tmp_path, "t.sbatch", lambda: "saved step" in written(log))
    assert "ExitCode=20:0" in ended  # landed at its budget
    assert len(re.findall(r"^r-[0-9a-f]+: stops and saves in", written(log), re.MULTILINE)) == 2
    assert re.search(r"fast: .* from step [1-9]", written(log))  # where the first one was saved
    assert "stopped at its budget or time limit, evaluated and saved" in written(log)


def test_a_requeued_sweep_continues_from_its_journal_and_its_best_is_adopted(
    tmp_path: Path,
) -> None:
    user = User(tmp_path / "user", trainer=None)
    user.folder.mkdir()
    text = user.folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog.\n" * 4000)
    words = (*TINY, "--budget", "0.30", "--slots", "2", "lr=log:1e-4,1e-1")
    user.run("export", "local", *words, "--as", "sbatch", "--data", str(text), "-o", "s.sbatch")
    assert subprocess.run([SHELLCHECK, user.folder / "s.sbatch"], check=False).returncode == 0
    journals = user.folder.glob

    def journal() -> tuple[ev.SweepEvent, ...]:
        found = list(journals("trmcloud-run/runs/*/fast/sweep.jsonl"))
        return ev.read_journal(found[0].read_text()) if found else ()

    before: dict[int, Any] = {}

    def has_reached() -> bool:
        known = fold(journal()).trials
        before.update((number, trial) for number, trial in known.items() if trial.results)
        return len(before) >= 2

    log = user.folder / "slurm-1.out"
    ended = requeued(user, tmp_path, "s.sbatch", has_reached)
    said = written(log)
    assert re.search(r"ExitCode=(0|20):0", ended)  # all was spent, or its time was over
    assert len(re.findall(r"^r-[0-9a-f]+: stops and saves in", said, re.MULTILINE)) == 2
    state = fold(journal())
    for number, trial in before.items():
        assert state.trials[number].point == trial.point
        assert state.trials[number].results[0] == trial.results[0], "what it had come to was kept"
    told = user.json("fetch-best", ".", "--into", str(tmp_path / "best"), "--json")
    assert told["starts"] == 2
    assert 0 < float(told["accounted_usd"]) <= float(told["worst_case_usd"]) + 0.003
    manifest = from_json((tmp_path / "best" / "manifest.json").read_text(), "best")
    best = min(t.metric for t in state.trials.values() if t.metric is not None)
    assert manifest.val_bpb == pytest.approx(best)


SHELLCHECK = Path(sys.executable).with_name("shellcheck")


def requeued(user: User, folder: Path, script: str, is_time: Callable[[], bool]) -> str:
    """Submit a script, requeue its job when it ``is_time``; return what Slurm has of its end."""
    (folder / "slurm").mkdir()
    log = user.folder / "slurm-1.out"
    with slurm(folder / "slurm") as environment:

        def command(*words: str) -> str:
            done = subprocess.run(
                words, env={**environment, "PYTHON": sys.executable}, cwd=user.folder,
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            return done.stdout

        def job() -> str:
            return command("scontrol", "show", "job", "1")

        command("sbatch", script)
        until(is_time, log)
        command("scontrol", "requeue", "1")
        # Slurm holds a requeued job back for two minutes, which are not counted.
        until(lambda: "Restarts=1" in job(), log)
        until(lambda: not re.search(r"JobState=(RUNNING|PENDING|COMPLETING)", job()), log)
        ended = job()
    print(ended, written(log))
    return ended


def written(log: Path) -> str:
    return log.read_text() if log.exists() else ""


def until(is_so: Callable[[], bool], log: Path) -> None:
    give_up_at = time.monotonic() + 400
    while not is_so():
        assert time.monotonic() < give_up_at, written(log)
        time.sleep(0.5)
