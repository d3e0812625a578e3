"""Number formats: float32 weights always; products in the recipe's dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8": torch.bfloat16,
}
"""The types of all computation except the products that ``float8`` takes."""


class RejectedOption(NamedTuple):
    """A number format, or a kernel, that is not taken, and why."""

    name: str
    why: str


def autocast(dtype: str, device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """A factory of contexts in which products run in ``dtype``."""
    if dtype == "float32":
        return nullcontext
    return lambda: torch.autocast(device.type, dtype=DTYPES[dtype])


@dataclass
class LossScale:
    """Dynamic scaling for float16, whose smallest gradients would otherwise vanish.

    The loss is multiplied by ``scale`` and the gradients divided by it. A step whose gradients
    overflow is skipped and the scale halved; after ``GROW_AFTER`` good steps it doubles
    (Micikevicius et al. 2018). In other dtypes the scale is 1.
    """

    active: bool
    scale: float = 1.0
    good_steps: int = 0

    START = 2.0**16
    LEAST, MOST = 1.0, 2.0**24
    GROW_AFTER = 2000

    @classmethod
    def of(cls, dtype: str) -> LossScale:
        active = dtype == "float16"
        return cls(active, cls.START if active else 1.0)

    def accept(self, finite: bool) -> bool:
        """Takes note of a step's gradients; False means that the step is to be skipped.

        Raises:
            FloatingPointError: they are not finite, and no smaller scale can help.
        """
        if finite:
            self.good_steps += 1
            if self.active and self.good_steps % self.GROW_AFTER == 0:
                self.scale = min(2.0 * self.scale, self.MOST)
            return True
        self.good_steps = 0
        if not self.active:
            return False
        if self.scale <= self.LEAST:
            raise FloatingPointError("the gradients are not finite")
        self.scale /= 2.0
        return False

    def to_json(self) -> dict[str, Any]:
        return {"scale": self.scale, "good_steps": self.good_steps, "active": self.active}

    def load_json(self, data: Mapping[str, Any]) -> None:
        """Takes up what ``to_json`` gave; the scale of a training that had none says nothing."""
        if self.active and data.get("active", float(data["scale"]) != 1.0):
            self.scale, self.good_steps = float(data["scale"]), int(data["good_steps"])
