"""A cache that others fill, too: every lie of its first writer is found by the text itself."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.data.tokenizers import BpeTokenizer, is_as_trained
from model.preparing.cache import matches_text, read_checked_record
from tests.model.corpora import jsonl
from tests.model.preparing_rig import Rig, serving_rig
from trmcloud.core.spec.settings import PhaseRecipe

pytestmark = pytest.mark.slow


@pytest.fixture
def rig(tmp_path: Path, settings: PhaseRecipe) -> Iterator[Rig]:
    with serving_rig(tmp_path, settings) as made:
        yield made


def first(count: int) -> int:
    return 0


def records(rig: Rig) -> dict[str, Path]:
    """Of the cache, by the shard's file name."""
    found = sorted((rig.root / "cache/tokens").glob("*.json"))
    return {json.loads(path.read_text())["name"]: path for path in found}


def rewrite(path: Path, change: Callable[[dict[str, Any], Any], Any], dtype: str = "<u2") -> None:
    """Record and tokens as a hostile writer has them: they agree with one another."""
    said = json.loads(path.read_text())
    tokens = path.with_suffix(".bin")
    ids = change(said, np.fromfile(tokens, dtype))
    tokens.unlink()  # folders link to it
    tokens.write_bytes(ids.tobytes())
    said["sha256"] = hashlib.sha256(ids.tobytes()).hexdigest()
    path.write_text(json.dumps(said))


def wrong_bytes(said: dict[str, Any], ids: Any) -> Any:
    said["text_bytes"] *= 10
    return ids


def wrong_documents(said: dict[str, Any], ids: Any) -> Any:
    said["documents"] += 1
    return ids


def wrong_unit(said: dict[str, Any], ids: Any) -> Any:
    ids[[5, 6]] = ids[[6, 5]]
    return ids


def nothing_but_one(said: dict[str, Any], ids: Any) -> Any:
    said["largest"] = 7
    return np.full_like(ids, 7)


def beyond_the_vocabulary(said: dict[str, Any], ids: Any) -> Any:
    ids[-1] = 60_000
    return ids


def no_parts(said: dict[str, Any], ids: Any) -> Any:
    del said["parts"]
    return ids


def other_name(said: dict[str, Any], ids: Any) -> Any:
    said["name"] = "shard_00002.parquet"
    return ids


LIES = [
    wrong_unit,
    other_name,
    *(
        pytest.param(lie, marks=pytest.mark.more)
        for lie in (wrong_bytes, wrong_documents, nothing_but_one, beyond_the_vocabulary, no_parts)
    ),
]


@pytest.mark.parametrize("lie", LIES)
def test_a_hostile_first_writer_is_found_out(rig: Rig, lie: Callable[..., Any]) -> None:
    rig.describe(last=1)
    rig.grow("honest")
    rewrite(records(rig)["shard_00000.parquet"], lie)
    rewrite(records(rig)["shard_00004.parquet"], lie)
    said: list[str] = []
    rig.grow("reader", choose=first, said=said)
    assert rig.bytes_of("reader") == rig.bytes_of("honest")
    meta, honest = (
        json.loads((rig.root / out / "meta.json").read_text()) for out in ("reader", "honest")
    )
    for key in ("validation_bytes", "source_bytes", "byte_unigram_bits", "validation_tokens"):
        assert meta[key] == honest[key], key
    refused = "shard_00000.parquet in the cache does not match its text: it is made again"
    assert said.count(refused) == 1
    assert not any("shard_00001.parquet in the cache" in line for line in said)
    said.clear()
    rig.grow("next", choose=first, said=said)  # what was made anew is believed
    assert not any("in the cache" in line for line in said)
    assert rig.bytes_of("next") == rig.bytes_of("honest")


def test_an_honest_cache_is_believed_and_not_tokenized_again(rig: Rig) -> None:
    rig.describe(last=1)
    rig.grow("honest")
    path = records(rig)["shard_00000.parquet"].with_suffix(".bin")
    before = path.stat()
    said: list[str] = []
    rig.grow("reader", choose=first, said=said)
    assert rig.bytes_of("reader") == rig.bytes_of("honest")
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert not any("in the cache" in line for line in said)


@pytest.mark.more
def test_any_unit_may_be_the_one_and_validation_is_always_made(rig: Rig) -> None:
    """Three units in one file, the last of which alone is false: it is found where it is chosen."""
    chosen = random.Random(1)
    words = ["".join(chosen.choices("abcdefgh ", k=4000)) for _ in range(200)]
    texts = [words[number % 200] + str(number) for number in range(5000)]
    jsonl(rig.root / "lines.jsonl", texts)
    rig.host.files["/some.jsonl"] = rig.root / "lines.jsonl"
    rig.settings = replace(rig.settings, validation_fraction=0.2, tokenizer="char")
    rig.describe(
        base_url="https://raw.githubusercontent.com/", layout="jsonl", shards="some.jsonl",
        last=0, validation="", fields=["question", "answer"], tokenizer_shards=1,
    )  # fmt: skip
    rig.grow("honest")
    found = sorted((rig.root / "cache/tokens").glob("*.json"), key=lambda p: p.stat().st_size)
    largest = max(found, key=lambda path: path.with_suffix(".bin").stat().st_size)
    assert len(json.loads(largest.read_text())["parts"]) == 3
    asked: list[int] = []

    def choose(number: int) -> Callable[[int], int]:
        return lambda count: asked.append(count) or number  # type: ignore[func-returns-value]

    said: list[str] = []
    for number in range(3):
        rig.grow(f"reader-{number}", choose=choose(number), said=said)
    assert asked == [3, 3, 3]
    assert not any("in the cache" in line for line in said)

    def swapped(said: dict[str, Any], ids: Any) -> Any:
        """Counts, lengths and ids all add up: two tokens of the last unit changed places."""
        at = next(n for n in range(len(ids) - 9, 0, -1) if ids[n] != ids[n + 1])
        ids[[at, at + 1]] = ids[[at + 1, at]]
        return ids

    rewrite(largest, swapped)
    rig.grow("unlucky", choose=choose(0), said=said)
    assert not any("in the cache" in line for line in said)
    rig.grow("lucky", choose=choose(2), said=said)
    assert "some.jsonl in the cache does not match its text: it is made again" in said
    assert rig.bytes_of("lucky") == rig.bytes_of("honest")


def hostile_tokenizers(text: str) -> dict[str, str]:
    """By what they would do."""
    content = json.loads(text)
    made = {}

    def tell(name: str, **changes: Any) -> None:
        made[name] = json.dumps({**content, **changes})

    model = content["model"]
    tell("drops every e", normalizer={"type": "Replace", "pattern": {"String": "e"}, "content": ""})
    tell("lower case", normalizer={"type": "Lowercase"})
    tell("a space before", pre_tokenizer={**content["pre_tokenizer"], "add_prefix_space": True})
    vocab = {token: at for token, at in model["vocab"].items() if token != "a"}
    tell("has no a", model={**model, "vocab": vocab})
    tell("one id twice", model={**model, "vocab": {**model["vocab"], "zz": 5}})
    tell("unknown", model={**model, "unk_token": "<|bos|>", "fuse_unk": True})
    tell("drops pairs", model={**model, "dropout": 0.5})
    cut = {"max_length": 1, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    tell("cut short", truncation=cut)
    made["none"] = "[]"
    made["deep"] = "[" * 100_000
    made["char"] = '{"kind": "trmcloud-char", "characters": "ab"}'
    return made


def test_a_hostile_tokenizer_is_trained_anew(rig: Rig) -> None:
    rig.describe(last=1)
    rig.grow("honest")
    [path] = (rig.root / "cache/tokenizers").glob("*.json")
    honest = json.loads(path.read_text())["tokenizer"]
    assert is_as_trained(honest, "bpe", rig.settings.text_ids)
    assert not is_as_trained(honest, "bpe", 300)
    for name, text in hostile_tokenizers(honest).items():
        assert not is_as_trained(text, "bpe", 400), name
    text = hostile_tokenizers(honest)["drops every e"]
    digest = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps({"tokenizer": text, "sha256": digest}))
    said: list[str] = []
    rig.grow("reader", choose=first, said=said)
    assert rig.bytes_of("reader") == rig.bytes_of("honest")
    assert "the tokenizer in the cache loses text: it is trained again" in said


def test_parts_that_cannot_be_are_no_record(tmp_path: Path) -> None:
    ids = np.arange(10, dtype="<u2")
    (tmp_path / "x.bin").write_bytes(ids.tobytes())
    said = {
        "name": "x", "tokens": 10, "documents": 1, "text_bytes": 9, "dtype": "uint16",
        "sha256": hashlib.sha256(ids.tobytes()).hexdigest(), "largest": 9,
    }  # fmt: skip
    for parts in ([[4, 1], [6, 0]], []):
        (tmp_path / "x.json").write_text(json.dumps({**said, "parts": parts}))
        assert read_checked_record(tmp_path / "x.bin", 100) is not None
    for bad in ([[4, 1]], [[-4, 1], [14, 0]], [[10]], [["a", 1]], 7, [[10**40, 1]]):
        (tmp_path / "x.json").write_text(json.dumps({**said, "parts": bad}))
        assert read_checked_record(tmp_path / "x.bin", 100) is None, bad


def test_ids_that_stand_for_other_bytes_than_the_text_are_refused(tmp_path: Path) -> None:
    """Units that were not tokenized again are held to their lengths."""
    tokenizer = BpeTokenizer.train(["abc abc abc"] * 9, 262)
    texts = ["abc abc", "cab"]
    ids = tokenizer.encode_documents(texts, "").astype("<u2")
    (tmp_path / "x.bin").write_bytes(ids.tobytes())
    said = {
        "name": "x", "tokens": len(ids), "documents": 2, "text_bytes": 10, "dtype": "uint16",
        "sha256": hashlib.sha256(ids.tobytes()).hexdigest(), "largest": int(ids.max()),
    }  # fmt: skip
    cut = len(tokenizer.encode_documents(texts[:1], ""))
    (tmp_path / "x.json").write_text(json.dumps({**said, "parts": [[cut, 1], [len(ids) - cut, 1]]}))
    record = read_checked_record(tmp_path / "x.bin", 400)
    assert record is not None

    def holds(content: Any) -> bool:
        (tmp_path / "x.bin").write_bytes(content.tobytes())
        return matches_text(
            record, tmp_path / "x.bin", name="x", dtype="uint16", tokenizer=tokenizer,
            documents=[1, 1], text_bytes=10, chosen=0, made=ids[:cut].tobytes(),
            given_bytes=10, per_document=1,
        )  # fmt: skip

    assert holds(ids)
    for bad in (tokenizer.bos, int(ids.max())):
        other = ids.copy()
        other[-1] = bad
        assert not holds(other)
