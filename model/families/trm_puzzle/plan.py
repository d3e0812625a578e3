"""The settings and the work of Samsung's Tiny Recursive Model on puzzles.

A row is a puzzle of C cells and its solution, so a sequence is 2·C tokens; C + P places go through
the net, P of them before the puzzle (``prefix``). With depth L, width D, H and N cycles, one step
applies each of the L blocks H·(N + 1) times, and the last N + 1 of these with gradients: in forward
passes that is (H + 2)·(N + 1) per block, where a backward pass counts two.
"""

from __future__ import annotations

import math
from typing import ClassVar, Mapping, Sequence

from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import ATAN2, AUTO, FLOAT8, PhaseRecipe, check_rotary
from trmcloud.core.spec.work import BACKWARD_FACTOR, MASKED_SHARE, Matrix, Work
from trmcloud.core.values import dataclass

MLP, ATTENTION = "mlp", "attention"
ROWS = "bestfit"
"""Every puzzle has 2·C characters and fills its row, so nothing is cut or padded."""


@dataclass(frozen=True, kw_only=True)
class _UpdateKeys:
    optimizer: str = "adamw"


@dataclass(frozen=True)
class Settings(_UpdateKeys, PhaseRecipe):
    depth: int = 2
    width: int = 512
    head_dim: int = 64
    vocab_size: int = 11
    sequence: int = 162
    mixer: str = MLP
    """mlp: places are mixed by an MLP over them (``mlp_t``); attention: by self-attention with
    rotary positions."""
    h_cycles: int = 3
    """Updates of the answer in one supervision step; only the last has gradients."""
    l_cycles: int = 6
    """Updates of the latent state before each of them."""
    halt_max_steps: int = 16
    """Supervision steps of a puzzle at most; an evaluation takes as many."""
    halt_exploration: float = 0.1
    """The probability that a puzzle must take a drawn number of steps before it may halt."""
    prefix: int = 16
    """Places before the puzzle. The first has a learned vector, the others are zero."""
    hidden_multiple: int = 256
    """The hidden width of an MLP, 8/3 of its input, is rounded up to a multiple of it."""
    augmentations: int = 1000
    """Shuffles of each training puzzle, beside the puzzle itself; 0: none."""
    atan2: bool = True
    """AdamW's step is atan2(m, √v) instead of m / (√v + eps) (Everett et al. 2024)."""
    rows: str = ROWS

    file_layout: ClassVar[str] = "puzzles"
    may_be_slower: ClassVar[tuple[float, str]] = (
        4.2,
        "not timed on a GPU; sudoku took its authors 4.2 × as long on one L40S",
    )
    why_not_sharded: ClassVar[str] = (
        "its blocks are applied many times, and would be gathered each time"
    )
    positive: ClassVar[tuple[str, ...]] = (
        "h_cycles",
        "l_cycles",
        "halt_max_steps",
        "prefix",
        "hidden_multiple",
    )
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"mixer": (MLP, ATTENTION)}
    decisive: ClassVar[tuple[str, ...]] = (
        "mixer",
        "h_cycles",
        "l_cycles",
        "halt_max_steps",
        "halt_exploration",
        "prefix",
        "augmentations",
        "atan2",
    )
    shape_keys: ClassVar[tuple[str, ...]] = ("mixer", "prefix", "hidden_multiple", "sequence")
    reached: ClassVar[Mapping[str, str]] = {
        "sudoku": "87.4 % of test puzzles, as published",
        "sudoku-4x4": "99.9 % of held-out puzzles (ours)",
    }

    @property
    def update_rules(self) -> str:  # type: ignore[override]
        return ATAN2 if self.atan2 else PhaseRecipe.update_rules

    @property
    def varies_rows(self) -> bool:
        return self.augmentations > 0

    @property
    def cells(self) -> int:
        return self.sequence // 2

    @property
    def places(self) -> int:
        """The places of a row that go through the net."""
        return self.prefix + self.cells

    @property
    def dummy_row(self) -> Sequence[int]:
        # Any other ids are no puzzle with its solution, and some have no place in the table.
        return [0] * (1 + self.cells) + [1] * self.cells

    @property
    def carried_bytes(self) -> int:
        """Bytes that a training keeps from step to step: answer and latent state of every place."""
        size = 4 if self.dtype == "float32" else 2
        return 2 * self.batch * self.accumulation * self.places * self.width * size

    def check_shape(self, where: str) -> None:
        check_rotary(self.head_dim, where)
        box = math.isqrt(math.isqrt(self.cells))
        if self.sequence != 2 * box**4 or box < 2:
            raise UsageError(
                f"a sequence of {self.sequence} is no sudoku and its solution",
                where=where,
                next_step="--set sequence=162 for 9 × 9, sequence=32 for 4 × 4",
            )
        if self.vocab_size != box**2 + 2:
            raise UsageError(
                f"a sudoku of {self.cells} cells has {box**2} digits, a blank and a padding: "
                f"vocab_size must be {box**2 + 2}",
                where=where,
                next_step=f"--set vocab_size={box**2 + 2}",
            )
        for name, least, most in (("halt_exploration", 0.0, 1.0), ("augmentations", 0, 1 << 20)):
            if not least <= getattr(self, name) <= most:
                raise UsageError(f"{name} must be from {least:g} to {most:g}", where=where)
        if self.dtype in (FLOAT8, AUTO):
            raise UsageError(
                f"{self.family} does not train in {self.dtype}",
                where=where,
                next_step="--set dtype=bfloat16",
            )
        if self.optimizer != "adamw":
            raise UsageError(
                f"{self.family} has no matrices for Muon: its update is AdamW's",
                where=where,
                next_step="--set optimizer=adamw",
            )

    def check_rows(self, where: str) -> None:
        if self.rows != ROWS:
            raise UsageError(
                f"{self.family} takes one puzzle a row, which is rows={ROWS}",
                where=where,
                next_step=f"--set rows={ROWS}",
            )

    def hidden(self, size: int) -> int:
        """The hidden width of a SwiGLU over ``size`` values: 8/3 of it, rounded up."""
        return -(-round(4 * size * 2 / 3) // self.hidden_multiple) * self.hidden_multiple

    def work(self) -> Work:
        width, places, hidden = self.width, self.places, self.hidden(self.width)
        across = self.hidden(places)
        # Values that a weight of the mixing MLP meets, per place: one for each channel.
        if self.mixer == MLP:
            mixing: tuple[Matrix, ...] = (
                Matrix(2 * across, places, 1),
                Matrix(places, across, 1),
            )
            mixed = 3.0 * across * width
        else:
            mixing = (Matrix(3 * width, width, 1), Matrix(width, width, 1))
            mixed = 4.0 * width * width
        cycles = self.l_cycles + 1
        # The share of a training's FLOPs that a forward pass of all cycles would stand for.
        applied = self.depth * cycles * (self.h_cycles - 1 + BACKWARD_FACTOR) / BACKWARD_FACTOR
        positions = places / self.sequence
        square = 0.0 if self.mixer == MLP else 4.0 * places * width
        return Work(
            layers=self.depth,
            matrices=(*mixing, Matrix(2 * hidden, width, 1), Matrix(width, hidden, 1)),
            # The special id is no token of the model: padding has its place in the table.
            table_parameters=(2 * self.vocab_size + 3) * width + 2,
            block_applications=self.depth * cycles,
            positions=positions,
            head_applications=0.5,
            matmul_flops=2.0 * (mixed + 3.0 * hidden * width) * applied * positions,
            attention_flops=square * applied * positions,
            head_flops=float(self.vocab_size * width),
            mask_share=MASKED_SHARE,
            mlp_values=3.0 * hidden / width,
            mlp_matrices=3,
            kv_share=1.0,
            value_layers=0,
        )
