"""The whole product with the real trainer: tiny models, real torchrun, real text."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_crashes import checkpoints, kill, pids
from tests.e2e.user import User, until
from trmcloud.core import manifest as mf
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.outcome import Outcome

pytestmark = pytest.mark.slow

TINY = (
    *("--recipe", "trm-tiny", "--data", "text.py", "--rate", "3.60", "--phase", "fast"),
    *("--set", "depth=1", "--set", "width=64", "--set", "vocab_size=512", "--set", "sequence=64"),
    *("--set", "eval_tokens=2048", "--set", "eval_every=20", "--set", "save_every=10"),
    *("--set", "log_every=1"),
)
STEPS = 60
LAST = f"fast/step-{STEPS:08d}"


@pytest.fixture
def trainee(tmp_path: Path) -> Iterator[User]:
    """A user with the real trainer and a text of 100 kB."""
    user = User(tmp_path, trainer=None, environment={"OMP_NUM_THREADS": "1"})
    write_text(tmp_path)
    yield user
    user.end_everything()


def write_text(folder: Path) -> None:
    (folder / "text.py").write_text(inspect.getsource(argparse))


def metrics(user: User, kind: str) -> list[dict[str, object]]:
    lines = []
    for path in user.home.glob("runs/*/fast/metrics.jsonl"):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # the last one may be being written
                lines.append(json.loads(line))
    return [line for line in lines if line["kind"] == kind]


def test_a_budget_that_binds(trainee: User) -> None:
    budget = Usd("0.04")
    out = trainee.run("launch", "local", *TINY, "--budget", budget.plain(), "-y", code=20)
    run = trainee.only_run()
    assert run.outcome is Outcome.LANDED, out
    assert ZERO < run.settled <= budget
    assert run.reserved == ZERO
    assert len(metrics(trainee, "eval")) >= 2

    fetched = trainee.json("fetch-best", "--into", "best", "--json")
    best = mf.pick_best(checkpoints(trainee).values())
    assert best is not None
    assert (fetched["checkpoint"], fetched["sha256"]) == (best.label, best.sha256)

    scored = trainee.json("eval", "best", "--json")
    assert scored["sha256"] == best.sha256
    assert scored["val_bpb"] == pytest.approx(best.val_bpb, rel=1e-3)
    assert len(scored["val_step_losses"]) == 4
    assert 0 < scored["byte_bigram_bits"] < scored["byte_unigram_bits"]
    other = trainee.folder / "other.py"
    other.write_text(inspect.getsource(inspect)[:20_000])
    assert trainee.json("eval", "best", "--data", "other.py", "--json")["tokens"] > 1000

    arguments = ("sample", "best", "--prompt", "def f", "--max-tokens", "8")
    assert trainee.run(*arguments).startswith("def f")
    assert trainee.run(*arguments) == trainee.run(*arguments, "--seed", "0")


def test_killing_a_rank_and_the_agent(trainee: User) -> None:
    trainee.run("launch", "local", *TINY, "--steps", "80", "--budget", "0.40", "-y", "-d")
    until(lambda: mf.pick_best(checkpoints(trainee).values()) is not None)
    before = mf.pick_best(checkpoints(trainee).values())
    assert before is not None
    assert before.val_bpb is not None
    ranks = pids(trainee, "model.train")
    kill(random.Random(7).choice(ranks))
    for agent in pids(trainee, "trmcloud.pod.agent"):
        kill(agent)
    until(lambda: not trainee.live_pods(), within_s=150, what="the pod ends by itself")
    trainee.run("status")
    run = trainee.only_run()
    assert ZERO < run.settled <= Usd("0.40")
    assert run.outcome is Outcome.FINISHED, run.message
    assert run.phases["fast"].step == 80
    after = mf.pick_best(checkpoints(trainee).values())
    assert after is not None
    assert after.val_bpb is not None
    assert after.val_bpb <= before.val_bpb


def test_stop_and_resume_is_bit_exact(trainee: User, tmp_path: Path) -> None:
    # One rank: of two ranks tests/model/test_torchrun.py proves the same.
    steps = ("--steps", str(STEPS), "--budget", "1", "-y", "--processes", "1")
    trainee.run("launch", "local", *TINY, *steps, "-d")
    until(lambda: bool(metrics(trainee, "train")))
    trainee.run("stop")
    run = trainee.only_run()
    assert run.outcome is Outcome.STOPPED
    stopped_at = run.phases["fast"].step or 0
    assert 0 < stopped_at < STEPS, "the run was over before it could be stopped"
    trainee.run("resume", run.run_id)
    assert trainee.only_run().outcome is Outcome.FINISHED

    folder = tmp_path / "uninterrupted"
    folder.mkdir()
    write_text(folder)
    other = User(folder, trainer=None, environment=trainee.environment)
    try:
        other.run("launch", "local", *TINY, *steps)
    finally:
        other.end_everything()
    mine, its = checkpoints(trainee), checkpoints(other)
    assert mine[LAST].sha256 == its[LAST].sha256
    losses = [[(m["step"], m["loss"]) for m in metrics(user, "train")] for user in (trainee, other)]
    assert losses[0] == losses[1]
    assert [step for step, _ in losses[0]] == list(range(1, STEPS + 1))


def test_resume_passes_over_a_damaged_checkpoint(trainee: User) -> None:
    trainee.run("launch", "local", *TINY, "--steps", str(STEPS), "--budget", "1", "-y", "-d")
    until(lambda: bool(checkpoints(trainee)))
    trainee.run("stop")
    run = trainee.only_run()
    assert run.outcome is Outcome.STOPPED
    latest = max(trainee.home.glob("runs/*/fast/checkpoints/step-*"))
    path = latest / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    trainee.run("resume", run.run_id)
    assert trainee.only_run().outcome is Outcome.FINISHED
    assert trainee.only_run().phases["fast"].step == STEPS
    assert (latest.parent / f"damaged-{latest.name}").is_dir()
    assert "is damaged and set aside" in trainee.run("logs")
