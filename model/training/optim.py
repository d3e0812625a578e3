"""Optimizer: Muon, AdamW, who computes which update, and the average of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from model.families.protocol import (
    EMBEDDING,
    HEAD,
    MATRIX,
    RESIDUAL,
    SMEAR,
    START,
    VALUES,
    Group,
    LanguageModel,
)
from model.machine.distributed import World
from model.machine.tensors import (
    Piece,
    SavedTensor,
    Span,
    local,
    piece_of,
    rows_of,
    span_of,
    whole_of,
)
from model.training.sharding import Peers, peers_of, total_norm
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import ATAN2, NANOCHAT, PLAIN, PhaseRecipe

# Muon's arithmetic on stacks of matrices, without any state.
#
# ``torch.optim.Muon`` (2.9 and later) is not used: it orthogonalises in bfloat16 alone, one
# matrix at a time, which on a CPU is slower than the training step it follows. Here equal shapes
# go through one batched product, in float32 on a CPU and bfloat16 on a GPU.

#: Quintic coefficients of K. Jordan's Muon (2024): steepest at zero, singular values end near 1.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5
_NORM_FLOOR = 1e-7
VARIANCE_DECAY = 0.95
_NANOCHAT_VARIANCE_DECAY = 0.9
_VARIANCE_FLOOR = 1e-10


def muon_momentum(step: int) -> float:
    """Momentum for the update after ``step`` finished ones: .85, rising to .95 at 300."""
    return 0.85 + 0.10 * min(step / 300.0, 1.0)


def muon_scale(rows: int, columns: int) -> float:
    """√max(1, rows/columns): tall matrices take longer steps."""
    return max(1.0, rows / columns) ** 0.5


def orthogonalise(matrices: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly: singular values within about .7 to 1.2.

    Five Newton–Schulz steps X ← aX + (bA + cA²)X with A = XXᵀ, started at X / ‖X‖.

    Args:
        matrices: (count, rows, columns), float32.

    Returns:
        The same shape, float32; a matrix of zeros stays zeros.
    """
    a, b, c = _QUINTIC
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(_NORM_FLOOR)
    x = x.to(torch.bfloat16 if x.is_cuda else torch.float32)
    for _ in range(_NEWTON_SCHULZ_STEPS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    x = x.float()
    return x.mT if tall else x


#: Of the five steps, in order; safety factor 2e-2, cushion 2.
_POLAR = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
_POLAR_MARGIN, _POLAR_FLOOR = 1.01, 1e-6


def orthogonalise_evenly(matrices: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrices by Polar Express (Amsel et al. 2025, whose
    coefficients these are), of rows that are brought to one norm first, as in nanochat 92d63d4.

    Args:
        matrices: (count, rows, columns), float32.

    Returns:
        The same shape, float32; a matrix of zeros stays zeros.
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    each = torch.linalg.vector_norm(matrices, dim=-1, keepdim=True)
    mean = each.square().mean(-2, keepdim=True).sqrt()
    even = mean / each.clamp_min(_POLAR_FLOOR)
    # What the norm of the whole is then follows from the rows': nothing is read again.
    whole = (each * even).square().sum(-2, keepdim=True).sqrt()
    x = matrices * (even / (whole * _POLAR_MARGIN + _POLAR_FLOOR))
    x = x.to(torch.bfloat16 if x.is_cuda else torch.float32)
    for a, b, c in _POLAR:
        # The shorter side's products, from that side: what is written stays in order.
        square = x.mT @ x if tall else x @ x.mT
        factor = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, x, factor, beta=a) if tall else torch.baddbmm(x, factor, x, beta=a)
    return x.float()


def even_out(updates: Tensor, variance: Tensor) -> Tensor:
    """Muon+ and NorMuon as in nanochat 92d63d4: to the norm of an orthogonal matrix, √min(rows,
    columns), then each row, or each column of a wide matrix, by the root of the running mean of its
    squares, at the same norm of the whole. One reading of ``updates`` and one product.

    Args:
        updates: (count, rows, columns).
        variance: (count, rows, 1) or (count, 1, columns), the running means; brought up to date in
            place.
    """
    rows, columns = updates.shape[-2:]
    along, length = (-1, columns) if variance.shape[-1] == 1 else (-2, rows)
    squares = torch.linalg.vector_norm(updates, dim=along, keepdim=True).square()
    norm = squares.sum((-2, -1), keepdim=True).sqrt().clamp_min(_POLAR_FLOOR)
    scale = min(rows, columns) ** 0.5 / norm
    means = squares * scale.square() / length
    variance.lerp_(means, 1.0 - _NANOCHAT_VARIANCE_DECAY)
    step = variance.clamp_min(_VARIANCE_FLOOR).rsqrt()
    before = means.sum((-2, -1), keepdim=True).sqrt()
    after = (means * step.square()).sum((-2, -1), keepdim=True).sqrt()
    kept = before / after.clamp_min(_VARIANCE_FLOOR)
    return updates * (scale * step * kept)


def move_evenly(
    weights: Tensor, updates: Tensor, variance: Tensor, rate: Tensor, decay: Tensor
) -> None:
    """Move ``weights`` by ``even_out`` of ``updates``, with cautious weight decay, in place.

    Args:
        weights, updates: (count, rows, columns).
        variance: see ``even_out``.
        rate, decay: scalars; tensors, so that another value is no other graph.
    """
    evened = even_out(updates, variance)
    weights.sub_(rate * evened + decay * cautious_decay_weights(weights, evened))


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with one graph for every shape that it is given."""
    return torch.compile(function, dynamic=False)


def nanochat_momentum(step: int, cooled: float) -> float:
    """nanochat's momentum for the update after ``step`` finished ones: .85, rising to .97 at 400,
    then falling to .90 with the cooldown, of which ``cooled`` is done (0 to 1)."""
    if step < 400:
        return 0.85 + 0.12 * step / 400
    return 0.97 - 0.07 * cooled


def even_rows(updates: Tensor, variance: Tensor) -> Tensor:
    """NorMuon (Li et al. 2025): divides each row by the root of the running mean of its squares.

    Orthogonal updates still give some neurons far larger steps than others. What a matrix as a
    whole moves by stays: the result has the norm that ``updates`` had.

    Args:
        updates: (count, rows, columns).
        variance: (count, rows, 1), the running means; brought up to date in place.
    """
    variance.lerp_(updates.square().mean(-1, keepdim=True), 1.0 - VARIANCE_DECAY)
    evened = updates * variance.clamp_min(_VARIANCE_FLOOR).rsqrt()
    before = updates.norm(dim=(-2, -1), keepdim=True)
    after = evened.norm(dim=(-2, -1), keepdim=True).clamp_min(_VARIANCE_FLOOR)
    return evened * (before / after)


def cautious_decay_weights(weights: Tensor, update: Tensor) -> Tensor:
    """Cautious weight decay (Chen et al. 2025): those weights that the update shrinks anyway, the
    others as zeros."""
    return weights * (weights * update >= 0)


# Muon where each rank holds some rows of every matrix: whole matrices are dealt out to the ranks.
#
# Newton–Schulz needs a matrix whole. Each rank is sent the rows of its own matrices, works on
# those alone, and sends the updates back: two exchanges of what a rank holds, instead of every
# rank gathering and working on everything. Rounds bound what is in memory.

_ROUND_VALUES = 1 << 27
"""Of one rank in one round: 512 MiB in float32."""


class Matrix(NamedTuple):
    """Rows ``start`` to ``stop`` of a parameter that has ``rows``."""

    name: str
    start: int
    stop: int
    rows: int

    def held(self, peers: Peers, rank: int) -> Span:
        """Which of its rows ``rank`` holds, counted in the parameter."""
        return peers.span(self.rows, rank).within(self.start, self.stop)


Update = Callable[[Tensor], Tensor]
"""(count, rows, columns) → the same shape."""


def share_updates(
    matrices: Sequence[Matrix], mine: Sequence[Tensor], peers: Peers, update: Update
) -> Iterator[Tensor]:
    """``update`` of every matrix in order, as the rows of it that this rank holds. A collective
    call, round by round: what is taken is not kept.

    Args:
        matrices: all of one shape.
        mine: (held rows, columns) of each, on this rank.
        update: of a stack of whole matrices.
    """
    columns = mine[0].shape[1]
    size = (matrices[0].stop - matrices[0].start) * columns
    in_round = max(1, _ROUND_VALUES // size) * peers.size
    for first in range(0, len(matrices), in_round):
        some = slice(first, first + in_round)
        yield from _round(matrices[some], mine[some], peers, update)


def _round(
    matrices: Sequence[Matrix], mine: Sequence[Tensor], peers: Peers, update: Update
) -> list[Tensor]:
    columns, ranks = mine[0].shape[1], range(peers.size)
    # Matrix i is worked on by rank i modulo their number.
    own = matrices[peers.rank :: peers.size]
    given = [[m.held(peers, peers.rank).length for m in matrices[r :: peers.size]] for r in ranks]
    taken = [[m.held(peers, rank).length for m in own] for rank in ranks]
    rows_given, rows_taken = [sum(each) for each in given], [sum(each) for each in taken]

    order = [index for r in ranks for index in range(r, len(matrices), peers.size)]
    arrived = mine[0].new_empty(sum(rows_taken), columns)
    _exchange(arrived, torch.cat([mine[i] for i in order]), rows_taken, rows_given, peers)
    if own:
        by_rank = [list(part.split(taken[r])) for r, part in enumerate(arrived.split(rows_taken))]
        whole = torch.stack([torch.cat([by_rank[r][i] for r in ranks]) for i in range(len(own))])
        done = update(whole)
        back = [each.split([taken[r][i] for r in ranks]) for i, each in enumerate(done)]
        arrived = torch.cat([back[i][r] for r in ranks for i in range(len(own))])
    returned = mine[0].new_empty(sum(rows_given), columns)
    _exchange(returned, arrived, rows_given, rows_taken, peers)
    rows = returned.split([count for each in given for count in each])
    made: list[Tensor] = [returned] * len(matrices)
    for index, part in zip(order, rows, strict=True):
        made[index] = part
    return made


def _exchange(
    into: Tensor, out: Tensor, rows_in: list[int], rows_out: list[int], peers: Peers
) -> None:
    dist.all_to_all_single(into, out.contiguous(), rows_in, rows_out, group=peers.group)


# Muon where every rank holds every matrix: each works on some of them, and all get the results.
#
# What travels is what the products are taken in, so nothing is rounded on the way.


@dataclass(frozen=True)
class Ranks:
    """The ranks that deal matrices out among themselves."""

    rank: int
    size: int
    group: Any = None
    """None: all there are."""

    @classmethod
    def of(cls, world: World) -> Ranks | None:
        """Those of one machine; between machines sending takes longer than working alone."""
        if world.size == 1 or world.saving is not None:
            return None
        return cls(world.rank, world.size)


def deal_out(matrices: Tensor, ranks: Ranks, update: Update) -> Tensor:
    """``update`` of a stack (count, rows, columns) that is alike on all ranks, of which each works
    on its share. A collective call."""
    count, *shape = matrices.shape
    share = math.ceil(count / ranks.size)
    mine = matrices[ranks.rank * share : (ranks.rank + 1) * share]
    dtype = torch.bfloat16 if matrices.is_cuda else matrices.dtype
    given = matrices.new_zeros(share, *shape, dtype=dtype)
    if len(mine):
        given[: len(mine)] = update(mine)
    every = given.new_empty(share * ranks.size, *shape)
    dist.all_gather_into_tensor(every, given, group=ranks.group)
    return every[:count].to(matrices.dtype)


# An exponential moving average of the weights (Polyak and Juditsky 1992).
#
# Where a recipe asks for it, the average is evaluated, and is what a checkpoint's weights are;
# those that training goes on with lie beside the optimizer's state.

DECAY = 0.999
_PREFIX = "trained."


class Average:
    """The average of a model's weights, of which the last 1 / (1 − decay) steps count most."""

    def __init__(self, model: nn.Module, decay: float = DECAY) -> None:
        self._named = dict(model.named_parameters())
        self._decay = decay
        self._kept = [local(parameter).clone() for parameter in self._named.values()]

    @torch.no_grad()
    def restart(self) -> None:
        """From the weights as they are."""
        torch._foreach_copy_(self._kept, self._held())

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After ``step`` finished ones. Early on less is remembered, or else the first weights
        would stay in the average for thousands of steps."""
        decay = min(self._decay, (1.0 + step) / (10.0 + step))
        torch._foreach_lerp_(self._kept, self._held(), 1.0 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the average for its weights, for the block."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def weights(self) -> dict[str, Piece]:
        """The average, by the names of the model's parameters."""
        return {
            name: piece_of(parameter)._replace(tensor=kept)
            for (name, parameter), kept in zip(self._named.items(), self._kept, strict=True)
        }

    def trained(self) -> dict[str, Piece]:
        """The weights that training continues with, by names of their own: what a checkpoint must
        hold beside the average."""
        return {_PREFIX + name: piece_of(p) for name, p in self._named.items()}

    def _held(self) -> list[Tensor]:
        return [local(parameter) for parameter in self._named.values()]

    @torch.no_grad()
    def _exchange(self) -> None:
        for kept, parameter in zip(self._kept, self._held(), strict=True):
            held = parameter.clone()
            parameter.copy_(kept)
            kept.copy_(held)


@torch.no_grad()
def restore_trained(model: nn.Module, tensors: Mapping[str, SavedTensor]) -> None:
    """The model has just loaded an average; it gets back the weights that were trained.

    Raises:
        KeyError: the checkpoint has none, as it was saved without an average.
    """
    for name, parameter in model.named_parameters():
        local(parameter).copy_(rows_of(tensors[_PREFIX + name], span_of(parameter)))


# AdamW without an epsilon (Everett et al. 2024): the update is bounded by the angle, however small
# the gradients are.


class AdamAtan2(torch.optim.Optimizer):
    """w ← (1 − rate · decay) · w − rate · atan2(m̂, √v̂), with AdamW's averages m̂ and v̂, under
    AdamW's names of its state."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0, "betas": (0.9, 0.95), "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            named = [each for each in group["params"] if each.grad is not None]
            for each in named:
                if not self.state[each]:
                    zeros = {key: torch.zeros_like(each) for key in ("exp_avg", "exp_avg_sq")}
                    self.state[each] = {"step": torch.zeros((), device=each.device), **zeros}
            kept = [self.state[each] for each in named]
            if not kept:
                continue
            first, second = group["betas"]
            means, squares = ([one[key] for one in kept] for key in ("exp_avg", "exp_avg_sq"))
            gradients = [each.grad for each in named]
            torch._foreach_add_([one["step"] for one in kept], 1)
            torch._foreach_lerp_(means, gradients, 1.0 - first)
            torch._foreach_mul_(squares, second)
            torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - second)
            torch._foreach_mul_(named, 1.0 - group["lr"] * group["weight_decay"])
            for each, one in zip(named, kept, strict=True):
                mean = one["exp_avg"] / (1.0 - first ** one["step"])
                root = (one["exp_avg_sq"] / (1.0 - second ** one["step"])).sqrt()
                each.sub_(torch.atan2(mean, root), alpha=group["lr"])


# Muon for the blocks' matrices and AdamW for the rest, or AdamW for all; their state by name.
#
# The state is a flat mapping of named tensors, as safetensors wants it. Of a sharded model each
# rank updates the rows that it holds, and has their states alone.

REFERENCE_WIDTH = 768
_CLIP_FLOOR = 1e-6


@dataclass(frozen=True)
class Rules:
    """The optimizer's settings. Rates are those before the schedule's factor."""

    optimizer: str = "muon"
    """muon: block matrices by Muon, the rest by AdamW; adamw: everything by AdamW."""
    matrix_lr: float = 2e-2
    embedding_lr: float = 2e-1
    head_lr: float = 4e-3
    weight_decay: float = 0.0
    """Decoupled; embeddings are spared."""
    beta1: float = 0.8
    beta2: float = 0.95
    eps: float = 1e-10
    normuon: bool = False
    """Muon's rows are brought to one size by their running mean squares."""
    cautious_decay: bool = False
    """Muon's matrices decay only where the update shrinks them anyway."""
    width_scale: float = 1.0
    """On AdamW's rates beside Muon: (D / 768)^−½."""
    update_rules: str = PLAIN
    """nanochat-2026: see the family's ``architecture``."""
    steps: int = 0
    """Of the whole training, over which nanochat's weight decay falls to zero."""
    rate_floor: float = 0.0
    compiled: bool = False
    """nanochat's rules for matrices go through torch.compile."""

    @classmethod
    def of(cls, settings: PhaseRecipe) -> Rules:
        by_muon = settings.optimizer == "muon"
        return cls(
            optimizer=settings.optimizer,
            matrix_lr=settings.matrix_lr,
            embedding_lr=settings.embedding_lr,
            head_lr=settings.head_lr,
            weight_decay=settings.weight_decay,
            beta1=settings.beta1 or (0.8 if by_muon else 0.9),
            beta2=settings.beta2 or 0.95,
            eps=settings.eps or (1e-10 if by_muon else 1e-8),
            normuon=settings.normuon,
            cautious_decay=settings.cautious_decay,
            width_scale=(settings.width / REFERENCE_WIDTH) ** -0.5 if by_muon else 1.0,
            update_rules=settings.update_rules,
            steps=settings.steps,
            rate_floor=settings.rate_floor,
            compiled=settings.compile,
        )

    @property
    def as_nanochat(self) -> bool:
        return self.update_rules == NANOCHAT

    def adam(self, group: Group) -> AdamRule:
        """The rule of a parameter that AdamW updates."""
        scale, betas = self.width_scale, (self.beta1, self.beta2)
        if not self.as_nanochat:
            rates = {
                MATRIX: self.matrix_lr,
                EMBEDDING: self.embedding_lr,
                VALUES: self.embedding_lr,
            }
            is_table = group.kind in (EMBEDDING, VALUES)
            decay = 0.0 if is_table else self.weight_decay
            return AdamRule(scale * rates.get(group.kind, self.head_lr), betas, decay)
        # Every rate of a recipe is nanochat's times the same factor, by the size of its batch.
        by_batch = self.matrix_lr / _NANOCHAT_MATRIX_LR
        rules = {
            HEAD: AdamRule(scale * self.head_lr, (0.8, 0.96), 0.01),
            EMBEDDING: AdamRule(scale * self.embedding_lr, (0.8, 0.995), 0.001),
            VALUES: AdamRule(0.5 * scale * self.embedding_lr, (0.8, 0.995), 0.01),
            RESIDUAL: AdamRule(0.005 * by_batch, (0.8, 0.95), 0.05),
            START: AdamRule(0.5 * by_batch, (0.96, 0.95), 0.0),
            SMEAR: AdamRule(0.2, (0.8, 0.95), 0.0),
        }
        return rules.get(group.kind, AdamRule(scale * self.head_lr, (0.8, 0.95), 0.0))

    def momentum(self, step: int, multiplier: float) -> float:
        """Muon's, after ``step`` finished ones; ``multiplier`` is the schedule's factor."""
        if not self.as_nanochat:
            return muon_momentum(step)
        return nanochat_momentum(step, (1.0 - multiplier) / (1.0 - self.rate_floor))

    def decay(self, step: int) -> float:
        """Muon's weight decay, after ``step`` finished ones."""
        if not self.as_nanochat or not self.steps:
            return self.weight_decay
        done = min(1.0, step / self.steps)
        return self.weight_decay * 0.5 * (1.0 + math.cos(math.pi * done))


_NANOCHAT_MATRIX_LR = 0.02


class AdamRule(NamedTuple):
    """AdamW's settings of a parameter; the rate is that before the schedule's factor."""

    rate: float
    betas: tuple[float, float]
    decay: float


class Optimizer:
    """One update rule for the whole model; ``step`` multiplies every rate by the schedule's
    factor."""

    def __init__(self, model: LanguageModel, rules: Rules, ranks: Ranks | None = None) -> None:
        """
        Args:
            ranks: that hold the same whole model and share Muon's work; None: this one does it all.
        """
        named, groups = dict(model.named_parameters()), model.parameter_groups()
        by_muon = [n for n in named if rules.optimizer == "muon" and groups[n].kind == MATRIX]
        self._rules = rules
        self._peers = peers_of(named.values())
        self._ranks = ranks if self._peers is None else None
        self._matrices = {name: named[name] for name in by_muon}
        self._others = {name: p for name, p in named.items() if name not in self._matrices}
        self._momenta = {name: torch.zeros_like(local(p)) for name, p in self._matrices.items()}
        self._variances: dict[str, Tensor] = {}
        if rules.normuon and not rules.as_nanochat:
            self._variances = {
                name: torch.zeros_like(local(p)[:, :1]) for name, p in self._matrices.items()
            }
        if rules.as_nanochat and self._peers is not None:
            raise UsageError(
                f"architecture={NANOCHAT} needs whole matrices, and the weights are sharded",
                next_step="--set sharding=ddp, or --set architecture=plain",
            )
        self._orthogonalise: Update = orthogonalise_evenly if rules.as_nanochat else orthogonalise
        self._move: Callable[..., None] = move_evenly
        if rules.as_nanochat and rules.compiled:
            self._orthogonalise = _compiled(orthogonalise_evenly)
            self._move = _compiled(move_evenly)
        self._variance_stacks: dict[tuple[int, int], Tensor] = {}
        """nanochat's variances, all of one shape of matrices together."""
        self._evened: dict[Matrix, Tensor] = {}
        """Each matrix's in those: (rows, 1), or (1, columns) of one that is wider."""
        self._by_shape: dict[tuple[int, int], list[Matrix]] = {}
        for name, parameter in self._matrices.items():
            start = 0
            for rows in groups[name].splits or (len(parameter),):
                part = Matrix(name, start, start + rows, len(parameter))
                self._by_shape.setdefault((rows, parameter.shape[1]), []).append(part)
                start += rows
        if rules.as_nanochat:
            for (rows, columns), parts in self._by_shape.items():
                shape = (rows, 1) if rows >= columns else (1, columns)
                like = self._matrices[parts[0].name].detach()
                self._variance_stacks[rows, columns] = stack = like.new_zeros(len(parts), *shape)
                self._evened.update(zip(parts, stack, strict=True))
        self._adam_rates: list[float] = []
        # AdamW is given plain tensors: fused kernels then do not care who holds the other rows.
        self._plain = {
            name: nn.Parameter(local(p)) if self._peers else p for name, p in self._others.items()
        }
        self._adam = self._make_adam(groups) if self._others else None

    def parameters(self) -> Iterable[nn.Parameter]:
        return [*self._matrices.values(), *self._others.values()]

    def zero_grad(self) -> None:
        for parameter in self.parameters():
            parameter.grad = None

    @torch.no_grad()
    def clip(self, most: float) -> Tensor:
        """Scale the gradients in place so that their norm is ``most`` at the most (0: as it is);
        return what it was, a scalar. A collective call where the model is sharded."""
        if self._peers is None and not most:
            held = [p.grad for p in self.parameters() if p.grad is not None]
            return nn.utils.get_total_norm(held)
        most = most or math.inf
        if self._peers is None:
            return nn.utils.clip_grad_norm_(self.parameters(), most).detach()
        held = [local(p.grad) for p in self.parameters() if p.grad is not None]
        norm = total_norm(held, self._peers)
        torch._foreach_mul_(held, (most / (norm + _CLIP_FLOOR)).clamp(max=1.0))
        return norm

    @torch.no_grad()
    def step(self, step: int, multiplier: float) -> None:
        """One update after ``step`` finished ones, from the gradients in place.

        Args:
            multiplier: the schedule's factor on every rate, 0 to 1.
        """
        if self._adam is not None:
            for group, rate in zip(self._adam.param_groups, self._adam_rates, strict=True):
                group["lr"] = rate * multiplier
            self._show_adam()
            self._adam.step()
        if self._matrices:
            self._muon(
                self._rules.momentum(step, multiplier),
                self._rules.matrix_lr * multiplier,
                self._rules.decay(step),
            )

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs, as named tensors: of the rows that this rank
        holds."""
        return {name: piece.tensor for name, piece in self.pieces().items()}

    def pieces(self) -> dict[str, Piece]:
        """``state``, with where in the whole tensors these rows stand."""
        made: dict[str, Piece] = {}
        for prefix, kept in (("momentum", self._momenta), ("variance", self._variances)):
            for name, tensor in kept.items():
                _, shape, start = piece_of(self._matrices[name])
                made[f"{prefix}.{name}"] = Piece(tensor, (shape[0], tensor.shape[1]), start)
        for part, tensor in self._evened.items():
            made[_variance_name(part)] = Piece(tensor, tuple(tensor.shape))
        for name, parameter in self._others.items():
            assert self._adam is not None
            _, shape, start = piece_of(parameter)
            for key, value in self._adam.state[self._plain[name]].items():
                is_like = value.dim() > 0
                made[f"{key}.{name}"] = Piece(value, shape, start) if is_like else Piece(value, ())
        return made

    def load_state(self, tensors: Mapping[str, SavedTensor]) -> None:
        """Takes up what ``state`` gave, of whole tensors: the rows that this rank holds.

        Raises:
            KeyError, ValueError: the tensors are those of another model or another rule.
        """
        for prefix, kept in (("momentum", self._momenta), ("variance", self._variances)):
            for name, tensor in kept.items():
                saved = tensors[f"{prefix}.{name}"]
                if tuple(saved.shape) != (len(self._matrices[name]), tensor.shape[1]):
                    raise ValueError(f"{prefix}.{name} has shape {tuple(saved.shape)}")
                tensor.copy_(rows_of(saved, span_of(self._matrices[name])))
        for part, tensor in self._evened.items():
            saved = tensors[_variance_name(part)]
            if tuple(saved.shape) != tuple(tensor.shape):
                raise ValueError(f"{_variance_name(part)} has shape {tuple(saved.shape)}")
            tensor.copy_(whole_of(saved))
        for name, parameter in self._others.items():
            assert self._adam is not None
            state: dict[str, Tensor] = {}
            for key in ("step", "exp_avg", "exp_avg_sq"):
                if f"{key}.{name}" not in tensors:
                    continue  # saved before the first update
                saved = tensors[f"{key}.{name}"]
                if key == "step":
                    state[key] = whole_of(saved).to(parameter.device, torch.float32).clone()
                    continue
                if tuple(saved.shape) != tuple(parameter.shape):
                    raise ValueError(f"{key}.{name} has shape {tuple(saved.shape)}")
                held = rows_of(saved, span_of(parameter))
                state[key] = held.to(parameter.device, torch.float32).clone()
            self._adam.state[self._plain[name]] = state

    def _make_adam(self, kinds: Mapping[str, Group]) -> torch.optim.Optimizer:
        """Parameters of one rule go together, into one call of the fused kernel."""
        together: dict[AdamRule, list[nn.Parameter]] = {}
        for name, parameter in self._plain.items():
            together.setdefault(self._rules.adam(kinds[name]), []).append(parameter)
        self._adam_rates = [rule.rate for rule in together]
        groups = [
            {"params": parameters, "weight_decay": rule.decay, "betas": rule.betas}
            for rule, parameters in together.items()
        ]
        if self._rules.update_rules == ATAN2:
            return AdamAtan2(groups)
        return torch.optim.AdamW(groups, eps=self._rules.eps, fused=True)

    def _show_adam(self) -> None:
        """Its plain tensors stand for the rows as they lie now, which FSDP2 may move once."""
        if self._peers is None:
            return
        for name, parameter in self._others.items():
            self._plain[name].data = local(parameter)
            self._plain[name].grad = None if parameter.grad is None else local(parameter.grad)

    def _muon(self, momentum: float, rate: float, weight_decay: float) -> None:
        moved = self._nesterov(momentum)
        decay = rate * weight_decay
        if self._rules.as_nanochat:
            self._move_groups(moved, rate, decay)
            return
        is_cautious = self._rules.cautious_decay
        held = {name: local(parameter) for name, parameter in self._matrices.items()}
        if not is_cautious:
            for weights in held.values():
                weights.mul_(1.0 - decay)
        for shape, parts in self._by_shape.items():
            updates = self._updates(parts, moved)
            for part, update in zip(parts, updates, strict=True):
                weights = held[part.name][self._rows_here(part)]
                scale = muon_scale(*shape)
                if is_cautious:
                    shrunk = cautious_decay_weights(weights, update)
                    weights.sub_(shrunk, alpha=decay)
                weights.add_(update, alpha=-rate * scale)

    def _move_groups(self, moved: Mapping[str, Tensor], rate: float, decay: float) -> None:
        """nanochat's rules, one shape of matrices after another."""
        for shape, parts in self._by_shape.items():
            weights, mine = (
                [named[part.name][part.start : part.stop] for part in parts]
                for named in (self._matrices, moved)
            )
            stacked, scale = torch.stack(weights), muon_scale(*shape)
            self._move(
                stacked,
                self._orthogonal(torch.stack(mine)),
                self._variance_stacks[shape],
                torch.tensor(rate * scale),
                torch.tensor(decay * scale),
            )
            torch._foreach_copy_(weights, stacked.unbind())

    @torch.no_grad()
    def warm_up(self) -> None:
        """Compile what a step is to find compiled; nothing changes. A collective call."""
        if not (self._rules.as_nanochat and self._rules.compiled):
            return
        for (rows, columns), parts in self._by_shape.items():
            like = self._matrices[parts[0].name].detach()
            zeros = like.new_zeros(len(parts), rows, columns)
            variance = torch.zeros_like(self._variance_stacks[rows, columns])
            # Two scalars: one tensor given twice would be another graph than a step's.
            none = torch.zeros(()), torch.zeros(())
            self._move(zeros, self._orthogonal(zeros.clone()), variance, *none)

    def _updates(self, parts: list[Matrix], moved: Mapping[str, Tensor]) -> Iterable[Tensor]:
        """Of each matrix the rows that this rank holds; the variances are brought up to date."""
        mine = [moved[part.name][self._rows_here(part)] for part in parts]
        if not self._rules.normuon:
            if self._peers is None:
                return self._orthogonal(torch.stack(mine))
            return share_updates(parts, mine, self._peers, orthogonalise)
        there = [self._variances[part.name][self._rows_here(part)] for part in parts]
        if self._peers is not None:
            return self._evened_rows(parts, mine, there)
        variance = torch.stack(there)
        updates = even_rows(self._orthogonal(torch.stack(mine)), variance)
        torch._foreach_copy_(there, list(variance))
        return updates

    def _orthogonal(self, matrices: Tensor) -> Tensor:
        if self._ranks is None:
            return self._orthogonalise(matrices)
        return deal_out(matrices, self._ranks, self._orthogonalise)

    def _evened_rows(
        self, parts: list[Matrix], mine: list[Tensor], there: list[Tensor]
    ) -> Iterator[Tensor]:
        """A row's variance travels with it, as one more column."""
        assert self._peers is not None
        wide = [torch.cat(pair, dim=1) for pair in zip(mine, there, strict=True)]
        made = share_updates(parts, wide, self._peers, _evened)
        for variance, rows in zip(there, made, strict=True):
            variance.copy_(rows[:, -1:])
            yield rows[:, :-1]

    def _rows_here(self, part: Matrix) -> slice:
        """Of a matrix, where its rows lie in what this rank holds of its parameter."""
        if self._peers is None:
            return slice(part.start, part.stop)
        first = self._peers.span(part.rows, self._peers.rank).start
        here = part.held(self._peers, self._peers.rank)
        return slice(here.start - first, here.stop - first)

    def _nesterov(self, momentum: float) -> dict[str, Tensor]:
        """Each gradient, in its place, brought towards the running average that it is part of."""
        gradients = {}
        for name, parameter in self._matrices.items():
            if parameter.grad is None:
                raise ValueError(f"{name} has no gradient")
            gradients[name] = local(parameter.grad)
        averages, held = list(self._momenta.values()), list(gradients.values())
        torch._foreach_lerp_(averages, held, 1.0 - momentum)
        torch._foreach_lerp_(held, averages, momentum)
        return gradients


def _variance_name(part: Matrix) -> str:
    return f"variance.{part.name}.{part.start}"


def _evened(wide: Tensor) -> Tensor:
    """Muon's update evened by NorMuon; the last column is the rows' variances, before and after."""
    variance = wide[..., -1:].clone()
    updates = even_rows(orthogonalise(wide[..., :-1]), variance)
    return torch.cat((updates, variance), dim=-1)
