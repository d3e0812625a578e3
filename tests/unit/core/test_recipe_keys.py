"""A recipe's keys: whose they are, what they are where nothing is said, and what cannot be."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from trmcloud.adapters.files.recipes import load_recipe, recipe_names
from trmcloud.core.errors import TrmcloudError, UsageError
from trmcloud.core.spec.dense import DenseKeys
from trmcloud.core.spec.recipe import PhaseRecipe, Recipe, parse_recipe
from trmcloud.core.spec.settings import FAMILIES

DENSE_KEYS = [field.name for field in dataclasses.fields(DenseKeys)]

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
        ("trm", {"head_dim": 1}, "head_dim 1 is odd, and rotary positions turn pairs"),
        ("gpt", {"head_dim": 1}, "head_dim 1 is odd, and rotary positions turn pairs"),
        ("gpt", {"kv_heads": 3}, "kv_heads 3 cannot serve 4 heads of queries alike | --set kv_he"),
        ("gpt", {"kv_heads": 8}, "--set kv_heads=4"),
        ("gpt", {"kv_heads": -1}, "kv_heads -1 cannot serve"),
        (
            "gpt",
            {"norm": "rmsnorm"},
            "norm is one of rms, layer, not 'rmsnorm' | did you mean 'rms",
        ),
        ("gpt", {"mlp": "relu"}, "did you mean 'relu2'?"),
        ("gpt", {"positions": "rotary"}, "positions is one of rope, learned"),
        ("gpt", {"windows": "SMLX"}, "windows are made of S and L, not 'MX'"),
        ("gpt", {"dropout": 1.0}, "dropout lies between 0 and 1"),
        ("gpt", {"hidden": -8}, "hidden cannot be negative"),
        ("gpt", {"width": 72}, "width 72 is not a multiple of head_dim 16"),
        ("gpt", {"schedule": "linear"}, "schedule is one of wsd, cosine, constant"),
        ("gpt", {"rate_floor": 1.0}, "rate_floor lies between 0 and 1"),
        ("gpt", {"beta1": 1.5}, "beta1 lies between 0 and 1"),
        ("gpt", {"eps": -1e-8}, "eps cannot be negative"),
        ("gpt", {"ema_decay": 0.9}, "ema_decay is given, and no average is kept | --set ema=true"),
        ("gpt", {"normuon": True, "optimizer": "adamw"}, "normuon is Muon's"),
        ("nanochat", {"cautious_decay": True, "optimizer": "adamw"}, "cautious_decay is Muon's"),
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
