"""The trainer's steps beside another trainer's: equal shapes and batches, in turns, on one thread.

``make bench-train PEER=nanogpt PEER_PATH=…`` with a checkout of that project; nothing of it is part
of this one. Each round lets both take the same number of steps, one after the other; a round's
ratio is of neighbours in time, and what counts is the median. Rates are tokens per CPU-second, the
wall's beside them.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.row import Row

PEERS = ("nanogpt", "nanochat")
ROUNDS = 7
STEPS = 8
"""Steps of one side in one round."""

Step = Callable[[], None]


@dataclass(frozen=True)
class Side:
    """Something that takes optimizer steps of ``tokens`` each."""

    name: str
    step: Step
    tokens: int


def run() -> Iterator[Row]:
    """
    Raises:
        SystemExit: no such peer, or no checkout of it.
    """
    peer, path = os.environ.get("PEER", ""), os.environ.get("PEER_PATH", "")
    if peer not in PEERS:
        raise SystemExit(f"PEER is one of {', '.join(PEERS)}, not {peer!r}")
    if not path or not Path(path).is_dir():
        raise SystemExit(f"PEER_PATH={path!r} is no folder: name a checkout of {peer}")
    import torch

    torch.set_num_threads(1)
    yield from _against_nanogpt(Path(path)) if peer == "nanogpt" else _against_nanochat(Path(path))


def _against_nanogpt(path: Path) -> Iterator[Row]:
    """Its published setting for a CPU: 4 × 128, 4 heads, 64 characters, 12 rows, AdamW."""
    import torch

    from model.families.dense import Shape
    from model.training.optim import Rules

    source = path / "model.py"
    if not source.is_file():
        raise SystemExit(f"PEER_PATH={path} has no model.py: name a checkout of nanogpt")
    module = _module("nanogpt_model", source)
    rows, sequence, vocabulary = 12, 64, 65
    config = module.GPTConfig(
        *(sequence, vocabulary), n_layer=4, n_head=4, n_embd=128, dropout=0.0, bias=False
    )
    theirs = module.GPT(config)
    adam = theirs.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cpu")
    batches = _batches(vocabulary, rows, sequence)
    peer = Side(
        "nanogpt, eager",
        lambda: _plain_step(theirs, adam, lambda x, y: theirs(x, y)[1], *next(batches)),
        rows * sequence,
    )
    shape = Shape(vocabulary, 4, 128, 32, sequence, hidden=512, kv_heads=4)
    same = replace(shape, norm="layer", positions="learned", mlp="gelu", tied=True)
    today = replace(shape, norm="rms", mlp="relu2", qk_norm=True)
    adamw = Rules("adamw", 1e-3, 1e-3, 1e-3, weight_decay=0.1, beta1=0.9, beta2=0.99, eps=1e-8)
    muon = Rules("muon", 2e-2, 0.2, 4e-3)

    plain, its_adam = _plain(same)
    sides = {
        "the same blocks, eager": _ours(same, adamw, batches, rows),
        "the same blocks, compiled": _ours(same, adamw, batches, rows, compiled=True),
        "shakespeare's blocks, eager": _ours(today, adamw, batches, rows),
        "shakespeare's blocks, compiled": _ours(today, adamw, batches, rows, compiled=True),
        "shakespeare's blocks, Muon": _ours(today, muon, batches, rows),
        "a plain loop of ours": lambda: _plain_step(
            plain, its_adam, lambda x, y: plain(x, y).loss, *next(batches)
        ),
    }
    rates = _in_turns([peer, *(Side(name, step, rows * sequence) for name, step in sides.items())])
    parameters = sum(each.numel() for each in plain.parameters())
    yield _row("the same blocks, eager", peer.name, rates, 0.85)
    yield _row("the same blocks, compiled", peer.name, rates, 1.0)
    yield _row("shakespeare's blocks, eager", peer.name, rates, 0.85)
    yield _row("shakespeare's blocks, compiled", peer.name, rates, 1.0)
    muon_rate = _row("shakespeare's blocks, Muon", peer.name, rates, 0.0)
    loop = _row("the same blocks, eager", "a plain loop of ours", rates, 1 / 1.02)
    yield loop._replace(
        detail=f"{loop.detail}; {parameters:,} parameters, torch {torch.__version__}; with Muon "
        f"{muon_rate.value:.2f} × of the peer's rate, for which no limit is set"
    )


def _against_nanochat(path: Path) -> Iterator[Row]:
    """Its d4 at 256 tokens: windows of SSSL, its architecture and its update rules, on both sides
    compiled and without clipping."""
    import torch

    from model.families.dense import Shape
    from model.families.nanochat.model import Nanochat
    from model.training.optim import Rules

    if not (path / "nanochat" / "gpt.py").is_file():
        raise SystemExit(f"PEER_PATH={path} has no nanochat/gpt.py: name a checkout of nanochat")
    sys.path.insert(0, str(path))
    try:
        module = importlib.import_module("nanochat.gpt")
    except ModuleNotFoundError as error:
        raise SystemExit(f"nanochat needs {error.name}: pip install {error.name}") from None
    rows, sequence, vocabulary, depth = 2, 256, 4096, 4
    width = 64 * depth
    heads = width // 128
    config = module.GPTConfig(
        sequence, vocabulary, depth, width // 128, width // 128, width, "SSSL"
    )
    batches = _batches(vocabulary, rows, sequence)
    shape = Shape(
        *(vocabulary, depth, width, 128, sequence),
        hidden=4 * width,
        kv_heads=heads,
        mlp="relu2",
        qk_norm=True,
        logit_cap=15.0,
        value_embeddings=True,
        windows="SSSL",
    )
    rules = Rules(update_rules="nanochat-2026", compiled=True)

    def their_step(*, compiled: bool) -> Step:
        model = module.GPT(config)
        model.init_weights()
        optimizer = model.setup_optimizer()
        taken = torch.compile(model, dynamic=False) if compiled else model
        return lambda: _plain_step(taken, optimizer, taken, *next(batches), clip=0.0)

    for blocks, compiled in (("eager", False), ("compiled", True)):
        names = f"ours, {blocks} blocks", f"nanochat, {blocks} blocks"
        mine = _ours(shape, rules, batches, rows, kind=Nanochat, clip=0.0, compiled=compiled)
        steps = mine, their_step(compiled=compiled)
        rates = _in_turns(
            [Side(name, step, rows * sequence) for name, step in zip(names, steps, strict=True)]
        )
        yield _row(*names, rates, 1.0)


def _ours(
    shape: Any,
    rules: Any,
    batches: Iterator[tuple[Any, Any]],
    rows: int,
    *,
    compiled: bool = False,
    kind: Any = None,
    clip: float = 1.0,
) -> Step:
    """The trainer's own step, with all that belongs to it but the log; ``kind``: its model, Dense
    where it is None."""
    import torch

    from model.data.batch import Batch, RowSelection
    from model.families.dense import Dense
    from model.machine.distributed import World
    from model.machine.precision import LossScale
    from model.training.optim import Optimizer
    from model.training.soundness import Soundness
    from model.training.stepping import Stepper
    from trmcloud.core.spec.settings import PhaseRecipe

    model = (kind or Dense)(shape)
    model.initialise(0)
    if compiled:
        model.compile_parts()
    settings = PhaseRecipe("bench", "gpt", "train", batch=rows, dtype="float32", grad_clip=clip)
    optimizer, world = Optimizer(model, rules), World(0, 1, torch.device("cpu"))
    scale = LossScale.of("float32")
    stepper = Stepper(settings, world, model, optimizer, scale, Soundness(), time.monotonic)
    taken = iter(range(1 << 62))

    def step() -> None:
        number = next(taken)
        stepper.step(
            number + 1, number, 1.0, lambda: Batch(*next(batches), RowSelection.alone(rows))
        )

    return step


def _plain(shape: Any) -> tuple[Any, Any]:
    import torch

    from model.families.dense import Dense

    model = Dense(shape)
    model.initialise(0)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), fused=True)


def _plain_step(
    model: Any, optimizer: Any, loss: Callable[..., Any], x: Any, y: Any, clip: float = 1.0
) -> None:
    import torch

    loss(x, y).backward()
    if clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _batches(vocabulary: int, rows: int, sequence: int) -> Iterator[tuple[Any, Any]]:
    """Ids of no text: what a step costs does not depend on them."""
    import torch

    generator = torch.Generator().manual_seed(0)
    ready = [
        torch.randint(0, vocabulary, (rows, sequence + 1), generator=generator) for _ in range(8)
    ]
    while True:
        for each in ready:
            yield each[:, :-1].contiguous(), each[:, 1:].contiguous()


def _in_turns(sides: list[Side]) -> dict[str, list[tuple[float, float]]]:
    """(tokens per CPU-second, tokens per second) of every side, round by round."""
    for side in sides:
        for _ in range(3):  # what is compiled is compiled here
            side.step()
    rates: dict[str, list[tuple[float, float]]] = {side.name: [] for side in sides}
    for number in range(ROUNDS):
        for side in sides if number % 2 else reversed(sides):
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(STEPS):
                side.step()
            tokens = STEPS * side.tokens
            rates[side.name].append(
                (tokens / (time.process_time() - cpu), tokens / (time.perf_counter() - wall))
            )
    return rates


def _row(ours: str, theirs: str, rates: dict[str, list[tuple[float, float]]], target: float) -> Row:
    pairs = list(zip(rates[ours], rates[theirs], strict=True))
    by_cpu, by_wall = (statistics.median(a[n] / b[n] for a, b in pairs) for n in (0, 1))
    each = [statistics.median(row[0] for row in rates[name]) for name in (ours, theirs)]
    return Row(
        f"{ours} ÷ {theirs}",
        by_cpu,
        target,
        "higher",
        "×",
        f"{each[0]:,.0f} ÷ {each[1]:,.0f} tokens a CPU-second; by the wall {by_wall:.2f} ×",
    )


def _module(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
