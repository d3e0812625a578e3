"""In which number format products are taken: the first rung of a ladder that the machine has.

    float8 by torchao, scaled by the tensor → by the row → by ``torch._scaled_mm`` alone
    → bfloat16 → float16 → float32

A rung is proven on this very device, by one small layer forward and backward beside float32's, and
taken only where every rank has it. Each that is left is told of with its reason. ``auto`` goes down
the whole ladder; a format that was asked for by name is taken, or refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from model.distributed import World
from model.float8 import layer_of
from model.precision import Left, autocast
from trmcloud.core.errors import UsageError
from trmcloud.core.plain_text import one_line
from trmcloud.core.spec.settings import AUTO, FLOAT8, FLOAT8_BACKENDS, PhaseRecipe

BACKENDS = tuple(each for each in FLOAT8_BACKENDS if each not in ("any", "emulated"))
"""Of float8, in the ladder's order."""
PLAIN = ("bfloat16", "float16", "float32")
BESIDE_FLOAT8 = "bfloat16"
"""What everything beside float8's own products is computed in."""
_FIRST_FLOAT8, _FIRST_BFLOAT16 = (8, 9), (8, 0)
"""Compute capabilities."""
_ROWS, _DEPTH, _COLUMNS = 32, 64, 48
_OFF = {"float32": 0.02, "float16": 0.02, "bfloat16": 0.05}
_FLOAT8_OFF = 0.25
"""Share of its size by which a rung's product or gradient may miss float32's; e5m2 has two bits."""
_LONGEST_WHY = 200


@dataclass(frozen=True)
class Chip:
    """A device by what it multiplies."""

    name: str
    on_gpu: bool
    capability: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, device: torch.device) -> Chip:
        if device.type != "cuda":
            return cls("this processor", on_gpu=False)
        properties = torch.cuda.get_device_properties(device)
        return cls(properties.name, True, (properties.major, properties.minor))

    def lacks(self, rung: str) -> str:
        """Why it has no such products; empty where it has."""
        needed = {FLOAT8: _FIRST_FLOAT8, "bfloat16": _FIRST_BFLOAT16}.get(rung, (0, 0))
        if self.on_gpu and self.capability < needed:
            own, least = (".".join(map(str, each)) for each in (self.capability, needed))
            return f"{self.name} has compute capability {own}, and {rung} begins at {least}"
        if not self.on_gpu and rung == FLOAT8:
            return f"{self.name} would only emulate it"
        return ""

    def avoids(self, rung: str) -> str:
        """Why ``auto`` leaves out what it has; empty where it does not."""
        if not self.on_gpu and rung != "float32":
            return f"{self.name} is slower in it than in float32"
        return ""


@dataclass(frozen=True)
class Descent:
    """How far down the ladder it is: ``float8`` is the backend that could be taken, empty where
    there is none; ``plain`` the format for everything else."""

    float8: str
    plain: str
    left: tuple[Left, ...] = ()


Try = Callable[[str], str]
"""Why a rung is not to be had; empty where every rank has it."""


def descend(settings: PhaseRecipe, chip: Chip, attempt: Try) -> Descent:
    """The rungs that ``settings`` may be trained on, of those that ``attempt`` finds.

    Raises:
        UsageError: the format that was asked for by name is not to be had, or none at all is.
    """
    asked, backend = settings.dtype, settings.float8
    left: list[Left] = []

    def first(rungs: tuple[str, ...], reason: Try) -> str:
        for rung in rungs:
            if not (why := reason(rung)):
                return rung
            left.append(Left(rung, why))
        return ""

    def plain_or_none(rung: str) -> str:
        return chip.lacks(rung) or chip.avoids(rung) or attempt(rung)

    float8 = ""
    if asked in (AUTO, FLOAT8):
        # A processor takes the products of ``native`` as well, where that is asked for by name.
        by_name = backend == "emulated" or (backend != "any" and not chip.on_gpu)
        if by_name or first((FLOAT8,), chip.lacks):
            float8 = first(BACKENDS if backend == "any" else (backend,), attempt)
    if asked == FLOAT8:
        if not float8:
            raise UsageError(f"float8 is not to be had: {_told(left)}", next_step=_instead(chip))
        return Descent(float8, BESIDE_FLOAT8, tuple(left))
    if asked == AUTO:
        plain = first(PLAIN, plain_or_none)
        if not plain:
            raise UsageError(f"no number format is to be had: {_told(left)}")
        return Descent(float8 if plain == BESIDE_FLOAT8 else "", plain, tuple(left))
    if why := chip.lacks(asked) or attempt(asked):
        raise UsageError(f"{asked} is not to be had: {why}", next_step="--precision auto")
    return Descent("", asked)


def proven(device: torch.device, world: World, prove: Callable[[str, torch.device], None]) -> Try:
    """What ``prove`` finds, all ranks together; each rung is tried once."""
    known: dict[str, str] = {}

    def attempt(rung: str) -> str:
        if rung not in known:
            why = ""
            try:
                prove(rung, device)
            except Exception as error:  # of an import, a kernel or a driver: the next rung may do
                why = reason_of(error)
            [failed] = world.largest([bool(why)])
            known[rung] = why or ("another rank has it not" if failed else "")
        return known[rung]

    return attempt


def prove(rung: str, device: torch.device) -> None:
    """One layer in this format, forward and backward, beside float32's.

    Raises:
        RuntimeError: it is too far off. And whatever a missing package or kernel raises.
    """
    generator = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randn(rows, _DEPTH, generator=generator).to(device) for rows in (_ROWS, _COLUMNS)
    )
    wanted = _products(x, nn.Parameter(weight), "float32", device)
    made = _products(x, nn.Parameter(weight), rung, device)
    allowed = _OFF.get(rung, _FLOAT8_OFF)
    for name, own, right in zip(
        ("product", "gradient", "weights' gradient"), made, wanted, strict=True
    ):
        off = float((own.float() - right).norm() / right.norm())
        if not off <= allowed:  # NaN is none
            raise RuntimeError(f"its {name} is {off:.0%} off float32's")


def _products(
    x: torch.Tensor, weight: nn.Parameter, rung: str, device: torch.device
) -> tuple[torch.Tensor, ...]:
    x = x.clone().requires_grad_()
    layer: nn.Linear = nn.Linear(_DEPTH, _COLUMNS, bias=False, device=device)
    layer.weight = weight
    if rung not in PLAIN:
        layer = layer_of(rung)(layer)
    with autocast(rung if rung in PLAIN else BESIDE_FLOAT8, device)():
        made = layer(x)
    F.gelu(made.float()).sum().backward()
    assert x.grad is not None
    assert weight.grad is not None
    return made.detach(), x.grad, weight.grad


def reason_of(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed"
    told = one_line(str(error).strip().partition("\n")[0]) or type(error).__name__
    return told[:_LONGEST_WHY]


def _told(left: list[Left]) -> str:
    return "; ".join(f"{each.name}: {each.why}" for each in left)


def _instead(chip: Chip) -> str:
    if chip.on_gpu:
        return "--precision auto takes the best that this GPU has"
    return "--precision auto; --set float8=emulated tries float8's arithmetic on a processor"
