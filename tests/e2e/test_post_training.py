"""The runs of docs/guide/post-training.md, word by word, with the environment of `make own-all`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import written
from tests.e2e.user import ROOT, User
from trmcloud.core.contract.manifest import from_json
from trmcloud.core.errors import Outcome

OWN = ROOT / ".venv-own"
PAGE = written.GUIDES / "post-training.md"
SCRIPTS = written.GUIDES / "post-training"
OPENED = {
    "sft.py": "LlamaForCausalLM",
    "lora.py": "PeftModelForCausalLM",
    "grpo.py": "LlamaForCausalLM",
}

pytestmark = [
    pytest.mark.more,
    pytest.mark.skipif(
        not list(OWN.glob("lib/*/site-packages/trl")),
        reason="TRL is not here: make .venv-own/.all-ready",
    ),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guide's folder after its first command."""
    folder = tmp_path_factory.mktemp("guide") / "post-training"
    shutil.copytree(SCRIPTS, folder)
    python(folder, "make_model.py")
    return folder


@pytest.fixture
def user(base: Path, tmp_path: Path) -> Iterator[User]:
    folder = tmp_path / "post-training"
    shutil.copytree(base, folder)
    made = User(tmp_path, cwd=folder)
    made.environment["PATH"] = f"{OWN / 'bin'}:{os.environ['PATH']}"
    yield made
    made.end_everything()


def python(folder: Path, *words: str) -> str:
    """The last line that a script prints."""
    done = subprocess.run(
        [str(OWN / "bin" / "python"), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("script", OPENED)
def test_the_best_comes_home_with_its_own_metric_and_opens(user: User, script: str) -> None:
    commands = written.commands_in(PAGE.name, PAGE.read_text(encoding="utf-8"))
    [typed] = [c for c in commands if c.words[0] == "run" and "-y" in c.words and script in c.words]
    out = user.run(*typed.words, code=Outcome.FINISHED.exit_code, within_s=500)
    user.run("fetch-best", "--into", "best")
    [own] = (user.here / "best" / "own").iterdir()
    path = user.here / "best" / "manifest.json"
    manifest = from_json(path.read_bytes(), str(path))
    name = typed.words[typed.words.index("--metric") + 1]
    [work] = user.home.glob("runs/*/train/work")
    last = max(
        (work / script.removesuffix(".py")).glob("checkpoint-*/trainer_state.json"),
        key=lambda found: int(found.parent.name.rpartition("-")[2]),
    )
    rows = [row for row in json.loads(last.read_text())["log_history"] if name in row]
    if own.name.startswith("checkpoint-"):
        assert own.name == f"checkpoint-{manifest.step}"
        [logged] = [row[name] for row in rows if row["step"] == manifest.step]
    else:
        logged = rows[-1][name]  # the final model, of the last checkpoint's weights
    best = max if "max" in typed.words else min
    assert logged == best(row[name] for row in rows)
    carried = manifest.extra["metric"]
    assert (carried["name"], carried["value"]) == (name, pytest.approx(logged, rel=1e-3)), out
    opened, _, right = python(user.here, "ask.py", str(own)).partition(": ")
    assert opened == OPENED[script]
    assert int(right.split("; ")[1].split()[0]) > 260, "the base has about 200 of 400"
