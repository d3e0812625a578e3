"""Plans: candidates, ranking, deadlines, and rules that end a phase."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.plans import a_candidate, a_phase
from tests.present import present
from trmcloud.adapters.files import load_recipe
from trmcloud.core.catalog.hardware import LocalMachine
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract.recovery import OUT_OF_MEMORY, Recovery, next_rung, overrides_of
from trmcloud.core.errors import BudgetRefused, DoesNotFit, NotFoundError, UsageError
from trmcloud.core.money import Usd, cost
from trmcloud.core.planner.candidates import kill_latency_s
from trmcloud.core.planner.memory import predict_memory
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.overrides import apply_overrides, recoverable
from trmcloud.core.spec.plan import Candidate, Plan, RemarkTopic, plan_from_json, plan_to_json
from trmcloud.core.spec.recipe import Recipe
from trmcloud.core.spec.settings import FAMILIES, as_option, parse_setting
from trmcloud.core.spec.spec import RunSpec, parse_deadline
from trmcloud.core.spec.stop_rules import check_rules, checked_patience
from trmcloud.core.storage import price_per_hour
from trmcloud.operations.plans import planning
from trmcloud.operations.pod_request import LaunchData, disk_gb
from trmcloud.options import LaunchRequest, spec_of

# -- planning -----------------------------------------------------------------------------------


NOW = 1_795_000_000.0
BOTH = ("fast", "extreme")


def plan_for(recipe: Recipe, offers: list[Offer], **wish: Any) -> Plan:
    extra = {key: wish.pop(key) for key in ("local", "tokens_available") if key in wish}
    spec = RunSpec(recipe=recipe.name, phases=wish.pop("phases", BOTH), **wish)
    return make_plan(spec, recipe, offers, NOW, "p-0000", **extra)


def test_the_json_has_the_promised_keys_and_reads_back(trm: Recipe, offers: list[Offer]) -> None:
    plan = plan_for(trm, offers, budget=Usd(1000))
    data = json.loads(json.dumps(plan_to_json(plan)))
    assert {"budget_usd", "recipe", "candidates", "recommended", "recommended_id"} <= set(data)
    for row in data["candidates"]:
        assert {
            "id", "hardware", "sku", "provider", "phases", "hours", "cost_usd", "fits_memory",
            "within_budget", "rate_usd_per_hour", "priced_at", "reasons",
        } <= set(row)  # fmt: skip
        assert row["hours"]["p10"] < row["hours"]["p50"] < row["hours"]["p90"]
        assert row["cost_usd"]["p10"] < row["cost_usd"]["p50"] < row["cost_usd"]["p90"]
    assert data["recommended"] in {row["hardware"] for row in data["candidates"]}
    assert plan_to_json(plan_from_json(data)) == plan_to_json(plan)


def test_value_ranks_by_cost_and_the_worth_of_the_hours(trm: Recipe, offers: list[Offer]) -> None:
    plan = plan_for(trm, offers, budget=Usd(1000))
    scores = [
        float(c.cost_p50) + c.hours.p50 * 18
        for c in plan.candidates
        if c.fits_memory and c.within_budget
    ]
    assert scores == sorted(scores)
    assert plan.recommended_id == plan.candidates[0].id
    quick = plan_for(trm, offers, budget=Usd(1000), objective="fastest")
    cheap = plan_for(trm, offers, budget=Usd(1000), objective="cheapest")
    assert quick.recommended.hours.p50 < cheap.recommended.hours.p50  # type: ignore[union-attr]
    assert cheap.recommended.cost_p50 < quick.recommended.cost_p50  # type: ignore[union-attr]


def test_several_machines_cost_as_many_times_as_much_and_come_from_clouds_that_join_them(
    trm: Recipe, offers: list[Offer]
) -> None:
    wish: dict[str, Any] = {"phases": ("fast",), "budget": Usd(500)}
    one = plan_for(trm, offers, hardware="8xH100", providers=("aws",), **wish).candidates[0]
    two = plan_for(trm, offers, hardware="2x8xH100", providers=("aws",), **wish).candidates[0]
    assert (two.hardware, two.nodes, two.gpus) == ("2x8xH100", 2, 8)
    assert (two.rate, two.region) == (one.rate * 2, one.region)
    before, after = one.phases[0], two.phases[0]
    assert after.tokens == before.tokens
    # Half the work for each, and a network that NVLink is not.
    assert 0.5 < after.step_s.p50 / before.step_s.p50 < 1
    assert after.step_s.p90 / after.step_s.p50 > before.step_s.p90 / before.step_s.p50
    assert two.worst_case <= Usd(500)
    anywhere = plan_for(trm, offers, hardware="2x8xH100", **wish)
    assert {traits_of(c.provider).machines.max_nodes > 1 for c in anywhere.candidates} == {True}
    with pytest.raises(NotFoundError) as caught:
        plan_for(trm, offers, hardware="2x8xH100", providers=("runpod",), **wish)
    assert "can be rented from" in caught.value.next_step
    with pytest.raises(UsageError, match="one phase at a time"):
        plan_for(trm, offers, hardware="2x8xH100")


def test_hardware_limits_the_candidates(trm: Recipe, offers: list[Offer]) -> None:
    plan = plan_for(trm, offers, hardware="8xA100", budget=Usd(500))
    assert {c.sku for c in plan.candidates} == {"A100-80GB-SXM", "A100-80GB-PCIe"}
    assert {c.hardware for c in plan.candidates} == {"8xA100"}
    assert plan.launchable == ("c1", "c2")
    with pytest.raises(NotFoundError, match="8xL4"):
        plan_for(trm, offers, hardware="8xL4")


@pytest.mark.parametrize(
    ("wish", "what", "typed"),
    [
        ({"hardware": "3xH100"}, "nearest is 4xH100, runpod, $15.96/h", "--hardware 4xH100"),
        ({"hardware": "4xH100", "providers": ("aws",)}, "nearest is 4xH100, runpod, $15.96/h",
         "--hardware 4xH100 --provider runpod"),
        ({"hardware": "8xA100", "providers": ("aws",)}, "8xA100 at aws: nearest is 8xA100, runpod",
         "--hardware 8xA100 --provider runpod"),
        ({"hardware": "8xH100", "providers": ("aws",), "regions": ("mars",)},
         "at aws in mars: nearest is 8xH100, aws us-east-1", "--provider aws --region us-east-1"),
        ({"gpus": 64}, "64 GPUs: nearest is 8x", "--hardware 8x"),
    ],
)  # fmt: skip
def test_what_nobody_offers_is_told_with_the_nearest_and_what_to_type(
    trm: Recipe, offers: list[Offer], wish: dict[str, Any], what: str, typed: str
) -> None:
    with pytest.raises(NotFoundError) as caught:
        plan_for(trm, offers, **wish)
    assert what in caught.value.what
    assert typed in caught.value.next_step
    plan_for(trm, offers, **_typed_as_wish(caught.value.next_step))


def test_a_provider_that_another_one_replaced_is_refused(trm: Recipe, offers: list[Offer]) -> None:
    with pytest.raises(UsageError, match="no longer rented through SkyPilot") as caught:
        plan_for(trm, offers, providers=("vast-ai",))
    assert caught.value.next_step == "use --provider vast without --via"


def test_private_sellers_and_spot_are_told_apart(trm: Recipe, offers: list[Offer]) -> None:
    sold = [o._replace(tier="community") if o.sku == "RTX3090" else o for o in offers]
    with pytest.raises(NotFoundError) as caught:
        plan_for(trm, sold, hardware="1xRTX3090")
    assert "1xRTX3090, private sellers, runpod, $0.22/h" in caught.value.what
    assert caught.value.next_step.endswith("--hardware 1xRTX3090 --community")
    spots = [o._replace(spot=True) if o.sku == "RTX3090" else o for o in offers]
    with pytest.raises(NotFoundError) as caught:
        plan_for(trm, spots, hardware="1xRTX3090")
    assert caught.value.next_step.endswith("--hardware 1xRTX3090 --spot")


def _typed_as_wish(typed: str) -> dict[str, Any]:
    words = typed.removeprefix("trmcloud plan ").split()
    named = dict(zip(words[::2], words[1::2], strict=True))
    wish: dict[str, Any] = {"hardware": named["--hardware"]}
    for option, field in (("--provider", "providers"), ("--region", "regions")):
        if option in named:
            wish[field] = (named[option],)
    return wish


def test_stops_and_worst_case_keep_within_the_budget(trm: Recipe, offers: list[Offer]) -> None:
    plan = plan_for(trm, offers, hardware="8xH100", budget=Usd(100))
    for candidate in plan.candidates:
        assert candidate.worst_case <= Usd(100)
        rent = cost(candidate.rate, candidate.hard_stop_s + kill_latency_s(candidate.provider))
        assert rent < candidate.worst_case < rent + Usd(1), "storage for a week stands beside"
        assert candidate.soft_stop_s == pytest.approx(
            candidate.hard_stop_s - candidate.landing_s, abs=0.01
        )
    assert plan.cap == Usd(100)
    assert plan.reservation <= Usd(100)


def test_without_a_budget_the_cap_is_the_worst_case(trm: Recipe, offers: list[Offer]) -> None:
    plan = plan_for(trm, offers, hardware="8xH100")
    assert plan.cap == plan.reservation == max(c.worst_case for c in plan.candidates)
    for candidate in plan.candidates:
        assert candidate.worst_case > candidate.cost_p90


def test_the_micro_batch_shrinks_until_it_fits(trm: Recipe, offers: list[Offer]) -> None:
    plan = plan_for(trm, offers, hardware="8xH100", budget=Usd(1000))
    settings = plan.candidates[0].phases[0].settings
    assert settings.batch < 32
    assert settings.batch * settings.accumulation == 64
    assert plan.candidates[0].fits_memory
    told = plan.candidates[0].reasons
    assert any("keeps the global batch of 512" in reason for _, reason in told)


@pytest.mark.parametrize(
    ("key", "value"), [("batch", 64), ("compile", True), ("matrix_lr", 2e-05), ("dtype", "auto")]
)
def test_a_setting_is_read_again_as_it_is_shown(key: str, value: object) -> None:
    assert parse_setting(as_option(key, value).removeprefix("--set ")) == (key, value)


def test_a_batch_the_user_set_is_not_changed(trm: Recipe, offers: list[Offer]) -> None:
    with pytest.raises(DoesNotFit, match="--set batch="):
        plan_for(trm, offers, hardware="8xH100", overrides=(("batch", 64),))


def test_what_no_recovery_can_make_fit_is_refused_at_once(trm: Recipe, offers: list[Offer]) -> None:
    """Before anything is paid: all that memory which runs out is answered with is too much still.
    The error has the least that would be needed."""
    wide = {"width": 16_384}
    with pytest.raises(DoesNotFit) as caught:
        plan_for(trm, offers, hardware="8xH100", overrides=tuple(wide.items()))
    assert caught.value.what.startswith("trm does not fit on 8xH100: fast: batch 32 needs 3,")
    assert "of 80 GB, and 863 GB with batch 1" in caught.value.what
    asked_again = "trmcloud plan --recipe trm --set width=16384   (shows the hardware that fits)"
    assert caught.value.next_step == asked_again
    settings = trm.resolve("fast", hardware="8xH100", gpus=8, overrides=wide)
    in_lease = recoverable(settings)
    made: tuple[Recovery, ...] = ()
    while (tried := next_rung(in_lease, made, OUT_OF_MEMORY)) is not None:
        made = (*made, Recovery(OUT_OF_MEMORY, tried[0], changed=tried[1]))
        assert predict_memory(apply_overrides(settings, overrides_of(made)), 8).total > 80, made
    assert "batch" in {row.rung for row in made}


def test_a_stale_price_widens_the_range_and_says_so(trm: Recipe, offers: list[Offer]) -> None:
    (candidate,) = plan_for(trm, offers, hardware="8xH200").candidates
    assert candidate.rate == Usd("36.72")
    assert candidate.planned_rate == Usd("47.736")
    assert candidate.most_rate == Usd("58.752")
    rent = cost(Usd("58.752"), candidate.hours.p90 * 3600)
    assert rent < candidate.cost_p90 < rent + Usd(1)
    assert any("at $58.75/h in P90" in reason for _, reason in candidate.reasons)


def test_an_old_quote_wins_where_it_is_the_better_and_its_p90_is_paid_for(
    trm: Recipe, offers: list[Offer]
) -> None:
    old, fresh = (
        next(offer for offer in offers if offer.sku == "H100-SXM" and offer.gpus == 8)._replace(
            provider=provider, rate=Usd(rate), priced_at=NOW - days * 86_400
        )
        for provider, rate, days in (("aws", "20", 90), ("runpod", "30", 1))
    )
    chosen = present(plan_for(trm, [old, fresh]).recommended)
    assert (chosen.provider, chosen.planned_rate) == ("aws", Usd(23)), "half of 30 %"
    old = old._replace(rate=Usd(26))
    budget = Usd.from_micros(
        round(present(plan_for(trm, [fresh]).recommended).cost_p90.micros * 1.1)
    )
    chosen = present(plan_for(trm, [old, fresh], budget=budget).recommended)
    assert chosen.provider == "runpod", "P90 of the old quote is above the budget"


def test_a_gpu_that_no_run_was_tried_on_is_planned_and_not_rented(
    trm: Recipe, offers: list[Offer]
) -> None:
    known = next(offer for offer in offers if offer.sku == "H100-SXM" and offer.gpus == 8)
    new = known._replace(sku="B300", rate=Usd(1))
    plan = plan_for(trm, [known, new])
    assert present(plan.recommended).sku == "H100-SXM"
    planned = next(c for c in plan.candidates if c.sku == "B300")
    assert planned.hours.p50 < present(plan.recommended).hours.p50
    assert planned.id not in plan.launchable
    assert any("can only be planned" in text for _, text in planned.reasons)
    assert plan_for(trm, [new], hardware="8xB300").launchable == ()


def test_this_machine_is_recommended_for_a_week_at_most(
    trm: Recipe, tiny: Recipe, offers: list[Offer], machine: LocalMachine
) -> None:
    slow = plan_for(trm, offers, local=machine, budget=Usd(1000))
    here = next(c for c in slow.candidates if c.provider == "local")
    assert here.hours.p50 > 7 * 24
    assert present(slow.recommended).provider != "local"
    assert not here.within_budget
    told = [remark.text for remark in here.reasons if remark.about is RemarkTopic.NEED]
    assert told, here
    quick = plan_for(tiny, offers, phases=("fast",), local=machine, budget=Usd(1000), steps=10)
    assert present(quick.recommended).provider == "local"
    steps = 10_000_000
    asked = plan_for(tiny, [], phases=("fast",), hardware="local", local=machine, steps=steps)
    chosen = present(asked.recommended)
    assert chosen.hours.p50 > 7 * 24
    assert chosen.hard_stop_s == 7 * 86_400, "asked for by name and length, it is taken and ended"
    assert any("7 days are over before the recipe ends" in text for _, text in chosen.reasons)
    wish = {"phases": ("fast",), "hardware": "local", "local": machine, "tokens": 10**12}
    short = plan_for(tiny, [], **wish)
    assert short.recommended is None, "less than a twentieth of the recipe in seven days"
    forever = plan_for(trm, offers, fill=True, budget=Usd(100_000))
    assert present(forever.recommended).hard_stop_s <= 7 * 86_400


def test_what_trains_too_little_of_a_recipe_is_refused(trm: Recipe, offers: list[Offer]) -> None:
    whole = present(plan_for(trm, offers, hardware="8xH100").recommended).cost_p50
    tenth, hundredth = (Usd.from_micros(whole.micros * 100 // part) for part in (800, 1400))
    some = present(plan_for(trm, offers, hardware="8xH100", budget=tenth).recommended)
    assert any("this budget buys about" in text for _, text in some.reasons)
    with pytest.raises(BudgetRefused, match=r"trains [\d.]+% of the recipe: less than 5%"):
        plan_for(trm, offers, hardware="8xH100", budget=hundredth)
    asked = plan_for(trm, offers, hardware="8xH100", budget=hundredth, steps=50)
    assert asked.recommended is not None, "--steps asks for less"


def test_a_sum_for_this_machine_buys_what_it_buys(tiny: Recipe, machine: LocalMachine) -> None:
    """The steps that it buys are printed: README's first run costs six cents."""
    wish = {"phases": ("fast",), "local": machine, "rate": Usd("3.6"), "budget": Usd("0.06")}
    bought = present(plan_for(tiny, [], hardware="local", **wish).recommended)
    assert any("this budget buys about" in text for _, text in bought.reasons)


def test_several_machines_say_where_one_is_cheaper_and_no_slower(
    offers: list[Offer],
) -> None:
    at_cloud = next(o for o in offers if o.sku == "H100-SXM" and o.gpus == 8)._replace(
        provider="lambda"
    )
    speedrun = load_recipe("speedrun")
    plan = plan_for(speedrun, [at_cloud], phases=("train",), hardware="2x8xH100")
    texts = [text for about, text in plan.candidates[0].reasons]
    assert any(t.startswith("2 machines do not pay with this network: one 8xH100") for t in texts)
    assert any("GB/s" in text for text in texts)


def test_tokens_that_own_settings_cut_are_said(trm: Recipe, offers: list[Offer]) -> None:
    plan = plan_for(trm, offers, hardware="8xH100", overrides=(("batch", 1),))
    warned = [text for about, text in plan.candidates[0].reasons if about is RemarkTopic.WARNING]
    assert any("with --set batch=1 it trains" in t and "--tokens" in t for t in warned)
    plan = plan_for(trm, offers, hardware="8xH100")
    assert not any("--set" in text for _, text in plan.candidates[0].reasons)


def test_what_finishes_within_its_hours_comes_before_what_does_not(
    trm: Recipe, offers: list[Offer]
) -> None:
    plan = plan_for(trm, offers, hours=2.5, budget=Usd(1000))
    finishing = [
        not any("the hours are used" in text for _, text in c.reasons) for c in plan.candidates
    ]
    usable = [f for f, c in zip(finishing, plan.candidates, strict=True) if c.within_budget]
    assert True in usable
    assert False in usable
    assert usable == sorted(usable, reverse=True)
    cheap = plan_for(trm, offers, hours=2.5, budget=Usd(1000), objective="cheapest").recommended
    assert not any("the hours are used" in text for _, text in present(cheap).reasons)


def test_its_dollars_are_hours_at_the_printed_rate_and_the_storage_that_is_named(
    trm: Recipe, offers: list[Offer]
) -> None:
    for candidate in plan_for(trm, offers).candidates:
        assert candidate.planned_rate is not None
        rent = cost(candidate.planned_rate, candidate.hours.p50 * 3600)
        assert abs((rent + candidate.storage - candidate.cost_p50).micros) <= 2


def test_a_budget_too_small_for_a_step_is_refused(trm: Recipe, offers: list[Offer]) -> None:
    with pytest.raises(BudgetRefused) as caught:
        plan_for(trm, offers, hardware="8xH100", budget=Usd(1))
    assert "too little for trm on 8xH100: start-up, one step" in caught.value.what
    (nothing, *_) = [plan_for(trm, offers, budget=Usd("0.01"))]
    assert nothing.recommended is None
    assert nothing.launchable == ()
    assert nothing.cap is None


def test_a_smaller_wish_is_shorter(trm: Recipe, offers: list[Offer]) -> None:
    whole = plan_for(trm, offers, hardware="8xH100").candidates[0]
    few = plan_for(trm, offers, hardware="8xH100", steps=10).candidates[0]
    assert [phase.settings.steps for phase in few.phases] == [10, 10]
    assert few.hours.p50 < whole.hours.p50
    some = plan_for(trm, offers, hardware="8xH100", tokens=524_289).candidates[0]
    assert [phase.settings.steps for phase in some.phases] == [2, 3]


def test_local_has_one_candidate_that_lands_early(tiny: Recipe, machine: LocalMachine) -> None:
    rate = Usd(18)
    plan = plan_for(
        tiny, [], phases=("fast",), hardware="local", rate=rate, budget=Usd(1), local=machine
    )
    (candidate,) = plan.candidates
    assert candidate.provider == "local"
    assert candidate.hardware == "local"
    assert candidate.region == "this machine"
    assert candidate.gpus == 2
    assert plan.launchable == (candidate.id,)
    assert candidate.hard_stop_s == pytest.approx(197)
    training_s = candidate.soft_stop_s - candidate.startup_s.p50
    assert training_s >= 0.85 * 200
    needed = [text for about, text in candidate.reasons if about is RemarkTopic.NEED]
    assert re.fullmatch(
        r"this budget buys about \d+ of 2,000 steps of fast; finishing needs \$22.\d\d", needed[0]
    )
    assert not candidate.within_budget


def test_a_free_machine_has_a_time_limit_alone(tiny: Recipe, machine: LocalMachine) -> None:
    plan = plan_for(tiny, [], phases=("fast",), hardware="local", local=machine)
    (candidate,) = plan.candidates
    assert candidate.hard_stop_s == 24 * 3600
    assert plan.limits["price"] == "no rate set (--rate): the budget cannot apply"
    assert plan.cap == Usd(0)
    assert plan.launchable == (candidate.id,)


def test_hours_end_training(tiny: Recipe, machine: LocalMachine) -> None:
    plan = plan_for(tiny, [], phases=BOTH, hardware="local", hours=0.1, local=machine)
    (candidate,) = plan.candidates
    assert candidate.soft_stop_s == pytest.approx(360 + candidate.startup_s.p90)


def test_more_processes_than_is_sane_are_refused(tiny: Recipe, machine: LocalMachine) -> None:
    with pytest.raises(UsageError, match="99 processes"):
        plan_for(tiny, [], hardware="local", processes=99, local=machine)


def test_this_machine_stands_in_the_table(trm: Recipe, offers: list[Offer]) -> None:
    mine = LocalMachine("desk", 16, 64.0, "RTX3090", 1, 24.0, 71e12)
    plan = plan_for(trm, offers, budget=Usd(1000), local=mine)
    (row,) = [c for c in plan.candidates if c.provider == "local"]
    assert row.sku == "RTX3090"
    assert row.cost_p90 == Usd(0)
    assert row.hours.p50 > 100


def test_epochs_are_counted_and_many_are_warned_of(trm: Recipe, offers: list[Offer]) -> None:
    plan = plan_for(trm, offers, hardware="8xH100", tokens_available=10_000_000)
    assert any("epochs" in r and "warning" in r for _, r in plan.candidates[0].reasons)
    plan = plan_for(trm, offers, hardware="8xH100", tokens_available=10_000_000_000)
    assert not any("warning" in r for _, r in plan.candidates[0].reasons)


def test_the_latest_twenty_plans_stay_and_those_saved_for_good(
    trm: Recipe, offers: list[Offer], home: Path
) -> None:
    made = plan_for(trm, offers, budget=Usd(1000))
    kept = planning.save_plan(home, dataclasses.replace(made, id="p-aaaa"), for_good=True)
    for number in range(25):
        plan = dataclasses.replace(made, id=f"p-{number:04x}")
        path = planning.save_plan(home, plan)
        os.utime(path, (number, number))
    folder = path.parent
    assert sorted(each.name for each in folder.glob("p-*.json"))[0] == "p-0005.json"
    assert len(list(folder.glob("p-*.json"))) == 20
    assert kept.stat().st_size < 50_000
    loaded = planning.load_plan(home, "p-aaaa", NOW)
    assert loaded.launchable == made.launchable
    assert [loaded.candidate(name) for name in loaded.launchable] == [
        made.candidate(name) for name in made.launchable
    ]


def test_plans_are_saved_loaded_and_expire(trm: Recipe, offers: list[Offer], home: Path) -> None:
    spec = RunSpec(recipe="trm", phases=BOTH, budget=Usd(1000))
    first = planning.new_plan_id(home, spec, NOW)
    plan = dataclasses.replace(plan_for(trm, offers, budget=Usd(1000)), id=first)
    planning.save_plan(home, plan)
    assert planning.is_plan_id(first)
    assert planning.new_plan_id(home, spec, NOW) != first
    loaded, needed = (
        planning.load_plan(home, first, NOW),
        [plan.candidate(n) for n in plan.launchable],
    )
    assert plan_to_json(dataclasses.replace(plan, candidates=tuple(needed))) == plan_to_json(loaded)
    with pytest.raises(UsageError, match="expired"):
        planning.load_plan(home, first, NOW + 86_401)
    with pytest.raises(NotFoundError):
        planning.load_plan(home, "p-ffff", NOW)
    with pytest.raises(UsageError):
        planning.load_plan(home, "../../etc/passwd", NOW)


def test_a_free_machine_tells_what_an_hour_must_be_worth(trm: Recipe, offers: list[Offer]) -> None:
    mine = LocalMachine("desk", 16, 64.0, "RTX3090", 1, 24.0, 71e12)
    plan = plan_for(trm, offers, budget=Usd(1000), local=mine)
    (row,) = [c for c in plan.candidates if c.provider == "local"]
    (text,) = [reason for _, reason in row.reasons if "your time" in reason]
    best = present(plan.recommended)
    worth = float(text.rsplit("$", 1)[1].removesuffix(" per hour"))
    expected = float(best.cost_p50) / (row.hours.p50 - best.hours.p50)
    assert worth == pytest.approx(expected, rel=0.01)


def test_the_guides_rows_contradict_themselves() -> None:
    claims = FAMILIES["trm"].guides["trm"].rows
    assert len(claims) == 12
    for claim in claims:
        for minutes, dollars in zip(claim.minutes, claim.cost_usd, strict=True):
            assert minutes / 60 * float(claim.rate) == pytest.approx(dollars, rel=0.08)
        assert claim.arithmetic_minutes[1] < claim.minutes[1] * 0.95


def test_a_recipe_without_trainer_is_planned_and_never_launchable(
    offers: list[Offer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FAMILIES["hdp"], "has_trainer", False)
    recipe = load_recipe("hdp")
    plan = plan_for(recipe, offers, budget=Usd(500))
    assert plan.spec.phases == ("train",)
    assert plan.launchable == ()
    assert plan.cap is None
    assert "plan only" in present(plan.recommended).reasons[0].text


def test_d64_fits_by_sharding_and_what_is_set_by_hand_stays() -> None:
    recipe = load_recipe("d64")
    table = [Offer("H100-PCIe", 8, "runpod", "any", "i", Usd(16), False, NOW, "test")]
    wish: dict[str, Any] = {"phases": BOTH, "hardware": "8xH100-PCIe", "budget": Usd(1000)}
    plan = plan_for(recipe, table, **wish, fill=True)
    settings = plan.candidates[0].phases[0].settings
    assert plan.launchable == (plan.recommended_id,)
    assert "trainer" not in plan.limits
    assert settings.sharding == "fsdp"
    assert settings.activation_checkpointing
    assert settings.batch * settings.accumulation == 32
    with pytest.raises(DoesNotFit, match="sharding=fsdp"):
        plan_for(recipe, table, **wish, overrides=(("sharding", "ddp"),))


def test_a_filled_run_has_the_steps_of_a_fast_machine_and_the_time_of_a_likely_one() -> None:
    recipe = load_recipe("speedrun")
    table = [Offer("H100-SXM", 8, "runpod", "any", "i", Usd(16), False, NOW, "test")]
    wish: dict[str, Any] = {"phases": ("train",), "hardware": "8xH100-SXM"}
    [made] = plan_for(recipe, table, **wish, budget=Usd(1000), fill=True).candidates
    [phase] = made.phases
    likely = phase.parts_s["training"] / phase.step_s.p50
    assert phase.settings.steps >= likely / 0.75
    per_step = phase.settings.tokens_per_step(8)
    assert phase.tokens == phase.settings.steps * per_step, "data for all of them"
    assert made.hours.p10 == made.hours.p50 == made.hours.p90 <= made.hard_stop_s / 3600
    assert phase.seconds.p10 == phase.seconds.p90
    assert Usd(970) < made.cost_p50 <= made.worst_case <= Usd(1000)
    told = next(
        reason.text
        for reason in made.reasons
        if "steps (P90 to P10) in the given time" in reason.text
    )
    least, most = (int(n.replace(",", "")) for n in re.findall(r"[\d,]{4,}", told))
    assert least < likely < most <= phase.settings.steps
    by_time = plan_for(recipe, table, **wish, deadline_at=NOW + 36_000.0, fill=True)
    [made] = by_time.candidates
    assert 9.5 < made.hours.p50 < 10.0


@pytest.mark.parametrize(
    ("name", "hardware"),
    [
        *(("gpt350m", "8xH100"), ("d24", "8xH100"), ("d32", "8xH100"), ("speedrun", "8xH100")),
        *(("bd3lm", "8xH200"), ("hdp", "8xH200")),
    ],
)
def test_a_recipe_is_launchable_in_full(offers: list[Offer], name: str, hardware: str) -> None:
    plan = plan_for(load_recipe(name), offers, budget=Usd(2000), hardware=hardware)
    assert plan.recommended_id in plan.launchable
    assert "trainer" not in plan.limits
    asked = load_recipe(name).resolve("train", hardware=hardware, gpus=int(hardware[0]))
    [phase] = plan.candidate(plan.launchable[0]).phases
    assert phase.settings.sharding == "ddp"
    assert phase.settings.batch >= asked.batch
    assert phase.settings.global_batch(8) == asked.global_batch(8)


def test_segments_cost_less_than_a_whole_row_as_noise_and_clean(offers: list[Offer]) -> None:
    seconds = {}
    for name in ("bd3lm", "hdp"):
        plan = plan_for(load_recipe(name), offers, budget=Usd(2000), hardware="8xH200")
        [phase] = plan.candidate(plan.launchable[0]).phases
        seconds[name] = phase.step_s.p50
    assert 0.5 < seconds["hdp"] / seconds["bd3lm"] < 0.75, "640 positions instead of 1,024"


def test_rows_of_one_text_each_are_counted_by_the_row(offers: list[Offer]) -> None:
    for name, small in (("bd3lm", 256), ("hdp", 448)):
        recipe = load_recipe(name)
        assert recipe.data_tokens == 7_473 * 512
        assert load_recipe(f"{name}-small").data_tokens == 7_473 * small
        plan = plan_for(
            recipe, offers, budget=Usd(2000), hardware="8xH200", tokens_available=1_139_709
        )
        [told] = [r.text for r in plan.candidates[0].reasons if "epochs over" in r.text]
        assert told.startswith("train: 3,425.67 epochs over the recipe's data of 3,826,176 tokens")


def test_no_more_passes_are_planned_than_needed(offers: list[Offer]) -> None:
    """Unless said by hand, or where the micro-batch would fill the GPU."""
    wish: dict[str, Any] = {"budget": Usd(2000), "hardware": "4xH100"}
    gpt = load_recipe("gpt350m")
    plan = plan_for(gpt, offers, **wish)
    chosen = plan.candidate(plan.launchable[0])
    [phase] = chosen.phases
    assert (phase.settings.sharding, phase.settings.accumulation) == ("ddp", 1)
    assert chosen.memory_need_gb <= 0.8 * chosen.memory_gb
    by_hand = plan_for(gpt, offers, **wish, overrides=(("batch", 8),))
    [kept] = by_hand.candidate(by_hand.launchable[0]).phases
    assert (kept.settings.batch, kept.settings.accumulation) == (8, 4)
    d32 = plan_for(load_recipe("d32"), offers, **{**wish, "hardware": "8xH100"})
    [large] = d32.candidate(d32.launchable[0]).phases
    assert large.settings.accumulation > 1


def test_what_is_sharded_by_hand_is_launched_and_says_so(
    offers: list[Offer],
) -> None:
    wish: dict[str, Any] = {"budget": Usd(2000), "hardware": "8xH100"}
    by_hand = (("sharding", "fsdp"),)
    plan = plan_for(load_recipe("d24"), offers, **wish, overrides=by_hand)
    chosen = plan.candidate(plan.launchable[0])
    assert chosen.phases[0].settings.sharding == "fsdp"
    alone = plan_for(load_recipe("d24"), offers, **wish)
    assert chosen.memory_need_gb < alone.candidate(alone.launchable[0]).memory_need_gb
    large = plan_for(load_recipe("speedrun"), offers, **wish, overrides=by_hand)
    told = [reason.text for reason in large.candidate(large.launchable[0]).reasons]
    assert any(
        "weights that are sharded over GPUs are not supported in float8" in text for text in told
    )


def test_a_family_whose_blocks_are_applied_again_is_not_sharded(offers: list[Offer]) -> None:
    wish: dict[str, Any] = {"budget": Usd(2000), "hardware": "8xH100"}
    plan = plan_for(load_recipe("trm-tiny"), offers, **wish, overrides=(("sharding", "fsdp"),))
    assert plan.launchable == ()
    assert (
        "sharding=fsdp does not work with trm: its blocks are applied many times"
        in plan.limits["trainer"]
    )


@pytest.mark.parametrize("days", [0.0, 2.0, 30.0])
def test_a_volume_is_reserved_until_its_day(trm: Recipe, offers: list[Offer], days: float) -> None:
    wish: dict[str, Any] = {"budget": Usd(300), "hardware": "8xH100", "providers": ("runpod",)}
    plan = plan_for(trm, offers, volume=True, volume_days=days, **wish)
    made = present(plan.recommended)
    assert made.volume_gb >= 30
    lasts_s = made.hard_stop_s + kill_latency_s("runpod")
    volume = cost(made.volume_rate, lasts_s + days * 86_400.0)
    assert made.worst_case >= cost(made.reserved_rate, lasts_s) + volume
    assert made.worst_case <= Usd(300)
    # RunPod's own price of what is asked for there: never more than was planned.
    room = disk_gb(made, LaunchData.of_note({"data_dir": ""}))
    assert price_per_hour("runpod", "kept", room) <= made.volume_rate
    assert f"reserved until {days:g} days after the run, at the latest 20" in plan.limits["volume"]
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))).candidates == plan.candidates
    assert "volume" not in plan_for(trm, offers, **wish).limits


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"volume": True, "volume_days": 366.0}, "from 0 to 365"),
        ({"volume": True, "volume_days": float("nan")}, "from 0 to 365"),
        ({"volume": True, "volume_then": "burn"}, "keep, delete-fetched, delete"),
        ({"volume_then": "delete"}, "--volume-days and --volume-then need --volume"),
    ],
)
def test_what_is_to_become_of_a_volume_is_checked(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        spec_of(LaunchRequest(**given), (), NOW, pods_can_upload=True)


# -- deadline -----------------------------------------------------------------------------------


NOW_DEADLINE = datetime(2026, 11, 18, 15, 0, tzinfo=timezone.utc).timestamp()  # a Wednesday


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12h", datetime(2026, 11, 19, 3, 0)),
        ("90m", datetime(2026, 11, 18, 16, 30)),
        ("18:30", datetime(2026, 11, 18, 18, 30)),
        ("08:00", datetime(2026, 11, 19, 8, 0)),
        ("15:00", datetime(2026, 11, 19, 15, 0)),
        ("1.5d", datetime(2026, 11, 20, 3, 0)),
        ("friday", datetime(2026, 11, 21)),
        ("Wed", datetime(2026, 11, 19)),
        ("2026-11-20", datetime(2026, 11, 21)),
        ("2026-11-20T18:00", datetime(2026, 11, 20, 18, 0)),
        ("2026-11-20T18:00+02:00", datetime(2026, 11, 20, 16, 0)),
    ],
)
def test_times_as_people_say_them(text: str, expected: datetime) -> None:
    at = parse_deadline(text, NOW_DEADLINE, timezone.utc)
    assert at == expected.replace(tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize(
    "text",
    ["", "soon", "0h", "-3h", "nanh", "infd", "2020-01-01", "t", "2030-01-01", "12", "25:00"],
)
def test_what_is_no_future_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--deadline"):
        parse_deadline(text, NOW_DEADLINE, timezone.utc)


# -- Rules that end a phase: as they are typed, and those that can never be met -----------------


SPEC = RunSpec(recipe="trm", phases=("fast",))


@pytest.mark.parametrize("patience", [-1, 10**7])
def test_what_is_no_patience_is_refused(patience: int) -> None:
    with pytest.raises(UsageError, match="--patience"):
        checked_patience(patience)


def _with(steps: int, **changes: Any) -> Candidate:
    phase = a_phase()
    settings = replace(
        phase.settings, steps=steps, eval_every=10, save_every=20, warmup_steps=10,
        cooldown_fraction=0.2, schedule="wsd",
    )  # fmt: skip
    return a_candidate(phases=(replace(phase, settings=settings),), **changes)


def test_a_rule_needs_enough_evaluations_between_warm_up_and_cooldown() -> None:
    """Of 150 steps the first 10 warm up and the last 30 cool down: eleven evaluations."""
    check_rules(replace(SPEC, patience=10), _with(150))
    check_rules(SPEC, _with(15))
    with pytest.raises(UsageError, match="cooldown, but no phase has more than 11"):
        check_rules(replace(SPEC, patience=11), _with(150))
