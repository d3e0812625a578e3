"""The model's evaluation: the loss after every judged pass, and bits per byte of the last one."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from model.data.batch import RowSelection, ids_and_targets
from model.data.folder import PreparedData
from model.data.stream import Rows
from model.families.protocol import LanguageModel
from model.machine.distributed import World
from model.training.sharding import free_gathered_rows
from trmcloud.core.spec.settings import CHAT

_GROUP = 1 << 63
"""Of the rows of every evaluation: whatever is drawn is the same each time, and for no step."""


@dataclass(frozen=True)
class Evaluation:
    """Means over the scored validation tokens; special tokens are not scored.

    ``step_losses`` are nats per token, ``bits_per_byte`` is Σ nats of the last pass
    ÷ (ln 2 · Σ bytes of the scored tokens).
    """

    step_losses: tuple[float, ...]
    bits_per_byte: float
    tokens: int
    bytes: int
    tallies: tuple[float, ...] = ()
    """The values that the family may adapt to: see ``LanguageModel.tallied``."""


def validation_rows(there: int, sequence: int, eval_tokens: int) -> list[int]:
    """The fixed rows of every evaluation, out of ``there``: about ``eval_tokens`` targets, spread
    evenly."""
    wanted = min(there, max(1, eval_tokens // sequence))
    return [number * there // wanted for number in range(wanted)]


@torch.no_grad()
def evaluate(
    model: LanguageModel,
    data: PreparedData,
    rows: Rows,
    world: World,
    *,
    batch: int,
    eval_tokens: int,
    autocast: Callable[[], AbstractContextManager[object]],
    between: Callable[[], object] = lambda: None,
) -> Evaluation:
    """Evaluates on fixed ones of the validation ``rows``, divided among the ranks, and reduced.

    A collective call: every rank gets the same result. All ranks take equally many batches, since a
    sharded model's passes are collective, too; and a batch is filled up with the first row,
    unscored, so that every one has the same shape. ``between`` is called after each, on all ranks.
    """
    every = validation_rows(rows.count, model.sequence, eval_tokens)
    mine = range(world.rank, len(every), world.size)
    longest = math.ceil(len(every) / world.size)
    lengths = token_bytes(data, model.vocab_size).to(world.device)
    steps = len(model.judged)
    nats = torch.zeros(steps, dtype=torch.float64, device=world.device)
    counts = torch.zeros(2, dtype=torch.int64, device=world.device)
    tallies: list[Tensor] = []
    for start in range(0, longest, batch):
        chosen = mine[start : start + batch]
        filled = [*chosen, *[0] * (batch - len(chosen))]
        tokens = torch.from_numpy(rows.read([every[each] for each in filled])).to(world.device)
        ids, targets = ids_and_targets(tokens, is_chat=bool(data.meta.get(CHAT)))
        draws = RowSelection(0, _GROUP, filled, len(every))
        with autocast():
            losses = model.evaluate(ids, targets, draws)
        there = draws._replace(rows=chosen)
        tallies.append(model.tallied(losses[:, : len(chosen)], targets[: len(chosen)], there))
        bytes_each = lengths[targets.clamp_min(0)].where(model.counted(targets), 0)
        bytes_each[len(chosen) :] = 0
        scored = bytes_each > 0
        nats += (losses.double() * scored).sum(dim=(1, 2))
        counts += torch.stack([scored.sum(), bytes_each.sum()])
        between()
    free_gathered_rows(model)
    tallied = torch.stack(tallies).sum(dim=0)
    summed = world.total(torch.cat([nats, counts.double(), tallied.double()]))
    return _evaluation(summed, steps)


def token_bytes(data: PreparedData, vocab_size: int) -> Tensor:
    """(vocab_size,) bytes of each id; 0 for special ids and for those the tokenizer never gives."""
    lengths = torch.zeros(vocab_size, dtype=torch.int64)
    known = torch.from_numpy(data.tokenizer.byte_lengths())
    lengths[: len(known)] = known
    return lengths


def _evaluation(summed: Tensor, steps: int) -> Evaluation:
    nats = [float(each) for each in summed[:steps]]
    tokens, size_bytes = int(summed[steps]), int(summed[steps + 1])
    return Evaluation(
        step_losses=tuple(each / max(1, tokens) for each in nats),
        bits_per_byte=nats[-1] / (math.log(2) * max(1, size_bytes)),
        tokens=tokens,
        bytes=size_bytes,
        tallies=tuple(float(each) for each in summed[steps + 2 :]),
    )
