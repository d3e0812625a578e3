"""Trainers that many have, from their own packages, under ``trmcloud run``: ``make own`` first."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.user import ROOT, User, python_of_ranks
from trmcloud.core.contract.manifest import from_json, pick_best
from trmcloud.core.errors import Outcome

OWN = ROOT / ".venv-own"

pytestmark = pytest.mark.skipif(not (OWN / ".ready").exists(), reason="they are not here: make own")
#: Five cents: 90 s to its soft stop, of which an import on a busy machine takes half.
OPTIONS = ("--rate", "1.50", "--budget", "0.049", "--grace", "15", "--checkpoint-gb", "0.01")
WHAT_IT_HOLDS = {
    "train_transformers.py": "from safetensors.torch import load_file; "
    "import sys; print(len(load_file(sys.argv[1] + '/model.safetensors')))",
    "train_lightning.py": "import torch, sys; "
    "print(len(torch.load(sys.argv[1], weights_only=True)['state_dict']))",
}


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    folder = tmp_path / "project"
    folder.mkdir()
    made = User(tmp_path, cwd=folder)
    python = python_of_ranks(tmp_path / "bin", step_s=0.15, prefix=OWN)
    made.environment["PATH"] = f"{python}:{os.environ['PATH']}"
    yield made
    made.end_everything()


@pytest.mark.more
@pytest.mark.parametrize(
    ("name", "metric"),
    [("train_transformers.py", "eval_loss"), ("train_lightning.py", "val_loss")],
)
def test_it_is_told_in_time_saves_and_its_best_comes_home(
    user: User, name: str, metric: str
) -> None:
    if (
        name == "train_lightning.py"
    ):  # it validates as it ends, and keeps a second file if that is best
        (user.folder / "bin" / "step_s").write_text("0")
    shutil.copy(ROOT / "docs" / "guide" / "your-own" / name, user.here)
    words = ("--checkpoints", "out", "--metric", metric, "-y", "--", "python", name)
    out = user.run("run", "local", *OPTIONS, *words, code=Outcome.LANDED.exit_code)
    [told] = user.json("status", user.only_run().run_id, "--json")["runs"]
    assert 0 < float(told["spent_usd"]) < 0.05
    beat = json.loads(next(user.home.glob("runs/*/train/heartbeat.json")).read_text())
    assert beat["outcome"] == "landed_deadline"
    assert beat["message"] == "", "it left by itself, before it was killed"
    found = user.home.glob("runs/*/train/checkpoints/*/manifest.json")
    made = [from_json(path.read_text(), str(path)) for path in found]
    best = pick_best(made)
    assert best is not None
    # By its report, or, where the watcher saw the file first, by its step.
    told = best.extra["metric"]
    assert (told["name"], told["value"]) == (metric, best.val_bpb)
    assert max(each.step for each in made) >= beat["step"], "it saved when it was told"
    fetched = user.run("fetch-best", "--into", "best")
    assert f"step-{best.step:08d}: fetched and verified" in fetched
    [own] = (user.here / "best" / "own").iterdir()
    done = subprocess.run(
        [str(OWN / "bin" / "python"), "-c", WHAT_IT_HOLDS[name], str(own)],
        capture_output=True,
        text=True,
    )
    assert int(done.stdout) > 2, done.stderr
    print(f"{out}\n{fetched}")
