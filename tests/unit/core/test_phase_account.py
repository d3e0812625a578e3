"""The account of a phase: what an attempt came to, what it cost, and what the next is; the keys
of a recipe."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from tests.present import present
from tests.unit.core.phases import BEAT, ONE, RUNNING, ended
from trmcloud.adapters.files import load_recipe, recipe_names
from trmcloud.core.contract.phase_account import close_attempt, next_try, start_attempt, with_skips
from trmcloud.core.contract.pod_contract import PhaseReport, PhaseState
from trmcloud.core.contract.recovery import Recovery
from trmcloud.core.errors import TrmcloudError, UsageError
from trmcloud.core.spec.dense import DenseKeys
from trmcloud.core.spec.recipe import Recipe, parse_recipe
from trmcloud.core.spec.settings import FAMILIES, PhaseRecipe

DENSE_KEYS = [field.name for field in dataclasses.fields(DenseKeys)]
# -- phase account ------------------------------------------------------------------------------
# The account of a phase by itself: what an attempt came to, what it cost, and what the next is.


OWN: dict[str, Any] = {
    "batch": 8, "accumulation": 12, "activation_checkpointing": False, "compile": True,
    "loader_workers": 2, "climbs": True,
}  # fmt: skip
LEASE = replace(ONE, phases=(replace(ONE.phases[0], settings=OWN),))

# -- how an attempt ended ------------------------------------------------------------------------


def test_a_process_that_said_nothing_is_lost() -> None:
    closed = close_attempt(RUNNING, None, 50.0)
    assert (closed.state, closed.outcome, closed.ended_at) == ("ended", "lost", 50.0)
    assert closed.fruitless == 1


@pytest.mark.parametrize("outcome", [None, "finished", "non_finite"])
def test_the_last_heartbeat_says_how_it_ended(outcome: str | None) -> None:
    beat = replace(BEAT, outcome=outcome, message="why", val_bpb=1.5, saved_step=4)
    closed = close_attempt(RUNNING, beat, 50.0)
    assert closed.outcome == (outcome or "lost")
    assert (closed.step, closed.val_bpb, closed.message, closed.saved_step) == (5, 1.5, "why", 4)


@pytest.mark.parametrize(
    ("before", "saved", "fruitless"),
    [(None, 4, 0), (4, 5, 0), (4, 4, 3), (4, 3, 3), (None, None, 3), (4, None, 3)],
)
def test_only_a_newer_checkpoint_is_progress(
    before: int | None, saved: int | None, fruitless: int
) -> None:
    report = replace(RUNNING, saved_step=before, fruitless=2)
    closed = close_attempt(report, replace(BEAT, saved_step=saved), 50.0)
    assert closed.fruitless == fruitless
    assert closed.saved_step == max((s for s in (saved, before) if s is not None), default=None)


def test_seconds_add_up_over_attempts() -> None:
    report = replace(RUNNING, seconds={"training": 5.0, "compiling": 2.0})
    beat = replace(BEAT, seconds={"training": 3.0, "saving": 1.0})
    closed = close_attempt(report, beat, 50.0)
    assert closed.seconds == {"training": 8.0, "compiling": 2.0, "saving": 1.0}


def test_to_come_again_to_where_a_damaged_checkpoint_was_is_not_to_get_on() -> None:
    report = replace(RUNNING, saved_step=30)
    for saved, fruitless in ((12, 1), (22, 2), (30, 3)):
        closed = close_attempt(report, replace(BEAT, saved_step=saved), 50.0)
        assert (closed.fruitless, closed.saved_step) == (fruitless, 30)
        report = replace(closed, state=PhaseState.RUNNING)
    closed = close_attempt(report, replace(BEAT, saved_step=31), 50.0)
    assert (closed.fruitless, closed.saved_step) == (0, 31)


def test_what_a_damaged_checkpoint_had_is_not_reckoned_as_kept() -> None:
    """It went on from step 12 and came to 25: thirteen steps are trained again, whatever lay at
    step 30."""
    report = replace(RUNNING, saved_step=30)
    closed = close_attempt(report, replace(BEAT, step=25, saved_step=12), 50.0)
    assert closed.lost_steps == 13


# -- what it cost --------------------------------------------------------------------------------


def test_of_one_that_never_spoke_no_step_is_lost_but_its_time_is() -> None:
    closed = close_attempt(replace(RUNNING, lost_steps=9), None, 50.0, 12.5)
    assert (closed.lost_steps, closed.lost_s) == (0, 12.5)


@pytest.mark.parametrize("beat", [None, BEAT])
@pytest.mark.parametrize(("told_s", "lost_s"), [(0.25, 0.25), (0.0, 0.0), (-3.0, 0.0)])
def test_time_that_was_lost_is_never_below_none(beat: Any, told_s: float, lost_s: float) -> None:
    """A clock that was set back between a save and the end says so."""
    assert close_attempt(RUNNING, beat, 50.0, told_s).lost_s == lost_s


@pytest.mark.parametrize("beat", [None, BEAT])
def test_where_nobody_says_what_was_lost_nothing_was(beat: Any) -> None:
    assert close_attempt(replace(RUNNING, lost_s=7.0), beat, 50.0).lost_s == 0.0


@pytest.mark.parametrize(
    ("step", "saved", "lost"), [(40, None, 40), (40, 38, 2), (40, 40, 0), (40, 42, 0)]
)
def test_steps_past_its_checkpoint_were_lost(step: int, saved: int | None, lost: int) -> None:
    """All where it saved none; none where the save is newer than the last step that was told."""
    closed = close_attempt(RUNNING, replace(BEAT, step=step, saved_step=saved), 50.0)
    assert closed.lost_steps == lost


@pytest.mark.parametrize(("step_s", "lost_s"), [(0.5, 2.0), (None, 0.0), (0.0, 0.0), (-2.0, 0.0)])
def test_steps_left_out_cost_nothing_where_no_step_was_measured(
    step_s: float | None, lost_s: float
) -> None:
    beat = replace(BEAT, skipped=4, skipped_step=3, step_seconds=step_s)
    [row] = with_skips((), beat)
    assert (row.lost_steps, row.lost_s) == (4, lost_s)


def test_steps_left_out_nobody_says_where_were_at_the_last_step() -> None:
    [row] = with_skips((), replace(BEAT, step=47, skipped=2, skipped_step=None))
    assert (row.step, row.times) == (47, 2)


# -- what is done about it -----------------------------------------------------------------------


def test_where_no_restart_is_allowed_other_settings_are_still_tried() -> None:
    """Restarts are counted of what might go well as it is; a rung has a count of its own."""
    strict = replace(LEASE, max_restarts=0)
    row = present(next_try(strict, ended("out_of_memory", fruitless=1)))
    assert (row.rung, row.changed) == ("batch", {"batch": 4, "accumulation": 24})
    assert next_try(strict, ended("crashed", fruitless=1)) is None


@pytest.mark.parametrize("outcome", ["finished", "landed_deadline", "stopped_paying", "bad_data"])
def test_only_one_that_landed_for_it_goes_on_with_the_larger_batch(outcome: str) -> None:
    climbs = ended("landed_signal", climbing="aggressive")
    row = present(next_try(LEASE, climbs))
    assert (row.what, row.rung) == ("memory_spare", "aggressive")
    assert next_try(LEASE, replace(climbs, outcome=outcome)) is None
    assert next_try(LEASE, replace(climbs, climbing=None)) is None


def test_a_try_after_one_that_told_neither_step_nor_end_has_a_row_all_the_same() -> None:
    silent = ended("lost", step=None, ended_at=None)
    row = next_try(LEASE, silent)
    assert row == Recovery("lost", "again", step=0, at=0.0)
    told = next_try(LEASE, replace(silent, step=7, ended_at=0.5))
    assert told == Recovery("lost", "again", step=7, at=0.5)


# -- the next attempt ----------------------------------------------------------------------------


def test_a_phase_has_started_when_its_first_attempt_did() -> None:
    first = start_attempt(LEASE, PhaseReport("fast"), 1, 20.0)
    assert (first.started_at, first.attempts) == (20.0, 1)
    second = start_attempt(LEASE, close_attempt(first, None, 30.0), 2, 40.0)
    assert (second.started_at, second.ended_at, second.attempts) == (20.0, None, 2)


def test_a_first_attempt_has_no_row_and_keeps_what_is_known_of_earlier_ones() -> None:
    """On another pod its phase had attempts before: nothing on this one has gone wrong yet."""
    row = Recovery("lost", "again", step=3)
    taken_up = PhaseReport("fast", fruitless=2, recoveries=(row,))
    begun = start_attempt(LEASE, taken_up, 1, 20.0)
    assert (begun.state, begun.fruitless) == (PhaseState.RUNNING, 2)
    assert begun.recoveries == (row,)


@pytest.mark.parametrize(("outcome", "fruitless"), [("out_of_memory", 0), ("crashed", 2)])
def test_other_settings_begin_a_count_of_their_own(outcome: str, fruitless: int) -> None:
    """Failures with a batch that was too large do not count against a smaller one."""
    begun = start_attempt(LEASE, ended(outcome, fruitless=2), 3, 20.0)
    assert (begun.recoveries[-1].rung, begun.fruitless) == (
        "batch" if fruitless == 0 else "again",
        fruitless,
    )


# -- recipe keys --------------------------------------------------------------------------------
# A recipe's keys: whose they are, what they are where nothing is said, and what cannot be.


SMALL = {"depth": 2, "width": 64, "head_dim": 16}


def recipe_of(family: str, **tables: Any) -> Recipe:
    return parse_recipe(
        {"name": "r", "family": family, "phases": {"train": {}}, "settings": SMALL, **tables},
        "r.toml",
    )


def settings_of(family: str, **changes: Any) -> Any:
    return recipe_of(family).resolve("train", hardware="local", gpus=1, overrides=changes)


def refusal(error: TrmcloudError) -> str:
    return f"{str(error).replace(f' ({error.where})', '')} | {error.next_step}"


def test_a_family_is_itself_where_its_recipe_says_nothing() -> None:
    gpt, nanochat = settings_of("gpt"), settings_of("nanochat")
    assert (gpt.mlp, gpt.qk_norm, gpt.logit_cap) == ("swiglu", False, 0.0)
    assert (nanochat.mlp, nanochat.qk_norm, nanochat.logit_cap) == ("relu2", True, 15.0)
    assert settings_of("nanochat", logit_cap=0.0, mlp="gelu").mlp == "gelu"


@pytest.mark.parametrize("family", FAMILIES)
def test_settings_survive_json_without_what_their_family_does_not_take(family: str) -> None:
    segments = {"sequence": 512} if family == "hdp" else {}  # what its segments make up
    made = settings_of(family, **segments)
    data = made.to_json()
    assert PhaseRecipe.from_json(data) == made
    own = [field.name for field in dataclasses.fields(made)]
    assert set(own) - set(data) == set(FAMILIES[family].not_set)
    # Of a version that did not know them: what the family is by itself.
    assert PhaseRecipe.from_json({k: v for k, v in data.items() if k not in DENSE_KEYS}) == made


@pytest.mark.parametrize(
    ("family", "changes", "says"),
    [
        ("gpt", {"loops": 2}, "gpt has no setting 'loops'"),
        ("trm", {"kv_heads": 2}, "trm has no setting 'kv_heads'"),
        ("gpt", {"supervision_steps": 2}, "did you mean 'warmup_steps'?"),
        ("trm", {"hidden": 64}, "trm has no setting 'hidden'"),
        ("trm", {"head_dim": 1}, "head_dim 1 is odd; rotary positions need an even number"),
        ("gpt", {"head_dim": 1}, "head_dim 1 is odd; rotary positions need an even number"),
        ("gpt", {"kv_heads": 3}, "4 query heads are not a multiple of kv_heads 3 | --set kv_he"),
        ("gpt", {"kv_heads": 8}, "--set kv_heads=4"),
        ("gpt", {"kv_heads": -1}, "not a multiple of kv_heads -1"),
        (
            "gpt",
            {"norm": "rmsnorm"},
            "norm must be one of rms, layer, not 'rmsnorm' | did you mean 'rms",
        ),
        ("gpt", {"mlp": "relu"}, "did you mean 'relu2'?"),
        ("gpt", {"positions": "rotary"}, "positions must be one of rope, learned"),
        ("gpt", {"windows": "SMLX"}, "windows must consist of S and L, not 'MX'"),
        ("gpt", {"dropout": 1.0}, "dropout must be at least 0 and below 1, not"),
        ("gpt", {"hidden": -8}, "hidden cannot be negative"),
        ("gpt", {"width": 72}, "width 72 is not a multiple of head_dim 16"),
        (
            "gpt",
            {"schedule": "linear"},
            "schedule must be one of wsd, wsd-linear, cosine, constant",
        ),
        ("gpt", {"rate_floor": 1.0}, "rate_floor must be at least 0 and below 1"),
        ("gpt", {"beta1": 1.5}, "beta1 must be at least 0 and below 1"),
        ("gpt", {"eps": -1e-8}, "eps cannot be negative"),
        ("gpt", {"ema_decay": 0.9}, "ema_decay needs ema=true | --set ema=true"),
        ("gpt", {"normuon": True, "optimizer": "adamw"}, "normuon belongs to Muon"),
        (
            "nanochat",
            {"cautious_decay": True, "optimizer": "adamw"},
            "cautious_decay belongs to Muon",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(family: str, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings_of(family, **changes)
    assert says in refusal(caught.value)


def test_learned_positions_turn_no_pairs() -> None:
    assert settings_of("gpt", positions="learned", width=60, head_dim=15).heads == 4


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"settings": {"qk_nrom": True}}, "did you mean 'qk_norm'?"),
        ({"settings": {"qk_norm": "yes please"}}, "qk_norm takes true or false"),
        ({"small": {"depht": 2}}, "did you mean 'depth'? r.toml [small]"),
        ({"small": {"loops": 2}}, "gpt has no setting 'loops'"),
        ({"hardware": {"8xH100": {"train": {"batches": 2}}}}, "did you mean 'batch'?"),
        ({"aspect_ratio": "64"}, "aspect_ratio takes a whole number"),
        ({"smal": {}}, "unknown table 'smal' | did you mean 'small'?"),
        ({"phases": {}}, "the recipe has no phase"),
        ({"family": "gtp"}, "did you mean 'gpt'?"),
    ],
)
def test_a_file_with_a_wrong_key_is_refused_by_name(table: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        recipe_of(**{"family": "gpt", **table})
    assert says in f"{refusal(caught.value)} {caught.value.where}"


def test_the_dial_brings_the_width_in_whole_heads() -> None:
    d24 = load_recipe("d24")
    for depth, width in ((48, 3072), (80, 5120), (25, 1664)):
        made = d24.resolve("train", hardware="8xH100", gpus=8, overrides={"depth": depth})
        assert (made.depth, made.width, made.head_dim) == (depth, width, 128)
    by_hand = {"depth": 48, "width": 1024}
    assert d24.resolve("train", hardware="8xH100", gpus=8, overrides=by_hand).width == 1024
    assert settings_of("gpt", depth=7).width == 64, "a recipe without a dial"


@pytest.mark.parametrize("name", [n for n in recipe_names() if load_recipe(n).small])
def test_a_small_table_makes_a_recipe_of_its_own(name: str) -> None:
    whole, small = load_recipe(name), load_recipe(f"{name}-small")
    assert small.name == f"{name}-small"
    assert small.family == whole.family
    [phase] = small.phases
    made = small.resolve(phase, hardware="8xH100", gpus=8)
    for key, value in whole.small.items():
        assert getattr(made, key) == value
    assert (made.recipe, made.compile, made.dtype) == (small.name, False, "float32")


def test_a_recipe_without_one_says_so() -> None:
    with pytest.raises(UsageError, match=r"trm has no \[small\] table"):
        load_recipe("trm-small")


def test_trms_keys_are_no_dense_models() -> None:
    assert not set(FAMILIES["trm"].names()) & set(DENSE_KEYS)
