"""Tables of trainings that others published: what a setting costs and reaches.

LCBench (Zimmer, Lindauer and Hutter 2021) as the surrogate that YAHPO Gym ships: 34 tasks, seven
settings, 52 epochs, with time and validation accuracy at each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from trmcloud.core.sweep.samplers import draw
from trmcloud.core.sweep.space import Point, Space, read_words

EPOCHS = 52
LCBENCH_SHA256 = "b45c0d85ae39abf8820c8bea5ac82f415763afcbaf3b725e36af452b09cb6dcd"
"""Of ``lcbench/model.onnx`` of slds-lmu/yahpo_data at efdab90."""
LCBENCH_SPACE = (
    "batch_size=logint:16,512",
    "learning_rate=log:1e-4,1e-1",
    "momentum=uniform:0.1,0.99",
    "weight_decay=uniform:1e-5,1e-1",
    "num_layers=int:1,5",
    "max_units=logint:64,1024",
    "max_dropout=uniform:0,1",
)
_CODES: Mapping[str, int] = {
    "126025": 1, "126026": 2, "126029": 3, "146212": 4, "167104": 6, "167149": 7, "167152": 8,
    "167161": 9, "167168": 10, "167181": 11, "167184": 12, "167185": 13, "167190": 14,
    "167200": 15, "167201": 16, "168329": 17, "168330": 18, "168331": 19, "168335": 20,
    "168868": 21, "168908": 22, "168910": 23, "189354": 24, "189862": 25, "189865": 26,
    "189866": 27, "189873": 28, "189905": 29, "189906": 30, "189908": 31, "189909": 32,
    "34539": 33, "3945": 34, "7593": 35,
}  # fmt: skip
"""Of the tasks, as the surrogate's ``encoding.json`` numbers them."""
LCBENCH_TASKS = tuple(_CODES)


class Lcbench:
    """The curves of one task. A curve has, for each epoch from 1, the seconds until its end and
    the validation accuracy in percent."""

    def __init__(self, session: Any, task: str) -> None:
        self._session, self.task = session, task
        self.space: Space = read_words(LCBENCH_SPACE)
        self._kept: dict[Point, tuple[list[float], list[float]]] = {}

    def curve(self, point: Point) -> tuple[list[float], list[float]]:
        found = self._kept.get(point)
        if found is None:
            values = [float(value) for _, value in point]
            rows = np.empty((EPOCHS, 8), dtype=np.float32)
            rows[:, 0] = np.arange(1, EPOCHS + 1)
            rows[:, 1:] = values
            made = self._ask(rows)
            # Of a surrogate: later epochs may seem to end earlier, which no clock does.
            seconds = np.maximum.accumulate(np.maximum(made[:, 0], 1e-3))
            found = seconds.tolist(), made[:, 1].tolist()
            self._kept[point] = found
        return found

    def forget(self) -> None:
        """Free the curves that are kept."""
        self._kept.clear()

    def reference(self, count: int) -> tuple[float, float, float]:
        """Return the best and the median final accuracy, and the mean seconds of a whole training,
        of ``count`` random settings."""
        rows = np.empty((count, 8), dtype=np.float32)
        rows[:, 0] = EPOCHS
        for number in range(count):
            shares = [draw(7, number, place) for place in range(7)]
            rows[number, 1:] = [float(value) for _, value in self.space.point(shares)]
        made = self._ask(rows)
        return float(made[:, 1].max()), float(np.median(made[:, 1])), float(made[:, 0].mean())

    def _ask(self, rows: Any) -> Any:
        tasks = np.full((len(rows), 1), _CODES[self.task], dtype=np.int32)
        return self._session.run(None, {"x_cat": tasks, "x_cont": rows})[0]


def require_published(path: Path, sha256: str) -> None:
    """
    Raises:
        ValueError: the file is not the published one.
    """
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise ValueError(f"{path} is another file: SHA-256 {found}")


def open_lcbench(path: Path) -> Any:
    """
    Raises:
        ValueError: the file is not the published one.
    """
    require_published(path, LCBENCH_SHA256)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options)
