"""An exported script, in an empty folder and an empty home, with the real trainer."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from tests.e2e.user import User, python_of_ranks

TINY = (
    *("--recipe", "trm-tiny", "--phase", "fast", "--processes", "1", "--set", "depth=1"),
    *("--set", "width=32", "--set", "vocab_size=300", "--set", "sequence=64"),
    *("--set", "eval_tokens=1024", "--rate", "3.60", "--budget", "0.035"),
)


def test_a_script_trains_lands_at_its_budget_and_wins_no_time_by_a_second_start(
    tmp_path: Path,
) -> None:
    user = User(tmp_path / "user", trainer=None)
    user.folder.mkdir()
    text = user.folder / "it's $(touch oops)"
    text.write_text("the quick brown fox jumps over the lazy dog.\n" * 4000)
    user.run("export", "local", *TINY, "--data", str(text), "-o", "train.sh")
    assert "--force" in user.refused("export", "local", *TINY, "-o", "train.sh", code=8)
    empty = tmp_path / "elsewhere"
    empty.mkdir()
    python = python_of_ranks(tmp_path / "bin", step_s=0.15) / "python3"
    bare = {"PATH": os.environ["PATH"], "HOME": str(empty), "PYTHON": str(python)}
    bare["TRMCLOUD_KEEP"] = str(tmp_path / "kept")

    def start(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(user.folder / "train.sh"), *words],
            cwd=empty, env=bare, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    bare["NODES"] = "2"
    alone = start("set-up")
    assert (alone.returncode, "HEAD=" in alone.stderr) == (2, True)
    bare["NODES"] = "1"
    # In two steps, as a SkyPilot task does: its clock runs from the first.
    assert start("set-up").returncode == 0
    first = start()
    assert first.returncode == 20, first.stderr  # landed at its budget
    made = list((empty / "trmcloud-run/runs").glob("r-*/fast/checkpoints/*/manifest.json"))
    kept = list((tmp_path / "kept").glob("r-*/fast/checkpoints/*/manifest.json"))
    assert made
    assert {path.read_bytes() for path in made} <= {path.read_bytes() for path in kept}
    assert not list(tmp_path.rglob("oops"))
    # Taken home, verified, with the account that its own clock gives.
    told = user.json("fetch-best", str(empty), "--into", str(tmp_path / "best"), "--json")
    assert told["outcome"] == "landed"
    assert 0 < float(told["accounted_usd"]) <= float(told["worst_case_usd"]) + 0.003
    files = [path.read_bytes() for path in (tmp_path / "best").iterdir()]
    assert told["sha256"] in {hashlib.sha256(content).hexdigest() for content in files}
    second = start()
    assert second.returncode == 20
    assert "--again" in second.stderr
