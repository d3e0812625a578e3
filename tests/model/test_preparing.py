"""Data sets from a real server to a growing folder: the tokens, the faults, and going on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from model.data.folder import open_data
from model.data.tokenizers import load_tokenizer
from model.preparing.corpus import END_OF_TEXT, find_data_set, named_corpus
from model.preparing.fetch import Stopped
from model.preparing.growing import Means, grow
from tests.model.corpora import jsonl, token_file
from tests.model.preparing_rig import PATH, SHARDS, Rig, filled, serving_rig
from trmcloud.core.catalog.datasets import GUIDE_CHARACTERS
from trmcloud.core.contract.data_progress import load_shard
from trmcloud.core.errors import ConflictError, DataError
from trmcloud.core.spec.settings import PhaseRecipe


@pytest.fixture
def rig(tmp_path: Path, settings: PhaseRecipe) -> Iterator[Rig]:
    with serving_rig(tmp_path, settings) as made:
        yield made


@pytest.mark.slow
def test_a_data_set_becomes_a_folder_and_its_text_comes_back(rig: Rig) -> None:
    meta = rig.grow(workers=2)
    shards, validation = rig.decoded()
    assert shards == [filled(each) for each in rig.documents[:-1]]
    assert validation == filled(rig.documents[-1])
    assert meta["complete"]
    assert meta["train_tokens"] == sum(
        load_shard(line).tokens
        for line in (rig.root / "out/shards.jsonl").read_bytes().splitlines()
    )
    assert meta["validation_bytes"] == sum(len(t.encode()) for t in rig.documents[-1])
    assert 0 < meta["byte_bigram_bits"] < meta["byte_unigram_bits"] < 8
    said = rig.progress()
    assert (said.state, said.shards, said.tokens) == ("done", 4, meta["train_tokens"])
    seconds = said.seconds
    assert 0 < seconds["tokenizer"] < seconds["ready"] <= seconds["done"]
    assert said.peaks["worker"] > 0
    assert said.peaks["tokenizer"] > 0
    left = [path for path in (rig.root / "cache/raw").rglob("*") if path.is_file()]
    assert not left, "text is not kept once its tokens are"
    assert not list((rig.root / "cache/tokens").glob("*.part"))
    assert not [path for path in (rig.root / "out").glob(".*") if path.name != ".lock"]


@pytest.mark.slow
def test_arrival_and_workers_do_not_show(rig: Rig) -> None:
    rig.grow("one")
    rig.fault(0, status=503, retry_after="1", times=1)
    rig.fault(4, status=503, retry_after="1", times=1)
    rig.grow("two", cache="another", workers=3)
    assert rig.bytes_of("one") == rig.bytes_of("two")


@pytest.mark.slow
def test_no_more_is_fetched_than_is_wanted_and_a_second_run_asks_nobody(rig: Rig) -> None:
    rig.describe(last=3, shard_tokens=3000, tokenizer_shards=1)
    meta = rig.grow(wanted=4000)
    assert meta["train_tokens"] >= 4000
    assert meta["shards"] < 4
    asked = len(rig.host.requests)
    again = rig.grow("again", wanted=4000)
    assert len(rig.host.requests) == asked, "all of it was in the cache"
    assert again["train_tokens"] == meta["train_tokens"]
    assert rig.bytes_of("again") == rig.bytes_of("out")
    more = rig.grow(wanted=10**6)
    assert more["shards"] == 4, "the same folder goes on where more is wanted"


@pytest.mark.slow
def test_jsonl_by_its_address_gives_every_nth_document_to_validation(rig: Rig) -> None:
    jsonl(rig.root / "lines.jsonl", rig.documents[0])
    rig.host.files["/some.jsonl"] = rig.root / "lines.jsonl"
    rig.settings = replace(rig.settings, validation_fraction=0.2)
    source = "https://raw.githubusercontent.com/some.jsonl"
    with pytest.raises(DataError, match="a row without 'text'") as found:
        rig.grow("bad", source=source)
    assert found.value.next_step == "--column NAME, one of: question, answer"
    rig.describe(
        base_url="https://raw.githubusercontent.com/", layout="jsonl", shards="some.jsonl",
        last=0, validation="", fields=["question", "answer"], tokenizer_shards=1,
    )  # fmt: skip
    meta = rig.grow()
    [train], validation = rig.decoded()
    wanted = [f"why?\n{text}" for text in rig.documents[0]]
    assert validation == wanted[::5]
    assert train == [text for number, text in enumerate(wanted) if number % 5]
    assert meta["validation_documents"] == len(validation)
    assert rig.grow("again")["validation_tokens"] == meta["validation_tokens"]


def merges(documents: list[str]) -> tuple[str, int]:
    """A small ``vocab.bpe`` and how many ids it makes."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(documents, trainer)
    pairs = json.loads(inner.to_str())["model"]["merges"]
    return "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in pairs), 257 + len(pairs)


@pytest.mark.slow
def test_gpt2_token_files_are_taken_as_they_are(rig: Rig) -> None:
    text, ids = merges(rig.documents[0])
    vocabulary = rig.root / "vocab.bpe"
    vocabulary.write_text(text)
    from model.preparing.corpus import tokenizer_from_merges

    tokenizer = load_tokenizer(tokenizer_from_merges(text, "here"), "here")
    assert (tokenizer.vocab_size, tokenizer.bos) == (ids, ids - 1)
    made = [
        [int(t) for t in tokenizer.encode_documents(filled(each), "")] for each in rig.documents
    ]
    for number, tokens in enumerate(made):
        token_file(rig.root / f"up/t_{number}.bin", tokens)
    rig.host.put(PATH, rig.root / "up")
    rig.describe(layout="gpt2", shards="t_{:01d}.bin", validation="t_4.bin", tokenizer_shards=1)
    meta = rig.grow(tokenizer=str(vocabulary))
    shards, validation = rig.decoded()
    assert shards == [filled(each) for each in rig.documents[:-1]]
    assert validation == filled(rig.documents[-1])
    assert meta["validation_bytes"] == sum(len(t.encode()) for t in rig.documents[-1])
    assert END_OF_TEXT in (rig.root / "out/tokenizer.json").read_text()
    cut = (rig.root / "up/t_1.bin").read_bytes()[:-2]
    (rig.root / "up/t_1.bin").write_bytes(cut)
    with pytest.raises(DataError, match="the file says"):
        rig.grow("cut", cache="other", tokenizer=str(vocabulary))
    assert not list((rig.root / "other/raw").rglob("t_1.bin"))


@pytest.mark.slow
def test_a_folder_of_parquet_files_of_this_machine(rig: Rig) -> None:
    meta = rig.grow(source=str(rig.root / "up"))
    shards, validation = rig.decoded()
    assert shards == [filled(each) for each in rig.documents[:-1]]
    assert validation == filled(rig.documents[-1])
    assert not rig.host.requests
    assert len(list((rig.root / "up").iterdir())) == SHARDS, "the user's own files stay"
    assert meta["complete"]


@pytest.mark.slow
def test_the_generated_text_and_a_character_that_no_id_stands_for(rig: Rig) -> None:
    rig.settings = replace(
        rig.settings, vocab_size=32, tokenizer="char", characters=GUIDE_CHARACTERS
    )
    rig.describe(
        layout="generated", base_url="", shards="part-{:03d}", validation="part-999", last=1,
        shard_text_bytes=20_000, tokenizer_shards=1,
    )  # fmt: skip
    rig.grow()
    [first, second], validation = rig.decoded()
    assert first[0].startswith("B")
    assert set("".join(first)) == set(GUIDE_CHARACTERS)
    assert len({*first, *second, *validation}) == len(first) + len(second) + len(validation)
    _check_ledger(first[0])
    assert open_data(rig.root / "out").tokenizer.bos == 17
    rig.describe()
    with pytest.raises(DataError, match="the tokenizer has no character"):
        rig.grow("other")


def _check_ledger(text: str) -> None:
    """Every line says what the one before it and its own change make."""
    first, *lines = text.strip().split("\n")
    balance = high = low = round(float(first[1:]) * 100)
    for line in lines:
        change, kind, after = line[:6], line[6], line[7:]
        balance += round(float(change) * 100)
        assert round(float(after) * 100) == balance
        assert kind == ("H" if balance > high else "L" if balance < low else "B")
        high, low = max(high, balance), min(low, balance)


def test_other_settings_do_not_mix_into_a_folder(rig: Rig) -> None:
    rig.describe(
        layout="generated", base_url="", shards="part-{:03d}", validation="part-999", last=0,
        shard_text_bytes=20_000, tokenizer_shards=1,
    )  # fmt: skip
    rig.settings = replace(
        rig.settings, vocab_size=32, tokenizer="char", characters=GUIDE_CHARACTERS
    )
    rig.grow()
    rig.settings = replace(rig.settings, seed=2)
    with pytest.raises(ConflictError, match="another source or other settings"):
        rig.grow()
    (rig.root / "mine").mkdir()
    (rig.root / "mine/thesis.txt").write_text("years of work")
    with pytest.raises(ConflictError, match="not prepared data"):
        rig.grow("mine")


def test_names(tmp_path: Path) -> None:
    assert find_data_set("python-stdlib") is None, "text of this machine, as it always was"
    named = find_data_set("climbmix")
    assert named is not None
    assert named.layout == "parquet"
    assert find_data_set(str(tmp_path)) is None
    with pytest.raises(DataError, match="no data set of that name") as found:
        find_data_set("climbmx")
    assert found.value.next_step == "did you mean climbmix?"


def test_stopping_is_no_error_of_the_data(rig: Rig) -> None:
    means = Means(rig.host.environment, rig.root / "cache", workers=1)
    means.stop.set()
    found = find_data_set("mine", rig.root / "set.json")
    assert found is not None
    with pytest.raises(Stopped):
        grow(
            named_corpus("mine", found), rig.settings, rig.root / "out", means, wanted=1,
            tokenizer="",
        )  # fmt: skip
    assert rig.progress().state == "stopped"
