"""A data set on a host of its own, and folders to prepare it into."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from model.data.folder import open_data
from model.data.packing import document_starts
from model.preparing.corpus import find_data_set, local_corpus, named_corpus
from model.preparing.growing import PreparationOptions, grow
from tests.model.corpora import data_set, parquet, texts
from tests.standins.data_host import DataHost, Fault, serving
from trmcloud.core.catalog.datasets import one_file
from trmcloud.core.contract.trainer_contract import DataProgress, load_progress, load_shard
from trmcloud.core.spec.settings import PhaseRecipe

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
        choose: Callable[[int], int] | None = None, said: list[str] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        if source == "mine":
            found = find_data_set(source, self.root / "set.json")
            assert found is not None
            corpus = named_corpus(source, found)
        else:
            local = local_corpus(source)
            corpus = local if local is not None else named_corpus(source, one_file(source))
        means = PreparationOptions(
            self.host.environment, self.root / cache, workers=workers, patience_s=patience_s,
            choose=choose,
            told=lambda stage, done, total: said.append(stage) if said is not None else None,
        )  # fmt: skip
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


@contextmanager
def serving_rig(folder: Path, settings: PhaseRecipe) -> Iterator[Rig]:
    with serving(DataHost()) as host:
        yield Rig(folder, host, replace(settings, vocab_size=400))


def filled(documents: list[str]) -> list[str]:
    return [text for text in documents if text]
