"""Which number format a training takes: the ladder, the trial, and the descent."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from model.families.protocol import LanguageModel, Objective
from model.machine.distributed import World, skip_reduction
from model.machine.precision import RejectedOption, autocast
from model.machine.telemetry import Clock
from model.training.checkpoint import FoundCheckpoint
from model.training.float8 import TILE, convert_layers, layer_of, within
from model.training.landing import Limits
from model.training.optim import Optimizer
from model.training.sharding import is_sharded
from model.training.stepping import make_dummy_batch
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import AUTO, FLOAT8, FLOAT8_BACKENDS, PhaseRecipe
from trmcloud.core.text import one_line

# In which number format products are taken: the first rung of a ladder that the machine has.
#
#     float8 by torchao, scaled by the tensor → by the row → by ``torch._scaled_mm`` alone
#     → bfloat16 → float16 → float32
#
# A rung is proven on this very device, by one small layer forward and backward beside float32's,
# and taken only where every rank has it. Each that is left is told of with its reason. ``auto``
# goes down the whole ladder; a format that was asked for by name is taken, or refused.

BACKENDS = tuple(each for each in FLOAT8_BACKENDS if each not in ("any", "emulated"))
"""Of float8, in the ladder's order."""
PLAIN = ("bfloat16", "float16", "float32")
BESIDE_FLOAT8 = "bfloat16"
"""The format for everything beside float8's own products."""
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
            return f"{self.name} has compute capability {own}, but {rung} needs {least}"
        if not self.on_gpu and rung == FLOAT8:
            return f"{self.name} could only emulate it"
        return ""

    def avoids(self, rung: str) -> str:
        """Why ``auto`` leaves out what it has; empty where it does not."""
        if not self.on_gpu and rung != "float32":
            return f"{self.name} is slower with it than with float32"
        return ""


@dataclass(frozen=True)
class FormatChoice:
    """The place on the ladder: ``float8`` is the backend that could be taken, empty where there is
    none; ``plain`` the format for everything else."""

    float8: str
    plain: str
    left: tuple[RejectedOption, ...] = ()


Try = Callable[[str], str]
"""Why a rung is not to be had; empty where every rank has it."""


def choose_format(settings: PhaseRecipe, chip: Chip, attempt: Try) -> FormatChoice:
    """The rungs that ``settings`` may be trained on, of those that ``attempt`` finds.

    Raises:
        UsageError: the format that was asked for by name is not to be had, or none at all is.
    """
    asked, backend = settings.dtype, settings.float8
    left: list[RejectedOption] = []

    def first(rungs: tuple[str, ...], reason: Try) -> str:
        for rung in rungs:
            if not (why := reason(rung)):
                return rung
            left.append(RejectedOption(rung, why))
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
            raise UsageError(f"float8 is not available: {_told(left)}", next_step=_instead(chip))
        return FormatChoice(float8, BESIDE_FLOAT8, tuple(left))
    if asked == AUTO:
        plain = first(PLAIN, plain_or_none)
        if not plain:
            raise UsageError(f"no number format is available: {_told(left)}")
        return FormatChoice(float8 if plain == BESIDE_FLOAT8 else "", plain, tuple(left))
    if why := chip.lacks(asked) or attempt(asked):
        raise UsageError(f"{asked} is not available: {why}", next_step="--precision auto")
    return FormatChoice("", asked)


def make_prover(
    device: torch.device, world: World, prove: Callable[[str, torch.device], None]
) -> Try:
    """Return a function that tries a rung with ``prove``, all ranks together; each rung is tried
    once."""
    known: dict[str, str] = {}

    def attempt(rung: str) -> str:
        if rung not in known:
            why = ""
            try:
                prove(rung, device)
            except Exception as error:  # of an import, a kernel or a driver: the next rung may do
                why = reason_of(error)
            [failed] = world.largest([bool(why)])
            known[rung] = why or ("another rank does not have it" if failed else "")
        return known[rung]

    return attempt


def prove_rung(rung: str, device: torch.device) -> None:
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
            raise RuntimeError(f"its {name} differs from float32's by {off:.0%}")


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


def _told(left: list[RejectedOption]) -> str:
    return "; ".join(f"{each.name}: {each.why}" for each in left)


def _instead(chip: Chip) -> str:
    if chip.on_gpu:
        return "--precision auto uses the best format of this GPU"
    return "--precision auto; --set float8=emulated tries float8's arithmetic on a CPU"


# Whether float8 pays: some steps with it beside some without, before the first that counts.
#
# The steps are whole ones (every micro-batch, the gradients' reduction and clipping, the
# optimizer's update) on made-up ids and at a rate of 0, so that they change nothing but the
# optimizer's averages, which the caller makes anew. They are taken on the budget's clock, and
# only where they are a small part of what is left. Rank 0's verdict on the slowest rank's times
# holds for all, and goes into every checkpoint's manifest: a run that is resumed on such a GPU
# takes the same.

STEPS = 20
PAYS = 1.03
"""Times bfloat16's speed, above which float8 is taken."""
_WARM = 2
"""Passes before those that are timed: the first compiles."""
_SHARE = 0.05
"""Of the steps, or of the seconds, that are left: a trial takes no more."""
EXTRA = "precision"
"""In a manifest: the decision."""
_US = 1e6


@dataclass(frozen=True)
class Decision:
    """The number format that a run takes its products in, and why."""

    asked: str
    dtype: str
    backend: str = ""
    """Of float8."""
    chip: str = ""
    why: str = ""
    plain_s: float | None = None
    """A step without float8 in the trial; None: there was none."""
    float8_s: float | None = None

    @property
    def words(self) -> str:
        """``float8 (native)``."""
        return f"{self.dtype} ({self.backend})" if self.backend else self.dtype

    @property
    def is_told(self) -> bool:
        """Whether there was anything to decide."""
        return self.asked in (AUTO, FLOAT8)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Decision:
        """Raises: TypeError, ValueError, AttributeError: not what ``to_json`` gave."""
        made = cls(**{str(key): value for key, value in data.items()})
        if not all(isinstance(each, str) for each in (made.asked, made.dtype, made.backend)):
            raise ValueError("the names in a decision must be text")
        return made


@dataclass(frozen=True)
class Trial:
    """The objects that the steps of a trial are taken with."""

    model: LanguageModel
    together: nn.Module
    optimizer: Optimizer
    settings: PhaseRecipe
    """Those of the plain format."""
    world: World
    monotonic: Callable[[], float]

    def step_s(self, steps: int = STEPS) -> float:
        """Median seconds of a step, of the slowest rank.

        Raises:
            FloatingPointError: its gradients are not finite.
        """
        for _ in range(_WARM):
            self._step()
        times = []
        for _ in range(steps):
            began = self._now()
            norm = self._step()
            times.append(self._now() - began)
        [slowest] = self.world.largest([round(statistics.median(times) * _US)])
        if not math.isfinite(float(norm)):
            raise FloatingPointError("its gradients are not finite")
        return max(slowest, 1) / _US

    def _now(self) -> float:
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)
        return self.monotonic()

    def _step(self) -> torch.Tensor:
        settings, world = self.settings, self.world
        cast, batch = (
            autocast(settings.dtype, world.device),
            make_dummy_batch(settings, world.device),
        )
        for micro in range(settings.accumulation):
            last = micro == settings.accumulation - 1
            with nullcontext() if last else skip_reduction(self.together), cast():
                made: Objective = self.together(*batch)
                (made.loss / settings.accumulation).backward()
        norm = self.optimizer.clip(settings.grad_clip)
        if torch.isfinite(norm):  # else not even a rate of 0 would leave the weights as they are
            self.optimizer.step(0, 0.0)
        self.optimizer.zero_grad()
        return norm


def decide(
    settings: PhaseRecipe,
    chip: str,
    again: Callable[[], FormatChoice],
    tried: Try,
    trial: Trial,
    *,
    steps_left: int,
    left_s: float,
    recorded: Decision | None,
    failed: Callable[[str, str], None],
) -> Decision:
    """A collective call.

    Args:
        settings: as they were asked for.
        again: goes down the ladder; once more after ``failed(backend, why)``, further down.
        tried: why one of its rungs is not to be had.
        left_s: seconds until the deadline, on rank 0; infinite where there is none.
        recorded: of the checkpoint that is gone on from, on rank 0.
    """
    descent = again()
    made = Decision(settings.dtype, descent.plain, chip=chip)
    if settings.dtype != AUTO:
        return replace(made, dtype=settings.dtype, backend=descent.float8, why="asked for")
    if not descent.float8:
        return replace(made, why="no higher rung is available")
    told = trial.world.told(_as_bytes(recorded if trial.world.is_main else None))
    before = _of_bytes(told)
    is_like = before is not None and (before.asked, before.chip) == (AUTO, chip)
    if before is not None and is_like and not (before.backend and tried(before.backend)):
        return before
    plain_s = trial.step_s(steps=1)
    whole_s = 2 * (STEPS + _WARM) * plain_s
    most_s = _SHARE * min(left_s, steps_left * plain_s)
    [too_long] = trial.world.largest([trial.world.is_main and whole_s > most_s])
    if too_long:
        why = (
            f"a trial of float8 would take {whole_s:.0f} s, more than {_SHARE:.0%} of the time left"
        )
        return replace(made, why=why)
    plain_s = trial.step_s()
    while descent.float8:
        try:
            with within(trial.model, descent.float8):
                float8_s = trial.step_s()
        except Exception as error:  # of a kernel or a compiler: the next backend may do
            trial.optimizer.zero_grad()
            failed(descent.float8, reason_of(error))
            descent = again()
            continue
        return _verdict(made, descent.float8, plain_s, float8_s)
    return replace(made, why="the trial of float8 failed", plain_s=plain_s)


def _verdict(made: Decision, backend: str, plain_s: float, float8_s: float) -> Decision:
    times = plain_s / float8_s
    told = (
        f"{times:.3f} × {made.dtype}'s speed over {STEPS} steps ({float8_s:.3f} s, {plain_s:.3f} s)"
    )
    made = replace(made, plain_s=plain_s, float8_s=float8_s)
    if times > PAYS:
        return replace(made, dtype=FLOAT8, backend=backend, why=told)
    return replace(made, why=f"float8 ({backend}) has {told}; it must have more than {PAYS}")


def read_decision(checkpoints: Iterable[FoundCheckpoint]) -> Decision | None:
    """Return the number format decided in the newest of them; None where that is unknown."""
    newest = max(checkpoints, key=lambda each: each.manifest.step, default=None)
    content = newest.manifest.extra.get(EXTRA) if newest is not None else None
    try:
        return Decision.from_json(content) if content else None
    except (TypeError, ValueError, AttributeError):
        return None


def _as_bytes(decision: Decision | None) -> bytes:
    return json.dumps(decision.to_json()).encode() if decision is not None else b""


def _of_bytes(content: bytes) -> Decision | None:
    return Decision.from_json(json.loads(content)) if content else None


# The number format of one attempt: found before the model is built, settled before it is trained.
#
# Before: how far down the ladder this machine is. After: whether float8 is taken, which a trial
# decides where nobody has; then the model's layers are put into it.


class NumberFormat:
    """``settings`` are the asked ones in the format that is known so far; ``descent`` tells what
    was left."""

    def __init__(
        self,
        asked: PhaseRecipe,
        world: World,
        *,
        chip: Chip | None = None,
        prove: Callable[[str, torch.device], None] | None = None,
    ) -> None:
        """A collective call.

        Raises:
            UsageError: no rank, or not every one, has what was asked for.
        """
        self._asked, self._world = asked, world
        self._chip = chip or Chip.of(world.device)
        self._attempt = make_prover(world.device, world, prove or prove_rung)
        self._failed: dict[str, str] = {}
        self.descent = self._descend()
        self.settings = replace(asked, dtype=self.descent.plain)

    def settle(
        self,
        model: LanguageModel,
        together: nn.Module,
        optimizer: Optimizer,
        checkpoints: Sequence[FoundCheckpoint],
        limits: Limits,
        clock: Clock,
    ) -> Decision:
        """Decides, and puts the model into float8 where that was decided. A collective call.

        The optimizer's averages, and weights of a fresh model, are to be made anew after it.

        Args:
            checkpoints: the run's own, on rank 0.

        Raises:
            UsageError: float8 was asked for, and the model has no layer for it.
        """
        newest = max((each.manifest.step for each in checkpoints), default=0)
        deadline_at = limits.deadline_at
        decision = decide(
            self._asked,
            self._chip.name,
            self._descend,
            self._tried,
            Trial(model, together, optimizer, self.settings, self._world, clock.monotonic),
            steps_left=self._asked.steps - newest,
            left_s=math.inf if deadline_at is None else deadline_at - clock.epoch(),
            recorded=read_decision(checkpoints),
            failed=self._failed.__setitem__,
        )
        self.descent = self._descend()
        if decision.dtype == FLOAT8:
            try:
                convert_layers(model, decision.backend)
            except ValueError as error:
                raise UsageError(
                    f"float8 is not available: {error}", next_step="--precision bf16"
                ) from None
            self.settings = replace(self.settings, dtype=FLOAT8)
        return decision

    def _descend(self) -> FormatChoice:
        return choose_format(self._asked, self._chip, self._tried)

    def _tried(self, rung: str) -> str:
        if rung in self._failed:
            return self._failed[rung]
        if (rung in BACKENDS or rung == "emulated") and is_sharded(self._asked, self._world):
            return "weights that are sharded over GPUs are not supported"
        tokens = self._asked.batch * self._asked.sequence
        if (rung in BACKENDS or rung == "emulated") and tokens % TILE:
            return f"a micro-batch of {tokens} tokens is not a multiple of {TILE}"
        return self._attempt(rung)
