"""``trmcloud run`` on two machines of a cloud: SkyPilot's stand-in makes them and joins their
networks; torchrun and its ranks are the real ones.
"""

from __future__ import annotations

from tests.e2e.test_several_machines import Sailor, sailor  # noqa: F401  (a fixture)
from tests.e2e.user import until
from trmcloud.core.contract.manifest import from_json
from trmcloud.core.errors import Outcome

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
first = torch.load(sys.argv[1])["step"] if len(sys.argv) > 1 else 0
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    print("BEGINS", first, os.environ["NNODES"], os.environ["NPROC_PER_NODE"], sys.argv[1:])
os.makedirs("out", exist_ok=True)
for step in range(first + 1, 100000):
    ranks = torch.ones(1)
    dist.all_reduce(ranks)
    time.sleep(0.1)
    if rank == 0:
        print(f"step {step} val_loss={100 / step:.4f} of {int(ranks)} ranks")
        if step % 20 == 0:
            torch.save({"step": step}, "out/last.pt")
            time.sleep(2.5)
"""
TORCHRUN = ("python3", "-m", "torch.distributed.run", "train.py")


def kept(user: Sailor) -> list[int]:
    found = user.home.glob("runs/*/train/checkpoints/*/manifest.json")
    return sorted(from_json(path.read_text(), str(path)).step for path in found)


def test_a_command_meets_itself_on_two_machines_and_goes_on_where_it_was(
    sailor: Sailor,  # noqa: F811
) -> None:
    sailor.cwd = sailor.folder / "project"
    sailor.cwd.mkdir()
    (sailor.cwd / "train.py").write_text(SCRIPT, encoding="utf-8")
    launch = sailor.start(
        *("run", "2x1xL40S", "--provider", "digitalocean", "--budget", "3", "-y"),
        *("--accept-exposure", "6", "--grace", "5", "--checkpoint-gb", "0.001"),
        *("--checkpoints", "out", "--metric", "val_loss=([0-9.]+)"),
        *("--resume", f"{' '.join(TORCHRUN)} {{checkpoint}}", "--", *TORCHRUN),
    )
    until(lambda: bool(kept(sailor)) or launch.poll() is not None, within_s=150.0, what="saves")
    assert launch.poll() is None, launch.communicate()
    assert len(sailor.live()) == 2
    sailor.run("stop")
    out, _ = launch.communicate(timeout=120)
    assert "torchrun finds the others by itself" in out
    assert sailor.live() == []
    run = sailor.only_run()
    assert run.outcome is Outcome.STOPPED
    log = sailor.run("logs", run.run_id)
    assert "BEGINS 0 2 1 []" in log
    assert "of 2 ranks" in log
    reached = max(kept(sailor))
    again = sailor.start("resume", run.run_id)
    until(
        lambda: max(kept(sailor)) > reached or again.poll() is not None,
        within_s=150.0,
        what="a newer checkpoint",
    )
    assert again.poll() is None, again.communicate()
    sailor.run("stop", run.run_id)
    again.communicate(timeout=120)
    assert sailor.live() == []
    log = sailor.run("logs", run.run_id)
    assert f"BEGINS {reached} 2 1 " in log
    assert "/train/work/out/last.pt']" in log, "where the script wrote it"
