"""Hardware that somebody owns against what is rented: power for money, hours for hours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trmcloud.core.catalog.hardware import LOCAL, LocalMachine, find_gpu, parse_hardware
from trmcloud.core.errors import DoesNotFit, UsageError
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.values import dataclass, replace

if TYPE_CHECKING:
    from trmcloud.app.planning import Planner

HOST_W = 150
"""The power of a machine beside its GPUs: board, processor, disks, fan and losses."""
_CPUS_PER_GPU, _RAM_GB_PER_GPU = 8, 64.0
_MOST_PER_KWH = Usd(10)


@dataclass(frozen=True)
class OwnHardware:
    """The cost of a plan on one's own machine, compared with renting.

    ``rented`` is the plan's recommendation where it is the quicker one, else None; ``dearer`` is
    what it costs beyond the power, ``sooner_h`` how much earlier it is done.
    """

    hardware: str
    watts: int
    per_kwh: Usd
    candidate: Candidate
    rented: Candidate | None = None

    @property
    def per_hour(self) -> Usd:
        """Of power."""
        return self.candidate.rate

    @property
    def dearer(self) -> Usd:
        assert self.rented is not None
        return self.rented.cost_p50 - self.candidate.cost_p50

    @property
    def sooner_h(self) -> float:
        assert self.rented is not None
        return self.candidate.hours.p50 - self.rented.hours.p50

    @property
    def worth_from(self) -> Usd:
        """The value of an hour from which renting is the better: 0 where it is the cheaper, too."""
        return Usd.from_micros(max(0, round(self.dearer.micros / self.sooner_h)))

    @property
    def rent_per_own_hour(self) -> Usd:
        """The rent for the training that an hour on one's own machine does."""
        assert self.rented is not None
        return Usd.from_micros(round(self.rented.cost_p50.micros / self.candidate.hours.p50))

    def to_json(self) -> dict[str, Any]:
        rented = None
        if self.rented is not None:
            rented = {
                "hardware": self.rented.hardware,
                "dearer_usd": float(self.dearer),
                "sooner_hours": self.sooner_h,
                "worth_from_usd_per_hour": float(self.worth_from),
                "rent_per_own_hour_usd": float(self.rent_per_own_hour),
            }
        hours = self.candidate.hours
        return {
            "hardware": self.hardware,
            "watts": self.watts,
            "usd_per_kwh": float(self.per_kwh),
            "usd_per_hour": float(self.per_hour),
            "hours": {"p10": hours.p10, "p50": hours.p50, "p90": hours.p90},
            "power_usd": float(self.candidate.cost_p50),
            "against": rented,
        }


def own_hardware(
    planner: Planner, spec: RunSpec, plan: Plan, hardware: str, per_kwh: Usd | None
) -> OwnHardware:
    """``plan``'s training on ``hardware`` of one's own (``RTX3090``, ``2xRTX4090``) at ``per_kwh``.

    Its GPUs draw their board power, the machine ``HOST_W`` beside that.

    Raises:
        UsageError: hardware that cannot be one machine, or no sane price of power.
        DoesNotFit: it has too little memory.
    """
    if per_kwh is None:
        raise UsageError("--own needs a price of power", next_step="--kwh 0.30 (USD)")
    if not Usd(0) <= per_kwh <= _MOST_PER_KWH:
        raise UsageError(
            f"--kwh {per_kwh} is no price of a kilowatt-hour", next_step="--kwh 0.30 (USD)"
        )
    text = hardware if hardware[:1].isdigit() and "x" in hardware.lower() else f"1x{hardware}"
    request = parse_hardware(text)
    if request.nodes > 1:
        raise UsageError(f"--own {hardware}: one machine", next_step="--own 2xRTX4090")
    gpu, count = find_gpu(request.skus[0]), request.count
    watts = count * gpu.tdp_w + HOST_W
    machine = LocalMachine(
        name=request.text,
        cpus=count * _CPUS_PER_GPU,
        memory_gb=count * _RAM_GB_PER_GPU,
        gpu_sku=gpu.sku,
        gpus=count,
        gpu_memory_gb=gpu.memory_gb,
        peak_flops_per_process=gpu.peak_flops("bfloat16"),
    )
    rate = Usd.from_micros(round(per_kwh.micros * watts / 1000))
    wish = replace(
        spec, hardware=LOCAL, processes=count, rate=rate, budget=None, providers=(), regions=(),
        gpus=0, bucket="", bucket_relayed=False, volume=False, fill=False, deadline_at=None,
    )  # fmt: skip
    try:
        made = planner.plan(wish, machine=machine).candidates[0]
    except DoesNotFit as error:
        told = str(error).replace(f" on {LOCAL}", f" on your {request.text}", 1)
        raise DoesNotFit(told, next_step="leave out --own: see what can be rented") from None
    best = plan.recommended
    quicker = best if best is not None and best.hours.p50 < made.hours.p50 and best.rate else None
    return OwnHardware(request.text, watts, per_kwh, made, quicker)
