"""Samsung's Tiny Recursive Model, as published, on puzzles (arXiv 2510.04871).

The net sees a whole puzzle at once and improves an answer y and a latent state z: a supervision
step is H cycles, each of N updates z ← f(z, y + x) and one y ← f(y, z), with gradients in the last
cycle alone. f is one small net of blocks without a causal mask, normalised after each half.

A training step is one supervision step and one update of the weights. Each row of the batch keeps
its state, detached, from step to step, until it halts: when it believes that its answer is right
(``halt``, trained by binary cross-entropy on whether it is), or after ``halt_max_steps``. Then the
puzzle that the step's batch has for this row takes its place. What the other rows of the batch hold
is not used, as in the published code.

A target's loss is stablemax cross-entropy: −ln(s(x_t) / Σ s(x)) with s(x) = x + 1 for x ≥ 0, else
1 / (1 − x), in float64. Evaluations take ``halt_max_steps`` steps of every puzzle.

Ids are the tokenizer's; inside, padding is 0 and the character d is d + 1, as published.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.data.batch import RowSelection
from model.families.layers import Turn, rotate, turns
from model.families.protocol import HEAD, Group, LanguageModel, Objective, Sampling, check_heads
from model.families.trm_puzzle.plan import ATTENTION, Settings
from model.machine.precision import DTYPES
from trmcloud.core.errors import DataError

_EPS = 1e-5
_STABLE = 1e-30
_HALT_BIAS = -5.0
_BLANK = 1
_TRUNCATED_STD = 0.8796256610342398
"""The standard deviation of a normal distribution that is cut at ±2."""


def build(settings: Settings, device: torch.device) -> PuzzleSolver:
    """Raises: UsageError: settings that cannot go together."""
    check_heads(settings.width, settings.head_dim)
    return PuzzleSolver(settings).to(device)


class Carry(NamedTuple):
    """The state of a micro-batch's B rows between two steps, without gradients."""

    answer: Tensor
    """(B, P + C, D)."""
    latent: Tensor
    steps: Tensor
    """(B,) supervision steps of the row's puzzle so far."""
    halted: Tensor
    """(B,) bool: the row takes the next puzzle."""
    tokens: Tensor
    """(B, C) the row's puzzle."""
    labels: Tensor
    """(B, C) its solution."""


class Linear(nn.Module):
    """Weights in float32, used in the type of what they are applied to.

    Under autocast a weight that is first used without gradients stays without them, and here every
    weight is.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, h: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(h.dtype)
        return F.linear(h, self.weight.to(h.dtype), bias)


class SwiGLU(nn.Module):
    """down(silu(gate(h)) · up(h)) over the last dimension."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = Linear(size, 2 * hidden)
        self.down = Linear(hidden, size)

    def forward(self, h: Tensor) -> Tensor:
        gate, up = self.gate_up(h).chunk(2, dim=-1)
        out: Tensor = self.down(F.silu(gate) * up)
        return out


class Attention(nn.Module):
    """Self-attention over all places, with rotary positions."""

    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.qkv = Linear(width, 3 * width)
        self.out = Linear(width, width)

    def forward(self, h: Tensor, turn: Turn) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        batch, places, width = h.shape
        heads = self.qkv(h).view(batch, places, -1, self.head_dim).transpose(1, 2)
        queries, keys, values = heads.chunk(3, dim=1)
        # Angles are taken in float32, whatever the products are.
        queries = rotate(queries.float(), turn).to(h.dtype)
        keys = rotate(keys.float(), turn).to(h.dtype)
        mixed = F.scaled_dot_product_attention(queries, keys, values)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, places, width))
        return out


class Block(nn.Module):
    """Mixing over the places, then an MLP; the sum of each with its input is normalised."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.by_attention = settings.mixer == ATTENTION
        self.mix: nn.Module = (
            Attention(settings.width, settings.head_dim)
            if self.by_attention
            else SwiGLU(settings.places, settings.hidden(settings.places))
        )
        self.mlp = SwiGLU(settings.width, settings.hidden(settings.width))

    def forward(self, h: Tensor, turn: Turn) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        if self.by_attention:
            h = normalise(h + self.mix(h, turn))
        else:
            # The published norm runs over the places here, since the two are still exchanged.
            across = h.transpose(1, 2)
            h = normalise(across + self.mix(across)).transpose(1, 2)
        return normalise(h + self.mlp(h))


class PuzzleSolver(LanguageModel):
    """The model of this module's docstring."""

    margin = 0.1
    """Fresh weights are no even guess: their logits differ from cell to cell."""
    answer_start: Tensor
    latent_start: Tensor
    turn_cosines: Tensor
    turn_sines: Tensor

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.sequence, self.vocab_size = settings.sequence, settings.vocab_size
        self.cells, self.prefix = settings.cells, settings.prefix
        self.compute_dtype = DTYPES[settings.dtype]
        width = settings.width
        self.embedding = nn.Embedding(settings.vocab_size, width)
        self.puzzle = nn.Parameter(torch.empty(1, width))
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.depth))
        self.head = Linear(width, settings.vocab_size)
        self.halt = Linear(width, 2, bias=True)
        self.register_buffer("answer_start", torch.empty(width))
        self.register_buffer("latent_start", torch.empty(width))
        # The published turn has the other sign than this package's.
        places = -torch.arange(settings.places, dtype=torch.float32)
        cosines, sines = turns(places, settings.head_dim, torch.float32)
        self.register_buffer("turn_cosines", cosines, persistent=False)
        self.register_buffer("turn_sines", sines, persistent=False)
        self._carries: dict[int, Carry] = {}
        self._is_right: Tensor | None = None

    @property
    def judged(self) -> tuple[str, ...]:
        return ("the solution",)

    @property
    def most_given(self) -> int:
        return self.cells + 1

    @property
    def least_given(self) -> int:
        return self.cells + 1

    def initialise(self, seed: int) -> None:
        """Truncated normal weights of std 1/√fan_in, the embedding's 1/√D; starts of std 1; a
        puzzle's vector and the weights of ``halt`` are zero, its bias −5."""
        generator = torch.Generator().manual_seed(seed)
        self._carries = {}
        tensors = {**dict(self.named_parameters()), **self._starts()}
        for name, tensor in tensors.items():
            made = torch.zeros(tensor.shape)
            if name == "halt.bias":
                made.fill_(_HALT_BIAS)
            elif std := _std(name, tensor):
                scale = std / _TRUNCATED_STD
                limits = (-2 * scale, 2 * scale)
                nn.init.trunc_normal_(made, 0.0, scale, *limits, generator=generator)
            with torch.no_grad():
                tensor.copy_(made)

    def loss(self, ids: Tensor, targets: Tensor, draws: RowSelection | None = None) -> Objective:
        """One supervision step of every row: the means over the rows of ``stablemax_nats`` and half
        of the loss of ``halt``."""
        draws = draws or RowSelection.alone(len(ids))
        with torch.autocast(ids.device.type, enabled=False):
            return self._loss(targets, draws)

    def evaluate(self, ids: Tensor, targets: Tensor, draws: RowSelection | None = None) -> Tensor:
        """(1, B, T) nats of the solution after all supervision steps; 0 where the puzzle is."""
        tokens, labels = self._divide(targets)
        is_sound = (labels > _BLANK) & ((tokens == _BLANK) | (tokens == labels))
        if not bool((is_sound & (labels < self.vocab_size)).all()):
            raise DataError(
                f"a row is no puzzle of {self.cells} cells with its solution",
                next_step="give puzzles of this size, or set sequence and vocab_size to theirs",
            )
        with torch.no_grad(), torch.autocast(ids.device.type, enabled=False):
            logits = self.solve(tokens)
            nats = stablemax_nats(logits, labels).float()
        self._is_right = logits.argmax(-1) == labels
        return torch.cat((torch.zeros_like(nats), nats), dim=1).unsqueeze(0)

    def counted(self, targets: Tensor) -> Tensor:
        """The puzzle is given: the solution alone is scored."""
        places = torch.arange(targets.shape[1], device=targets.device)
        return (places >= self.cells).expand_as(targets)

    def tallied(self, nats: Tensor, targets: Tensor, draws: RowSelection) -> Tensor:
        """(3,) puzzles, those that are solved, and right cells."""
        assert self._is_right is not None
        right = self._is_right[: len(targets)]
        solved, cells = right.all(dim=1).sum(), right.sum()
        return torch.stack((torch.full_like(solved, len(targets)), solved, cells))

    def scores(self, tallies: Sequence[float]) -> Mapping[str, float]:
        puzzles, solved, cells = tallies
        return {
            "exact_accuracy": solved / max(1.0, puzzles),
            "cell_accuracy": cells / max(1.0, puzzles * self.cells),
        }

    def generate(self, start: Sequence[int], sampling: Sampling) -> Iterator[int]:
        """The solution's digits, row by row.

        Raises:
            DataError: the prompt is no puzzle.
        """
        given = list(start[1:] if start[:1] == [sampling.stop] else start)
        if len(given) != self.cells:
            raise DataError(
                f"the prompt has {len(given)} characters; a puzzle has {self.cells}",
                next_step="give the puzzle row by row, 0 for a blank",
            )
        device = self.head.weight.device
        with torch.no_grad():
            found = self.solve(torch.tensor([given], device=device) + 1).argmax(-1)[0]
        yield from (max(0, int(token) - 1) for token in found[: sampling.max_tokens])

    def solve(self, tokens: Tensor) -> Tensor:
        """(B, C, V) logits for the cells of ``tokens`` (B, C), after all supervision steps."""
        x, (answer, latent) = self._embed(tokens), self._begin(len(tokens))
        for _ in range(self.settings.halt_max_steps):
            answer, latent = self._improve(answer, latent, x)
        return self._logits(answer)

    def parameter_groups(self) -> Mapping[str, Group]:
        # One rule for all, which decays tables too: the published AdamATan2 has one group.
        return {name: Group(HEAD) for name, _ in self.named_parameters()}

    def compile_parts(self) -> None:
        for block in self.blocks:
            block.compile()

    def carried(self) -> Mapping[str, Tensor]:
        """The carry of each micro-batch, as named tensors."""
        return {
            f"{first}.{field}": tensor
            for first, carry in self._carries.items()
            for field, tensor in carry._asdict().items()
        }

    def carry_on(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from what ``carried`` gave. Rows of which nothing is kept begin with a new
        puzzle, as if they had halted."""
        self._carries = {}
        device = self.head.weight.device
        for name in tensors:
            first, _, field = name.partition(".")
            if field == Carry._fields[0]:
                kept = (tensors[f"{first}.{each}"].to(device) for each in Carry._fields)
                self._carries[int(first)] = Carry(*kept)

    # -- a training step --------------------------------------------------------------------

    def _loss(self, targets: Tensor, draws: RowSelection) -> Objective:
        settings, first = self.settings, int(draws.rows[0])
        chance = chances(draws)
        tokens, labels = self._divide(targets)
        if settings.augmentations:
            number = (chance[:, 2] * (1 + settings.augmentations)).floor().long()
            tokens, labels = shuffle(tokens, labels, number.to(tokens.device))
        before = self._resume(self._carries.get(first), tokens, labels)
        x = self._embed(before.tokens)
        answer, latent = self._improve(before.answer, before.latent, x, grad=True)
        logits = self._logits(answer)
        belief = self.halt(answer[:, 0]).float()[:, 0]
        nats = stablemax_nats(logits, before.labels).mean(dim=1)
        with torch.no_grad():
            right = (logits.argmax(-1) == before.labels).all(dim=1)
        halting = F.binary_cross_entropy_with_logits(belief, right.float())
        steps = before.steps + 1
        halted = halts(belief.detach(), steps, chance.to(belief.device), settings)
        if torch.is_grad_enabled():
            self._carries[first] = Carry(
                answer.detach(), latent.detach(), steps, halted, before.tokens, before.labels
            )
        mean = nats.mean()
        return Objective(
            mean + 0.5 * halting,
            mean.detach().unsqueeze(0),
            {"answer": mean.detach(), "halt": halting.detach(), "solved": right.float().mean()},
        )

    def _resume(self, carry: Carry | None, tokens: Tensor, labels: Tensor) -> Carry:
        """The rows to work on: those that have halted begin with the batch's puzzles."""
        answer, latent = self._begin(len(tokens))
        if carry is None or carry.answer.shape != answer.shape:
            zeros = torch.zeros(len(tokens), dtype=torch.int64, device=tokens.device)
            return Carry(answer, latent, zeros, zeros.bool(), tokens, labels)
        fresh = carry.halted
        row, place = fresh.view(-1, 1), fresh.view(-1, 1, 1)
        return Carry(
            torch.where(place, answer, carry.answer.to(answer.dtype)),
            torch.where(place, latent, carry.latent.to(answer.dtype)),
            torch.where(fresh, 0, carry.steps),
            fresh,
            torch.where(row, tokens, carry.tokens),
            torch.where(row, labels, carry.labels),
        )

    # -- the net ----------------------------------------------------------------------------

    def _divide(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Puzzle and solution (B, C), padding 0 and a character's id plus one."""
        numbered = targets + 1
        return numbered[:, : self.cells], numbered[:, self.cells :]

    def _starts(self) -> dict[str, Tensor]:
        return {"answer_start": self.answer_start, "latent_start": self.latent_start}

    def _begin(self, rows: int) -> tuple[Tensor, Tensor]:
        shape = (rows, self.settings.places, -1)
        answer, latent = (start.to(self.compute_dtype) for start in self._starts().values())
        return answer.expand(shape), latent.expand(shape)

    def _embed(self, tokens: Tensor) -> Tensor:
        """(B, P + C, D): the puzzle's vector, zeros, and the cells, times √D."""
        width, dtype = self.settings.width, self.compute_dtype
        cells = F.embedding(tokens, self.embedding.weight.to(dtype))
        first = self.puzzle.to(dtype).expand(len(tokens), 1, width)
        zeros = cells.new_zeros(len(tokens), self.prefix - 1, width)
        return math.sqrt(width) * torch.cat((first, zeros, cells), dim=1)

    def _improve(
        self, answer: Tensor, latent: Tensor, x: Tensor, *, grad: bool = False
    ) -> tuple[Tensor, Tensor]:
        """One supervision step; with ``grad`` its last cycle has gradients."""
        with torch.no_grad():
            for _ in range(self.settings.h_cycles - 1):
                answer, latent = self._cycle(answer, latent, x)
        with torch.set_grad_enabled(grad and torch.is_grad_enabled()):
            return self._cycle(answer, latent, x)

    def _cycle(self, answer: Tensor, latent: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(self.settings.l_cycles):
            latent = self._through(latent + (answer + x))
        return self._through(answer + latent), latent

    def _through(self, h: Tensor) -> Tensor:
        turn = self.turn_cosines, self.turn_sines
        for block in self.blocks:
            h = block(h, turn)
        return h

    def _logits(self, answer: Tensor) -> Tensor:
        logits: Tensor = self.head(answer)[:, self.prefix :]
        return logits


def normalise(h: Tensor) -> Tensor:
    """h / √(mean(h²) + 1e-5) over the last dimension, computed in float32."""
    wide = h.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + _EPS)).to(h.dtype)


def stablemax_nats(logits: Tensor, labels: Tensor) -> Tensor:
    """Stablemax cross-entropy of each cell (Prieto et al. 2025), float64.

    Args:
        logits: (B, C, V).
        labels: (B, C).
    """
    wide = logits.double()
    mass = torch.where(wide < 0, 1 / (1 - wide + _STABLE), wide + 1)
    share = mass / mass.sum(-1, keepdim=True)
    return -share.gather(-1, labels.unsqueeze(-1)).squeeze(-1).log()


def halts(belief: Tensor, steps: Tensor, chance: Tensor, settings: Settings) -> Tensor:
    """(B,) bool: the rows whose puzzle ends with this step.

    A row halts where ``belief``, the logit that its answer is right, is above 0, or at the last
    step. With probability ``halt_exploration`` it must have taken a number of steps before, drawn
    from 2 to ``halt_max_steps``.

    Args:
        chance: (B, 2 or more) in [0, 1): whether the row explores, and how long.
    """
    most = settings.halt_max_steps
    if most == 1:
        return torch.ones_like(steps, dtype=torch.bool)
    drawn = 2 + (chance[:, 1] * (most - 1)).floor().long()
    least = torch.where(chance[:, 0] < settings.halt_exploration, drawn, 0)
    return ((steps >= most) | (belief > 0)) & (steps >= least)


def chances(draws: RowSelection) -> Tensor:
    """(B, 3) float64 in [0, 1): each row's, however rows are dealt out to micro-batches."""
    drawn = np.random.default_rng([draws.seed, draws.group]).random((draws.of, 3))
    return torch.from_numpy(drawn[list(draws.rows)])


# Shuffles of a sudoku that keep it one: digits, rows within bands, bands, the same of columns, and
# transposition. They are the published ones. A puzzle has a fixed list of them, drawn from its own
# cells: the published code draws the list once and stores it.

_MASK = {bits: (1 << (64 - bits)) - 1 for bits in (27, 30, 31)}
_FACTORS = (-4658895280553007687, -7723592293110705685)
_STEP = -7046029254386353131


def shuffle(tokens: Tensor, labels: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """The ``number``-th shuffle of each puzzle and of its solution; 0 leaves it as it is.

    Args:
        tokens, labels: (B, C), the digit d as d + 1 and a blank as 1.
        number: (B,).
    """
    rows, cells = tokens.shape
    side = math.isqrt(cells)
    box = math.isqrt(side)
    places = torch.arange(cells, device=tokens.device)
    key = _mix((tokens * _mix(places * _STEP + 1)).sum(1)) + number * _STEP
    counters = torch.arange(1, 1 + 3 * side + 2 * box, device=tokens.device)
    drawn = _mix(key.unsqueeze(1) + counters * _FACTORS[0])
    digits, at_rows, at_columns, bands = drawn.split((side, side, side, 2 * box), dim=1)
    by_row = _lines(at_rows, bands[:, :box])
    by_column = _lines(at_columns, bands[:, box:])
    turned = (_mix(key) & 1).bool().view(rows, 1, 1)
    mapped = torch.cat((places.new_tensor([0, 1]).expand(rows, 2), 2 + _order(digits)), dim=1)

    def moved(grid: Tensor) -> Tensor:
        square = grid.view(rows, side, side)
        square = torch.where(turned, square.transpose(1, 2), square)
        square = square.gather(1, by_row.unsqueeze(2).expand_as(square))
        square = square.gather(2, by_column.unsqueeze(1).expand_as(square))
        made = mapped.gather(1, square.reshape(rows, cells))
        return torch.where((number == 0).unsqueeze(1), grid, made)

    return moved(tokens), moved(labels)


def _lines(drawn: Tensor, bands: Tensor) -> Tensor:
    """(B, n) a permutation of lines that keeps bands together."""
    rows, side = drawn.shape
    box = bands.shape[1]
    within = _order(drawn.view(rows, box, box))
    return (box * _order(bands).unsqueeze(2) + within).view(rows, side)


def _order(drawn: Tensor) -> Tensor:
    """A permutation along the last dimension."""
    return drawn.argsort(dim=-1, stable=True)


def _mix(value: Tensor) -> Tensor:
    """SplitMix64's finaliser (Steele et al. 2014) on int64: the same on every device."""
    for bits, factor in zip((30, 27), _FACTORS, strict=True):
        value = (value ^ ((value >> bits) & _MASK[bits])) * factor
    return value ^ ((value >> 31) & _MASK[31])


def _std(name: str, tensor: Tensor) -> float:
    if name.endswith("_start"):
        return 1.0
    if name == "puzzle" or name.startswith("halt."):
        return 0.0
    return float(tensor.shape[1] ** -0.5)
