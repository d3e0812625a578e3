"""What the user typed of a run, as one object: plan, launch, rehearse and export pass it along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd, parse_budget
from trmcloud.core.spec.overrides import parse_last_rungs
from trmcloud.core.spec.rates import SCALES
from trmcloud.core.spec.recipe import PHASE_NAMES, PHASES, parse_setting
from trmcloud.core.spec.settings import PRECISIONS
from trmcloud.core.spec.spec import GUIDE_HOUR_VALUE, KEEP, THEN, RunSpec
from trmcloud.core.spec.stop_rules import checked_patience, parse_gain
from trmcloud.core.values import dataclass

MOST_VOLUME_DAYS = 365
PHASE_CHOICES = (*PHASE_NAMES, "both")
_WEEK_DAYS = 7.0
_WITH_A_SAVED_PLAN = frozenset(
    {"hardware", "data", "detach", "accept_loss", "accept_exposure", "allow_key"}
)
"""What may be typed beside the id of a plan made before: none of it changes the plan."""
_OPTIONS = {"initial_from": "--from", "setting": "--set"}


@dataclass(frozen=True)
class LaunchRequest:
    """By the names of the commands' parameters, as they were typed: money is still text, and
    nothing is checked. ``spec_of`` checks it, once, into a RunSpec.

    ``typed`` names what stood on the command line itself.
    """

    hardware: str = ""
    """Hardware, ``local``, a saved plan's id, or empty for any."""
    recipe: str = "trm"
    phase: str = "both"
    budget: str | None = None
    rate: str | None = None
    data: str = ""
    steps: int | None = None
    hours: float | None = None
    tokens: int | None = None
    setting: Sequence[str] = ()
    precision: str = ""
    """A number format by its short name; empty: the recipe's."""
    scale_lr: str = ""
    processes: int = 0
    initial_from: str = ""
    strict_guide: bool = False
    stop_at_gain: str = ""
    """``0.001/usd``; empty: no such rule."""
    patience: int = 0
    last_rungs: str = ""
    """``depth,sequence``, or one of them."""
    objective: str = "value"
    hour_value: str | None = None
    deadline: str | None = None
    provider: Sequence[str] = ()
    via: str = ""
    region: Sequence[str] = ()
    gpus: int = 0
    memory: float = 0.0
    """The least GB of each GPU."""
    spot: bool = False
    community: bool = False
    volume: bool = False
    volume_days: float = _WEEK_DAYS
    volume_then: str = KEEP
    fill: bool = False
    equal_work: bool = False
    bucket: str = ""
    detach: bool = False
    accept_loss: bool = False
    accept_exposure: str | None = None
    """USD an hour that may be lost."""
    allow_key: bool = False
    typed: tuple[str, ...] = ()


def spec_of(
    request: LaunchRequest, providers: Sequence[str], now: float, *, pods_can_upload: bool
) -> RunSpec:
    """The checked wish; ``providers`` are those that ``request`` means, ``now`` is epoch s.

    Raises:
        UsageError: naming the option at fault.
    """
    r = request
    if r.phase not in PHASE_CHOICES:
        raise UsageError(f"--phase is one of {', '.join(PHASE_CHOICES)}, not {r.phase!r}")
    if not 0 <= r.volume_days <= MOST_VOLUME_DAYS:
        raise UsageError(f"--volume-days is from 0 to {MOST_VOLUME_DAYS}, not {r.volume_days:g}")
    if r.volume_then not in THEN:
        raise UsageError(f"--volume-then is one of {', '.join(THEN)}, not {r.volume_then!r}")
    if not r.volume and (r.volume_days, r.volume_then) != (_WEEK_DAYS, KEEP):
        raise UsageError("--volume-days and --volume-then are about --volume")
    if sum(limit is not None for limit in (r.steps, r.hours, r.tokens)) > 1:
        raise UsageError("--steps, --hours and --tokens exclude one another")
    for name, limit in (("--steps", r.steps), ("--hours", r.hours), ("--tokens", r.tokens)):
        if limit is not None and not 0 < limit < 1e15:
            raise UsageError(f"{name} must be above zero, not {limit}")
    if r.processes < 0:
        raise UsageError(f"--processes must be above zero, not {r.processes}")
    if not 0 <= r.gpus <= 64:
        raise UsageError(f"--gpus lies between 1 and 64, not {r.gpus}")
    if not 0 <= r.memory < 1e4:
        raise UsageError(f"--memory takes GB of one GPU, not {r.memory:g}", next_step="--memory 24")
    deadline_at = None
    if r.deadline is not None:
        from trmcloud.core.spec.deadline import parse_deadline

        deadline_at = parse_deadline(r.deadline, now, None)
    hardware = ""
    if r.hardware:
        from trmcloud.core.catalog.hardware import parse_hardware

        hardware = parse_hardware(r.hardware).text
    if r.rate is not None and hardware not in ("", "local"):
        raise UsageError("--rate is the price of this machine; rented hardware has its own")
    bucket = ""
    if r.bucket:
        from trmcloud.core.contract.bucket_layout import parse_place

        bucket = str(parse_place(r.bucket))
    return RunSpec(
        recipe=r.recipe,
        phases=PHASES if r.phase == "both" else (r.phase,),
        hardware=hardware,
        processes=r.processes,
        budget=parse_money("--budget", r.budget),
        rate=parse_money("--rate", r.rate),
        data=r.data,
        overrides=_overrides(r),
        steps=r.steps,
        hours=r.hours,
        tokens=r.tokens,
        initial_from=r.initial_from,
        strict_gate=r.strict_guide,
        stop_at_gain=parse_gain(r.stop_at_gain) if _is_given(r, "stop_at_gain") else 0.0,
        patience=checked_patience(r.patience),
        last_rungs=parse_last_rungs(r.last_rungs) if _is_given(r, "last_rungs") else (),
        objective=r.objective,
        hour_value=parse_money("--hour-value", r.hour_value) or GUIDE_HOUR_VALUE,
        deadline_at=deadline_at,
        providers=tuple(providers),
        regions=tuple(r.region),
        gpus=r.gpus,
        gpu_memory_gb=r.memory,
        spot=r.spot,
        community=r.community,
        volume=r.volume,
        volume_days=r.volume_days,
        volume_then=r.volume_then,
        fill=r.fill,
        equal_work=r.equal_work,
        bucket=bucket,
        bucket_relayed=bool(bucket) and not pods_can_upload,
    )


def _overrides(request: LaunchRequest) -> tuple[tuple[str, Any], ...]:
    typed = tuple(parse_setting(text) for text in request.setting)
    if _is_given(request, "scale_lr"):
        if request.scale_lr not in SCALES:
            raise UsageError(f"--scale-lr is one of {', '.join(SCALES)}, not {request.scale_lr!r}")
        typed = (*typed, ("scale_lr", request.scale_lr))
    if not _is_given(request, "precision"):
        return typed
    if request.precision not in PRECISIONS:
        raise UsageError(
            f"--precision is one of {', '.join(PRECISIONS)}, not {request.precision!r}"
        )
    if "dtype" in dict(typed):
        raise UsageError("--precision and --set dtype=… say the same: give one of them")
    return (*typed, ("dtype", PRECISIONS[request.precision]))


def _is_given(request: LaunchRequest, name: str) -> bool:
    return bool(getattr(request, name)) or name in request.typed


def refuse_changes(request: LaunchRequest) -> None:
    """A plan made before is carried out as it is: options that would make another one are not
    ignored.

    Raises:
        UsageError: naming the first that was typed.
    """
    for name in request.typed:
        if name in _WITH_A_SAVED_PLAN:
            continue
        option = _OPTIONS.get(name) or "--" + name.replace("_", "-")
        raise UsageError(
            f"{option} would change plan {request.hardware}, which is launched as it was made",
            next_step=f"leave {option} out, or make another plan with it",
        )


def request_from(wish: Mapping[str, Any]) -> LaunchRequest:
    """What a command would have made of options by their names; money is text or ``Usd``.

    Raises:
        UsageError: one that is no option.
    """
    from dataclasses import fields

    known = {field.name for field in fields(LaunchRequest)} - {"typed"}
    for name in wish:
        if name not in known:
            raise UsageError(f"there is no option {name!r}", next_step=", ".join(sorted(known)))
    given: dict[str, Any] = {
        name: value.plain() if isinstance(value, Usd) else value for name, value in wish.items()
    }
    return LaunchRequest(**given, typed=tuple(given))


def parse_money(option: str, text: str | Usd | None) -> Usd | None:
    """
    Raises:
        UsageError: ``text`` is no amount above zero; ``option`` is what it was given to.
    """
    if text is None or isinstance(text, Usd):
        return text
    try:
        return parse_budget(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", next_step=f"{option} 1000") from None
