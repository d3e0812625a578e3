"""Data sets as values: what the shipped files say, what is refused, and what plans reckon with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomllib

from trmcloud.core.catalog.datasets import (
    GUIDE_CHARACTERS,
    DataSet,
    one_file,
    parse_data_set,
    parse_hosts,
    rehosted,
)
from trmcloud.core.contract.data_progress import DataProgress, load_progress, load_shard
from trmcloud.core.contract.records import ContractError, dump
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.recipe import parse_recipe

MODEL = Path(__file__).parents[3] / "model"
FILES = {path.stem: path for path in (MODEL / "datasets").glob("*.toml")}
SETS = {name: parse_data_set(tomllib.loads(p.read_text()), name) for name, p in FILES.items()}
RECIPES = {
    path.stem: parse_recipe(tomllib.loads(path.read_text()), path.stem)
    for path in (MODEL / "recipes").glob("*.toml")
}

GOOD: dict[str, Any] = {
    "name": "x",
    "title": "X",
    "layout": "parquet",
    "base_url": "https://host.example/x/",
    "shards": "s_{:03d}.parquet",
    "first": 1,
    "last": 4,
    "validation": "v.parquet",
}


def test_every_shipped_set_is_named_like_its_file_and_survives_json() -> None:
    assert {"climbmix", "fineweb-edu", "fineweb10B-gpt2", "openwebtext", "gsm8k"} < set(SETS)
    assert {"tinyshakespeare", "python-stdlib", "generated"} < set(SETS)
    for name, each in SETS.items():
        assert each.name == name
        assert parse_data_set(each.to_json(), name) == each
        assert each.licence
        assert each.tokens > 0, "a plan needs a figure"


@pytest.mark.parametrize("shards", ["s_{:03d}.parquet", "{:d}", "s_{:0d}.x", "one.txt"])
def test_a_shard_is_known_by_its_name_without_naming_all(shards: str) -> None:
    made = DataSet(
        "x", "X", "parquet", shards=shards, first=9, last=9 if shards[0] == "o" else 1001
    )
    names = set(made.shard_names())
    others = (
        {name[:-1] for name in names} | {name + "0" for name in names} | {"", shards, "9" * 5000}
    )
    others |= {shards.format(number) for number in (0, 8, 1002, 10_001)} | {"s_0009.parquet", "09"}
    others |= {"s_-10.parquet", "s_².parquet", "s_٠١٠.parquet"}
    for name in names | others:
        assert made.is_shard(name) == (name in names), name


def test_every_recipe_names_a_set_and_says_so_by_its_tokenizer() -> None:
    for recipe in RECIPES.values():
        settings = recipe.resolve(next(iter(recipe.phases)), hardware="8xH100", gpus=8)
        assert settings.data in SETS, recipe.name
        if recipe.name.startswith("shakespeare"):
            assert (settings.tokenizer, settings.characters) == ("char", ""), "of its own text"
            assert settings.data == "tinyshakespeare"
        elif settings.tokenizer == "char":
            assert settings.characters == GUIDE_CHARACTERS
            assert settings.data == "generated"
    assert RECIPES["trm"].shared["data"] == "fineweb-edu"


def test_files_are_what_their_hosts_call_them() -> None:
    """Names as in nanochat's dataset.py and modded-nanogpt's cached_fineweb10B.py."""
    edu, tokens = SETS["fineweb-edu"], SETS["fineweb10B-gpt2"]
    assert list(edu.shard_names())[:2] == ["shard_00000.parquet", "shard_00001.parquet"]
    assert (edu.shard_count, edu.validation) == (1822, "shard_01822.parquet")
    assert edu.address("shard_00000.parquet") == (
        "https://huggingface.co/datasets/karpathy/fineweb-edu-100b-shuffle/resolve/main/"
        "shard_00000.parquet"
    )
    assert (SETS["climbmix"].shard_count, SETS["climbmix"].validation) == (
        6542,
        "shard_06542.parquet",
    )
    assert next(tokens.shard_names()) == "fineweb_train_000001.bin"
    assert list(tokens.shard_names())[-1] == "fineweb_train_000103.bin"
    assert tokens.validation == "fineweb_val_000000.bin"


def test_figures_for_a_plan() -> None:
    made = parse_data_set(
        {**GOOD, "shard_bytes": 100, "shard_text_bytes": 300, "shard_tokens": 60}, "here"
    )
    assert [made.shards_for(n) for n in (0, 1, 60, 61, 10**9)] == [1, 1, 1, 2, 4]
    assert made.download_bytes(61) == 300, "two shards and the validation file"
    assert made.tokens == 240
    assert SETS["generated"].download_bytes(10**9) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"colum": "text"}, "did you mean 'column'"),
        ({"layout": "csv"}, "layout is one of"),
        ({"base_url": "ftp://host/x/"}, "no http address"),
        ({"base_url": "https://host/x"}, "ends in '/'"),
        ({"shards": "../{:03d}"}, "file name"),
        ({"shards": "{:03d}/{:03d}"}, "at most one"),
        ({"shards": "s_{0.__class__}"}, "file name"),
        ({"shards": "one.parquet"}, "make no list"),
        ({"last": 0}, "make no list"),
        ({"first": True}, "whole number"),
        ({"validation": ""}, "names its validation"),
        ({"validation": "s_002.parquet"}, "among the shards"),
        ({"sha256": {"s_001.parquet": "ABC"}}, "SHA-256"),
        ({"sha256": {"s_009.parquet": "0" * 64}}, "no file of it"),
        ({"fields": "text"}, "list of names"),
        ({"title": ""}, "no 'title'"),
        ({"tokenizer_shards": 5}, "tokenizer_shards"),
        ({"layout": "text"}, "one file"),
    ],
)
def test_a_file_that_is_no_data_set_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_data_set({**GOOD, **change}, "x.toml")
    assert words in caught.value.what + caught.value.next_step
    assert caught.value.where == "x.toml"


def test_addresses_are_rehosted_by_their_host_alone() -> None:
    hosts = parse_hosts("huggingface.co=http://127.0.0.1:8400/hf/  other=https://m.example")
    assert rehosted("https://huggingface.co/a/b?c=1", hosts) == "http://127.0.0.1:8400/hf/a/b?c=1"
    assert rehosted("https://hub.huggingface.co/a", hosts) == "https://hub.huggingface.co/a"
    for wrong in ("huggingface.co", "x=ftp://y", "=http://y"):
        with pytest.raises(UsageError, match="host=base"):
            parse_hosts(wrong)


def test_a_bare_address_is_one_file() -> None:
    made = one_file("https://host.example/deep/er/some.jsonl")
    assert (made.layout, made.base_url, made.shards) == (
        "jsonl",
        "https://host.example/deep/er/",
        "some.jsonl",
    )
    assert made.address(made.shards) == "https://host.example/deep/er/some.jsonl"
    for wrong in ("https://host.example/", "https://host.example/x.txt?token=1"):
        with pytest.raises(UsageError):
            one_file(wrong)


def test_progress_is_read_strictly() -> None:
    said = DataProgress("climbmix", "working", 1.0, 7, "99", tokens=5, seconds={"ready": 2.0})
    assert load_progress(dump(said)) == said
    for wrong in ('{"version": 1}', dump(said).replace("working", "dancing"), "[]"):
        with pytest.raises(ContractError):
            load_progress(wrong)
    with pytest.raises(ContractError, match="no file of the folder"):
        load_shard('{"version":1,"name":"a","file":"../x","tokens":1,"documents":1,"sha256":"00"}')


def test_a_set_without_sizes_still_gives_a_count() -> None:
    assert DataSet("x", "X", "parquet", shards="s", validation="v").shards_for(10**9) == 1
