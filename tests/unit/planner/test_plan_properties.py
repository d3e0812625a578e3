"""What must hold whatever the offers, the budget and the prices are."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from trmcloud.adapters.files.data_sets import source_of
from trmcloud.adapters.files.recipes import load_recipe
from trmcloud.core.catalog.hardware import GPUS
from trmcloud.core.catalog.offers import DAY_S, FRESH_DAYS, Offer
from trmcloud.core.money import Usd
from trmcloud.core.planner.estimates import outlook_on, set_up_as
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.planner.speed import rented_machine
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.core.spec.spec import RunSpec

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
)
offers = st.lists(offer, min_size=1, max_size=12)
budgets = st.integers(1, 3000).map(Usd)
objectives = st.sampled_from(["value", "cheapest", "fastest"])
few = settings(max_examples=40, deadline=None)


def plan(table: list[Offer], budget: Usd | None, objective: str = "value", **wish: object) -> Plan:
    spec = RunSpec(
        recipe="trm", phases=("fast", "extreme"), budget=budget, objective=objective, spot=True
    )
    spec = dataclasses.replace(spec, **wish)  # type: ignore[arg-type]
    return make_plan(spec, TRM, table, NOW, "p-0000")


def worth(candidate: Candidate, objective: str) -> float:
    cost, hours = candidate.cost_p50.micros / 1e6, candidate.hours.p50
    return {"cheapest": cost, "fastest": hours}.get(objective, cost + hours * 18)


def is_old(candidate: Candidate) -> bool:
    return NOW - candidate.priced_at > FRESH_DAYS * DAY_S


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
        # A fresh quote that more money makes fit goes before an old one, whatever that is worth.
        assert is_old(after) <= is_old(before)
        if is_old(after) == is_old(before):
            assert worth(after, objective) <= worth(before, objective) * (1 + 1e-9)


@few
@given(offers, st.one_of(st.none(), budgets), objectives)
def test_a_dominated_offer_is_never_chosen(
    table: list[Offer], budget: Usd | None, objective: str
) -> None:
    made = plan(table, budget, objective)
    chosen = made.recommended
    if chosen is None:
        return
    for other in made.candidates:
        assert other.provider == "nobody" or not (is_old(chosen) and fits(other) > is_old(other))
        if fits(other) and other.provider != "nobody" and is_old(other) == is_old(chosen):
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
def test_no_candidate_can_cost_more_than_the_budget(
    table: list[Offer], budget: Usd, fill: bool
) -> None:
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
        # What more money does first is to make a fresh quote fit where an old one had to serve.
        assert is_old(after.recommended) <= is_old(before.recommended)
        tokens = [sum(p.tokens for p in c.phases) for c in (before.recommended, after.recommended)]
        if is_old(after.recommended) == is_old(before.recommended):
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
    assert set_up_as(other, known, wish) == outlook_on(recipe, wish, other, source=source)
    by_what_fits = outlook_on(recipe, wish, other, fitted=known.fitted, source=source, spot=spot)
    assert by_what_fits == outlook_on(recipe, wish, other, source=source, spot=spot)
