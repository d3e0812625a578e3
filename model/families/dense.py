"""The dense transformer: its shape, its blocks, and the model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from model.data.batch import RowSelection
from model.families import layers, one_token
from model.families.attention import Mask, attend, slower_sdpa
from model.families.cache import Cache, Slot, causal_mask
from model.families.drawing import generate
from model.families.layers import (
    BASE,
    Turn,
    in_pieces,
    likeliest_in_pieces,
    mean_in_pieces,
    relu_squared,
    rotate,
    turns,
)
from model.families.protocol import (
    EMBEDDING,
    HEAD,
    MATRIX,
    SCALAR,
    Group,
    LanguageModel,
    Objective,
    Sampling,
    check_heads,
    draw_weights,
)
from model.machine.precision import DTYPES, RejectedOption
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.dense import (
    DENSE_CHOICES,
    DenseKeys,
    check_dense,
    has_value_embedding,
    window_of,
)
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.values import dataclass

# What decides a dense transformer: sizes, and which of the known parts it is made of.

_KEYS = tuple(field.name for field in dataclasses.fields(DenseKeys))


@dataclass(frozen=True)
class Shape(DenseKeys):
    """One dense transformer; ``hidden`` and ``kv_heads`` are never 0."""

    vocab_size: int
    depth: int
    width: int
    head_dim: int
    sequence: int
    norm_embedding: bool = True
    """The state is normalised before the first block."""

    def __post_init__(self) -> None:
        for name, known in DENSE_CHOICES.items():
            if getattr(self, name) not in known:
                told = f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}"
                raise UsageError(told)
        check_heads(self.width, self.head_dim)
        check_dense(self, heads=self.heads, head_dim=self.head_dim, where="the model")
        object.__setattr__(self, "hidden", self.hidden or 4 * self.width)
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)

    @classmethod
    def of(cls, settings: PhaseRecipe) -> Shape:
        """
        Raises:
            UsageError: settings that cannot go together.
        """
        return cls(
            settings.vocab_size,
            settings.depth,
            settings.width,
            settings.head_dim,
            settings.sequence,
            getattr(settings, "norm_embedding", True),
            **{name: getattr(settings, name) for name in _KEYS if hasattr(settings, name)},
        )

    @property
    def heads(self) -> int:
        return self.width // self.head_dim

    def window(self, layer: int) -> int:
        """Tokens that each one sees in this layer, itself included; 0: all."""
        return window_of(self.windows, layer, self.depth, self.sequence)

    def has_value_embedding(self, layer: int) -> bool:
        return self.value_embeddings and has_value_embedding(layer, self.depth)


# The dense transformer: every block applied once. ``gpt`` and ``nanochat`` are two of its shapes.
#
# With E the embedding and norm(h) without parameters,
#
#     x = norm(E[ids])                              (+ a learned position before the norm)
#     for every layer:  x += Attention(norm(x));  x += MLP(norm(x))
#     loss = cross-entropy(head(norm(x)), targets)
#
# Matrices that read the same input lie above one another in one (``qkv``, and SwiGLU's gate and
# value in ``up``), so that they cost one product; Muon takes them apart again.

_aten = torch.ops.aten
_PRODUCTS = [
    _aten.mm.default,
    _aten._scaled_mm.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
]
"""The operations that cost most to compute again, for their memory."""


def _keep_products() -> tuple[Any, Any]:
    return create_selective_checkpoint_contexts(_PRODUCTS)


# By this name torch keeps what it compiled of such a block; without one it is compiled each time.
_keep_products.cache_hash = " ".join(map(str, _PRODUCTS))  # type: ignore[attr-defined]


GATE_INPUTS = 32
"""Of a token's state that decide how much of its value embedding is let in."""


def build(settings: PhaseRecipe, device: torch.device) -> Dense:
    """Raises: UsageError: settings that cannot go together."""
    return Dense(Shape.of(settings), DTYPES[settings.dtype]).to(device)


class Block(nn.Module):
    """Attention and an MLP, each with a residual; no biases."""

    gate_inputs = GATE_INPUTS
    gate_most = 2.0
    """Of a value embedding, the most that its gate lets in."""
    qk_scale = 1.0
    """On normalised queries and keys, each."""

    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__()
        self.checkpointing = shape.activation_checkpointing
        kept: dict[str, Any] = (
            {"context_fn": _keep_products} if shape.selective_checkpointing else {}
        )
        self._checkpointed: Callable[..., Tensor] = partial(checkpoint, use_reentrant=False, **kept)
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.mlp, self.qk_norm = shape.mlp, shape.qk_norm
        self.dropout = self.attention_dropout = shape.dropout
        self.norm = layers.layer if shape.norm == "layer" else layers.rms
        rows = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self.qkv = nn.Linear(shape.width, rows, bias=False)
        self.mix = nn.Linear(shape.width, shape.width, bias=False)
        gated = shape.mlp == "swiglu"
        self.up = nn.Linear(shape.width, shape.hidden * (2 if gated else 1), bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)
        self.value_gate = (
            nn.Linear(min(self.gate_inputs, shape.width), shape.kv_heads, bias=False)
            if shape.has_value_embedding(layer)
            else None
        )

    def splits(self) -> dict[str, tuple[int, ...]]:
        """Which rows of its matrices are matrices of their own."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        half = len(self.up.weight) // 2
        return {
            "qkv": (queries, keys, keys),
            "up": (half, half) if self.mlp == "swiglu" else (),
        }

    def forward(
        self,
        h: Tensor,
        turn: Turn | None,
        mask: Mask = None,
        values: Tensor | None = None,
        slot: Slot | None = None,
        *more: Tensor,
    ) -> Tensor:
        """(B, T, D) → (B, T, D).

        Args:
            turn: RoPE's cosines and sines of these positions; None where they are learned.
            mask: of what each token may see; None: all up to itself, or with a ``slot`` all there
                are.
            values: (B, T, kv_heads · head_dim) to be let into the values.
            more: of a subclass.
        """
        if self.checkpointing and slot is None and torch.is_grad_enabled():
            # Within what is compiled: around it, Inductor's own names of the products would be none
            # of those that are kept, and all would be computed again.
            return self._checkpointed(self._forward, h, turn, mask, values, None, *more)
        return self._forward(h, turn, mask, values, slot, *more)

    def _forward(
        self,
        h: Tensor,
        turn: Turn | None,
        mask: Mask = None,
        values: Tensor | None = None,
        slot: Slot | None = None,
    ) -> Tensor:
        h = h + self._drop(self._attend(self.norm(h), turn, mask, values, slot))
        return h + self._drop(self._think(self.norm(h)))

    def _attend(
        self,
        h: Tensor,
        turn: Turn | None,
        mask: Mask,
        values: Tensor | None,
        slot: Slot | None,
    ) -> Tensor:
        batch, new, width = h.shape
        heads, kv_heads = self.heads, self.kv_heads
        qkv = self.qkv(h).view(batch, new, -1, self.head_dim)
        qk, v = qkv.split((heads + kv_heads, kv_heads), dim=2)
        # Queries and keys go through the same, so they go together.
        if turn is not None:
            qk = rotate(qk, turn)
        if self.qk_norm:
            qk = self.norm(qk)
            if self.qk_scale != 1.0:
                qk = qk * self.qk_scale
        q, k = qk.split((heads, kv_heads), dim=2)
        if values is not None and self.value_gate is not None:
            gate = self.gate_most * torch.sigmoid(
                self.value_gate(h[..., : self.value_gate.in_features])
            )
            v = v + gate.unsqueeze(-1).to(v.dtype) * values.to(v.dtype).view(v.shape)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if slot is not None:
            k, v = slot.extend(k, v)
        mixed = attend(
            q,
            k,
            v,
            mask,
            causal=mask is None and slot is None,
            dropout=self.attention_dropout if self.training else 0.0,
        )
        out: Tensor = self.mix(mixed.transpose(1, 2).reshape(batch, new, width))
        return out

    def _think(self, h: Tensor) -> Tensor:
        inner = self.up(h)
        if self.mlp == "swiglu":
            gate, inner = inner.chunk(2, dim=-1)
            inner = F.silu(gate) * inner
        elif self.mlp == "relu2":
            inner = relu_squared(inner)
        else:
            inner = F.gelu(inner, approximate="tanh" if self.mlp == "gelu-tanh" else "none")
        out: Tensor = self.down(inner)
        return out

    def _drop(self, h: Tensor) -> Tensor:
        return F.dropout(h, self.dropout, self.training) if self.dropout else h


class Transformer(LanguageModel):
    """Embedding, blocks and head: all that a family needs but what it is to learn with them."""

    block_class: type[Block] = Block
    rope_base = BASE

    def __init__(self, shape: Shape, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.shape, self.compute_dtype = shape, compute_dtype
        self.sequence, self.vocab_size = shape.sequence, shape.vocab_size
        self.norm = layers.layer if shape.norm == "layer" else layers.rms
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.positions = (
            nn.Embedding(shape.sequence, shape.width) if shape.positions == "learned" else None
        )
        self.values = nn.ModuleDict(
            {
                str(layer): nn.Embedding(shape.vocab_size, shape.kv_heads * shape.head_dim)
                for layer in range(shape.depth)
                if shape.has_value_embedding(layer)
            }
        )
        self.blocks = nn.ModuleList(self.block_class(shape, layer) for layer in range(shape.depth))
        self.head = None if shape.tied else nn.Linear(shape.width, shape.vocab_size, bias=False)
        self._turns: dict[torch.device, Turn] = {}

    def initialise(self, seed: int) -> None:
        """Matrices are normal with std 1/√fan_in; what writes into the residual stream (``mix`` and
        ``down``) and an untied head start at zero. A tied embedding starts at (ln V − 1)/D: then a
        token's own logit is ln V − 1, and a fresh model still predicts nearly every id alike."""
        stds = {name: self._std(name, weight) for name, weight in self.named_parameters()}
        draw_weights(self, seed, stds)

    def parameter_groups(self) -> Mapping[str, Group]:
        groups: dict[str, Group] = {}
        for name, _ in self.named_parameters():
            first, *rest = name.split(".")
            if first == "blocks" and rest[1] != "value_gate":
                block = self.blocks[int(rest[0])]
                assert isinstance(block, Block)
                groups[name] = Group(MATRIX, block.splits().get(rest[1], ()))
            elif first == "blocks":
                groups[name] = Group(SCALAR)
            else:
                groups[name] = Group(HEAD if first == "head" else EMBEDDING)
        return groups

    def compile_parts(self) -> None:
        """Compiles a block and the head's loss: all blocks of one kind share one graph."""
        for block in self.blocks:
            block.compile()
        self._token_losses = torch.compile(self._token_losses)  # type: ignore[method-assign]

    @contextmanager
    def _without_dropout(self) -> Iterator[None]:
        dropping = self.training and self.shape.dropout > 0.0
        if dropping:
            self.eval()
        try:
            yield
        finally:
            if dropping:
                self.train()

    def _std(self, name: str, weight: Tensor) -> float:
        if name in ("embedding.weight", "positions.weight"):
            tied = (math.log(self.shape.vocab_size) - 1.0) / self.shape.width
            return tied if self.head is None else 1.0
        if name.startswith("head.") or name.split(".")[-2] in ("mix", "down", "value_gate"):
            return 0.0
        # A value embedding is as large as the values that it is added to.
        return 1.0 if name.startswith("values.") else float(weight.shape[1] ** -0.5)

    def _turn(self, places: slice | Tensor, device: torch.device) -> Turn:
        if device not in self._turns:
            every = torch.arange(self.shape.sequence, device=device, dtype=torch.float32)
            cosines, sines = turns(every, self.shape.head_dim, self.compute_dtype, self.rope_base)
            self._turns[device] = cosines[:, None], sines[:, None]  # the same for every head
        cosines, sines = self._turns[device]
        return cosines[places], sines[places]

    def _logits(self, state: Tensor) -> Tensor:
        logits = F.linear(self._normed(state), self._head_rows()).float()
        cap = self.shape.logit_cap
        return cap * torch.tanh(logits / cap) if cap else logits

    def _normed(self, state: Tensor) -> Tensor:
        """The normalised state, which is the input of the head."""
        return self.norm(state)

    def _head_rows(self) -> Tensor:
        """(ids, D): a row for every id that can be predicted."""
        return self.embedding.weight if self.head is None else self.head.weight

    def _nats_of(self, states: Tensor, targets: Tensor) -> Tensor:
        """(B, T) from the states of the last block."""
        flat = states.flatten(0, 1), targets.flatten()
        return in_pieces(self._token_losses, *flat, self.shape.vocab_size).view(targets.shape)

    def _token_losses(self, states: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self._logits(states), targets, reduction="none")


class Dense(Transformer):
    """The model of this module's docstring."""

    predicts_next = True

    def __init__(self, shape: Shape, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__(shape, compute_dtype)
        self.steps_alone = not shape.value_embeddings
        """Whether ``DenseStep`` computes what it does."""
        self._masks: dict[tuple[torch.device, int, int], Tensor] = {}

    def settle_attention(self) -> Sequence[RejectedOption]:
        shape = self.shape
        windows = {shape.window(layer) for layer in range(shape.depth)}
        for masked in sorted({0 < window < shape.sequence for window in windows}, reverse=True):
            left = slower_sdpa(
                shape.heads,
                shape.head_dim,
                self.compute_dtype,
                self.embedding.weight.device,
                kv_heads=shape.kv_heads,
                masked=masked,
                dropout=shape.dropout,
            )
            if left:
                return left
        return ()

    def shardable(self) -> Sequence[nn.Module]:
        return list(self.blocks)

    def loss(self, ids: Tensor, targets: Tensor, draws: RowSelection | None = None) -> Objective:
        flat = self._state(ids).flatten(0, 1), targets.flatten()
        head = self.embedding.weight if self.head is None else self.head.weight
        nats = mean_in_pieces(self._token_losses, *flat, head, self.shape.vocab_size)
        # Padding has no loss; without any, this is exactly 1.
        nats = nats * (targets.numel() / (targets >= 0).sum().clamp_min(1))
        return Objective(nats, torch.stack((nats,)), {})

    def evaluate(self, ids: Tensor, targets: Tensor, draws: RowSelection | None = None) -> Tensor:
        with self._without_dropout():
            return self._nats_of(self._state(ids), targets).unsqueeze(0)

    def predictions(self, ids: Tensor) -> Tensor:
        with self._without_dropout():
            states = self._state(ids).flatten(0, 1)
            likeliest = likeliest_in_pieces(self._logits, states, self.shape.vocab_size)
        return likeliest.view(ids.shape)

    def generate(self, start: Sequence[int], sampling: Sampling) -> Iterator[int]:
        return generate(self, start, sampling, self.embedding.weight.device)

    def decode(self, ids: Tensor, cache: Cache) -> Tensor:
        """Logits (B, V) for what follows the last of ``ids`` (B, new), ``cache`` holding the tokens
        before them, and taking these up."""
        with torch.inference_mode():
            cache.begin(ids.shape[1])
            if self.steps_alone and one_token.is_possible(
                ids, cache, self.compute_dtype, self.embedding.weight
            ):
                cache.step = cache.step or DenseStep(self)
                state = cache.step(int(ids), cache)
            else:
                state = self._state(ids, cache)[:, -1]
            cache.end()
            logits = self._logits(state)
        return logits.clone()  # which may be written to, outside

    def logits(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V) for what follows each of ``ids`` (B, T)."""
        return self._logits(self._state(ids))

    def _state(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """(B, T, D) after the last block."""
        h, turn = self._embed(ids, cache)
        for block, given in self._passes(ids, turn, cache):
            h = block(h, *given)
        return h

    def _embed(self, ids: Tensor, cache: Cache | None) -> tuple[Tensor, Turn | None]:
        """(B, T, D) before the first block, and the turn of these positions."""
        places = cache.places(ids.device) if cache else slice(ids.shape[1])
        h = self.embedding(ids)
        turn = None
        if self.positions is not None:
            h = h + self.positions.weight[places]
        else:
            turn = self._turn(places, ids.device)
        h = self.norm(h) if self.shape.norm_embedding else h
        return h.to(self.compute_dtype), turn

    def _passes(
        self, ids: Tensor, turn: Turn | None, cache: Cache | None
    ) -> Iterator[tuple[nn.Module, tuple[Any, ...]]]:
        """Each block, and what it is given beside the state."""
        for layer, block in enumerate(self.blocks):
            window, slot = self.shape.window(layer), None
            if cache is None:
                mask = self._mask(ids.shape[1], window, ids.device)
            else:
                mask, slot = cache.seen(ids.device, window), cache.slot(layer)
            values = None
            if self.shape.has_value_embedding(layer):
                values = self.values[str(layer)](ids)
            yield block, (turn, mask, values, slot)

    def _mask(self, new: int, window: int, device: torch.device) -> Tensor | None:
        """None where a causal mask is all there is to it."""
        if window == 0 or window >= new:
            return None
        key = (device, new, window)
        if key not in self._masks:
            self._masks[key] = causal_mask(new, 0, window, device)
        return self._masks[key]


class DenseStep:
    """One token of one text through a ``Dense`` model, by as few calls as possible."""

    def __init__(self, model: Dense) -> None:
        shape, device = model.shape, torch.device("cpu")
        self._norm, norm_rows = one_token.NORMS[shape.norm]
        self._heads = one_token.Heads(
            shape.heads, shape.kv_heads, shape.head_dim, norm_rows if shape.qk_norm else None
        )
        rows = shape.hidden * (2 if shape.mlp == "swiglu" else 1)
        self._mlp = one_token.Mlp(shape.mlp, rows)
        self._state, self._normed, self._out = (one_token.Buffer(shape.width) for _ in range(3))
        self._embedding = one_token.weight_of(model.embedding).numpy()
        self._norm_embedding = shape.norm_embedding
        self._positions = self._turns = None
        if model.positions is not None:
            self._positions = one_token.weight_of(model.positions).numpy()
        else:
            self._turns = one_token.turn_tables(model._turn(slice(None), device))
        weight = one_token.weight_of
        self._blocks: list[tuple[int, Tensor, Tensor, Tensor, Tensor]] = [
            (shape.window(layer), weight(b.qkv), weight(b.mix), weight(b.up), weight(b.down))
            for layer, b in enumerate(model.blocks)
        ]

    def __call__(self, token: int, cache: Cache) -> Tensor:
        """(1, D) after the last block, until the next call."""
        place, norm, heads, mlp = cache.place, self._norm, self._heads, self._mlp
        h, x, out = self._state.array, self._normed.array, self._out.array
        h[:] = self._embedding[token]
        turn = None
        if self._positions is not None:
            h += self._positions[place]
        if self._turns is not None:
            turn = self._turns[0][place], self._turns[1][place]
        if self._norm_embedding:
            norm(h, h)
        for layer, (window, qkv, mix, up, down) in enumerate(self._blocks):
            norm(h, x)
            torch.mv(qkv, self._normed.tensor, out=heads.given.tensor)
            mixed = heads(cache.slot(layer).first_row, place, turn, window)
            torch.mv(mix, mixed, out=self._out.tensor)
            h += out
            norm(h, x)
            torch.mv(up, self._normed.tensor, out=mlp.inner.tensor)
            torch.mv(down, mlp(), out=self._out.tensor)
            h += out
        return self._state.tensor[None]
