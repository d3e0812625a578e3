"""From what was typed to a Plan: the part that ``plan``, ``launch`` and ``rehearse`` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.core.data_source import DataSource
from trmcloud.core.errors import DataError, UsageError
from trmcloud.core.hardware import LocalMachine
from trmcloud.core.kept_volumes import KEEP, THEN
from trmcloud.core.money import Usd, parse_budget
from trmcloud.core.plan import Plan
from trmcloud.core.providers import RUNPOD_BY_SKYPILOT
from trmcloud.core.recipe import PHASES, SINGLE_PHASE, Recipe, parse_setting
from trmcloud.core.spec import GUIDE_HOUR_VALUE, RunSpec

if TYPE_CHECKING:
    from trmcloud.core.offers import Offer

LIVE_PRICES = "live prices"
"""Among a plan's limits: whose prices are of the moment at which it was made."""
TEST_SETTINGS = "test settings"
"""Among a plan's limits: settings that a test has put in place of the recipe's."""
MOST_VOLUME_DAYS = 365
BYTES_PER_TOKEN = {"bpe": 4.2, "char": 1.0}
"""English text per token: about 4.2 bytes at a vocabulary of 65,536."""
PHASE_CHOICES = (*PHASES, "both", SINGLE_PHASE)


def make_spec(
    *,
    budget: str | None = None,
    recipe: str = "trm",
    phase: str = "both",
    hardware: str = "",
    rate: str | None = None,
    data: str = "",
    steps: int | None = None,
    hours: float | None = None,
    tokens: int | None = None,
    settings: list[str],
    processes: int = 0,
    objective: str = "value",
    hour_value: str | None = None,
    initial_from: str = "",
    strict_gate: bool = False,
    deadline: str | None = None,
    providers: list[str] | None = None,
    regions: list[str] | None = None,
    gpus: int = 0,
    spot: bool = False,
    community: bool = False,
    volume: bool = False,
    volume_days: float = 7.0,
    volume_then: str = KEEP,
    fill: bool = False,
    equal_work: bool = False,
    bucket: str = "",
) -> RunSpec:
    """A checked RunSpec from what was typed; ``launch`` reads its options with this, too.

    Raises:
        UsageError: naming the option at fault.
    """
    if phase not in PHASE_CHOICES:
        raise UsageError(f"--phase is one of {', '.join(PHASE_CHOICES)}, not {phase!r}")
    if not 0 <= volume_days <= MOST_VOLUME_DAYS:
        raise UsageError(f"--volume-days is from 0 to {MOST_VOLUME_DAYS}, not {volume_days:g}")
    if volume_then not in THEN:
        raise UsageError(f"--volume-then is one of {', '.join(THEN)}, not {volume_then!r}")
    if not volume and (volume_days, volume_then) != (7.0, KEEP):
        raise UsageError("--volume-days and --volume-then are about --volume")
    if sum(limit is not None for limit in (steps, hours, tokens)) > 1:
        raise UsageError("--steps, --hours and --tokens exclude one another")
    for name, limit in (("--steps", steps), ("--hours", hours), ("--tokens", tokens)):
        if limit is not None and not 0 < limit < 1e15:
            raise UsageError(f"{name} must be above zero, not {limit}")
    if processes < 0:
        raise UsageError(f"--processes must be above zero, not {processes}")
    if not 0 <= gpus <= 64:
        raise UsageError(f"--gpus lies between 1 and 64, not {gpus}")
    deadline_at = None
    if deadline is not None:
        import time

        from trmcloud.core.deadline import parse_deadline

        deadline_at = parse_deadline(deadline, time.time(), None)
    canonical = ""
    if hardware:
        from trmcloud.core.hardware import parse_hardware

        canonical = parse_hardware(hardware).text
    if rate is not None and canonical not in ("", "local"):
        raise UsageError("--rate is the price of this machine; rented hardware has its own")
    relayed = False
    if bucket:
        import os

        from trmcloud.adapters.s3 import settings as s3_settings
        from trmcloud.core.bucket import parse_place

        bucket = str(parse_place(bucket))
        relayed = not s3_settings.takes_presigned(s3_settings.endpoint(os.environ))
    return RunSpec(
        recipe=recipe,
        phases=PHASES if phase == "both" else (phase,),
        hardware=canonical,
        processes=processes,
        budget=parse_money("--budget", budget),
        rate=parse_money("--rate", rate),
        data=data,
        overrides=tuple(parse_setting(text) for text in settings),
        steps=steps,
        hours=hours,
        tokens=tokens,
        initial_from=initial_from,
        strict_gate=strict_gate,
        objective=objective,
        hour_value=parse_money("--hour-value", hour_value) or GUIDE_HOUR_VALUE,
        deadline_at=deadline_at,
        providers=tuple(providers or ()),
        regions=tuple(regions or ()),
        gpus=gpus,
        spot=spot,
        community=community,
        volume=volume,
        volume_days=volume_days,
        volume_then=volume_then,
        fill=fill,
        equal_work=equal_work,
        bucket=bucket,
        bucket_relayed=relayed,
    )


def plan_for(
    spec: RunSpec,
    *,
    local: LocalMachine | None = None,
    tokens_available: int | None = None,
    now: float | None = None,
    home: Path | None = None,
    save: bool = True,
) -> Plan:
    """Loads recipe and offers, makes the plan, and saves it under the user's home.

    Where there is a RunPod key its prices are asked for now; where they do not come within seconds
    the dated ones serve, and the plan says so among its limits.
    """
    import os
    import time

    from trmcloud.adapters.local_machine import this_machine
    from trmcloud.adapters.prices import load_offers
    from trmcloud.adapters.recipe_files import ENV_TEST_SETTINGS, load_recipe
    from trmcloud.app import plans, probes
    from trmcloud.app.home import home_dir
    from trmcloud.core.planning import make_plan

    at = time.time() if now is None else now
    where = home_dir(os.environ) if home is None else home
    recipe = load_recipe(spec.recipe)
    live: Sequence[Offer] = ()
    missed = ""
    if spec.hardware != "local" and _asks_runpod(spec):
        from trmcloud.adapters.runpod.offers import live_prices

        live, missed = live_prices(os.environ, at)
    offers = [] if spec.hardware == "local" else load_offers(at, where, live=live)
    if RUNPOD_BY_SKYPILOT in spec.providers:
        # SkyPilot rents RunPod's own hosts there, never private ones.
        offers = offers + [
            offer._replace(provider=RUNPOD_BY_SKYPILOT)
            for offer in offers
            if offer.provider == "runpod" and not offer.is_community
        ]
    plan = make_plan(
        spec,
        recipe,
        offers,
        at,
        plans.new_id(where, spec, at),
        local=local or this_machine(),
        tokens_available=tokens_available or _tokens_in(spec.data, recipe),
        measured=probes.load(where),
        source=_source(spec, recipe),
    )
    if live or missed:
        told = f"not read: {missed}; dated ones are planned with" if missed else "runpod's"
        plan = replace(plan, limits={**plan.limits, LIVE_PRICES: told})
    if recipe.test_settings:
        put = ", ".join(f"{key} = {value}" for key, value in recipe.test_settings.items())
        told = f"not the recipe's own, by {ENV_TEST_SETTINGS}: {put}"
        plan = replace(plan, limits={**plan.limits, TEST_SETTINGS: told})
    if save:
        plans.save(where, plan)
    return plan


def _asks_runpod(spec: RunSpec) -> bool:
    return not spec.providers or bool({"runpod", RUNPOD_BY_SKYPILOT} & set(spec.providers))


def _source(spec: RunSpec, recipe: Recipe) -> DataSource | None:
    """What the plan is to train on; None where that is still to be named, or is not there."""
    from trmcloud.adapters.data_set_files import source_of
    from trmcloud.app.data import resolve_source

    own = recipe.shared.get("data", "")
    named = spec.data or str(dict(spec.overrides).get("data", own))
    if not named:
        return None
    try:
        return source_of(resolve_source(named))
    except DataError:
        if spec.data:
            return None  # a launch refuses it; a plan may be of text that is elsewhere
        raise


def _tokens_in(data: str, recipe: Recipe) -> int | None:
    """About how many tokens a file or folder holds; None where it is no path."""
    path = Path(data).expanduser()
    if not data or not path.exists():
        return None
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    size = sum(each.stat().st_size for each in files)
    return int(size / BYTES_PER_TOKEN.get(str(recipe.shared.get("tokenizer", "bpe")), 1.0))


def parse_money(option: str, text: str | None) -> Usd | None:
    if text is None:
        return None
    try:
        return parse_budget(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", next_step=f"{option} 1000") from None
