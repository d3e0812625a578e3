"""``trmcloud run`` on two machines of a cloud: SkyPilot's stand-in makes them and joins their
networks; torchrun, its ranks and PyTorch's distributed checkpoints are the real ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load

from tests.e2e.test_several_machines import Sailor, sailor  # noqa: F401  (a fixture)
from tests.e2e.user import until
from trmcloud.core.contract.manifest import from_json
from trmcloud.core.errors import Outcome

SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist
from torch.distributed import checkpoint as dcp
dist.init_process_group("gloo")
rank = dist.get_rank()
state = {"step": torch.zeros(1), f"of rank {rank}": torch.zeros(1000)}
if len(sys.argv) > 1:
    dcp.load(state, checkpoint_id=sys.argv[1])
first = int(state["step"])
assert (state[f"of rank {rank}"] == first).all()
if rank == 0:
    print("BEGINS", first, os.environ["NNODES"], os.environ["NPROC_PER_NODE"], sys.argv[1:])
print("GIVEN", os.environ["GIVEN"])
told = torch.zeros(1)
signal.signal(signal.SIGTERM, lambda *_: told.fill_(1))
for step in range(first + 1, 100000):
    ranks, every_one_is_told = torch.ones(1), told.clone()
    dist.all_reduce(ranks)
    dist.all_reduce(every_one_is_told, op=dist.ReduceOp.MIN)
    time.sleep(0.1)
    if rank == 0:
        print(f"step {step} val_loss={100 / step:.4f} of {int(ranks)} ranks")
    if step % 20 == 0 or every_one_is_told:
        for tensor in state.values():
            tensor.fill_(step)
        dcp.save(state, checkpoint_id=f"out/step-{step}")
    if every_one_is_told:
        print("EVERY RANK WAS TOLD, saved", step)
        break
    if step % 20 == 0:
        time.sleep(2.5)
dist.destroy_process_group()
"""
TORCHRUN = ("python3", "-m", "torch.distributed.run", "train.py")


def kept(user: Sailor) -> list[int]:
    found = user.home.glob("runs/*/train/checkpoints/*/manifest.json")
    return sorted(from_json(path.read_text(), str(path)).step for path in found)


def value_of_each_rank(folder: Path) -> list[float]:
    """Opened here, by PyTorch, in one process."""
    state = {name: torch.zeros(1000) for name in ("of rank 0", "of rank 1")}
    load(state, checkpoint_id=str(folder), no_dist=True)
    return [float(tensor.mean()) for tensor in state.values()]


@pytest.mark.more
def test_a_command_meets_itself_on_two_machines_and_goes_on_where_it_was(
    sailor: Sailor,  # noqa: F811
) -> None:
    sailor.cwd = sailor.folder / "project"
    sailor.cwd.mkdir()
    (sailor.cwd / "train.py").write_text(SCRIPT, encoding="utf-8")
    sailor.environment["GIVEN"] = "to both"
    launch = sailor.start(
        *("run", "2x1xL40S", "--provider", "digitalocean", "--budget", "3", "-y"),
        *("--accept-exposure", "6", "--grace", "20", "--checkpoint-gb", "0.001"),
        *("--checkpoints", "out", "--metric", "val_loss=([0-9.]+)", "--env", "GIVEN"),
        *("--resume", f"{' '.join(TORCHRUN)} {{checkpoint}}", "--", *TORCHRUN),
    )
    until(lambda: bool(kept(sailor)) or launch.poll() is not None, what="saves")
    assert launch.poll() is None, launch.communicate()
    _, other = sorted(sailor.live(), key=lambda pod: pod.name)
    there = sailor.standin.control.inside(
        other.id, "ls /workspace/trmcloud/runs/*/train/work/out/*"
    )
    assert "__1_0.distcp" in there
    assert ".metadata" not in there
    sailor.stop()
    out, _ = launch.communicate(timeout=120)
    assert "torchrun connects them" in out
    assert sailor.live() == []
    run = sailor.only_run()
    assert run.outcome is Outcome.STOPPED
    log = sailor.run("logs", run.run_id)
    assert "BEGINS 0 2 1 []" in log
    assert "GIVEN to both" in log
    assert "of 2 ranks" in log
    # A save that needs every rank's consent: the stop has reached both machines.
    assert "EVERY RANK WAS TOLD, saved" in log
    reached = max(kept(sailor))
    assert f"saved {reached}" in log
    fetched = sailor.run("fetch-best", run.run_id, "--step", str(reached), "--into", "best")
    assert "fetched and verified" in fetched
    [whole] = (sailor.cwd / "best").glob(f"own/step-{reached}")
    assert value_of_each_rank(whole) == [reached, reached], "both machines' halves, of one step"
    again = sailor.start("resume", "-y", run.run_id)
    until(
        lambda: max(kept(sailor)) > reached or again.poll() is not None,
        what="a newer checkpoint",
    )
    assert again.poll() is None, again.communicate()
    sailor.run("stop", "-y", run.run_id)
    again.communicate(timeout=120)
    assert sailor.live() == []
    log = sailor.run("logs", run.run_id)
    assert f"BEGINS {reached} 2 1 " in log
    assert f"/train/work/out/step-{reached}']" in log, "where the script wrote it"
