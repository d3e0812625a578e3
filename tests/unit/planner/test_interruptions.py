"""Spot machines: the expected time of work that is interrupted, held against a simulation, and what
keeps a spot machine from being planned."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from trmcloud.adapters.files import load_recipe
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.interruptions import (
    ASSUMED_PER_HOUR,
    NOT_KNOWN,
    InterruptionRate,
    per_hour_of_a_day,
)
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.catalog.providers import TRAITS
from trmcloud.core.contract.command import Command
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd
from trmcloud.core.planner.interruptions import best_interval_s, expected_segment_s, rate_words
from trmcloud.core.planner.planning import check_spot, make_plan
from trmcloud.core.spec.plan import Candidate
from trmcloud.core.spec.spec import RunSpec

HOUR_S = 3600.0
NOW = 1_795_000_000.0


def simulated_s(
    rng: random.Random, segments: int, segment_s: float, restart_s: float, per_s: float
) -> float:
    """Seconds that one play takes: every interruption is a restart and the segment from its begin,
    and a restart can be interrupted itself."""
    passed_s, done, restarting = 0.0, 0, False
    while done < segments:
        needs_s = segment_s + (restart_s if restarting else 0.0)
        taken_s = rng.expovariate(per_s)
        if taken_s >= needs_s:
            passed_s, done, restarting = passed_s + needs_s, done + 1, False
        else:
            passed_s, restarting = passed_s + taken_s, True
    return passed_s


@pytest.mark.parametrize(
    ("mean_h", "best_min"), [(24.0, 117.0), (6.0, 57.0), (0.25, 9.1)], ids=["24 h", "6 h", "15 min"]
)
def test_the_formula_has_its_least_value_where_daly_published_it(
    mean_h: float, best_min: float
) -> None:
    """Daly 2006, figures 3 to 5: a save of 5 minutes, a restart of 10, this mean time between
    failures; his optimum is from a series and printed to two or three digits."""

    def per_minute_of_work(tenths: int) -> float:
        work_s = tenths * 6.0
        return expected_segment_s(work_s + 300.0, 600.0, 1 / (mean_h * HOUR_S)) / work_s

    least = min(range(10, 3000), key=per_minute_of_work) / 10
    assert least == pytest.approx(best_min, rel=0.015)


@pytest.mark.parametrize(
    ("segment_s", "restart_s", "per_hour"),
    [(600.0, 400.0, 0.1), (1800.0, 900.0, 1.0), (300.0, 1200.0, 3.0)],
)
def test_the_formula_is_the_mean_of_many_plays(
    segment_s: float, restart_s: float, per_hour: float
) -> None:
    rng, segments, per_s = random.Random(7), 40, per_hour / HOUR_S
    plays = [simulated_s(rng, segments, segment_s, restart_s, per_s) for _ in range(2000)]
    mean = sum(plays) / len(plays)
    spread = math.sqrt(sum((each - mean) ** 2 for each in plays) / len(plays))
    expected = segments * expected_segment_s(segment_s, restart_s, per_s)
    assert abs(mean - expected) < 4 * spread / math.sqrt(len(plays))


def test_without_interruptions_a_segment_takes_what_it_takes() -> None:
    assert expected_segment_s(600.0, 400.0, 0.0) == 600.0
    assert expected_segment_s(600.0, 400.0, 1e-12) == pytest.approx(600.0)
    assert expected_segment_s(1e9, 400.0, 1.0) == math.inf, "never left alone for so long"
    assert best_interval_s(10.0, 0.0) == math.inf


@pytest.mark.parametrize("save_s", [5.0, 60.0])
def test_the_interval_loses_least(save_s: float) -> None:
    """Of what the exact formula says, to a hundredth; Young's is of first order."""
    per_s = 0.5 / HOUR_S
    best = best_interval_s(save_s, per_s)

    def loss(interval_s: float) -> float:
        return expected_segment_s(interval_s + save_s, 300.0, per_s) / interval_s

    least = min(loss(best * factor / 20) for factor in range(5, 80))
    assert loss(best) < 1.01 * least


def test_a_rate_that_is_not_known_is_assumed_and_says_so() -> None:
    assert NOT_KNOWN.planned_per_hour == ASSUMED_PER_HOUR
    assert rate_words(NOT_KNOWN) == "the rate per hour is not known, once in 10 h is assumed"
    stated = InterruptionRate(per_hour_of_a_day(0.15), "5 to 15 % a day", "Somebody", "2026-11-25")
    assert stated.planned_per_hour * 24 == pytest.approx(-math.log(0.85))
    assert rate_words(stated) == "Somebody: 5 to 15 % a day; once in 148 h"


def test_every_stated_rate_has_its_source_and_its_day() -> None:
    for traits in TRAITS.values():
        rate = traits.machines.interruptions
        assert bool(rate.stated) == bool(rate.source) == bool(rate.read_on)
        assert rate.per_hour is None or 0.0 < rate.per_hour < 1.0
        assert traits.machines.has_spot or rate == NOT_KNOWN, "of machines that are not rented"


# -- plans --------------------------------------------------------------------------------------


def offer(provider: str, rate: str, **more: Any) -> Offer:
    made = Offer("H100-SXM", 8, provider, "any", "i", Usd(rate), False, NOW, "test")
    return made._replace(**more)


def planned(offers: list[Offer], **wish: Any) -> tuple[Candidate, ...]:
    spec = RunSpec(
        recipe="trm", phases=("fast", "extreme"), hardware="8xH100", bucket="s3://b/x", **wish
    )
    plan = make_plan(spec, load_recipe("trm"), offers, NOW, "p-0000")
    return plan.candidates


def test_hours_are_what_is_expected_with_the_providers_own_rate() -> None:
    """A cloud that states fewer interruptions is planned to take less time for the same work."""
    dear = [offer(name, "30") for name in ("gcp", "aws")]
    spots = [offer(name, "9", spot=True) for name in ("gcp", "aws")]
    calm = {c.provider: c for c in planned(dear)}
    risky = {c.provider: c for c in planned([*dear, *spots], spot=True) if c.spot}
    assert set(risky) == {"gcp", "aws"}
    for provider, candidate in risky.items():
        assert candidate.hours.p50 > calm[provider].hours.p50
        told = [text for _, text in candidate.reasons]
        assert f"interruptions: {rate_words(TRAITS[provider].machines.interruptions)}" in told
        assert any(
            "steps because of interruptions, and is expected to take" in text for text in told
        )
    assert risky["gcp"].hours.p50 < risky["aws"].hours.p50
    saves = {name: c.phases[0].settings.save_every for name, c in risky.items()}
    assert saves["gcp"] > saves["aws"], "rarer interruptions, rarer saves"


def test_of_several_machines_each_may_be_taken() -> None:
    def extra(hardware: str) -> float:
        table = [offer("aws", "30"), offer("aws", "9", spot=True)]
        spec = RunSpec(recipe="trm", phases=("fast",), hardware=hardware, bucket="s3://b/x")
        alone = make_plan(spec, load_recipe("trm"), table, NOW, "p").candidates[0]
        spec = RunSpec(
            recipe="trm", phases=("fast",), hardware=hardware, bucket="s3://b/x", spot=True
        )
        made = make_plan(spec, load_recipe("trm"), table, NOW, "p").candidates
        spot = next(c for c in made if c.spot)
        parts = spot.phases[0].parts_s["training"], alone.phases[0].parts_s["training"]
        return parts[0] / parts[1] - 1.0

    assert extra("2x8xH100") > 1.3 * extra("8xH100") > 0.0


def test_spot_without_a_place_for_checkpoints_is_refused() -> None:
    spec = RunSpec(recipe="trm", phases=("fast",), hardware="8xH100", spot=True)
    with pytest.raises(
        UsageError,
        match="a spot machine may be taken back at any time, and its checkpoints would be lost",
    ) as caught:
        make_plan(spec, load_recipe("trm"), [offer("aws", "9", spot=True)], NOW, "p-0000")
    assert "--bucket s3://BUCKET/PREFIX" in caught.value.next_step


def test_what_is_kept_elsewhere_or_not_rented_is_not_refused() -> None:
    spec = RunSpec(recipe="trm", phases=("fast",), spot=True)
    for kept in ({"bucket": "s3://b/x"}, {"volume": True}, {"hardware": LOCAL}, {"spot": False}):
        check_spot(RunSpec.from_json({**spec.to_json(), **kept}))


def test_a_command_that_cannot_continue_is_refused_on_spot() -> None:
    spec = RunSpec(
        recipe="command", phases=("run",), spot=True, bucket="s3://b/x",
        command=Command(("python", "train.py")),
    )  # fmt: skip
    with pytest.raises(
        UsageError,
        match="a spot machine may be taken back at any time, and this command has no --resume: "
        "it would start again from the beginning",
    ):
        check_spot(spec)


def test_with_a_bucket_each_provider_that_is_named_keeps_its_best() -> None:
    """Where its machine is lost a run may continue there; one that was not named is not added."""
    table = [offer("aws", f"3{i}", region=f"r{i}") for i in range(5)]
    table += [offer("gcp", "50"), offer("lambda", "60")]
    spec = RunSpec(recipe="trm", phases=("fast",), hardware="8xH100", providers=("aws", "gcp"))

    def tried(**more: Any) -> list[str]:
        wish = RunSpec.from_json({**spec.to_json(), **more})
        plan = make_plan(wish, load_recipe("trm"), table, NOW, "p-0000")
        return [plan.candidate(name).provider for name in plan.launchable]

    assert tried() == ["aws"] * 3
    assert tried(bucket="s3://b/x") == ["aws"] * 3 + ["gcp"]
    assert set(tried(bucket="s3://b/x", providers=[])) == {"aws"}
