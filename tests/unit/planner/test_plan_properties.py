"""What holds for every plan, plans of sharded trainings, and number formats."""

from __future__ import annotations

import dataclasses
import math
import random
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.present import present
from tests.unit.planner.test_planning import plan_for
from trmcloud.adapters.files import load_recipe, source_of
from trmcloud.adapters.prices.tables import load_offers
from trmcloud.cli.views.plan_explain import batch_lines
from trmcloud.core.catalog.hardware import GPUS, LocalMachine
from trmcloud.core.catalog.interruptions import NOT_KNOWN
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd, cost
from trmcloud.core.planner import ranking
from trmcloud.core.planner.estimates import outlook_on, with_machine
from trmcloud.core.planner.memory import ACTIVATION_RANGE, checkpoint_bytes, predict_memory
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.planner.roofline import FITTED, assumed_format, step_of, time_step
from trmcloud.core.planner.speed import (
    fit_settings,
    predict_phase,
    rented_machine,
    save_s,
    stall_s,
    step_seconds,
    steps_between_saves,
    this_machine,
)
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.core.spec.recipe import parse_recipe
from trmcloud.core.spec.settings import PhaseRecipe, rate_for
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.values import replace as replace_values
from trmcloud.options import LaunchRequest, spec_of

# -- What must hold whatever the offers, the budget and the prices are --------------------------


NOW = 1_795_000_000.0
TRM = load_recipe("trm")
PROVIDERS = ("runpod", "aws", "lambda", "nobody")

offer = st.builds(
    Offer,
    sku=st.sampled_from(["H100-SXM", "H100-PCIe", "A100-80GB-SXM", "B200", "RTX3090", "L40S"]),
    gpus=st.sampled_from([1, 2, 4, 8]),
    provider=st.sampled_from(PROVIDERS),
    region=st.just("any"),
    instance=st.just("i"),
    rate=st.integers(100_000, 120_000_000).map(Usd.from_micros),
    spot=st.booleans(),
    priced_at=st.sampled_from([NOW - 86_400, NOW - 90 * 86_400]),
    source=st.just("test"),
    own=st.just(False),
    newer=st.none(),
    on_demand=st.none(),
    ceiling=st.none(),
)
offers = st.lists(offer, min_size=1, max_size=12)
budgets = st.integers(1, 3000).map(Usd)
objectives = st.sampled_from(["value", "cheapest", "fastest"])
few = settings(max_examples=40, deadline=None)


def plan(table: list[Offer], budget: Usd | None, objective: str = "value", **wish: object) -> Plan:
    spec = RunSpec(
        recipe="trm", phases=("fast", "extreme"), budget=budget, objective=objective, spot=True,
        bucket="s3://b/x",
    )  # fmt: skip
    spec = dataclasses.replace(spec, **wish)  # type: ignore[arg-type]
    return make_plan(spec, TRM, table, NOW, "p-0000")


def worth(candidate: Candidate, objective: str) -> float:
    cost, hours = candidate.cost_p50.micros / 1e6, candidate.hours.p50
    return {"cheapest": cost, "fastest": hours}.get(objective, cost + hours * 18)


@few
@given(offers, budgets, budgets, objectives)
def test_more_budget_never_gives_a_worse_best_plan(
    table: list[Offer], one: Usd, other: Usd, objective: str
) -> None:
    small, large = sorted((one, other))
    before = plan(table, small, objective).recommended
    after = plan(table, large, objective).recommended
    if before is not None:
        assert after is not None
        assert worth(after, objective) <= worth(before, objective) * (1 + 1e-9)


@few
@given(offers, st.one_of(st.none(), budgets), objectives)
def test_dominated_offers_never_win(table: list[Offer], budget: Usd | None, objective: str) -> None:
    made = plan(table, budget, objective)
    chosen = made.recommended
    if chosen is None:
        return
    for other in made.candidates:
        if fits(other) and other.provider != "nobody":
            cheaper = other.cost_p50 < chosen.cost_p50 - Usd("0.00001")
            sooner = other.hours.p50 < chosen.hours.p50 * (1 - 1e-9)
            no_dearer = other.cost_p50 <= chosen.cost_p50
            no_later = other.hours.p50 <= chosen.hours.p50
            assert not (no_dearer and no_later and (cheaper or sooner))


def fits(candidate: Candidate) -> bool:
    return candidate.fits_memory and candidate.within_budget


@few
@given(offer, st.integers(1, 50_000_000))
def test_cost_is_monotone_in_price(one: Offer, more: int) -> None:
    one = one._replace(spot=False)
    dearer = one._replace(rate=Usd.from_micros(one.rate.micros + more))
    (cheap,), (dear,) = plan([one], None).candidates, plan([dearer], None).candidates
    assert cheap.cost_p50 <= dear.cost_p50
    assert cheap.cost_p90 <= dear.cost_p90
    assert cheap.worst_case <= dear.worst_case
    assert cheap.hours == dear.hours


@few
@given(offers, budgets, st.booleans())
def test_no_candidate_can_exceed_the_budget(table: list[Offer], budget: Usd, fill: bool) -> None:
    made = plan(table, budget, fill=fill)
    assert made.reservation <= budget
    for candidate in made.candidates:
        if candidate.id in made.launchable:
            assert candidate.worst_case <= budget
            assert 0 < candidate.soft_stop_s < candidate.hard_stop_s


@few
@given(offers, budgets, budgets)
def test_filling_a_larger_budget_trains_on_more(table: list[Offer], one: Usd, other: Usd) -> None:
    small, large = sorted((one, other))
    before, after = plan(table, small, fill=True), plan(table, large, fill=True)
    if before.recommended is not None:
        assert after.recommended is not None
        tokens = [sum(p.tokens for p in c.phases) for c in (before.recommended, after.recommended)]
        assert tokens[0] <= tokens[1]


@few
@given(offers, st.integers(1, 200))
def test_everything_launchable_meets_the_deadline(table: list[Offer], hours: int) -> None:
    made = plan(table, None, deadline_at=NOW + hours * 3600)
    for candidate in made.candidates:
        if candidate.id in made.launchable:
            assert candidate.hard_stop_s <= hours * 3600
            assert candidate.hours.p90 <= hours


@few
@given(offers)
def test_equal_work_is_equal(table: list[Offer]) -> None:
    made = plan(table, None, equal_work=True)
    reference = 1000 * 512 * 1024
    for candidate in made.candidates:
        tokens, per_step = candidate.phases[0].tokens, candidate.phases[0].settings
        assert reference <= tokens < reference + per_step.tokens_per_step(candidate.gpus)


def test_no_gpu_in_the_table_reaches_its_peak() -> None:
    table = [
        Offer(sku, 8, "runpod", "any", "i", Usd(10), False, NOW, "test") for sku in sorted(GPUS)
    ]
    for candidate in plan(table, None).candidates:
        for phase in candidate.phases:
            rate = phase.flops / phase.settings.steps / phase.step_s.p10 / candidate.gpus
            assert rate < GPUS[candidate.sku].peak_flops("bfloat16")


@few
@given(
    st.sampled_from(["trm", "trm-tiny", "gpt350m", "d24", "hdp"]),
    st.sampled_from(["H100-SXM", "A100-40GB", "B200", "RTX3090"]),
    st.sampled_from([1, 8]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 0.5]),
)
def test_an_outlook_that_is_taken_over_is_the_one_that_would_be_made(
    name: str, sku: str, gpus: int, is_cluster: bool, spot: bool, hours: float | None
) -> None:
    recipe = load_recipe(name)
    wish = RunSpec(recipe=name, phases=tuple(recipe.phases), hours=hours)
    pod = rented_machine(sku, gpus)
    other = rented_machine(sku, gpus, is_cluster=is_cluster)
    source = source_of("fineweb-edu")
    known = outlook_on(recipe, wish, pod, source=source)
    assert with_machine(other, known, wish) == outlook_on(recipe, wish, other, source=source)
    often = NOT_KNOWN if spot else None
    by_what_fits = outlook_on(
        recipe, wish, other, fitted=known.fitted, source=source, interruptions=often
    )
    assert by_what_fits == outlook_on(recipe, wish, other, source=source, interruptions=often)


# -- d64, which no GPU holds: what the planner makes of it, and what its saves cost -------------


EIGHT = rented_machine("H100-PCIe", 8)
SHARDED: dict[str, Any] = {"sharding": "fsdp", "batch": 4, "accumulation": 8}


@pytest.fixture(scope="module")
def d64() -> PhaseRecipe:
    return load_recipe("d64").resolve("train", hardware="8xH100-PCIe", gpus=8, overrides={})


@pytest.fixture(scope="module")
def guides() -> Candidate:
    """At the guide's $4 per GPU-hour."""
    offer = Offer("H100-PCIe", 8, "runpod", "any", "i", Usd(32), False, NOW, "test")
    wish = {"phases": ("train",), "hardware": "8xH100-PCIe", "budget": Usd(1000)}
    plan = plan_for(load_recipe("d64"), [offer], **wish)
    assert plan.recommended is not None
    assert plan.launchable == (plan.recommended_id,)
    return plan.recommended


def test_it_lands_at_its_guides_31_hours_within_1000_dollars(guides: Candidate) -> None:
    [phase] = guides.phases
    assert guides.worst_case <= Usd(1000)
    assert guides.hard_stop_s / 3600 == pytest.approx(31, abs=0.5)
    assert 29 < guides.soft_stop_s / 3600 < 31
    assert guides.hours.p50 > 100, "its steps take four times as long as the guide says"
    assert any("finishing needs" in remark.text for remark in guides.reasons)
    assert phase.settings.sharding == "fsdp"
    assert guides.memory_need_gb < 80
    assert checkpoint_bytes(phase.settings) == pytest.approx(103e9, rel=0.01)


def test_hourly_saves_cost_cents(guides: Candidate) -> None:
    [phase] = guides.phases
    settings, step_s = phase.settings, phase.step_s.p50
    every = steps_between_saves(settings, step_s)
    assert every * step_s == pytest.approx(3600, abs=step_s)
    # A rank copies an eighth of 103 GB; writing all of them takes minutes, beside training.
    assert stall_s(settings, EIGHT).p50 == pytest.approx(0.05 + 103e9 / 8 / 10e9, rel=0.01)
    assert save_s(settings, EIGHT).p50 > 300
    points = every, settings.eval_every
    saves, evaluations, both = ((settings.steps - 1) // n for n in (*points, math.lcm(*points)))
    saves += evaluations - both
    assert phase.parts_s["saving"] == pytest.approx(saves * stall_s(settings, EIGHT).p50)
    assert cost(Usd(32), 31 * stall_s(settings, EIGHT).p50) < Usd("0.50"), "those of 31 hours"


def test_new_bests_are_saved_without_waiting(d64: PhaseRecipe) -> None:
    """Each of its evaluations is counted as one; the disk is behind them, and an hour's save waits
    for what is being written then."""
    settings = replace(d64, **SHARDED, activation_checkpointing=True)
    often = replace(settings, save_every=2000, save_minutes=0.0, eval_every=1)
    phase = predict_phase(often, EIGHT)
    stalls_s = (often.steps - 1) * stall_s(often, EIGHT).p50
    waits_s = ((often.steps - 1) // 2000) * save_s(often, EIGHT).p50
    assert phase.saving.p50 == pytest.approx(stalls_s + waits_s)
    rarely = predict_phase(replace(often, eval_every=2000), EIGHT)
    assert rarely.saving.p50 == pytest.approx(11 * stall_s(often, EIGHT).p50)


def test_a_save_waits_for_the_one_before(d64: PhaseRecipe) -> None:
    often = replace(d64, **SHARDED, activation_checkpointing=True, save_every=1, save_minutes=0.0)
    phase = predict_phase(often, EIGHT)
    waits = save_s(often, EIGHT).p50 - step_seconds(often, EIGHT)
    assert waits > 0
    assert phase.saving.p50 == pytest.approx(
        (often.steps - 1) * (stall_s(often, EIGHT).p50 + waits), rel=0.01
    )


def test_one_gpu_copies_all_of_what_is_not_shared_out(d64: PhaseRecipe) -> None:
    small = replace(d64, depth=12, width=768)
    whole = stall_s(small, EIGHT).p50
    assert whole == pytest.approx(0.05 + checkpoint_bytes(small) / 10e9)
    assert stall_s(replace(small, sharding="fsdp"), EIGHT).p50 < whole


def test_what_a_processor_saves_is_held_twice(d64: PhaseRecipe) -> None:
    small = replace(d64, depth=4, width=256, head_dim=32, dtype="float32")
    size_gb = checkpoint_bytes(small) / 1e9
    assert predict_memory(small, 2, on_gpu=False).snapshot == pytest.approx(size_gb)
    shared = replace(small, sharding="fsdp")
    assert predict_memory(shared, 2, on_gpu=False).snapshot == pytest.approx(size_gb / 2)
    assert predict_memory(shared, 2).snapshot == 0.0, "a GPU's copy is in its host's memory"
    assert stall_s(small, this_machine(LocalMachine("two cores", 2, 16.0), 2)).p50 == pytest.approx(
        0.05 + size_gb / 3
    )


def test_selective_checkpointing_lies_between_none_and_all(d64: PhaseRecipe) -> None:
    none, selective, full = (
        replace(d64, **SHARDED, activation_checkpointing=some, selective_checkpointing=products)
        for some, products in ((False, False), (True, True), (True, False))
    )
    memory = [predict_memory(each, 8).total for each in (none, selective, full)]
    assert memory[0] > 80 > memory[1] > memory[2]
    seconds = [step_seconds(each, EIGHT) for each in (none, selective, full)]
    assert seconds[0] < seconds[1] < seconds[2]
    # 11 values of the width, as its products and its input are counted by hand.
    work, positions = d64.work(), 4 * 2048
    kept = positions * 4096 * 2 * 64 * (1 + 3 + 1 + 1 + 4 + 1)
    one_block = predict_memory(full, 8).activations - positions * 4096 * 2 * 64 / 1e9
    assert work.block_applications == 64
    assert predict_memory(selective, 8).activations == pytest.approx(kept / 1e9 + one_block)


@pytest.mark.parametrize(("sku", "computed_again"), [("H100-PCIe", True), ("H100-SXM", False)])
def test_what_is_chosen_hangs_on_the_links(
    d64: PhaseRecipe, sku: str, computed_again: bool
) -> None:
    """Through PCIe fewer passes, and so fewer gathers, are worth products computed again."""
    fitted = fit_settings(d64, rented_machine(sku, 8), {})
    made = fitted.settings
    assert made.sharding == "fsdp"
    assert made.activation_checkpointing is computed_again
    assert not made.selective_checkpointing
    assert made.global_batch(8) == d64.global_batch(8)
    assert fitted.memory.total <= GPUS[sku].memory_gb * 0.92


def test_weights_that_are_shared_out_are_counted_in_bfloat16(d64: PhaseRecipe) -> None:
    gpu = GPUS["H100-PCIe"]
    assert assumed_format(replace(d64, **SHARDED), gpu).dtype == "bfloat16"
    assert assumed_format(d64, gpu).dtype == "float8"


# -- The number format, the length and the rates that a plan counts with, and why ---------------


def settings_of(name: str, **changes: Any) -> PhaseRecipe:
    recipe = load_recipe(name)
    made = recipe.resolve(next(iter(recipe.phases)), hardware="8xH100", gpus=8)
    return replace_values(made, **changes)


def planned(
    recipe: str, offers: list[Offer], *, local: LocalMachine | None = None, **typed: Any
) -> Plan:
    request = LaunchRequest(recipe=recipe, phase=typed.pop("phase", "train"), **typed)
    spec = spec_of(request, (), NOW, pods_can_upload=True)
    return make_plan(spec, load_recipe(recipe), offers, NOW, "p-1", local=local)


@pytest.mark.parametrize(
    ("recipe", "sku", "dtype", "why"),
    [
        ("gpt350m", "H100-SXM", "bfloat16", "float8 is seldom faster below 1B parameters"),
        (
            "d32",
            "H100-SXM",
            "float8",
            "is faster from about 1B parameters; decided by 20 timed steps",
        ),
        ("d32", "A100-80GB-SXM", "bfloat16", "A100 has no float8"),
        ("trm", "H100-SXM", "bfloat16", ""),
    ],
)
def test_a_plan_says_what_it_counts_with(recipe: str, sku: str, dtype: str, why: str) -> None:
    made = assumed_format(settings_of(recipe), GPUS[sku])
    assert made.dtype == dtype
    assert why in made.why
    assert bool(made.why) is bool(why)


def test_where_nothing_is_known_of_the_gpu_or_there_is_none() -> None:
    auto = settings_of("gpt350m", dtype="auto")
    assert assumed_format(auto, None, on_gpu=False).dtype == "float32"
    assert assumed_format(auto, None).dtype == "bfloat16"
    here = predict_memory(auto, 1, on_gpu=False)
    assert here == predict_memory(replace_values(auto, dtype="float32"), 1, on_gpu=False)
    assert predict_memory(auto, 1) == predict_memory(replace_values(auto, dtype="bfloat16"), 1)


def test_float8_is_planned_faster_in_its_products_alone() -> None:
    gpu, seconds = GPUS["H100-SXM"], {}
    for dtype in ("bfloat16", "float8"):
        seconds[dtype] = time_step(step_of(settings_of("d32", dtype=dtype), gpu), gpu, 8, FITTED)
    low, high = seconds["float8"], seconds["bfloat16"]
    assert high.matmul * 0.5 < low.matmul < high.matmul
    assert (low.attention, low.traffic) == (high.attention, high.traffic)


def test_the_plans_reasons_name_the_format(offers: list[Offer]) -> None:
    plan = planned("gpt350m", offers, hardware="8xH100", budget="100")
    told = [reason.text for reason in present(plan.recommended).reasons]
    assert any(
        text.startswith("train: counted with bfloat16: float8 is seldom faster") for text in told
    )
    by_name = planned("gpt350m", offers, hardware="8xH100", budget="100", precision="bf16")
    assert not any("counted with" in reason.text for reason in present(by_name.recommended).reasons)
    assert present(by_name.recommended).phases[0].settings.dtype == "bfloat16"


def test_float8_by_name_is_refused_where_there_is_none_and_planned_where_there_is(
    offers: list[Offer], machine: LocalMachine
) -> None:
    with pytest.raises(UsageError, match="8xA100 has no float8"):
        planned("gpt350m", offers, hardware="8xA100", precision="fp8")
    with pytest.raises(UsageError, match="this machine has no float8"):
        planned("gpt350m", offers, hardware="local", precision="fp8", local=machine)
    emulated = {"precision": "fp8", "setting": ["float8=emulated"], "rate": "1", "budget": "9"}
    assert planned(
        "trm-tiny", offers, phase="fast", hardware="local", local=machine, **emulated
    ).candidates
    anywhere = planned("gpt350m", offers, precision="fp8", budget="900", local=machine)
    skus = {candidate.sku for candidate in anywhere.candidates}
    assert skus == {"H100-SXM", "H200"}


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ({"precision": "fp4"}, "--precision must be one of auto, fp8, bf16, fp16, fp32, not 'fp4'"),
        (
            {"precision": "fp8", "setting": ["dtype=float8"]},
            "--precision and --set dtype=… set the same: give only one",
        ),
        ({"setting": ["float8=native"], "precision": "bf16"}, "float8=native sets the library"),
        ({"setting": ["float8=tensorwise"]}, "float8 must be one of"),
        ({"scale_lr": "linear"}, "--scale-lr must be one of off, sqrt, table"),
        ({"scale_lr": "sqrt"}, r"has no \[rates\]"),
    ],
)
def test_what_cannot_be_meant_fails(offers: list[Offer], typed: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        planned("gpt350m", offers, hardware="8xH100", **typed)


# -- a recipe's length --------------------------------------------------------------------------


def test_a_recipe_is_planned_whole_where_no_length_is_given(offers: list[Offer]) -> None:
    plan = planned("gpt350m", offers, hardware="8xH100")
    assert plan.spec.hours is None
    assert not any("before the recipe ends" in text for _, text in plan.candidates[0].reasons)
    few = planned("gpt350m", offers, budget="20").recommended
    steps = planned("gpt350m", offers, budget="20", steps=28_839).recommended
    assert few == steps, "--steps buys no more of the recipe than the recipe itself"


# -- rates by the batch -------------------------------------------------------------------------


def test_rates_go_by_the_root_or_by_the_table() -> None:
    rows = load_recipe("bd3lm").rates
    assert rows == {128: 3e-4, 256: 4e-4, 512: 5e-4, 1024: 7e-4}
    for sequences, wanted in ((128, 3e-4), (512, 6e-4), (1024, 3e-4 * math.sqrt(8))):
        assert rate_for(sequences, "sqrt", rows, "r") == pytest.approx(wanted)
    for sequences, wanted in rows.items():
        assert rate_for(sequences, "table", rows, "r") == wanted
    between = rate_for(768, "table", rows, "r")
    assert 5e-4 < between < 7e-4
    assert rate_for(2048, "sqrt", rows, "r") == pytest.approx(1.2e-3)
    for beyond in (64, 2048):
        with pytest.raises(UsageError, match="covers 128 to 1024"):
            rate_for(beyond, "table", rows, "r")


def test_a_batch_of_ones_own_brings_its_rates() -> None:
    recipe = load_recipe("bd3lm")

    def resolved(**overrides: Any) -> PhaseRecipe:
        return recipe.resolve("train", hardware="1xH200", gpus=1, overrides=overrides)

    assert resolved(batch=256).matrix_lr == 5e-4, "as it stands, where nothing is asked for"
    assert resolved(batch=256, scale_lr="table").matrix_lr == pytest.approx(7e-4)
    wide = resolved(batch=256, scale_lr="sqrt")
    assert wide.matrix_lr == wide.embedding_lr == wide.head_lr
    assert wide.matrix_lr == pytest.approx(3e-4 * math.sqrt(8))
    with pytest.raises(UsageError, match="matrix_lr is set"):
        resolved(scale_lr="sqrt", matrix_lr=1e-3)
    for bad in ({"x": 1e-3}, {"128": 0.0}, {"0": 1e-3}, [3]):
        content: dict[str, Any] = {"name": "r", "family": "gpt", "phases": {"train": {}}}
        with pytest.raises(UsageError, match="rates need sequences per step, both above zero"):
            parse_recipe({**content, "rates": bad}, "r")


def test_the_guides_batches_stand_beside_what_is_reckoned() -> None:
    recipe = load_recipe("bd3lm")
    settings = recipe.resolve("train", hardware="1xH200", gpus=1)
    _, header, *rows = batch_lines(settings, present(settings.guide).batches, recipe.rates)
    assert "GB said" in header
    assert [row.split()[0] for row in rows] == [
        "baseline", "conservative", "recommended", "aggressive", "extreme",
    ]  # fmt: skip
    assert rows[0].split()[1:6] == ["4xA100", "32", "×", "1", "128"]
    said_and_here = rows[2].split()[6:8]
    low, high = map(float, said_and_here[0].split("–"))
    assert low * ACTIVATION_RANGE[0] <= float(said_and_here[1]) <= high


# -- offers that are not worth ranking ------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_leaving_out_dear_offers_of_a_kind_changes_no_plan(data: st.DataObject) -> None:
    """Of thousands that differ in their price alone only the cheapest are ranked: the plan is that
    of all of them."""
    draw = random.Random(data.draw(st.integers(0, 1 << 30)))
    with_spot = data.draw(st.booleans())
    shipped = [offer for offer in load_offers(NOW) if with_spot or not offer.spot]
    few = data.draw(st.sampled_from([1, 3, len(shipped)]))
    some = draw.sample(shipped, few)
    offers = [
        offer._replace(
            region=f"region-{number}",
            rate=Usd.from_micros(offer.rate.micros * draw.randrange(800, 1300) // 1000),
            priced_at=NOW - draw.choice([1, 50, 200]) * 86_400.0,
        )
        for number in range(900)
        for offer in [some[number % len(some)]]
    ]
    spec = RunSpec(
        "d24", ("train",),
        budget=data.draw(st.sampled_from([None, Usd(20), Usd(500)])),
        fill=data.draw(st.booleans()) and bool(few > 1),
        objective=data.draw(st.sampled_from(["value", "cheapest", "fastest"])),
        spot=with_spot, bucket="s3://b/p", community=True,
    )  # fmt: skip
    if spec.fills and spec.budget is None:
        spec = dataclasses.replace(spec, fill=False)
    recipe = load_recipe("d24")
    made = make_plan(spec, recipe, offers, NOW, "p-0")
    with mock.patch.object(ranking, "_worth_ranking", lambda found, now: range(len(found))):
        whole = make_plan(spec, recipe, offers, NOW, "p-0")
    assert made == whole
