"""TRM beside a net of as much arithmetic without recursion: three seeds of each, on one text.

``make bench-control TEXT=…``: Shakespeare's text. What is trained, and its seeds, stand here and in
docs/bench/control.md, which were written before any of it was trained. The control has as many
blocks as TRM applies, each used once: its floating-point operations a step are TRM's, its
parameters several times as many.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from bench.launched import asked, launched
from bench.row import Row

SEEDS = (1, 2, 3)
STEPS = 800
RATES = (2e-3, 1e-2)
"""Of the control's matrices: the recipe's, which is low since TRM's blocks are used many times, and
one that suits blocks that are used once. The better of the two counts."""
_SETTINGS = {
    "batch": 4, "eval_every": 100, "eval_tokens": 32768, "save_every": 400, "log_every": 50,
}  # fmt: skip


def run() -> Iterator[Row]:
    """
    Raises:
        SystemExit: no text.
    """
    text, folder = asked("build/control")
    gains = []
    for seed in SEEDS:
        trm = train(seed, text, folder)
        controls = [train(seed, text, folder, rate) for rate in RATES]
        gains.append(100 * (1 - trm / min(controls)))
        told = f"{trm:.4f} bpb; the control " + ", ".join(
            f"{bpb:.4f} at {rate:g}" for bpb, rate in zip(controls, RATES, strict=True)
        )
        yield Row(f"seed {seed}: bits per byte saved", gains[-1], 0.0, "higher", "%", told)
    yield Row("median", statistics.median(gains), 0.0, "higher", "%", "")


def train(seed: int, text: Path, folder: Path, control_rate: float | None = None) -> float:
    """Bits per byte of the last evaluation of one training by ``launch local``, of TRM or, at a
    rate of its own, of the control; what a former call made is read again."""
    home = folder / (f"trm-{seed}" if control_rate is None else f"control-{control_rate:g}-{seed}")
    settings: dict[str, object] = {**_SETTINGS, "seed": seed}
    if control_rate is not None:
        settings |= {"control": "true", "matrix_lr": control_rate}
    lines = launched(home, "trm-tiny", "fast", text, STEPS, settings)
    last: float = next(line["val_bpb"] for line in reversed(lines) if line["kind"] == "eval")
    return last
