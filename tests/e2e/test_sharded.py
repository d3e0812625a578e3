"""d64's small size with its weights shared out: trained by two processes, killed, gone on with by
one, its best checkpoint brought home as one file; and the same on two machines."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.e2e.test_crashes import settle
from tests.e2e.test_nodes import Node, two_machines, until_both, why_not
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


@pytest.mark.more
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_two_machines_share_it_out_and_the_first_one_has_every_shard(tmp_path: Path) -> None:
    user = User(tmp_path / "user", trainer=None)
    user.folder.mkdir()
    budget = ("--processes", "1", "--budget", BUDGET.plain(), "--set", "accumulation=2")
    user.run("export", "local", *SMALL, *budget, "-o", "t.sh")
    with two_machines() as names:
        nodes = [
            Node(user.folder / "t.sh", name, rank, tmp_path / f"node{rank}")
            for rank, name in enumerate(names)
        ]
        for node in nodes:
            node.begin()
        head, other = nodes
        try:
            until_both(lambda: "saved step 40" in head.said(), nodes)
            assert "on 2 nodes together" in head.said()
            found = "trmcloud-run/runs/*/train/checkpoints/step-*"
            [run] = {path.parents[2] for path in head.folder.glob(found)}
            other.lose()
            head.script.wait(200)
            there = sorted(run.glob("train/checkpoints/step-*"))
            for folder in there:
                made = mf.from_json((folder / mf.MANIFEST_NAME).read_bytes(), str(folder))
                assert made.world_size == 2
                assert [file.name for file in made.weights] == [
                    shard_name("weights", n, 2) for n in (1, 2)
                ]
            assert not list(other.folder.glob(f"{found}/weights-*"))
            # Both go on from what the first one has, which the second is sent.
            for node in nodes:
                node.log.unlink()
                node.script = node.start("--again")
            until_both(lambda: re.search(r"saved step \d+", head.said()), nodes)
            assert f"resumed from step {int(there[-1].name[5:])}" in head.said()
        finally:
            for node in nodes:
                node.end()
