"""Block diffusion's shared parts: noise, who sees whom, sampling block by block, and the model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from model.data.batch import RowSelection
from model.families.attention import FLEX, LEAST_FLEX_HEAD, Mask, why_not_flex
from model.families.cache import Cache
from model.families.dense import Block, Shape, Transformer
from model.families.drawing import choose
from model.families.protocol import Objective, Sampling
from model.machine.precision import RejectedOption

# What block diffusion hides of a row: at which times, and which tokens.
#
# Each block has a time t of its own, and each of its tokens is hidden with probability t. The
# times of all blocks of a step lie evenly over the range: one in every n-th part of it, dealt out
# at random. All of it follows from the numbers in ``RowSelection``.

LEAST = 1e-3
"""Time at which the bound is cut: a token's weight is 1/t."""
LEAST_TALLIED = 64
"""Blocks within a range without which nothing is known of its variance."""


BATCH_ROWS, MOST_BATCHES = 512, 100
"""Rows of a batch within which variance is taken, and batches that count, as in the published
evaluation. By a row's number, so that they are the same for any number of ranks."""


class Span(NamedTuple):
    """Times that are drawn from."""

    low: float
    high: float


WHOLE = Span(LEAST, 1.0)
SPANS = tuple(
    Span(max(LEAST, start / 10), (start + width) / 10)
    for width in range(10, 4, -1)
    for start in range(11 - width)
)
"""Those that training may be clipped to: half of the times at least."""


def times(draws: RowSelection, blocks: int, span: Span) -> Tensor:
    """(rows, blocks) float32 times in ``span``, antithetic over the group's rows and blocks."""
    chance = np.random.default_rng([draws.seed, draws.group])
    number = draws.of * blocks
    even = (chance.permutation(number) + chance.random(number)) / number
    mine = even.reshape(draws.of, blocks)[list(draws.rows)]
    return torch.from_numpy((span.low + (span.high - span.low) * mine).astype(np.float32))


def thresholds(draws: RowSelection, tokens: int) -> Tensor:
    """(rows, tokens) float32 in [0, 1): a token is hidden where its time is above."""
    seeds = ([draws.seed, draws.group, 1 + row] for row in draws.rows)
    rows = [np.random.default_rng(seed).random(tokens, dtype=np.float32) for seed in seeds]
    return torch.from_numpy(np.stack(rows))


def hidden_within(draws: RowSelection, at: Tensor, block: int, span: Span) -> Tensor:
    """(rows, tokens) bool, which tokens are hidden: of each block a share within ``span``.

    The first draw is ``thresholds``; a block whose share is outside is drawn again, from the same
    row's generator, until it is within (``resample`` in kuleshov-group/bd3lms). An end of ``span``
    that is an end of ``WHOLE`` bounds no share.

    Args:
        at: (rows, tokens) float32, the time of each token's block.
        block: tokens of a block; from two on, every one of ``SPANS`` holds a share.
    """
    low = np.float32(0.0 if span.low == WHOLE.low else span.low)
    high = np.float32(1.0 if span.high == WHOLE.high else span.high)
    each = [np.random.default_rng([draws.seed, draws.group, 1 + row]) for row in draws.rows]
    rows, chances = np.arange(len(each)), at.numpy()

    def drawn() -> Any:
        numbers = [each[row].random(at.shape[1], dtype=np.float32) for row in rows]
        return np.stack(numbers) < chances[rows]

    hidden = drawn()
    while True:
        share = hidden[rows].reshape(len(rows), -1, block).mean(axis=2, dtype=np.float32)
        outside = (share < low) | (share > high)
        rows, outside = rows[outside.any(axis=1)], outside[outside.any(axis=1)]
        if not len(rows):
            return torch.from_numpy(hidden)
        hidden[rows] = np.where(outside.repeat(block, axis=1), drawn(), hidden[rows])


def batches_of(rows: int) -> int:
    """Batches whose variance is counted, of an evaluation of ``rows``."""
    return min(MOST_BATCHES, -(-rows // BATCH_ROWS))


def tally(nats: Tensor, at: Tensor, batch_of: Tensor, batches: int) -> Tensor:
    """For every batch and span how many of the blocks have a time in it, and the sums of their nats
    and squares: (batches · 3 · spans,).

    Args:
        nats: (blocks,) the bound that each block gave by itself.
        at: (blocks,) its time, drawn from ``WHOLE``: those within a span are draws from that one.
        batch_of: (blocks,) the number of its batch; from ``batches`` on it is left out.
    """
    low, high = torch.tensor(SPANS, dtype=at.dtype, device=at.device).unbind(1)
    counted = batch_of < batches
    nats, at, batch_of = nats[counted], at[counted], batch_of[counted]
    inside = ((at[:, None] >= low) & (at[:, None] <= high)).double()
    each = nats.double()[:, None]
    sums = inside.new_zeros(batches, 3, len(SPANS))
    moments = torch.stack((inside, each * inside, each.square() * inside), dim=1)
    return sums.index_add_(0, batch_of, moments).flatten()


def least_variance(tallies: Sequence[float]) -> Span | None:
    """The span whose blocks' bounds vary least within a batch, on average over the batches, as
    kuleshov-group/bd3lms chooses it; None where too few were tallied."""
    sums = np.array(tallies, dtype=np.float64).reshape(-1, 3, len(SPANS))
    count, total, squares = sums.transpose(1, 0, 2)
    known = count.sum(axis=0) >= LEAST_TALLIED
    if not known.any():
        return None
    several = count > 1
    variance = (squares - total**2 / count.clip(1)) / (count - 1).clip(1)
    mean = (variance * several).sum(axis=0) / several.sum(axis=0).clip(1)
    return SPANS[int(np.where(known, mean, np.inf).argmin())]


# Who sees whom in block diffusion, where noisy and clean tokens go through the net side by side.
#
# A row is cut into blocks. What is to be judged of it goes in as noise, and behind it, clean,
# what that is judged by (Arriola et al. 2025). A noisy token sees its own noisy block and the
# clean blocks before it; a clean one sees the clean blocks up to its own. So every block is
# judged as if all before it were known, in one pass.

Rule = Callable[[Any, Any, Tensor, Tensor], Tensor]


def blocks_of(lengths: Sequence[int]) -> Tensor:
    """(T,) the number of each token's block, of blocks as long as ``lengths`` say."""
    return torch.tensor([block for block, length in enumerate(lengths) for _ in range(length)])


class RowPlaces(NamedTuple):
    """The places of a row: S places, each with the number of its block (S,), the first ``noisy`` of
    them noise."""

    block_of: Tensor
    noisy: int


def noisy_and_clean_places(block_of: Tensor) -> RowPlaces:
    """A whole row as noise, and clean: 2·T places."""
    return RowPlaces(torch.cat((block_of, block_of)), len(block_of))


def rule(places: RowPlaces) -> Rule:
    """Return the rule whether the token at one place sees the one at another. As FlexAttention asks
    it: of any batch and head."""
    block_of, first_clean = places

    def sees(batch: Any, head: Any, query: Tensor, key: Tensor) -> Tensor:
        own, other = block_of[query], block_of[key]
        noisy, noisy_key = query < first_clean, key < first_clean
        among_noisy = noisy & noisy_key & (own == other)
        among_clean = ~noisy & ~noisy_key & (other <= own)
        return among_noisy | among_clean | (noisy & ~noisy_key & (other < own))

    return sees


def table(places: RowPlaces) -> Tensor:
    """(S, S) bool, for SDPA."""
    every = torch.arange(len(places.block_of), device=places.block_of.device)
    return rule(places)(None, None, every[:, None], every[None, :])


def tiles(places: RowPlaces) -> BlockMask:
    """For FlexAttention, which leaves out the tiles in which nothing is seen."""
    size, device = len(places.block_of), places.block_of.device.type
    return create_block_mask(rule(places), None, None, size, size, device=device)


# Drawing a text block by block, each out of masks; finished ones are kept as keys and values.
#
# Within a block tokens are uncovered one by one. The time at which the next one is may be skipped
# over to (first hitting, Zheng et al. 2024), and which one it is is left to chance, each alike:
# so a block of n masks takes n passes and no step size.


class Denoiser(Protocol):
    """A model that is asked for one block."""

    mask_id: int

    def denoise(self, ids: Tensor, cache: Cache, *, keep: bool) -> Tensor:
        """Logits (B, new, V − 1) of one block's tokens, ``cache`` holding the finished blocks
        before it; ``keep``: this one is finished, and is taken up, too."""
        ...


class BlockwiseModel(Denoiser, Protocol):
    """One whose texts are made of blocks of one length."""

    block: int

    @property
    def sequence(self) -> int: ...


def generate(
    model: BlockwiseModel, start: Sequence[int], sampling: Sampling, device: torch.device
) -> Iterator[int]:
    """Generate the text of ``model`` after ``start``, until it ends the text or ``max_tokens`` are
    drawn. A row begins with its text: the id that ends one does not stand before it, too."""
    size, sequence = model.block, model.sequence
    generator = torch.Generator(device).manual_seed(sampling.seed)
    context = list(start[1:] if start[:1] == [sampling.stop] else start)
    cache = Cache(sequence)
    left = sampling.max_tokens
    while left:
        if len(context) >= sequence:
            # Beyond the trained sequence there are no places: go on from the later half.
            kept = sequence // 2 // size * size
            context, cache = context[len(context) - kept :], Cache(sequence)
        while cache.length + size <= len(context):
            block = context[cache.length : cache.length + size]
            model.denoise(torch.tensor([block], device=device), cache, keep=True)
        known = context[cache.length :]
        block = uncover_block(model, known, size, cache, sampling, generator, device)
        made = block[len(known) :][:left]
        for token in made:
            if token == sampling.stop:
                return
            yield token
        context += made
        left -= len(made)


def uncover_block(
    model: Denoiser,
    known: list[int],
    size: int,
    cache: Cache,
    sampling: Sampling,
    generator: torch.Generator,
    device: torch.device,
) -> list[int]:
    """The next block's ``size`` ids, of which ``known`` are given. After the id that ends the text
    there are only more of it, as in training."""
    masked = list(range(len(known), size))
    ids = torch.full((1, size), model.mask_id, device=device)
    ids[0, : len(known)] = torch.tensor(known, device=device)
    while masked:
        chosen = int(torch.randint(len(masked), (), generator=generator, device=device))
        place = masked.pop(chosen)
        logits = model.denoise(ids, cache, keep=False)[0, place]
        logits[sampling.known_ids :] = -torch.inf
        ids[0, place] = choose(logits, sampling, generator)
        if ids[0, place] == sampling.stop:
            ids[0, place:] = sampling.stop
            masked = [each for each in masked if each < place]
    return [int(each) for each in ids[0]]


# What the families that bring blocks of tokens out of masks share: times, the mask, the bound's
# bookkeeping. ``block_diffusion`` says what is learnt, and why.


class MaskedDiffusion(Transformer):
    """A dense transformer whose last id is the mask. What of a row is judged lies at its end, in
    blocks that each have a time of their own."""

    margin = 0.1
    """``evaluate`` draws one time a block: on some thousand tokens that is some percent off."""
    block_of: Tensor
    """(judged,) the number of each judged token's block."""

    def __init__(self, shape: Shape, lengths: Sequence[int], compute_dtype: torch.dtype) -> None:
        """
        Args:
            lengths: of the judged blocks.
        """
        super().__init__(shape, compute_dtype)
        self.mask_id = shape.vocab_size - 1
        self.span = WHOLE
        """Times that training draws from."""
        self.timed = len(lengths)
        """Blocks that have a time."""
        self.register_buffer("block_of", blocks_of(lengths), persistent=False)
        for each in self.blocks:
            assert isinstance(each, Block)
            each.attention_dropout = 0.0  # FlexAttention has none, and a CPU learns the same
        self._seen: dict[torch.device, Mask] = {}
        self._has_flex = shape.head_dim >= LEAST_FLEX_HEAD

    def settle_attention(self) -> Sequence[RejectedOption]:
        shape, device = self.shape, self.embedding.weight.device
        if not self._wants_rule(device):
            return ()
        why = why_not_flex(shape.heads, shape.head_dim, self.compute_dtype, device)
        self._has_flex, self._seen = not why, {}
        return (
            (RejectedOption(FLEX, f"{why}; SDPA with a mask table is used instead"),) if why else ()
        )

    def loss(self, ids: Tensor, targets: Tensor, draws: RowSelection | None = None) -> Objective:
        nats = self._bound(targets, draws or RowSelection.alone(len(targets)), self.span)
        tokens = (targets >= 0).sum().clamp_min(1)
        mean = nats.sum() / tokens
        parts = {name: part / tokens for name, part in self._parts(nats).items()}
        return Objective(mean, mean.unsqueeze(0), parts)

    def evaluate(self, ids: Tensor, targets: Tensor, draws: RowSelection | None = None) -> Tensor:
        with self._without_dropout():
            return self._bound(targets, draws or RowSelection.alone(len(targets)), WHOLE).unsqueeze(
                0
            )

    def tallied(self, nats: Tensor, targets: Tensor, draws: RowSelection) -> Tensor:
        at = times(draws, self.timed, WHOLE).to(nats.device)
        first = self.sequence - len(self.block_of)
        there = targets[:, first:] >= 0
        shape = (len(targets), self.timed)
        sums = torch.zeros(shape, dtype=torch.float64, device=nats.device)
        sums.index_add_(1, self.block_of, nats[-1][:, first:].double())
        lengths = torch.zeros_like(sums).index_add_(1, self.block_of, there.double())
        known = lengths > 0
        rows = torch.tensor(list(draws.rows), dtype=torch.int64, device=nats.device)
        batch_of = (rows // BATCH_ROWS)[:, None].expand(shape)
        batches = batches_of(draws.of)
        return tally(sums[known] / lengths[known], at[known], batch_of[known], batches)

    def adapt(self, tallies: Sequence[float]) -> None:
        self.span = least_variance(tallies) or self.span

    def get_extra_state(self) -> Tensor:
        """The span goes with the weights: a run that is resumed draws from the same one."""
        return torch.tensor(self.span, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        low, high = (float(each) for each in state)
        self.span = Span(low, high)

    @torch.no_grad()
    def denoise(self, ids: Tensor, cache: Cache, *, keep: bool) -> Tensor:
        """Logits (B, new, V − 1) of one block's tokens, ``cache`` holding the finished blocks
        before it; ``keep``: this one is finished, and is taken up, too."""
        new = ids.shape[1]
        turn = self._turn(slice(cache.length, cache.length + new), ids.device)
        cache.begin(new)
        h, more = self._embedded(ids), self._given()
        for layer, block in enumerate(self.blocks):
            h = block(h, turn, None, None, cache.slot(layer), *more)
        if keep:
            cache.end()
        return self._logits(h)

    def diagnostics(self, nats: Sequence[float]) -> Mapping[str, float]:
        return {"mask_from": self.span.low, "mask_to": self.span.high}

    @abstractmethod
    def _bound(self, targets: Tensor, draws: RowSelection, span: Span) -> Tensor:
        """(B, T) what each token adds to the bound."""

    def _parts(self, nats: Tensor) -> Mapping[str, Tensor]:
        """Sums of ``nats`` that are told apart."""
        return {}

    def _states(self, noisy: Tensor, clean: Tensor, at: Tensor, seen: RowPlaces) -> Tensor:
        """(B, noisy, D) of the noisy ids after the last block, the clean ones beside them.

        Args:
            at: (S,) the place in its row of each of them.
        """
        turn = self._turn(at, noisy.device)
        mask = self._mask(seen)
        h, more = self._embedded(torch.cat((noisy, clean), dim=1)), self._given()
        for block in self.blocks:
            h = block(h, turn, mask, None, None, *more)
        return h[:, : noisy.shape[1]]

    def _given(self) -> tuple[Tensor, ...]:
        """Further arguments of each block, after the state; a subclass may have some."""
        return ()

    def _embedded(self, ids: Tensor) -> Tensor:
        return self.norm(self.embedding(ids)).to(self.compute_dtype)

    def _head_rows(self) -> Tensor:
        return super()._head_rows()[: self.mask_id]

    def _wants_rule(self, device: torch.device) -> bool:
        return device.type == "cuda"

    def _mask(self, places: RowPlaces) -> Mask:
        device = places.block_of.device
        if device not in self._seen:
            by_rule = self._wants_rule(device) and self._has_flex
            made = tiles if by_rule else table
            self._seen[device] = made(places)
        return self._seen[device]
