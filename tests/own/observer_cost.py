"""Processor time of the observer's hooks and imports in a training.

``python -m tests.own.observer_cost --seconds 60`` trains with optimizer steps of about a
millisecond, which give a metric to TensorBoard's writer at every tenth step and save weights every
five seconds. Every entrance of the observer is timed with ``time.thread_time``; the clock's own
calls are in the sum.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from trmcloud.pod.job import trmcloud_observer
from trmcloud.pod.job.trmcloud_observer import ENV_LOG, ENV_OBSERVED

_TIMED = """\
import atexit, functools, sys, time
began = time.thread_time()
import observer_itself as itself
spent_s, is_inside = [0.0], [False]

def timed(owner, name):
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def measured(*args, **kwargs):
        if is_inside[0]:
            return inner(*args, **kwargs)
        is_inside[0], start = True, time.thread_time()
        try:
            return inner(*args, **kwargs)
        finally:
            spent_s[0] += time.thread_time() - start
            is_inside[0] = False

    setattr(owner, name, measured)

@atexit.register  # before the observer's own, so that it runs after it
def tell():
    print(f"observer {spent_s[0]:.4f} s, of it at the start {start_s:.4f} s", file=sys.stderr)

for owner, name in (
    (itself._Told, "step"), (itself._Told, "end"), (itself._Finder, "find_spec"),
    (itself._Events, "__call__"), (itself, "_quietly"),
):
    timed(owner, name)
itself.observe()
start_s = time.thread_time() - began
spent_s[0] += start_s
"""

_SCRIPT = """\
import sys, time
began, saved = time.monotonic(), 0.0
import torch
from torch.utils.tensorboard import SummaryWriter
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.AdamW(model.parameters())
writer, data, step = SummaryWriter("logs"), torch.randn(64, 256), 0
while (now := time.monotonic()) < began + float(sys.argv[1]):
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step % 10 == 0:
        writer.add_scalar("train/loss", loss.item(), step)
        print("step", step, "loss", loss.item(), flush=True)
    if now > saved + 5:
        torch.save(model.state_dict(), "model.pt")
        saved = now
print(f"{step} steps in {time.monotonic() - began:.1f} s", file=sys.stderr)
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "path").mkdir()
        source = Path(trmcloud_observer.__file__).read_bytes()
        (folder / "path" / "observer_itself.py").write_bytes(source)
        (folder / "path" / "sitecustomize.py").write_text(_TIMED)
        (folder / "train.py").write_text(_SCRIPT)
        read, write = os.pipe()
        child = subprocess.Popen(
            [sys.executable, "train.py", str(given.seconds)],
            cwd=folder,
            stdout=write,
            env={
                **os.environ,
                "PYTHONPATH": str(folder / "path"),
                ENV_OBSERVED: str(folder / "observed.jsonl"),
                ENV_LOG: str(os.fstat(write).st_ino),
            },
        )
        os.close(write)
        with open(read, "rb") as output:
            while output.read(1 << 16):
                pass
        sys.exit(child.wait())


if __name__ == "__main__":
    main()
