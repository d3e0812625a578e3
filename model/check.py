"""Steps of the trainer timed on this machine: ``python -m model.check SETTINGS.json``, or under
torchrun on as many ranks as it starts.

A step is the trainer's own (``Stepper``): micro-batches forward and backward, clipping, the
optimizer's update. It is timed with one micro-batch and with several, which gives a micro-batch
and what comes once a step. Ids are made up, since what a step costs does not depend on them; one
batch is repeated, so that its loss must fall.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.command import run_command
from trmcloud.core.catalog.hardware import gpu_of
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import FLOAT8, PhaseRecipe

if TYPE_CHECKING:
    from model.machine.distributed import World

SEVERAL = 4
"""Micro-batches of the longer step."""
_WARM = 3


@dataclass(frozen=True)
class StepMeasure:
    """Seconds and memory of rank 0's steps."""

    device: str
    torch: str
    dtype: str
    batch: int
    compile_s: float
    """Building, compiling and the first passes."""
    micro_s: float
    """A micro-batch forward and backward."""
    once_s: float
    """Once a step: clipping and the optimizer's update."""
    step_s: float
    """A step with the recipe's micro-batches."""
    tokens_per_s: float
    """Of such a step, by all ranks."""
    mfu: float | None
    peak_gb: float | None
    """Largest sum of tensors; None where the device does not count them."""
    reserved_gb: float | None
    """Largest sum of what the allocator took for them."""
    first_loss: float
    last_loss: float
    graphs: int
    ranks: int = 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model.check", description=__doc__)
    parser.add_argument("settings", type=Path, help="a phase's settings, as a job has them")
    parser.add_argument("--steps", type=int, default=10, help="timed steps of each kind")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    chosen = parser.parse_args(arguments)

    def command() -> None:
        try:
            settings = PhaseRecipe.from_json(json.loads(chosen.settings.read_bytes()))
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UsageError(f"no settings: {error}", where=str(chosen.settings)) from None
        import torch

        from model.machine.distributed import join_world

        if chosen.device == "cuda" and not torch.cuda.is_available():
            raise UsageError("no GPU was found")
        world = join_world() if "RANK" in os.environ else None
        device = torch.device("cuda", 0) if chosen.device == "cuda" else torch.device("cpu")
        device = world.device if world is not None else device
        measured = measure(settings, device, steps=chosen.steps, world=world)
        if world is None or world.is_main:
            print(json.dumps(asdict(measured)), flush=True)
        if world is not None:
            world.part()
            # Taking down the process groups' threads may abort a rank that has done its work.
            os._exit(0)

    return run_command(command)


def measure(
    settings: PhaseRecipe,
    device: Any,
    *,
    steps: int = 10,
    world: World | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    compiled: Callable[[], None] = lambda: None,
    watch: Callable[[Callable[[], object]], None] | None = None,
) -> StepMeasure:
    """Times ``steps`` steps with ``settings`` on ``device``.

    Args:
        world: the ranks that take them together; one process alone where there is none.
        compiled: is called before the first timed step.
        watch: is given one more step, of one micro-batch, to be taken under a profiler.

    Raises:
        UsageError: settings that this machine has not, or that cannot be compiled.
        torch.OutOfMemoryError: they do not fit.
    """
    import torch

    from model.machine.distributed import World, parallel
    from model.machine.precision import LossScale
    from model.training import sharding
    from model.training.float8 import convert_layers
    from model.training.number_format import NumberFormat
    from model.training.optim import Optimizer, Ranks, Rules
    from model.training.soundness import Soundness
    from model.training.stepping import (
        Stepper,
        compiled_graphs,
        lift_graph_limit,
        make_dummy_batch,
        warm_up,
    )

    began = monotonic()
    world = world if world is not None else World(0, 1, device)
    if device.type == "cuda":
        count_memory_anew(device)
    chosen = NumberFormat(settings, world)
    backend = chosen.descent.float8
    plain = replace(chosen.settings, accumulation=1, grad_clip=settings.grad_clip or 1.0)
    model = sharding.build(plain, world)
    model.initialise(plain.seed)
    optimizer = Optimizer(model, Rules.of(plain), Ranks.of(world))
    if plain.compile:
        lift_graph_limit()
        model.compile_parts()
    model.settle_attention()
    if settings.dtype == FLOAT8 and backend:
        convert_layers(model, backend)
    together = parallel(model, world)
    warm_up(model, together, plain, world, optimizer)
    optimizer.zero_grad()
    batch = make_dummy_batch(plain, device)
    stepped = iter(range(1 << 30))
    losses: list[float] = []

    def stepper_of(accumulation: int) -> Callable[[], None]:
        with_micros = replace(plain, accumulation=accumulation)
        scale = LossScale.of(plain.dtype)
        stepper = Stepper(with_micros, world, together, optimizer, scale, Soundness(), monotonic)

        def step() -> None:
            number = next(stepped)
            losses.append(stepper.step(number + 1, number, 0.1, lambda: batch).loss)

        return step

    def timed(accumulation: int) -> float:
        step, times = stepper_of(accumulation), []
        for at in range(_WARM + steps):
            begun = _now(device, monotonic)
            step()
            if at >= _WARM:
                times.append(_now(device, monotonic) - begun)
        return statistics.median(times)

    compile_s = _now(device, monotonic) - began
    compiled()
    first, several = timed(1), timed(SEVERAL)
    if watch is not None:
        watch(stepper_of(1))
    micro_s = (several - first) / (SEVERAL - 1)
    if micro_s <= 0:  # what else runs here made the one of fewer micro-batches take longer
        micro_s = several / SEVERAL
    once_s = max(0.0, first - micro_s)
    whole_s = settings.accumulation * micro_s + once_s
    tokens = settings.accumulation * plain.batch * plain.sequence * world.size
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "this processor"
    gpu = gpu_of(name) if device.type == "cuda" else None
    took = FLOAT8 if settings.dtype == FLOAT8 and backend else plain.dtype
    peak = gpu.peak_flops("bfloat16") if gpu is not None else None
    flops = settings.work().train_flops * tokens
    on_gpu = device.type == "cuda"
    return StepMeasure(
        device=name,
        torch=torch.__version__,
        dtype=f"{took} ({backend})" if took == FLOAT8 else took,
        batch=plain.batch,
        compile_s=compile_s,
        micro_s=micro_s,
        once_s=once_s,
        step_s=whole_s,
        tokens_per_s=tokens / whole_s,
        mfu=flops / whole_s / peak / world.size if peak else None,
        peak_gb=torch.cuda.max_memory_allocated(device) / 1e9 if on_gpu else None,
        reserved_gb=torch.cuda.max_memory_reserved(device) / 1e9 if on_gpu else None,
        first_loss=losses[0],
        last_loss=losses[-1],
        graphs=compiled_graphs() if plain.compile else 0,
        ranks=world.size,
    )


def count_memory_anew(device: Any) -> None:
    """Let the peaks of ``device`` be those of what follows."""
    import torch

    # Before it has begun, CUDA has no device whose peaks it could forget, and says that the
    # argument is invalid. Nothing else has begun it where this process asks for a GPU first.
    torch.cuda.init()
    torch.cuda.reset_peak_memory_stats(device)


def _now(device: Any, monotonic: Callable[[], float]) -> float:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    return monotonic()


if __name__ == "__main__":
    raise SystemExit(main())
