"""d64's small size with its weights shared out: trained by two processes, killed, gone on with by
one, its best checkpoint brought home as one file; and the same on two machines."""

from __future__ import annotations

import os

import pytest

from tests.e2e.test_crashes import settle
from tests.e2e.user import User, kill, until
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.manifest import shard_name
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd

SMALL = (
    *("--recipe", "d64-small", "--set", "sharding=fsdp", "--rate", "3.60"),
    *("--set", "depth=2", "--set", "width=64", "--set", "head_dim=16", "--set", "sequence=32"),
    *("--set", "eval_tokens=1024", "--set", "eval_every=20", "--set", "save_every=20"),
    *("--set", "log_every=1", "--steps", "160"),
)
BUDGET = Usd("1")
"""A quarter of an hour: 160 steps end long before, on a busy machine too."""
WHOLE = ["manifest.json", "optimizer.safetensors", "state.json", "tokenizer.json",
         "weights.safetensors"]  # fmt: skip


def test_two_processes_share_it_out_are_killed_and_one_goes_on(trainee: User) -> None:
    trainee.pace(0.03)
    two = ("launch", "local", *SMALL, "--processes", "2", "--budget", BUDGET.plain())
    trainee.run(*two, "-y", "-d")
    until(lambda: len(trainee.checkpoints()) >= 2, within_s=120, what="two checkpoints")
    for word in ("agent.watchdog", "agent.process", "torch.distributed.run", "model.train"):
        for pid in trainee.pids(word):
            kill(pid)
    run = settle(trainee, BUDGET)
    there = trainee.checkpoints()
    reached = max(made.step for made in there.values())
    for made in there.values():
        assert [file.name for file in made.weights] == [shard_name("weights", n, 2) for n in (1, 2)]
    best = mf.pick_best(there.values())
    assert best is not None

    fetched = trainee.json("fetch-best", "--into", "sharded", "--json")
    assert fetched["checkpoint"] == best.label
    home = trainee.folder / "sharded"
    assert sorted(os.listdir(home)) == WHOLE
    assert trainee.json("fetch-best", "--into", "sharded", "--json")["already_there"]
    scored = trainee.json("eval", "sharded", "--json")["values"]
    assert scored["val_bpb"] == pytest.approx(best.val_bpb, abs=1e-4)

    trainee.refused("resume", "-y", run.run_id, "--processes", "3", code=2)
    trainee.run("resume", "-y", run.run_id, "--processes", "1")
    run = trainee.only_run()
    assert run.outcome is Outcome.FINISHED
    assert ZERO < run.settled <= BUDGET
    starts = trainee.metrics("start")
    assert starts[-1]["from_step"] == reached
    assert starts[-1]["world_size"] == 1
    last = trainee.checkpoints()["train/step-00000160"]
    assert not last.is_sharded
    assert last.settings["accumulation"] == 2, "the same global batch"
    trainee.json("fetch-best", "--into", "best", "--json")
    assert sorted(os.listdir(trainee.folder / "best")) == WHOLE
    losses = {line["step"]: line["loss"] for line in trainee.metrics("train")}
    assert sorted(losses) == list(range(1, 161)), "each step once"
