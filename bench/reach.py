"""What a character model comes to, and what it costs to come where another trainer comes.

``make bench-reach PEER_PATH=… TEXT=…``: a checkout of nanoGPT, and Shakespeare's text. Both train
on the first nine tenths of it, on the same random windows, on one thread, and are judged on all of
the last tenth; evaluation is not counted. nanoGPT trains as it publishes for a CPU: 2,000 steps of
AdamW, rates down to a tenth by a cosine.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.row import Row
from bench.train import _module, _plain_step

STEPS = 2_000
SOONER = 400
"""Steps of ours, on a schedule of its own, in which it is to come as far as nanoGPT in 2,000."""
PUBLISHED_NATS = 1.886
"""What nanoGPT comes to on its own windows of that text."""
SEEDS = (1337, 1338, 1339)
_SEQUENCE, _ROWS = 64, 12
_JUDGED_AT_ONCE = 128


@dataclass(frozen=True)
class Text:
    """Ids of characters; ``validation`` was never trained on."""

    training: Any
    validation: Any
    vocabulary: int

    @classmethod
    def read(cls, path: Path) -> Text:
        import torch

        text = path.read_text(encoding="utf-8")
        characters = {each: number for number, each in enumerate(sorted(set(text)))}
        ids = torch.tensor([characters[each] for each in text])
        cut = int(0.9 * len(ids))
        return cls(ids[:cut], ids[cut:], len(characters))

    def batches(self, seed: int) -> Iterator[tuple[Any, Any]]:
        import torch

        generator = torch.Generator().manual_seed(seed)
        last = len(self.training) - _SEQUENCE
        while True:
            starts = torch.randint(0, last, (_ROWS,), generator=generator)
            rows = torch.stack([self.training[at : at + _SEQUENCE + 1] for at in starts.tolist()])
            yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def nats(self, loss: Callable[[Any, Any], float]) -> float:
        """The mean over all whole windows of the validation text."""
        count = (len(self.validation) - 1) // _SEQUENCE
        ids = self.validation[: count * _SEQUENCE].view(count, _SEQUENCE)
        targets = self.validation[1 : count * _SEQUENCE + 1].view(count, _SEQUENCE)
        total = 0.0
        for at in range(0, count, _JUDGED_AT_ONCE):
            part = slice(at, at + _JUDGED_AT_ONCE)
            total += loss(ids[part], targets[part]) * len(ids[part])
        return total / count


def run() -> Iterator[Row]:
    """
    Raises:
        SystemExit: no checkout of nanoGPT, or no text.
    """
    path, told = Path(os.environ.get("PEER_PATH", "")), Path(os.environ.get("TEXT", ""))
    if not (path / "model.py").is_file():
        raise SystemExit(f"PEER_PATH={path} has no model.py: name a checkout of nanogpt")
    if not told.is_file():
        raise SystemExit(f"TEXT={told} is no file: name the text to train on")
    import torch

    torch.set_num_threads(1)
    text = Text.read(told)
    peer_cpu_s, peer_nats = _peer(path, text)
    ours = [_ours(text, STEPS, seed) for seed in SEEDS]
    each = ", ".join(f"{nats:.4f}" for _, nats in ours)
    yield Row(
        f"shakespeare, nats after {STEPS:,} steps",
        statistics.median(nats for _, nats in ours),
        1.6,
        "lower",
        "nats",
        f"Muon, seeds {', '.join(map(str, SEEDS))}: {each}; nanoGPT {peer_nats:.4f}",
    )
    sooner = [_ours(text, SOONER, seed) for seed in SEEDS]
    cpu_s = statistics.median(seconds for seconds, _ in sooner)
    each = ", ".join(f"{nats:.4f}" for _, nats in sooner)
    arrived = statistics.median(nats for _, nats in sooner) <= min(peer_nats, PUBLISHED_NATS)
    yield Row(
        "CPU-seconds to nanoGPT's loss ÷ its own",
        cpu_s / peer_cpu_s if arrived else math.inf,
        0.4,
        "lower",
        "×",
        f"{SOONER} steps of Muon in {cpu_s:.0f} CPU-s: {each}; its {STEPS:,} in {peer_cpu_s:.0f}: "
        f"{peer_nats:.4f} (published: {PUBLISHED_NATS})",
    )


def _peer(path: Path, text: Text) -> tuple[float, float]:
    """(CPU-seconds of nanoGPT's steps, its validation loss in nats)."""
    import torch

    torch.manual_seed(SEEDS[0])
    module = _module("nanogpt_model", path / "model.py")
    config = module.GPTConfig(
        *(_SEQUENCE, text.vocabulary), n_layer=4, n_head=4, n_embd=128, dropout=0.0, bias=False
    )
    model = module.GPT(config)
    adam = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cpu")
    batches, cpu_s = text.batches(SEEDS[0]), 0.0
    for step in range(STEPS):
        done = (step - 100) / (STEPS - 100)
        warm, low = (step + 1) / 101, 0.1
        factor = warm if step < 100 else low + 0.5 * (1 - low) * (1 + math.cos(math.pi * done))
        for group in adam.param_groups:
            group["lr"] = 1e-3 * factor
        began = time.process_time()
        _plain_step(model, adam, lambda x, y: model(x, y)[1], *next(batches))
        cpu_s += time.process_time() - began
    model.eval()
    with torch.no_grad():
        return cpu_s, text.nats(lambda x, y: float(model(x, y)[1]))


def _ours(text: Text, steps: int, seed: int) -> tuple[float, float]:
    """(CPU-seconds of the steps of recipe shakespeare, its validation loss in nats)."""
    import torch

    from model.data.batch import Batch, RowSelection
    from model.families import registry
    from model.machine.distributed import World
    from model.machine.precision import LossScale
    from model.training.optim import Optimizer, Rules
    from model.training.schedule import Schedule
    from model.training.soundness import Soundness
    from model.training.stepping import Stepper
    from trmcloud.adapters.files import load_recipe

    given = {"steps": steps, "seed": seed, "vocab_size": text.vocabulary}
    recipe = load_recipe("shakespeare")
    settings = recipe.resolve("train", hardware="1xCPU", gpus=1, overrides=given)
    torch.manual_seed(seed)
    world = World(0, 1, torch.device("cpu"))
    model = registry.build(settings, world.device)
    model.initialise(seed)
    optimizer, schedule = Optimizer(model, Rules.of(settings)), Schedule.of(settings)
    scale = LossScale.of(settings.dtype)
    stepper = Stepper(settings, world, model, optimizer, scale, Soundness(), time.monotonic)
    batches, cpu_s = text.batches(seed), 0.0
    for step in range(steps):
        factor = schedule.factor(step, schedule.own_cooldown)
        began = time.process_time()
        stepper.step(
            step + 1, step, factor, lambda: Batch(*next(batches), RowSelection.alone(_ROWS))
        )
        cpu_s += time.process_time() - began
    model.eval()
    with torch.no_grad():
        return cpu_s, text.nats(lambda x, y: float(model(x, y).nats[-1]))
