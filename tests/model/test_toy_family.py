"""A family is added by one folder and its recipe: planned from a wheel's tree, and trained."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import deadline_s
from trmcloud.core.contract.records import dump
from trmcloud.core.contract.trainer_contract import PhaseJob

ROOT = Path(__file__).parents[2]

PLAN = """
from typing import ClassVar

from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.spec.work import Matrix, Work, work_of_blocks
from trmcloud.core.values import dataclass


@dataclass(frozen=True)
class Settings(PhaseRecipe):
    widening: int = 4

    positive: ClassVar[tuple[str, ...]] = ("widening",)
    shape_keys: ClassVar[tuple[str, ...]] = ("widening",)

    def check_shape(self, where: str) -> None:
        if self.depth != 1:
            raise UsageError("a toy has one layer", where=where, next_step="--set depth=1")

    def work(self) -> Work:
        hidden = self.widening * self.width
        return work_of_blocks(
            depth=1, width=self.width, vocab_size=self.vocab_size, sequence=self.sequence,
            matrices=(Matrix(hidden, self.width, 1), Matrix(self.width, hidden, 1)),
            mlp_values=2.0 * self.widening,
        )
"""

MODEL = '''
import torch
import torch.nn.functional as F
from torch import nn

from model.families.protocol import EMBEDDING, HEAD, MATRIX, Group, LanguageModel, Objective
from model.families.protocol import draw_weights
from model.families.toy.plan import Settings


def build(settings: Settings, device):
    return Toy(settings).to(device)


class Toy(LanguageModel):
    """The next token by the last one alone."""

    def __init__(self, s):
        super().__init__()
        self.sequence, self.vocab_size = s.sequence, s.vocab_size
        self.embedding = nn.Embedding(s.vocab_size, s.width)
        self.up = nn.Linear(s.width, s.widening * s.width, bias=False)
        self.down = nn.Linear(s.widening * s.width, s.width, bias=False)
        self.head = nn.Linear(s.width, s.vocab_size, bias=False)

    def initialise(self, seed):
        draw_weights(self, seed, {name: 0.1 for name, _ in self.named_parameters()})

    def loss(self, ids, targets, draws=None):
        nats = self.evaluate(ids, targets)[0].mean()
        return Objective(nats, nats.detach().unsqueeze(0), {})

    def evaluate(self, ids, targets, draws=None):
        x = self.embedding(ids)
        logits = self.head(x + self.down(F.relu(self.up(x))))
        return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").unsqueeze(0)

    def generate(self, start, sampling):
        yield from ()

    def parameter_groups(self):
        kinds = {"embedding": EMBEDDING, "head": HEAD}
        return {name: Group(kinds.get(name.partition(".")[0], MATRIX)) for name, _ in
                self.named_parameters()}
'''

RECIPE = """
name = "toy"
family = "toy"
title = "a toy"
[settings]
depth = 1
width = 32
head_dim = 16
widening = 2
vocab_size = 300
sequence = 16
dtype = "float32"
compile = false
batch = 2
eval_every = 2
eval_tokens = 128
save_every = 2
validation_fraction = 0.1
[phases.train]
steps = 2
"""

PLANNING = """
import json, os, sys
sys.path[:] = [path for path in sys.path if path != {root!r}]  # where a checkout has its model
from trmcloud.cli.main import main
for words in {commands!r}:
    read, write = os.pipe()
    if os.fork() == 0:
        os.dup2(write, 1)
        try:
            main(words)
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        imported = [name for name in sys.modules if name.partition(".")[0] in ("model", "torch")]
        sys.stdout.flush()
        os.write(2, (json.dumps([code, imported]) + "\\n").encode())
        os._exit(0)
    os.close(write)
    with open(read) as out:
        said = out.read()
    os.wait()
    print(json.dumps(said), flush=True)
"""
"""Each command in a process of its own: its output, its exit code, and what it imported of the
trainer and torch."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like that of installed packages, with a wheel's tree: no top-level ``model``."""
    site = tmp_path_factory.mktemp("site")
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "trmcloud", site / "trmcloud", ignore=skipped)
    bundled = site / "trmcloud" / "bundle" / "model"
    shutil.copytree(ROOT / "model", bundled, ignore=skipped)
    folder = bundled / "families" / "toy"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "plan.py").write_text(PLAN)
    (folder / "model.py").write_text(MODEL)
    (bundled / "recipes" / "toy.toml").write_text(RECIPE)
    return site


PLAN_WORDS = ("plan", "--recipe", "toy", "--hardware", "8xH100", "--budget", "100", "--set")
COMMANDS = (
    (*PLAN_WORDS, "widening=3", "--json"),
    (*PLAN_WORDS, "depth=2"),
    (*PLAN_WORDS, "widening=0"),
    ("--help",),
    ("status",),
)


@pytest.fixture(scope="module")
def commands(site: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int, Any]]:
    """Of each of ``COMMANDS``: its output, its exit code, and what it imported."""
    home = tmp_path_factory.mktemp("planned")
    done = subprocess.run(
        [sys.executable, "-P", "-c", PLANNING.format(root=str(ROOT), commands=COMMANDS)],
        capture_output=True, text=True, cwd=home, timeout=deadline_s(120),
        env={**os.environ, "PYTHONPATH": str(site), "TRMCLOUD_HOME": str(home)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    ends = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("[")]
    return [(text, *end) for text, end in zip(said, ends, strict=True)]


@pytest.fixture(scope="module")
def planned(commands: list[tuple[str, int, Any]]) -> dict[str, Any]:
    """The settings of its only phase."""
    [settings] = {
        json.dumps(phase["settings"])
        for candidate in json.loads(commands[0][0])["candidates"]
        for phase in candidate["phases"]
    }
    made: dict[str, Any] = json.loads(settings)
    return made


def test_a_wheel_plans_it_without_torch(
    commands: list[tuple[str, int, Any]], planned: dict[str, Any]
) -> None:
    _, code, imported = commands[0]
    assert code == 0
    assert set(imported) >= {"model.families.toy.plan"}
    assert all(name.endswith(".plan") for name in imported)
    assert planned["widening"] == 3


def test_what_it_cannot_be_is_said_by_its_own_check_and_what_plans_nothing_reads_no_family(
    commands: list[tuple[str, int, Any]],
) -> None:
    assert [code for _, code, _ in commands[1:]] == [2, 2, 0, 0]
    assert [imported for _, _, imported in commands[3:]] == [[], []]


def test_it_trains(planned: dict[str, Any], site: Path, data_dir: Path, tmp_path: Path) -> None:
    job = PhaseJob(
        run_id="r1", phase="train", settings={**planned, "batch": 2, "accumulation": 1},
        data_dir=str(data_dir), out_dir=str(tmp_path / "out"), processes=1, initial_weights="",
    )  # fmt: skip
    (tmp_path / "job.json").write_text(dump(job))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "model.train"],
        capture_output=True, text=True, cwd=tmp_path, timeout=deadline_s(120),
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(site), str(site / "trmcloud" / "bundle")]),
            "TRMCLOUD_JOB": str(tmp_path / "job.json"),
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    manifest = max((tmp_path / "out" / "checkpoints").glob("*/manifest.json"))
    trained = json.loads(manifest.read_text())
    assert (trained["step"], trained["settings"]["widening"]) == (2, 3)
