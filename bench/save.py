"""For how long a save of 500 MB holds training up, beside a copy of as many bytes.

The save is the trainer's own, of one process: copied, then written, hashed and synced beside
training, which is played by a matrix product over and over. The copy is ``memcpy``'s, into memory
that was written before, in the same run.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from pathlib import Path

import torch

from bench.row import Row
from model.machine.tensors import Piece, Snapshot, piece_of
from model.training.checkpoint import CheckpointFolder, Contents, write_contents
from model.training.saver import Job
from trmcloud.core.contract.manifest import CheckpointFile, CheckpointManifest
from trmcloud.core.values import replace

_BYTES = 500_000_000
_SAVES = 5
_FIXED_S = 0.05
_TIMES = 1.5
_KB = 1024


def run() -> list[Row]:
    torch.set_num_threads(1)
    # As a model is made of: 100 matrices, of which Muon has one state each.
    pieces = {str(n): piece_of(torch.rand(625, 1000)) for n in range(200)}
    size = sum(piece.tensor.numel() * 4 for piece in pieces.values())
    before = _peak_bytes()
    with tempfile.TemporaryDirectory() as folder:
        stalls, slowed, whole = _saves(CheckpointFolder(Path(folder)), pieces)
    extra = (_peak_bytes() - before) / size
    spare = torch.ones(size // 4)
    flat = torch.rand(size // 4)
    copy_s = statistics.median(_seconds_of_copy(spare, flat) for _ in range(_SAVES))
    del spare, flat
    stall_s = statistics.median(stalls[1:])
    allowed_s = _TIMES * copy_s + _FIXED_S
    return [
        Row(
            "a save's stall, of 1.5 × memcpy + 50 ms",
            stall_s / allowed_s,
            1.0,
            "lower",
            "×",
            f"{size / 1e6:.0f} MB stall {stall_s * 1e3:.0f} ms (the first {stalls[0] * 1e3:.0f}), "
            f"memcpy {copy_s * 1e3:.0f} ms; on disk after {whole:.2f} s, training beside it "
            f"{slowed:.2f} × as long a step",
        ),
        Row(
            "a save's extra memory, of what is saved",
            extra,
            1.2,
            "lower",
            "×",
            f"peak of the process over {_SAVES} saves",
        ),
    ]


def _seconds_of_copy(into: torch.Tensor, of: torch.Tensor) -> float:
    began = time.perf_counter()
    into.copy_(of)
    return time.perf_counter() - began


def _saves(folder: CheckpointFolder, pieces: dict[str, Piece]) -> tuple[list[float], float, float]:
    """Stalls of the saves, how much slower a step is beside one, and seconds until one is on
    disk."""
    weight = torch.rand(600, 600)
    snapshot = Snapshot()
    folder.clean()
    alone = statistics.median(_step(weight) for _ in range(30))
    stalls, beside, whole = [], [], []
    for number in range(_SAVES):
        began = time.perf_counter()
        taken = snapshot.take(pieces)
        making = folder.making(number + 1)
        contents = Contents(taken, {}, {"step": number}, "{}")

        def write(
            making: Path = making, contents: Contents = contents
        ) -> tuple[CheckpointFile, ...]:
            folder.begin(making)
            return write_contents(making, contents)

        job = Job(write)
        stalls.append(time.perf_counter() - began)
        while job.is_running:
            beside.append(_step(weight))
        job.wait()
        if job.error is not None:
            raise job.error
        folder.finish(making, replace(_manifest(number + 1), files=job.made))
        whole.append(time.perf_counter() - began)
        folder.prune(1)
    return stalls, statistics.median(beside) / alone, statistics.median(whole)


def _step(weight: torch.Tensor) -> float:
    began = time.perf_counter()
    torch.mm(weight, weight)
    return time.perf_counter() - began


def _manifest(step: int) -> CheckpointManifest:
    return CheckpointManifest(
        run_id="r1",
        phase="train",
        step=step,
        tokens=step,
        created_at=float(step),
        recipe="bench",
        settings={},
        world_size=1,
        val_bpb=None,
        step_losses=(),
        cooled=False,
        data_sha256="d",
        tokenizer_sha256="t",
        files=(),
    )


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KB
