"""Data sets from a real server to a growing folder: the tokens, the faults, and going on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.data.folder import open_data
from model.data.packing import document_starts
from model.preparing.corpus import find_data_set, local_corpus, named_corpus
from model.preparing.errors import PassingError, Stopped
from model.preparing.gpt2 import END_OF_TEXT
from model.preparing.growing import Means, grow
from model.tokenizers import load_tokenizer
from tests.model.corpora import data_set, jsonl, parquet, texts, token_file
from tests.standins.data_host import DataHost, Fault, serving
from trmcloud.core.data_progress import DataProgress, load_progress, load_shard
from trmcloud.core.datasets import GUIDE_CHARACTERS, one_file
from trmcloud.core.errors import ConflictError, DataError
from trmcloud.core.recipe import PhaseRecipe

ROOT = Path(__file__).parents[2]
PATH = "/datasets/me/x/resolve/main/"
BASE = "https://huggingface.co" + PATH
SHARDS = 5


@dataclass
class Rig:
    """A data set ``mine`` on a host of its own, and folders to prepare it into."""

    root: Path
    host: DataHost
    settings: PhaseRecipe
    documents: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.documents = [texts(120, seed) for seed in range(SHARDS)]
        for number, made in enumerate(self.documents):
            parquet(self.root / f"up/shard_{number:05d}.parquet", made, rows=40)
        self.host.put(PATH, self.root / "up")
        self.describe()
        (self.root / "settings.json").write_text(json.dumps(self.settings.to_json()))

    def describe(self, **values: object) -> None:
        said = {
            "name": "mine", "layout": "parquet", "base_url": BASE, "tokenizer_shards": 2,
            "shards": "shard_{:05d}.parquet", "first": 0, "last": SHARDS - 2,
            "validation": f"shard_{SHARDS - 1:05d}.parquet",
        }  # fmt: skip
        data_set(self.root / "set.json", **{**said, **values})

    def fault(self, number: int, **values: Any) -> None:
        self.host.faults[f"{PATH}shard_{number:05d}.parquet"] = Fault(**values)

    def grow(
        self, out: str = "out", *, cache: str = "cache", wanted: int = 10**9, tokenizer: str = "",
        source: str = "mine", patience_s: float = 600.0, workers: int = 1,
    ) -> dict[str, Any]:  # fmt: skip
        if source == "mine":
            found = find_data_set(source, self.root / "set.json")
            assert found is not None
            corpus = named_corpus(source, found)
        else:
            local = local_corpus(source)
            corpus = local if local is not None else named_corpus(source, one_file(source))
        means = Means(
            self.host.environment, self.root / cache, workers=workers, patience_s=patience_s
        )
        return grow(
            corpus, self.settings, self.root / out, means, wanted=wanted, tokenizer=tokenizer
        )

    def command(self, out: str = "out", *more: str) -> list[str]:
        return [
            *(sys.executable, "-m", "model.prepare", "--source", "mine"),
            *("--data-set", str(self.root / "set.json"), "--workers", "2"),
            *("--settings", str(self.root / "settings.json"), "--out", str(self.root / out)),
            *("--cache", str(self.root / "cache"), *more),
        ]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=ROOT, env={**os.environ, **self.host.environment},
        )  # fmt: skip

    def progress(self, out: str = "out") -> DataProgress:
        return load_progress((self.root / out / "progress.json").read_bytes())

    def decoded(self, out: str = "out") -> tuple[list[list[str]], list[str]]:
        """What the folder holds, as text: each shard's documents, and those of validation."""
        folder = self.root / out
        data = open_data(folder)

        def split(ids: Any) -> list[str]:
            starts = document_starts(ids, data.tokenizer.bos)
            return [data.tokenizer.decode(part) for part in np.split(ids, starts)[1:]]

        shards = []
        for line in (folder / "shards.jsonl").read_bytes().splitlines():
            record = load_shard(line)
            ids = np.fromfile(
                folder / record.file, data.dtype, record.tokens, offset=record.offset_bytes
            )
            assert len(ids) == record.tokens
            shards.append(split(ids))
        return shards, split(np.array(data.validation))

    def bytes_of(self, out: str) -> dict[str, bytes]:
        """Everything that a training reads, but for how long it took to make."""
        names = ("shards.jsonl", "tokenizer.json", "validation.bin")
        folder = self.root / out
        made = {name: (folder / name).read_bytes() for name in names}
        return made | {path.name: path.read_bytes() for path in folder.glob("shard-*.bin")}


@pytest.fixture
def rig(tmp_path: Path, settings: PhaseRecipe) -> Iterator[Rig]:
    with serving(DataHost()) as host:
        yield Rig(tmp_path, host, replace(settings, vocab_size=400))


def filled(documents: list[str]) -> list[str]:
    return [text for text in documents if text]


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
@pytest.mark.parametrize(
    ("number", "fault", "words"),
    [
        (3, {"status": 404}, "shard_00003.parquet is not there: the host answered 404"),
        (0, {"html": True}, "a web page instead of shard_00000.parquet"),
        (4, {"flip": 100}, "has SHA-256"),
        (2, {"status": 429}, "the host gave nothing"),
    ],
)
def test_a_fault_of_the_host_is_one_line_and_the_same_command_goes_on(
    rig: Rig, number: int, fault: dict[str, Any], words: str
) -> None:
    rig.fault(number, **fault)
    with pytest.raises(DataError, match=words) as found:
        rig.grow(patience_s=0.3)
    said = rig.progress()
    assert said.state == "failed"
    assert words in said.message
    assert BASE in said.message
    assert (
        said.again == isinstance(found.value, PassingError) == ("status" in fault and number == 2)
    )
    assert "\n" not in str(found.value)
    rig.host.faults.clear()
    before = len(rig.host.requests)
    assert rig.grow()["shards"] == 4
    assert rig.progress().state == "done"
    fetched = {each.path for each in rig.host.requests[before:]}
    if number == 3:
        assert len(fetched) < SHARDS, "what had come was not fetched again"
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
        assert "no whole parquet file" in found.value.what
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


@pytest.mark.slow
def test_a_shard_that_was_damaged_in_the_folder_is_made_again(rig: Rig) -> None:
    rig.grow()
    good = rig.bytes_of("out")
    bad = rig.root / "out/shard-00001.bin"
    bad.unlink()
    bad.write_bytes(good[bad.name][::-1])
    rig.grow()
    assert rig.bytes_of("out") == good


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(rig: Rig) -> None:
    rig.grow("whole", cache="whole-cache")
    rig.host.bytes_per_second = 60_000
    for seconds in (2.5, 4.0, 5.0):
        process = rig.start("out", "--tokens", "1000000")
        time.sleep(seconds)
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
    deadline = time.monotonic() + 60
    while not (rig.root / "out/progress.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(ConflictError, match="another process prepares"):
        rig.grow("out")
    process.send_signal(signal.SIGTERM)
    while rig.progress().state != "stopped":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    rig.host.ended.set()
    process.communicate(timeout=60)
    assert process.returncode == 143
    rig.host.faults.clear()
    assert rig.grow("out")["shards"] == 4


@pytest.mark.slow
def test_the_command_fails_in_one_line_and_json(rig: Rig) -> None:
    rig.fault(4, status=404)
    process = rig.start("out")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 9
    line, said = err.strip().splitlines()
    assert line.startswith("error: shard_00004.parquet is not there: the host answered 404")
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
        with pytest.raises(PassingError, match="no room left on the disk") as found:
            rig.grow("disk/out", cache="disk/cache")
        assert "same command" in found.value.next_step
        ballast.unlink()
        assert rig.grow("disk/out", cache="disk/cache")["shards"] == 4
        assert rig.progress("disk/out").state == "done"


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
    from model.preparing.gpt2 import tokenizer_from_merges

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
