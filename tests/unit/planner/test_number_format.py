"""The number format, the length and the rates that a plan counts with, and why."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trmcloud.adapters.files.recipes import load_recipe
from trmcloud.app.launch_request import LaunchRequest, spec_of
from trmcloud.cli.views.batch_rows import batch_lines
from trmcloud.core.catalog.hardware import GPUS, LocalMachine
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.errors import UsageError
from trmcloud.core.planner.calibrated import FITTED
from trmcloud.core.planner.memory import predict_memory
from trmcloud.core.planner.number_format import assumed_format
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.planner.roofline import step_time
from trmcloud.core.spec.plan import Plan
from trmcloud.core.spec.rates import rate_for
from trmcloud.core.spec.recipe import PhaseRecipe, parse_recipe
from trmcloud.core.values import replace

NOW = 1_795_000_000.0


def settings_of(name: str, **changes: Any) -> PhaseRecipe:
    recipe = load_recipe(name)
    made = recipe.resolve(next(iter(recipe.phases)), hardware="8xH100", gpus=8)
    return replace(made, **changes)


def planned(
    recipe: str, offers: list[Offer], *, local: LocalMachine | None = None, **typed: Any
) -> Plan:
    request = LaunchRequest(recipe=recipe, phase=typed.pop("phase", "train"), **typed)
    spec = spec_of(request, (), NOW, pods_can_upload=True)
    return make_plan(spec, load_recipe(recipe), offers, NOW, "p-1", local=local)


@pytest.mark.parametrize(
    ("recipe", "sku", "dtype", "why"),
    [
        ("gpt350m", "H100-SXM", "bfloat16", "float8 seldom pays below 1B parameters"),
        ("d32", "H100-SXM", "float8", "pays from about 1B parameters on; 20 timed steps"),
        ("d32", "A100-80GB-SXM", "bfloat16", "A100 has no float8"),
        ("trm", "H100-SXM", "bfloat16", ""),
    ],
)
def test_a_plan_says_what_it_counts_with_and_why(
    recipe: str, sku: str, dtype: str, why: str
) -> None:
    made = assumed_format(settings_of(recipe), GPUS[sku])
    assert made.dtype == dtype
    assert why in made.why
    assert bool(made.why) is bool(why)


def test_where_nothing_is_known_of_the_gpu_or_there_is_none() -> None:
    auto = settings_of("gpt350m", dtype="auto")
    assert assumed_format(auto, None, on_gpu=False).dtype == "float32"
    assert assumed_format(auto, None).dtype == "bfloat16"
    here = predict_memory(auto, 1, on_gpu=False)
    assert here == predict_memory(replace(auto, dtype="float32"), 1, on_gpu=False)
    assert predict_memory(auto, 1) == predict_memory(replace(auto, dtype="bfloat16"), 1)


def test_float8_is_planned_faster_in_its_products_alone() -> None:
    gpu, seconds = GPUS["H100-SXM"], {}
    for dtype in ("bfloat16", "float8"):
        seconds[dtype] = step_time(settings_of("d32", dtype=dtype), gpu, 8, FITTED, 1.0)
    low, high = seconds["float8"], seconds["bfloat16"]
    assert high.matmul * 0.5 < low.matmul < high.matmul
    assert (low.attention, low.traffic) == (high.attention, high.traffic)


def test_the_plans_reasons_name_the_format(offers: list[Offer]) -> None:
    plan = planned("gpt350m", offers, hardware="8xH100", budget="100")
    assert plan.recommended is not None
    told = [reason.text for reason in plan.recommended.reasons]
    assert any(text.startswith("train: counted with bfloat16: float8 seldom") for text in told)
    by_name = planned("gpt350m", offers, hardware="8xH100", budget="100", precision="bf16")
    assert by_name.recommended is not None
    assert not any("counted with" in reason.text for reason in by_name.recommended.reasons)
    assert by_name.recommended.phases[0].settings.dtype == "bfloat16"


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
        ({"precision": "fp4"}, "--precision is one of auto, fp8, bf16, fp16, fp32, not 'fp4'"),
        ({"precision": "fp8", "setting": ["dtype=float8"]}, "say the same"),
        ({"setting": ["float8=native"], "precision": "bf16"}, "float8=native says who takes"),
        ({"setting": ["float8=tensorwise"]}, "float8 is one of"),
        ({"scale_lr": "linear"}, "--scale-lr is one of off, sqrt, table"),
        ({"scale_lr": "sqrt"}, r"has no \[rates\]"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    offers: list[Offer], typed: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        planned("gpt350m", offers, hardware="8xH100", **typed)


# -- the guide's hours --------------------------------------------------------------------------


def test_the_guides_hours_are_the_deadline_where_no_length_is_given(offers: list[Offer]) -> None:
    plan = planned("gpt350m", offers, hardware="8xH100")
    assert plan.spec.hours == 1.5
    assert plan.limits["hours"] == "1.5 h of training"
    assert plan.recommended is not None
    longest = plan.recommended.startup_s.p90 + 1.5 * 3600 + plan.recommended.landing_s
    assert plan.recommended.hard_stop_s <= longest + 1e-6
    for length in ({"steps": 28_839}, {"tokens": 1_000_000}, {"fill": True, "budget": "20"}):
        assert planned("gpt350m", offers, hardware="8xH100", **length).spec.hours is None
    assert planned("gpt350m", offers, hardware="8xH100", hours=2.0).spec.hours == 2.0
    assert load_recipe("gpt350m").in_small().hours == 0.0
    with pytest.raises(UsageError, match="hours takes a number"):
        parse_recipe({"name": "r", "family": "gpt", "phases": {"train": {}}, "hours": "x"}, "r")


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
        with pytest.raises(UsageError, match="goes from 128 to 1024"):
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
    with pytest.raises(UsageError, match="matrix_lr is set by hand"):
        resolved(scale_lr="sqrt", matrix_lr=1e-3)
    for bad in ({"x": 1e-3}, {"128": 0.0}, {"0": 1e-3}, [3]):
        content: dict[str, Any] = {"name": "r", "family": "gpt", "phases": {"train": {}}}
        with pytest.raises(UsageError, match="rates go by sequences"):
            parse_recipe({**content, "rates": bad}, "r")


def test_the_guides_batches_stand_beside_what_is_reckoned() -> None:
    recipe = load_recipe("bd3lm")
    settings = recipe.resolve("train", hardware="1xH200", gpus=1)
    assert settings.guide is not None
    _, header, *rows = batch_lines(settings, settings.guide.batches, recipe.rates)
    assert "GB said" in header
    assert [row.split()[0] for row in rows] == [
        "baseline", "conservative", "recommended", "aggressive", "extreme",
    ]  # fmt: skip
    assert rows[0].split()[1:6] == ["4xA100", "32", "×", "1", "128"]
    said_and_here = rows[2].split()[6:8]
    low, high = map(float, said_and_here[0].split("–"))
    assert low <= float(said_and_here[1]) <= high
