"""Data sets from a source or a server to token files and growing folders; what a bad source is
told."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.data.folder import open_data
from model.data.tokenizers import load_tokenizer
from model.prepare import main
from model.preparing import sources, whole
from model.preparing.corpus import END_OF_TEXT, find_data_set, named_corpus
from model.preparing.entropy import ByteCounts
from model.preparing.fetch import PreparationStopped, TransientError
from model.preparing.growing import PreparationOptions, grow
from model.preparing.sources import open_source, read_pieces
from model.preparing.whole import Span, prepare, sample_text, split
from tests.model.corpora import jsonl, parquet, token_file
from tests.model.preparing_rig import BASE, PATH, SHARDS, Rig, filled, serving_rig
from tests.waiting import until
from trmcloud.core.catalog.datasets import GUIDE_CHARACTERS
from trmcloud.core.contract.trainer_contract import load_shard
from trmcloud.core.errors import ConflictError, DataError
from trmcloud.core.spec.settings import PhaseRecipe

# -- From a source of any kind to token files; and what a source that will not do is told -------


@pytest.fixture
def folder(tmp_path: Path, text: str) -> Path:
    """Twelve text files in two folders, and things that are none."""
    root = tmp_path / "texts"
    (root / "deeper").mkdir(parents=True)
    lines = text.splitlines(keepends=True)
    for number in range(12):
        place = root / ("deeper" if number % 2 else ".") / f"part{number:02}.txt"
        place.write_text("".join(lines[number * 40 : number * 40 + 40]), encoding="utf-8")
    (root / "picture.png").write_bytes(b"\x89PNG")
    (root / "binary.txt").write_bytes(b"text\0text")
    (root / "latin.txt").write_bytes("é".encode("latin-1"))
    (root / "empty.md").write_text("")
    return root


def test_no_token_of_the_text_is_lost(folder: Path, settings: PhaseRecipe, tmp_path: Path) -> None:
    meta = prepare(str(folder), settings, tmp_path / "data")
    data = open_data(tmp_path / "data")
    parts = split(open_source(str(folder)), settings.validation_fraction)
    train = np.fromfile(tmp_path / "data" / "train.bin", data.dtype)
    for tokens, spans in ((train, parts.train), (data.validation, parts.validation)):
        starts = np.flatnonzero(tokens == data.tokenizer.bos)
        assert len(starts) == len(spans)
        for span, ids in zip(spans, np.split(tokens, starts)[1:], strict=True):
            assert data.tokenizer.decode(ids) == span.document.path.read_text(encoding="utf-8")
    assert (meta["documents"], meta["skipped_files"]) == (12, 4)
    assert meta["train_tokens"] == len(train)
    assert meta["validation_tokens"] == len(data.validation)
    assert meta["validation_bytes"] == sum(s.document.size_bytes for s in parts.validation)


def test_preparing_twice_is_the_same(folder: Path, settings: PhaseRecipe, tmp_path: Path) -> None:
    for name in ("one", "two"):
        prepare(str(folder), settings, tmp_path / name)
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert names == {"train.bin", "validation.bin", "tokenizer.json", "meta.json"}
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_folders_validation_files_keep_their_side(folder: Path, settings: PhaseRecipe) -> None:
    source = open_source(str(folder))
    chosen = {span.document.name for span in split(source, 0.25).validation}
    size = sum(d.size_bytes for d in source.documents if d.name in chosen)
    assert 0.15 < size / source.size_bytes < 0.4
    gone = next(d for d in source.documents if d.name not in chosen)
    gone.path.unlink()
    after = {span.document.name for span in split(open_source(str(folder)), 0.25).validation}
    assert len(after & chosen) >= len(chosen) - 1


def test_a_single_file_gives_its_end_cut_at_a_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "book.txt"
    path.write_text(text, encoding="utf-8")
    parts = split(open_source(str(path)), 0.1)
    train = "".join(parts.train[0].pieces())
    validation = "".join(parts.validation[0].pieces())
    assert train + validation == text
    assert train.endswith("\n")
    assert len(validation) == pytest.approx(0.1 * len(text), rel=0.1)


def test_a_text_without_lines_is_cut_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "line.txt"
    path.write_text("word " * 1000)
    parts = split(open_source(str(path)), 0.2)
    assert len("".join(parts.train[0].pieces())) == 4000
    assert len("".join(parts.validation[0].pieces())) == 1000


def test_pieces_are_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PIECE_BYTES", 7)
    text = "ab\ncdé漢字🙂x" * 9 + "\n\r\n tail"
    path = tmp_path / "t.txt"
    path.write_text(text, encoding="utf-8", newline="")
    [document] = open_source(str(path)).documents
    pieces = list(read_pieces(document))
    assert "".join(pieces) == text
    assert len(pieces) > 3
    assert "".join(Span(document, 5, 30).pieces()) == text[5:30]


def test_a_large_text_is_sampled_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PIECE_BYTES", 10)
    path = tmp_path / "t.txt"
    path.write_text("".join(f"{number:08}\n\n" for number in range(100)))
    source = open_source(str(path))
    sample = list(sample_text([Span(source.documents[0])], 1000, 250))
    assert [int(piece) for piece in sample] == list(range(0, 100, 4))


def test_the_python_library_is_a_source_without_tests_and_packages() -> None:
    source = open_source("python-stdlib")
    names = [document.name for document in source.documents]
    assert len(names) == len(set(names))
    assert {"argparse.py", "json/decoder.py"} <= set(names)
    assert not any("site-packages" in n or "/test" in n or n.startswith("test/") for n in names)
    assert source.size_bytes > 5_000_000


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.txt", None, "does not exist"),
        ("empty.txt", b"", "empty"),
        ("binary.bin", b"\0\1\2" * 100, "not UTF-8"),
        ("latin.txt", "é".encode("latin-1") * 50, "not UTF-8"),
        ("short.txt", b"a few words\n", "smaller than one batch"),
    ],
)
def test_bad_sources_are_told_so_in_one_line_and_json(
    name: str,
    content: bytes | None,
    words: str,
    settings: PhaseRecipe,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    settings_path = tmp_path / "settings.json"
    settings_path.write_text(json.dumps(settings.to_json()))
    out = tmp_path / "data"
    arguments = ["--source", str(path), "--settings", str(settings_path), "--out", str(out)]
    assert main(arguments) == 9
    told = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert words in told["what"]
    assert told["where"] == str(path)
    assert not out.exists()
    assert not list(tmp_path.glob(".data*")), "nothing half-made is left"


def test_too_little_validation_text(settings: PhaseRecipe, tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="validation text is smaller than one sequence") as caught:
        prepare(str(path), replace(settings, validation_fraction=0.0005), tmp_path / "data")
    assert "validation_fraction" in caught.value.next_step


def test_folders_without_text(tmp_path: Path, settings: PhaseRecipe) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(DataError, match="holds no text"):
        prepare(str(tmp_path), settings, tmp_path / "data")


def test_unreadable(tmp_path: Path, settings: PhaseRecipe, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.txt"
    path.write_text("text " * 100)

    def refuse(*_: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    # Root, as which tests may run, reads whatever its permissions say.
    monkeypatch.setattr(sources, "open", refuse, raising=False)
    with pytest.raises(DataError, match="cannot be read: Permission denied") as caught:
        prepare(str(path), settings, tmp_path / "data")
    assert caught.value.where == str(path)


def test_a_given_tokenizer_refuses_the_unknown(settings: PhaseRecipe, tmp_path: Path) -> None:
    plain, odd = tmp_path / "plain.txt", tmp_path / "odd.txt"
    plain.write_text("abc def\n" * 200)
    odd.write_text("abc def\n" * 199 + "abQ\n")
    chars = replace(settings, tokenizer="char")
    prepare(str(plain), chars, tmp_path / "data")
    with pytest.raises(DataError, match=r"no character 'Q'"):
        prepare(
            str(odd),
            chars,
            tmp_path / "other",
            tokenizer_json=(tmp_path / "data" / "tokenizer.json").read_text(),
        )
    assert not (tmp_path / "other").exists()


def test_a_foreign_folder_is_kept(folder: Path, settings: PhaseRecipe, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(ConflictError):
        prepare(str(folder), settings, out)
    assert (out / "thesis.txt").read_text() == "years of work"
    prepare(str(folder), settings, tmp_path / "data")
    prepare(str(folder), settings, tmp_path / "data")  # its own may be replaced


def test_meta_comes_last(
    folder: Path, settings: PhaseRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    real = whole._write

    def watch(path: Path, content: str) -> None:
        assert (path.parent / "train.bin").exists()
        written.append(path.name)
        real(path, content)

    monkeypatch.setattr(whole, "_write", watch)
    prepare(str(folder), settings, tmp_path / "data")
    assert written == ["tokenizer.json", "meta.json"]


def test_progress_is_json_lines(
    folder: Path, settings: PhaseRecipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings_path = tmp_path / "settings.json"
    settings_path.write_text(json.dumps(settings.to_json()))
    words = ["--settings", str(settings_path), "--out", str(tmp_path / "data")]
    assert main(["--source", str(folder), *words]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["stage"] for line in lines][-1] == "done"
    assert {"scan", "tokenizer", "encode"} <= {line["stage"] for line in lines}
    encoded = [line for line in lines if line["stage"] == "encode"]
    assert encoded[-1]["done"] == encoded[-1]["total"]


def test_byte_entropies_by_hand() -> None:
    counts = ByteCounts()
    for piece in (b"aab", b"b"):
        counts.add(piece)
    counts.end_document()
    counts.add(b"a")
    # bytes: 3 a, 2 b; neighbours within documents: aa, ab, bb
    assert counts.unigram_bits() == pytest.approx(-(0.6 * math.log2(0.6) + 0.4 * math.log2(0.4)))
    firsts = -(2 / 3 * math.log2(2 / 3) + 1 / 3 * math.log2(1 / 3))
    assert counts.bigram_bits() == pytest.approx(math.log2(3) - firsts)


def test_byte_entropies_of_validation(data_dir: Path, settings: PhaseRecipe, text: str) -> None:
    meta = json.loads((data_dir / "meta.json").read_text())
    validation = text.encode()[-meta["validation_bytes"] :]
    counts = Counter(validation)
    pairs = Counter(itertools.pairwise(validation))
    firsts = Counter(validation[:-1])

    def bits(counter: Counter[Any]) -> float:
        total = sum(counter.values())
        return -sum(n / total * math.log2(n / total) for n in counter.values())

    assert meta["byte_unigram_bits"] == pytest.approx(bits(counts))
    assert meta["byte_bigram_bits"] == pytest.approx(bits(pairs) - bits(firsts))


def test_no_text_has_no_entropy() -> None:
    with pytest.raises(DataError):
        ByteCounts().unigram_bits()


# -- Data sets from a real server to a growing folder: the tokens, the faults, and going on -----


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
    with pytest.raises(DataError, match="the file claims"):
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
    with pytest.raises(
        DataError, match="there is no data set with this name, and no such file"
    ) as found:
        find_data_set("climbmx")
    assert found.value.next_step == "did you mean climbmix?"


def test_stopping_is_no_error_of_the_data(rig: Rig) -> None:
    means = PreparationOptions(rig.host.environment, rig.root / "cache", workers=1)
    means.stop.set()
    found = find_data_set("mine", rig.root / "set.json")
    assert found is not None
    with pytest.raises(PreparationStopped):
        grow(
            named_corpus("mine", found), rig.settings, rig.root / "out", means, wanted=1,
            tokenizer="",
        )  # fmt: skip
    assert rig.progress().state == "stopped"


# -- What goes wrong while data is made ready is one line, and the same command goes on ---------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "fault", "words"),
    [
        (3, {"status": 404}, "shard_00003.parquet was not found: the host answered 404"),
        (0, {"html": True}, "a web page instead of shard_00000.parquet"),
        (4, {"flip": 100}, "has SHA-256"),
        (2, {"status": 429}, "the host sent nothing for"),
    ],
)
def test_a_fault_of_the_host_is_one_line_and_the_same_command_goes_on(
    rig: Rig, number: int, fault: dict[str, Any], words: str
) -> None:
    def whole() -> set[str]:
        return {path.name for path in (rig.root / "cache").rglob("shard_*.parquet")}

    if number == 3:
        fault = {**fault, "after": whole}
    rig.fault(number, **fault)
    with pytest.raises(DataError, match=words) as found:
        rig.grow(patience_s=0.3)
    came = whole()
    said = rig.progress()
    assert said.state == "failed"
    assert words in said.message
    assert BASE in said.message
    assert (
        said.again == isinstance(found.value, TransientError) == ("status" in fault and number == 2)
    )
    assert "\n" not in str(found.value)
    rig.host.faults.clear()
    before = len(rig.host.requests)
    assert rig.grow()["shards"] == 4
    assert rig.progress().state == "done"
    fetched = {each.path.rpartition("/")[2] for each in rig.host.requests[before:]}
    assert not fetched & came, "what had come is not fetched again"
    assert came or number != 3
    assert rig.decoded()[0] == [filled(each) for each in rig.documents[:-1]]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["truncated", "corrupt", "no column"])
def test_a_bad_parquet_file_is_named(rig: Rig, how: str) -> None:
    path = rig.root / "up/shard_00001.parquet"
    good = path.read_bytes()
    if how == "truncated":
        path.write_bytes(good[: len(good) // 2])
    elif how == "corrupt":
        path.write_bytes(good[:4] + bytes(600) + good[604:])
    else:
        parquet(path, rig.documents[1], column="content")
    with pytest.raises(DataError, match=r"shard_00001.parquet") as found:
        rig.grow()
    if how == "no column":
        assert "no column 'text'" in found.value.what
        assert "content" in found.value.next_step
    else:
        assert "is not a complete parquet file" in found.value.what
    path.write_bytes(good)
    if how == "no column":
        for file in (rig.root / "cache/raw").rglob("shard_00001*"):
            file.unlink()
    assert rig.grow()["shards"] == 4, "what was no parquet file is fetched anew"


@pytest.mark.slow
def test_a_poisoned_cache_is_not_believed(rig: Rig) -> None:
    rig.grow("one")
    good = rig.bytes_of("one")
    for number, path in enumerate(sorted((rig.root / "cache/tokens").glob("*.bin"))):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.unlink()  # the folder's own name for it stays what it was
        path.write_bytes(bytes(content[: -2 if number == 0 else None]))
    [kept] = (rig.root / "cache/tokenizers").glob("*.json")
    kept.write_text(kept.read_text().replace("sees", "seas", 1))
    rig.grow("two")
    assert rig.bytes_of("two") == good
    assert "in the cache is damaged: it is made again" in rig.progress("two").note


@pytest.mark.slow
def test_a_shard_that_was_damaged_in_the_folder_is_made_again(rig: Rig) -> None:
    rig.grow()
    good = rig.bytes_of("out")
    bad = rig.root / "out/shard-00001.bin"
    bad.unlink()
    bad.write_bytes(good[bad.name][::-1])
    rig.grow()
    assert rig.bytes_of("out") == good


def _any(folder: Path, pattern: str) -> bool:
    return any(folder.glob(pattern))


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(rig: Rig) -> None:
    rig.grow("whole", cache="whole-cache")
    rig.host.bytes_per_second = 60_000
    for there in ("cache/raw/**/*.part", "cache/tokens/*.bin", "out/meta.json"):
        process = rig.start("out", "--tokens", "1000000")
        until(partial(_any, rig.root, there))
        process.kill()
        process.communicate()
    rig.host.bytes_per_second = 0
    process = rig.start("out", "--tokens", "1000000")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    stages = [json.loads(line)["stage"] for line in out.splitlines()]
    assert stages[-1] == "done"
    assert "ready" in stages
    assert rig.bytes_of("out") == rig.bytes_of("whole")


@pytest.mark.slow
def test_told_to_stop_it_says_so_and_a_second_one_is_refused(rig: Rig) -> None:
    rig.fault(2, stalls=True)
    process = rig.start("out")
    until((rig.root / "out/progress.json").exists)
    with pytest.raises(ConflictError, match="another process is already preparing this folder"):
        rig.grow("out")
    process.send_signal(signal.SIGTERM)
    until(lambda: rig.progress().state == "stopped")
    rig.host.ended.set()
    process.communicate(timeout=60)
    assert process.returncode == 143
    rig.host.faults.clear()
    assert rig.grow("out")["shards"] == 4


@pytest.mark.slow
def test_the_command_fails_in_one_line_and_json(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.fault(4, status=404)
    for name, value in rig.host.environment.items():
        monkeypatch.setenv(name, value)
    assert main(rig.command("out")[3:]) == 9
    line, said = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: shard_00004.parquet was not found: the host answered 404")
    assert json.loads(said)["again"] is False


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[None]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_in_the_middle(rig: Rig) -> None:
    with small_disk(rig.root / "disk", 256 << 10):
        ballast = rig.root / "disk/ballast"
        ballast.write_bytes(bytes(210 << 10))
        with pytest.raises(TransientError, match="the disk is full") as found:
            rig.grow("disk/out", cache="disk/cache")
        assert "same command" in found.value.next_step
        ballast.unlink()
        assert rig.grow("disk/out", cache="disk/cache")["shards"] == 4
        assert rig.progress("disk/out").state == "done"
