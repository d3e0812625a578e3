"""A growing folder made by hand, shard by shard, as ``model.prepare`` would make it."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from model.data.tokenizers import CharTokenizer
from model.machine.telemetry import process_started
from trmcloud.core.contract.records import dump
from trmcloud.core.contract.trainer_contract import DataProgress, ShardRecord
from trmcloud.io.files import write_atomic

CHARACTERS = "".join(chr(0x4E00 + each) for each in range(400))
BOS = len(CHARACTERS)


@dataclass
class HandMade:
    """Begins with ``progress.json`` alone; ``begin`` writes ``meta.json``."""

    path: Path
    validation: Sequence[int] = (BOS, *range(400))
    state: str = "working"
    shards: list[ShardRecord] = field(default_factory=list)
    tokenizer: str = ""

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True)
        self.tokenizer = CharTokenizer(CHARACTERS).to_json()
        self.tell()

    def tell(self, state: str = "working", **values: object) -> None:
        said = DataProgress(
            source="made by hand", state=state, at=time.time(), pid=os.getpid(),
            pid_started=process_started(), host=socket.gethostname(),
        )  # fmt: skip
        made = dump(replace(said, **values))  # type: ignore[arg-type]
        write_atomic(self.path / "progress.json", made, durable=False)

    def begin(self, *, complete: bool = False) -> None:
        (self.path / "tokenizer.json").write_text(self.tokenizer, encoding="utf-8")
        np.array(self.validation, "<u2").tofile(self.path / "validation.bin")
        meta = {
            "version": 2, "complete": complete, "source": "made by hand",
            "source_sha256": "of the list",
            "tokenizer": {"sha256": hashlib.sha256(self.tokenizer.encode()).hexdigest()},
            "dtype": "uint16", "train_tokens": sum(each.tokens for each in self.shards),
            "validation_tokens": len(self.validation), "byte_unigram_bits": 8.0,
            "byte_bigram_bits": 8.0,
        }  # fmt: skip
        write_atomic(self.path / "meta.json", json.dumps(meta), durable=False)

    def add(self, ids: Sequence[int]) -> None:
        content = np.array(ids, "<u2").tobytes()
        record = ShardRecord(
            name=f"s{len(self.shards)}", file=f"shard-{len(self.shards):05d}.bin", tokens=len(ids),
            documents=0, sha256=hashlib.sha256(content).hexdigest(),
        )  # fmt: skip
        (self.path / record.file).write_bytes(content)
        with open(self.path / "shards.jsonl", "a") as file:
            file.write(dump(record) + "\n")
        self.shards.append(record)

    def finish(self) -> None:
        self.begin(complete=True)
        self.tell("done")


def complete(path: Path, shards: Sequence[Sequence[int]], **values: object) -> Path:
    made = HandMade(path, **values)  # type: ignore[arg-type]
    for ids in shards:
        made.add(ids)
    made.finish()
    return path
