"""The TRM of the training guides: its loss over supervision steps, and the model.

It is not Samsung's Tiny Recursive Model, which is the family ``trm_puzzle``: this one predicts the
next token under a causal mask, takes one update for all supervision steps, with gradients through
all of them, and does not halt. In a small run it loses to its own control without recursion by 5.7
to 6.4 % (docs/bench/control.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.data.batch import RowSelection
from model.families import one_token
from model.families.attention import slower_sdpa
from model.families.cache import Cache, KeptRow, Slot
from model.families.drawing import generate
from model.families.layers import (
    Turn,
    in_pieces,
    likeliest_in_pieces,
    mean_in_pieces,
    rms,
    rotate,
    turns,
)
from model.families.protocol import (
    EMBEDDING,
    HEAD,
    MATRIX,
    Group,
    LanguageModel,
    Objective,
    Sampling,
    check_heads,
    draw_weights,
)
from model.families.trm.plan import Settings
from model.machine.precision import DTYPES, RejectedOption
from trmcloud.core.errors import UsageError

# The loss over supervision steps: weighted cross-entropy, minus a reward for improving.
#
# With b = ``weight_base``, s = ``reward_scale``, wᵢ = bⁱ / Σⱼ bʲ and sg = stop-gradient:
#
#     L = [ Σᵢ wᵢ·ℓᵢ  −  s · Σ_{i≥1} (sg(ℓᵢ₋₁) − ℓᵢ) / sg(ℓᵢ₋₁) ] / N
#
# Without sg the reward would pay the model for making an early step worse, and buy its
# "refinement" by sabotage. With it, the reward's only gradient is s / ℓᵢ₋₁ more weight on step i
# ≥ 1.
#
# The two parts are kept apart, because only the first is a cross-entropy: a log of L alone would
# show a model getting "better" while it only gets more uneven.

#: Guards the division where a step has memorised its batch to exactly zero nats.
_SMALLEST = 1e-12


class Supervision(NamedTuple):
    """Scalars: ``loss`` is what is minimised, (``ce`` − ``reward``) / N."""

    loss: Tensor
    ce: Tensor
    """Σ wᵢ·ℓᵢ in nats per token."""
    reward: Tensor
    """s · Σ (ℓᵢ₋₁ − ℓᵢ) / ℓᵢ₋₁, without unit."""


def step_weights(steps: int, weight_base: float) -> list[float]:
    """wᵢ = bⁱ / Σⱼ bʲ for i < ``steps``; they sum to 1."""
    powers = [weight_base**step for step in range(steps)]
    return [power / sum(powers) for power in powers]


def supervise(step_losses: Tensor, weight_base: float, reward_scale: float) -> Supervision:
    """The loss of N mean cross-entropies ``step_losses`` (N,) in nats per token."""
    steps = len(step_losses)
    weights = torch.tensor(
        step_weights(steps, weight_base), dtype=step_losses.dtype, device=step_losses.device
    )
    ce = (weights * step_losses).sum()
    before = step_losses[:-1].detach().clamp_min(_SMALLEST)
    reward = reward_scale * ((before - step_losses[1:]) / before).sum()
    return Supervision(loss=(ce - reward) / steps, ce=ce, reward=reward)


def refinement_percent(step_losses: Sequence[float]) -> float:
    """Return the decrease of the last step's loss from the first's, in percent of the first."""
    first, last = step_losses[0], step_losses[-1]
    return 100.0 * (first - last) / first if first > 0 else 0.0


# TRM: a small stack of blocks, applied again and again, judged after every pass.
#
# With E the embedding and rms(h) = h / √(mean(h²) + ε) without parameters, one forward pass over
# token ids (B, T) is
#
#     x = rms(E[ids]);  y = x;  z = 0
#     repeat for every supervision step i < N:
#         for every layer:  z += Block(y + z + x)  (``loops`` times),  then  y += Block(y + z)
#         ℓᵢ = cross-entropy(15·tanh(head(rms(y)) / 15), targets)
#
# A block normalises its input itself, so ``Block(h)`` stands for "block of rms(h)". Nothing is
# detached between supervision steps: the gradient of a late loss runs through all earlier passes.
#
# The control is the same amount of arithmetic without recursion: N·(loops + 1)·depth blocks, each
# with weights of its own and used once, judged at the same N places.

LOGIT_CAP = 15.0


def build(settings: Settings, device: torch.device) -> TRM:
    """Raises: UsageError: heads that do not divide the width, or are odd."""
    check_heads(settings.width, settings.head_dim)
    if settings.head_dim % 2:
        raise UsageError(
            f"head_dim {settings.head_dim} is odd; rotary positions need an even number"
        )
    return TRM(
        Shape.of(settings),
        DTYPES[settings.dtype],
        weight_base=settings.supervision_weight_base,
        reward_scale=settings.improvement_reward_scale,
    ).to(device)


@dataclass(frozen=True)
class Shape:
    """The settings that decide the weights' sizes and the arithmetic of one forward pass."""

    vocab_size: int
    depth: int
    width: int
    head_dim: int
    supervision_steps: int
    loops: int
    sequence: int
    control: bool = False
    activation_checkpointing: bool = False
    """Keep each application's input alone, and compute the rest again in the backward pass."""

    @classmethod
    def of(cls, settings: Settings) -> Shape:
        return cls(
            vocab_size=settings.vocab_size,
            depth=settings.depth,
            width=settings.width,
            head_dim=settings.head_dim,
            supervision_steps=settings.supervision_steps,
            loops=settings.loops,
            sequence=settings.sequence,
            control=settings.control,
            activation_checkpointing=settings.activation_checkpointing,
        )

    @property
    def applications(self) -> int:
        """Blocks applied to a token in one forward pass."""
        return self.supervision_steps * self.depth * (self.loops + 1)

    @property
    def blocks(self) -> int:
        """Blocks with weights of their own."""
        return self.applications if self.control else self.depth

    @property
    def flops_per_token(self) -> float:
        """FLOPs of forward and backward per trained token.

        6 per weight and application, plus attention's 12·D·T per block over a full (uncut by the
        causal mask) sequence: 6·[16·D²·applications + N·V·D] + 12·D·T·applications.
        """
        weights = 16 * self.width**2 * self.applications
        head = self.supervision_steps * self.vocab_size * self.width
        return 6.0 * (weights + head) + 12.0 * self.width * self.sequence * self.applications


class Block(nn.Module):
    """Causal attention and SwiGLU with residuals of their own: 16·D² weights, no biases.

    Attention's four D×D matrices make 4·D²; SwiGLU's hidden 4·D makes 3·D·4D = 12·D².
    """

    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.mix = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 4 * width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(
        self,
        h: Tensor,
        turn: Turn,
        slot: Slot | None = None,
    ) -> Tensor:
        """(B, T, D) → (B, T, D). ``turn`` holds RoPE's cosines and sines for these T positions."""
        # rms(rms(h)) = rms(h): the norm at the block's door also serves attention.
        h = rms(h)
        h = h + self._attend(h, turn, slot)
        inner = rms(h)
        return h + self.down(F.silu(self.gate(inner)) * self.up(inner))

    def _attend(self, h: Tensor, turn: Turn, slot: Slot | None) -> Tensor:
        batch, new, width = h.shape
        heads = (batch, new, -1, self.head_dim)
        v = self.value(h).view(heads).transpose(1, 2)
        if slot is None:
            q = rms(rotate(self.query(h).view(heads).transpose(1, 2), turn))
            k = rms(rotate(self.key(h).view(heads).transpose(1, 2), turn))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            # Of one token each call costs more than its arithmetic: both take the same ones.
            both = torch.cat((self.query(h), self.key(h)), dim=-1).view(heads).transpose(1, 2)
            q, k = rms(rotate(both, turn)).chunk(2, dim=1)
            k, v = slot.extend(k, v)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=slot.cache.seen(q.device))
        out: Tensor = self.mix(mixed.transpose(1, 2).reshape(batch, new, width))
        return out


class TRM(LanguageModel):
    """The model of this module's docstring."""

    predicts_next = True

    def __init__(
        self,
        shape: Shape,
        compute_dtype: torch.dtype = torch.float32,
        *,
        weight_base: float = 5.0,
        reward_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.sequence, self.vocab_size = shape.sequence, shape.vocab_size
        self.compute_dtype = compute_dtype
        self._weight_base, self._reward_scale = weight_base, reward_scale
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.head_dim) for _ in range(shape.blocks))
        self.head = nn.Linear(shape.width, shape.vocab_size, bias=False)

    @property
    def judged(self) -> tuple[str, ...]:
        return tuple(f"supervision step {step}" for step in range(self.shape.supervision_steps))

    def initialise(self, seed: int) -> None:
        """Matrices are normal with std 1/√fan_in; what writes into the residual stream (``mix`` and
        ``down``) and the head start at zero, so that a fresh model predicts every id alike."""
        draw_weights(self, seed, {name: _std(name, w) for name, w in self.named_parameters()})

    def settle_attention(self) -> Sequence[RejectedOption]:
        shape = self.shape
        heads, device = shape.width // shape.head_dim, self.head.weight.device
        return slower_sdpa(heads, shape.head_dim, self.compute_dtype, device)

    def loss(self, ids: Tensor, targets: Tensor, draws: RowSelection | None = None) -> Objective:
        nats = self.losses(ids, targets).float()
        judged = supervise(nats, self._weight_base, self._reward_scale)
        return Objective(judged.loss, nats, {"ce": judged.ce, "reward": judged.reward})

    def evaluate(self, ids: Tensor, targets: Tensor, draws: RowSelection | None = None) -> Tensor:
        return self.losses(ids, targets, per_token=True)

    def predictions(self, ids: Tensor) -> Tensor:
        *_, y = self._states(ids)
        likeliest = likeliest_in_pieces(self._logits, y.flatten(0, 1), self.vocab_size)
        return likeliest.view(ids.shape)

    def losses(self, ids: Tensor, targets: Tensor, per_token: bool = False) -> Tensor:
        """Cross-entropy in nats after every supervision step.

        Args:
            ids, targets: (B, T) token ids.
            per_token: give every token's loss instead of their mean.

        Returns:
            (N,) mean losses, or (N, B, T) where ``per_token``.
        """
        losses = [self._loss(y, targets, per_token) for y in self._states(ids)]
        return torch.stack(losses)

    def generate(self, start: Sequence[int], sampling: Sampling) -> Iterator[int]:
        return generate(self, start, sampling, self.head.weight.device)

    def parameter_groups(self) -> Mapping[str, Group]:
        kinds = {"blocks": MATRIX, "embedding": EMBEDDING, "head": HEAD}
        return {name: Group(kinds[name.partition(".")[0]]) for name, _ in self.named_parameters()}

    def diagnostics(self, nats: Sequence[float]) -> Mapping[str, float]:
        return {"refinement_percent": refinement_percent(nats)}

    def compile_parts(self) -> None:
        """Compiles a block and the head's loss, not the whole recursion.

        All blocks share one compiled graph: seconds instead of the minutes that the unrolled
        N·(loops + 1)·depth applications would take, for the same fused kernels.
        """
        for block in self.blocks:
            block.compile()
        self._token_losses = torch.compile(self._token_losses)  # type: ignore[method-assign]

    def decode(self, ids: Tensor, cache: Cache) -> Tensor:
        """Logits (B, V) for what follows the last of ``ids`` (B, new), after all N steps.

        ``cache`` holds the tokens before ``ids`` and takes them up.
        """
        # Of one token a seventh less than without gradients alone.
        with torch.inference_mode():
            cache.begin(ids.shape[1])
            if one_token.is_possible(ids, cache, self.compute_dtype, self.head.weight):
                cache.step = cache.step or TrmStep(self)
                y = cache.step(int(ids), cache)
            else:
                *_, y = self._states(ids, cache)
            cache.end()
            logits = self._logits(y[:, -1]).float()
        return logits.clone()  # which may be written to, outside

    def logits(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V) for what follows each of ``ids`` (B, T), after all N steps."""
        *_, state = self._states(ids)
        return self._logits(state)

    def _states(self, ids: Tensor, cache: Cache | None = None) -> Iterator[Tensor]:
        """y (B, T, D) after each supervision step."""
        shape, dtype = self.shape, self.compute_dtype
        # What is carried from block to block stays in float32, however the products are taken: its
        # sums grow to a hundred times what one block adds, and in bfloat16 would swallow it.
        x = rms(self.embedding(ids))
        first = torch.arange(ids.shape[1], device=ids.device)
        turn = self._turn(cache.places(ids.device) if cache else first)
        y, z = x, torch.zeros_like(x)
        used = 0
        for step in range(shape.supervision_steps):
            for layer in range(shape.depth):
                for loop in range(shape.loops + 1):
                    block = self.blocks[used if shape.control else layer]
                    slot = cache.slot((step, layer, loop)) if cache else None
                    used += 1
                    if shape.control:
                        y = y + self._through(block, y.to(dtype), turn, slot)
                    elif loop < shape.loops:
                        z = z + self._through(block, (x + y + z).to(dtype), turn, slot)
                    else:
                        y = y + self._through(block, (y + z).to(dtype), turn, slot)
            yield y

    def _through(self, block: nn.Module, h: Tensor, turn: Turn, slot: Slot | None) -> Tensor:
        if self.shape.activation_checkpointing and torch.is_grad_enabled():
            kept: Tensor = checkpoint(block, h, turn, use_reentrant=False)
            return kept
        out: Tensor = block(h, turn, slot)
        return out

    def _turn(self, places: Tensor) -> Turn:
        if places.dim() > 1:
            places = places.unsqueeze(1)  # the same for every head
        return turns(places.float(), self.shape.head_dim, self.compute_dtype)

    def _logits(self, y: Tensor) -> Tensor:
        return LOGIT_CAP * torch.tanh(self.head(rms(y)).float() / LOGIT_CAP)

    def _loss(self, y: Tensor, targets: Tensor, per_token: bool) -> Tensor:
        flat, wanted = y.flatten(0, 1), targets.flatten()
        vocabulary = self.shape.vocab_size
        if per_token:
            return in_pieces(self._token_losses, flat, wanted, vocabulary).view(targets.shape)
        return mean_in_pieces(self._token_losses, flat, wanted, self.head.weight, vocabulary)

    def _token_losses(self, y: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self._logits(y), targets, reduction="none")


class TrmStep:
    """One token of one text through a TRM, by as few calls as possible."""

    def __init__(self, model: TRM) -> None:
        shape = self._shape = model.shape
        heads = shape.width // shape.head_dim
        self._heads = one_token.Heads(heads, heads, shape.head_dim, one_token.NORMS["rms"][1])
        self._mlp = one_token.Mlp("swiglu", 8 * shape.width)
        made = (one_token.Buffer(shape.width) for _ in range(5))
        self._y, self._z, self._given, self._normed, self._out = made
        self._start = self._given.array.copy()
        self._embedding = one_token.weight_of(model.embedding).numpy()
        self._turns = one_token.turn_tables(model._turn(torch.arange(shape.sequence)))
        self._blocks = [
            tuple(map(one_token.weight_of, (b.query, b.key, b.value, b.mix, b.gate, b.up, b.down)))
            for b in model.blocks
        ]

    def __call__(self, token: int, cache: Cache) -> Tensor:
        """(1, 1, D) after the last supervision step, until the next call."""
        shape, x, given = self._shape, self._start, self._given.array
        y, z, place = self._y.array, self._z.array, cache.place
        one_token.rms(self._embedding[token], x)
        y[:], z[:] = x, 0.0
        turn = self._turns[0][place], self._turns[1][place]
        blocks = iter(self._blocks)
        for step in range(shape.supervision_steps):
            for layer in range(shape.depth):
                for loop in range(shape.loops + 1):
                    is_last = loop == shape.loops
                    if shape.control:
                        given[:] = y
                    else:
                        np.add(y, z, out=given)
                        if not is_last:
                            given += x
                    block = next(blocks) if shape.control else self._blocks[layer]
                    row = cache.slot((step, layer, loop)).first_row
                    made = self._through(block, row, place, turn)
                    if shape.control or is_last:
                        y += made
                    else:
                        z += made
        return self._y.tensor[None, None]

    def _through(
        self, block: tuple[Tensor, ...], row: KeptRow, place: int, turn: Any
    ) -> one_token.Array:
        query, key, value, mix, gate, up, down = block
        heads, mlp, h, x = self._heads, self._mlp, self._given.array, self._normed.tensor
        one_token.rms(h, h)
        torch.mv(query, self._given.tensor, out=heads.queries)
        torch.mv(key, self._given.tensor, out=heads.keys)
        torch.mv(value, self._given.tensor, out=heads.values)
        torch.mv(mix, heads(row, place, turn), out=self._out.tensor)
        h += self._out.array
        one_token.rms(h, self._normed.array)
        torch.mv(gate, x, out=mlp.gate)
        torch.mv(up, x, out=mlp.value)
        torch.mv(down, mlp(), out=self._out.tensor)
        h += self._out.array
        return h


def _std(name: str, weight: Tensor) -> float:
    if name.startswith("head.") or ".mix." in name or ".down." in name:
        return 0.0
    return 1.0 if name.startswith("embedding.") else float(weight.shape[1] ** -0.5)
