"""What the ranks of ``test_sharding`` do: one job under torchrun trains every case both ways.

``RESULT`` names the file that rank 0 writes, by case: the losses and norms of each step, and how
many collectives of which kind a micro-batch and an update took.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from model.data.batch import Batch, RowSelection
from model.data.tokenizers import CharTokenizer
from model.families import layers
from model.families.protocol import draw_weights
from model.families.registry import provide_families
from model.machine.distributed import World, join_world, parallel
from model.machine.precision import LossScale
from model.machine.tensors import local
from model.tasks import scoring
from model.training import optim, sharding
from model.training.optim import Average, Optimizer, Ranks, Rules, orthogonalise
from model.training.soundness import Soundness
from model.training.stepping import Stepper
from tests import settings as made
from tests.model.task_files import TEXT, choices, continued, schemas, task_of, write
from trmcloud.core.catalog.eval_tasks import CHOICE, LANGUAGE, SCHEMA, Suite
from trmcloud.core.spec.settings import PhaseRecipe

STEPS = 5
ROWS = 8
CASES: dict[str, dict[str, Any]] = {
    "muon": {},
    "normuon": {
        "normuon": True, "cautious_decay": True, "weight_decay": 0.1, "grad_clip": 0.05,
    },
    # 3 heads' keys and 5 columns do not share out evenly over 2 or 4 ranks.
    "uneven": {"width": 48, "kv_heads": 1, "mlp": "swiglu", "hidden": 101, "vocab_size": 67},
    "pieces": {
        "optimizer": "adamw", "matrix_lr": 2e-3, "tied": True, "activation_checkpointing": True,
    },
    "values": {
        "value_embeddings": True, "depth": 4, "ema": True,
        "activation_checkpointing": True, "selective_checkpointing": True,
    },
}  # fmt: skip
"""``pieces``: its head runs in pieces, too."""


def settings_of(case: str, ranks: int, how: str) -> PhaseRecipe:
    """``ranks`` share one global batch of 16 rows, in two micro-batches each."""
    plain: PhaseRecipe = made.settings_of(
        "nanochat", "train", depth=3, width=64, head_dim=16, vocab_size=64, sequence=16,
        mlp="relu2", qk_norm=True, logit_cap=15.0, batch=ROWS // ranks, accumulation=2, steps=STEPS,
        matrix_lr=2e-2, dtype="float32", compile=False, sharding=how,
    )  # fmt: skip
    return replace(plain, **CASES[case])


def train(settings: PhaseRecipe, world: World) -> dict[str, Any]:
    """Steps from one seed on one fixed text, the same for DDP and FSDP."""
    worked = 0

    def counting(matrices: torch.Tensor) -> torch.Tensor:
        nonlocal worked
        worked += len(matrices)
        return orthogonalise(matrices)

    optim.orthogonalise = counting
    model = sharding.build(settings, world)
    model.initialise(7)
    optimizer = Optimizer(model, Rules.of(settings), Ranks.of(world))
    together = parallel(model, world)
    average = Average(model, 0.9) if settings.ema else None
    stepper = Stepper(
        settings, world, together, optimizer, LossScale.of("float32"), Soundness(), time.monotonic
    )
    drawn = torch.Generator().manual_seed(1)
    numbers = count()

    def batch() -> Batch:
        next(numbers)
        rows = torch.randint(0, 64, (ROWS, settings.sequence + 1), generator=drawn)
        mine = rows[world.rank * settings.batch : (world.rank + 1) * settings.batch]
        return Batch(
            mine[:, :-1].contiguous(), mine[:, 1:].contiguous(), RowSelection.alone(len(mine))
        )

    course, calls = [], dict[str, int]()
    for number in range(STEPS):
        if number == 2 and world.size > 1:
            made, calls = counted(lambda: stepper.step(number + 1, number, 1.0, batch))  # noqa: B023
        else:
            made = stepper.step(number + 1, number, 1.0, batch)
        course.append((made.loss, made.norm))
        if average is not None:
            average.update(number)
    held = sum(local(each).numel() for each in model.parameters())
    judged = 0.0
    if average is not None:
        probe = torch.arange(2 * settings.sequence).view(2, -1) % 64
        with average.applied(), torch.no_grad():
            judged = float(model.evaluate(probe, probe).mean())
            sharding.free_gathered_rows(model)
    every = sum(each.numel() for each in model.parameters())
    return {
        "course": course, "calls": calls, "held": held, "every": every, "judged": judged,
        "worked": worked,
    }  # fmt: skip


def make_tasks(folder: Path) -> None:
    kinds = {"even": choices(37), "who": schemas(20), "then": continued(25)}
    for name, rows in kinds.items():
        write(folder / f"{name}.jsonl", rows)


def scored(folder: Path, world: World, how: str) -> dict[str, Any]:
    """A suite of three tasks, scored by one rank's share of a model with drawn weights."""
    settings = replace(settings_of("values", world.size, how), vocab_size=128, sequence=128)
    model = sharding.build(settings, world)
    draw_weights(model, 7, {name: 0.2 for name, _ in model.named_parameters()})
    kinds = {"even": CHOICE, "who": SCHEMA, "then": LANGUAGE}
    tasks = tuple(task_of(kind, folder / f"{name}.jsonl", shots=1) for name, kind in kinds.items())
    suite = Suite("core", "CORE", tasks)
    tokenizer = CharTokenizer("".join(sorted(set(TEXT))))
    result = scoring.evaluate_suite(model, tokenizer, suite, folder, world=world, batch=1)
    return {"held": sharding.is_sharded(settings, world), **result.to_json()}


class Calls(TorchDispatchMode):
    """Counts collective calls by name."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.by_name[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def counted(step: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """A step, and its collective calls by name."""
    with Calls() as calls:
        made = step()
    return made, dict(calls.by_name)


def main() -> None:
    world = join_world(os.environ)
    whole = layers.MAX_LOGITS

    def trained(case: str, how: str) -> dict[str, Any]:
        settings = settings_of(case, world.size, how)
        layers.MAX_LOGITS = 24 * settings.vocab_size if case == "pieces" else whole
        return train(settings, world)

    cases = {f"{case} {how}": trained(case, how) for case in CASES for how in ("ddp", "fsdp")}
    folder = Path(os.environ["RESULT"]).parent
    scores = {f"scores {how}": scored(folder, world, how) for how in ("ddp", "fsdp")}
    if world.is_main:
        Path(os.environ["RESULT"]).write_text(json.dumps({**cases, **scores}))
    world.part()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    provide_families()
    main()
