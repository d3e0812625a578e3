"""Which number format a plan counts with, where the machine is to find that out. Pure."""

from __future__ import annotations

from typing import NamedTuple

from trmcloud.core.catalog.hardware import GPUS, Gpu, HardwareRequest, LocalMachine
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import AUTO, FLOAT8, PhaseRecipe
from trmcloud.core.spec.spec import RunSpec

PAYS_FROM = 1_000_000_000
"""Parameters from which float8 is counted on: 8B gain a quarter on eight H100 (pytorch/ao), d26
(about 1B) 17 %, d12 loses (karpathy/nanochat). Below, a trial decides, and the plan hopes for
nothing."""


class Assumed(NamedTuple):
    dtype: str
    why: str
    """Empty where nothing was left open."""


def assumed_format(settings: PhaseRecipe, gpu: Gpu | None, *, on_gpu: bool = True) -> Assumed:
    """The format that ``settings`` are taken to be trained in on ``gpu``."""
    if settings.dtype == FLOAT8:
        return Assumed(FLOAT8, "as asked for")
    if settings.dtype != AUTO:
        return Assumed(settings.dtype, "")
    if not on_gpu:
        return Assumed("float32", "the fastest on a processor")
    if settings.sharding == "fsdp":
        return Assumed("bfloat16", "weights that are shared out over GPUs are not taken in float8")
    if gpu is None:
        return Assumed("bfloat16", "this GPU is in no table; what it has is seen on it")
    if not gpu.fp8_tflops:
        return Assumed("bfloat16", f"{gpu.name} has no float8")
    trial = "20 timed steps decide, for float8 where it is more than 1.03 × as fast"
    if settings.work().parameters < PAYS_FROM:
        return Assumed("bfloat16", f"float8 seldom pays below 1B parameters; {trial}")
    return Assumed(FLOAT8, f"it pays from about 1B parameters on; {trial}")


def needs_float8(spec: RunSpec) -> bool:
    """Whether float8 was asked for by name, and its products by a GPU's own units."""
    chosen = dict(spec.overrides)
    return chosen.get("dtype") == FLOAT8 and chosen.get("float8") != "emulated"


def refuse_float8(
    spec: RunSpec, request: HardwareRequest | None, local: LocalMachine | None
) -> None:
    """
    Raises:
        UsageError: it was asked for, and the hardware that was asked for has none.
    """
    if request is None or not needs_float8(spec):
        return
    skus = request.skus
    if request.is_local:
        if local is not None and not local.gpus and dict(spec.overrides).get("float8") == "native":
            return  # slowly, and by name
        skus = (local.gpu_sku or "",) if local is not None and local.gpus else ()
        if skus and skus[0] not in GPUS:
            return  # in no table: the trainer sees
    if not any(GPUS[sku].fp8_tflops for sku in skus):
        what = request.text if not request.is_local else "this machine"
        raise UsageError(
            f"{what} has no float8",
            next_step="--precision auto takes the best that there is; H100, H200, B200, L40S, "
            "RTX4090 and L4 have float8",
        )
