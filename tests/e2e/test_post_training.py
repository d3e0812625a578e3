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
OPENED = {"sft.py": "LlamaForCausalLM", "lora.py": "PeftModel", "grpo.py": "LlamaForCausalLM"}

pytestmark = [
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
    assert user.cwd is not None
    commands = written.commands_in(PAGE.name, PAGE.read_text(encoding="utf-8"))
    [typed] = [c for c in commands if c.words[0] == "run" and "-y" in c.words and script in c.words]
    out = user.run(*typed.words, code=Outcome.FINISHED.exit_code, within_s=500)
    user.run("fetch-best", "--into", "best")
    [own] = (user.cwd / "best" / "own").iterdir()
    path = user.cwd / "best" / "manifest.json"
    manifest = from_json(path.read_bytes(), str(path))
    state = json.loads((own / "trainer_state.json").read_text(encoding="utf-8"))
    assert state["global_step"] == manifest.step
    name = typed.words[typed.words.index("--metric") + 1]
    [logged] = [
        row[name] for row in state["log_history"] if row["step"] == manifest.step and name in row
    ]
    assert manifest.extra["metric"] == {"name": name, "value": pytest.approx(logged)}, out
    opened, _, right = python(user.cwd, "ask.py", str(own)).partition(": ")
    assert opened == OPENED[script]
    assert int(right.split("; ")[1].split()[0]) > 300, "the base has about 200 of 400"
