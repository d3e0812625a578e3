"""Data sets as values, the progress of growing data, and the entries of a token cache."""

from __future__ import annotations

import json
import math
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
from trmcloud.core.contract.bucket import CachedFile
from trmcloud.core.contract.bucket_layout import (
    MAX_ENTRY_BYTES,
    MAX_PUT_BYTES,
    is_cache_file,
    load_entry,
    offered,
    token_slots_for,
    unpinned,
)
from trmcloud.core.contract.records import ContractError, dump
from trmcloud.core.contract.trainer_contract import (
    STATES,
    DataProgress,
    ShardRecord,
    load_progress,
    load_shard,
)
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import fold_ledger
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.recipe import parse_recipe

# -- datasets -----------------------------------------------------------------------------------
# Data sets as values: what the shipped files say, what is refused, and what plans reckon with.


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
        elif settings.family == "trm_puzzle":
            side = math.isqrt(settings.sequence // 2)
            assert settings.characters == "0123456789"[: side + 1], "a blank, and each digit"
            assert SETS[settings.data].layout in ("sudoku", "puzzles")
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
    assert SETS["climbmix"].shard_count == 6542
    assert SETS["climbmix"].validation == "shard_06542.parquet"
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
        ({"layout": "csv"}, "layout must be one of"),
        ({"base_url": "ftp://host/x/"}, "not an http address"),
        ({"base_url": "https://host/x"}, "base_url must end in '/' and have no query"),
        ({"shards": "../{:03d}"}, "file name"),
        ({"shards": "{:03d}/{:03d}"}, "at most one"),
        ({"shards": "s_{0.__class__}"}, "file name"),
        ({"shards": "one.parquet"}, "are not a list"),
        ({"last": 0}, "are not a list"),
        ({"first": True}, "whole number"),
        ({"validation": ""}, "a set of several shards needs a validation file"),
        ({"validation": "s_002.parquet"}, "among the shards"),
        ({"sha256": {"s_001.parquet": "ABC"}}, "SHA-256"),
        ({"sha256": {"s_009.parquet": "0" * 64}}, "not one of its files"),
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
    assert (made.layout, made.base_url) == ("jsonl", "https://host.example/deep/er/")
    assert made.shards == "some.jsonl"
    assert made.address(made.shards) == "https://host.example/deep/er/some.jsonl"
    for wrong in ("https://host.example/", "https://host.example/x.txt?token=1"):
        with pytest.raises(UsageError):
            one_file(wrong)


def test_progress_is_read_strictly() -> None:
    said = DataProgress("climbmix", "working", 1.0, 7, "99", tokens=5, seconds={"ready": 2.0})
    assert load_progress(dump(said)) == said


def test_a_set_without_sizes_still_gives_a_count() -> None:
    assert DataSet("x", "X", "parquet", shards="s", validation="v").shards_for(10**9) == 1


# -- data progress ------------------------------------------------------------------------------
# What a folder of growing data says of itself, read as hostile as anything that a pod writes.


PROGRESS = {
    "source": "s",
    "state": "working",
    "at": 5.0,
    "pid": 7,
    "pid_started": "x",
    "version": 1,
}
SHARD = {"name": "a", "file": "shard-0", "tokens": 5, "documents": 1, "sha256": "h", "version": 1}


def shard(**changes: Any) -> ShardRecord:
    return load_shard(json.dumps({**SHARD, **changes}))


def test_what_is_left_out_is_nothing() -> None:
    assert load_progress(json.dumps(PROGRESS)) == DataProgress(
        source="s", state="working", at=5.0, pid=7, pid_started="x", host="", stage="",
        wanted_tokens=0, tokens=0, shards=0, planned_shards=0, downloaded_bytes=0,
        download_bytes=0, message="", next_step="", again=False, note="", seconds={}, peaks={},
        version=1,
    )  # fmt: skip
    assert shard() == ShardRecord(
        "a", "shard-0", 5, 1, "h", offset_bytes=0, text_bytes=0, version=1
    )
    assert shard(tokens=0, offset_bytes=0).tokens == 0


@pytest.mark.parametrize("state", STATES)
def test_every_state_that_there_is(state: str) -> None:
    assert load_progress(json.dumps({**PROGRESS, "state": state})).state == state


@pytest.mark.parametrize("change", [{"state": "dead"}, {"version": 2}, {"version": 0}, {"at": "5"}])
def test_what_is_no_progress_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ContractError):
        load_progress(json.dumps({**PROGRESS, **change}))


@pytest.mark.parametrize(
    "change",
    [{"file": "../shard-0"}, {"file": "shard-0/x"}, {"file": "meta.json"}, {"tokens": -1},
     {"offset_bytes": -1}, {"version": 2}],
)  # fmt: skip
def test_what_is_no_shard_of_the_folder_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ContractError):
        shard(**change)


# -- token index --------------------------------------------------------------------------------
# The entries of a bucket's token cache, a pod's text which may say anything, and their pins.


BIN, META = f"tokens/{'a' * 32}.bin", f"tokens/{'b' * 32}.json"
TOKENIZER = f"tokenizers/{'c' * 64}.json"
SHA256, OTHER = "0" * 64, "1" * 64
SLOT = "pod-1/slot-0000"


def load(size_bytes: int = 5, at: str = SLOT, **more: Any) -> CachedFile:
    entry = {"name": BIN, "slot": at, "size_bytes": size_bytes, "sha256": SHA256, "version": 1}
    return load_entry(json.dumps(entry | more).encode(), at, size_bytes)


@pytest.mark.parametrize("name", [BIN, META, TOKENIZER])
def test_an_entry_is_read_whole(name: str) -> None:
    assert load(name=name) == CachedFile(name, SLOT, 5, SHA256)
    assert load(MAX_PUT_BYTES).size_bytes == MAX_PUT_BYTES


@pytest.mark.parametrize(
    "name", ["tokens/x.bin", "../" + BIN, BIN + "\n", f"tokenizers/{'c' * 64}.bin", "", "slot-0000"]
)
def test_a_name_that_no_cache_has_is_refused(name: str) -> None:
    assert not is_cache_file(name)
    with pytest.raises(ContractError, match="no cache of tokens"):
        load(name=name)


@pytest.mark.parametrize(
    "at", ["slot-0000", "p/slot-1", "p/slot-00000", "p/slot-0000/x", "../slot-0000", "p/slot-٣٣٣٣"]
)
def test_a_slot_that_no_cache_has_is_refused(at: str) -> None:
    with pytest.raises(ContractError, match="no cache of tokens"):
        load(at=at)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ContractError, match="another size"):
        load_entry(json.dumps({**vars_of(load()), "size_bytes": 6}).encode(), SLOT, 5)
    with pytest.raises(ContractError, match="another size"):
        load((64 << 20) + 1, name=TOKENIZER)
    with pytest.raises(ContractError, match="another size"):
        load(MAX_PUT_BYTES + 1)
    with pytest.raises(ContractError, match="no cache of tokens"):
        load_entry(json.dumps(vars_of(load())).encode(), "pod-2/slot-0000", 5)
    for text in (b"", b"[]", b"{}", b"[" * 3000, b" " * (MAX_ENTRY_BYTES + 1)):
        with pytest.raises(ContractError):
            load_entry(text, SLOT, 5)
    with pytest.raises(ContractError, match="version"):
        load(version=2)


def vars_of(file: CachedFile) -> dict[str, Any]:
    names = ("name", "slot", "size_bytes", "sha256", "version")
    return {name: getattr(file, name) for name in names}


def test_slots_are_those_of_one_pod() -> None:
    assert token_slots_for("pod-1", 0)[-1] == "pod-1/slot-0005"
    assert token_slots_for("pod-1", 3)[-1] == "pod-1/slot-0011"
    assert token_slots_for("pod-1", 10**6)[-1] == "pod-1/slot-1023"


def test_only_whole_files_of_known_pods_that_have_no_pin_are_unpinned() -> None:
    sizes = {
        "pod-1/slot-0000": 5, "pod-1/slot-0000.json": 9, "pod-1/slot-0001": 5,
        "pod-1/slot-0002": 5, "pod-1/slot-0002.json": 9, "pod-1/made.json": 2,
        "pod-9/slot-0000": 5, "pod-9/slot-0000.json": 9, "slot-0000": 5, "slot-0000.json": 5,
    }  # fmt: skip
    pins = [CachedFile(BIN, "pod-1/slot-0002", 5, SHA256)]
    assert unpinned(sizes, {"pod-1", "slot-0000"}, pins) == ("pod-1/slot-0000",)


def test_of_a_name_the_bytes_pinned_first_are_offered_while_any_copy_is_there() -> None:
    first, lie, copy = (
        CachedFile(BIN, f"pod-{n}/slot-0000", 5, sha256)
        for n, sha256 in enumerate((SHA256, OTHER, SHA256))
    )
    sizes = {file.slot: 5 for file in (first, lie, copy)}
    pins = (first, lie, copy)
    assert offered(pins, sizes) == (first, copy)
    assert offered(pins, {**sizes, first.slot: 6}) == (copy,)
    assert offered(pins, {lie.slot: 5}) == (lie,)
    assert offered(pins, {}) == ()


def test_a_slots_first_pin_stays_in_the_ledger() -> None:
    first = CachedFile(BIN, SLOT, 5, SHA256)
    second = CachedFile(META, "pod-1/slot-0001", 5, SHA256)
    lie = CachedFile(BIN, SLOT, 5, OTHER)
    at = "s3://b/p", "key"
    noted = [ev.TokensPinned(*at, (first,)), ev.TokensPinned(*at, (lie, second))]
    records = [ev.Record(n, "", 0, float(n), event) for n, event in enumerate(noted, 1)]
    assert fold_ledger("01234567", records).tokens == {at: (first, second)}


def test_of_a_data_set_the_ledger_knows_the_revision_that_was_pinned_last() -> None:
    pins = [
        ev.DataPinned(source, "them/set", "main", revision, "")
        for source, revision in (("set", "aaa"), ("other", "bbb"), ("set", "ccc"))
    ]
    records = [ev.Record(n, "", 0, float(n), event) for n, event in enumerate(pins, 1)]
    assert fold_ledger("01234567", records).data == {"set": pins[2], "other": pins[1]}
