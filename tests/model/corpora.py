"""Shards in the layouts of the real data sets, small, and the same every time."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WORDS = ("the", "a", "small", "dog", "cat", "ünder", "oven", "sees", "eats", "漢字", "blue", "42")


def texts(count: int, seed: int, longest: int = 120) -> list[str]:
    """Made-up documents of very different lengths, an empty one among them."""
    chosen = random.Random(seed)
    made = [
        " ".join(chosen.choices(WORDS, k=chosen.randint(1, longest))) + ".\n" for _ in range(count)
    ]
    made[count // 2] = ""
    return made


def parquet(path: Path, documents: list[str], *, column: str = "text", rows: int = 64) -> Path:
    """As nanochat repackages: one text column, several row groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({column: documents}), path, row_group_size=rows, compression="zstd")
    return path


def jsonl(path: Path, documents: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"question": "why?", "answer": text}) + "\n" for text in documents]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def token_file(path: Path, ids: list[int]) -> Path:
    """As llm.c writes: 256 little-endian int32 (magic, version, count), then uint16."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack("<256i", 20240520, 1, len(ids), *([0] * 253))
    path.write_bytes(head + np.array(ids, "<u2").tobytes())
    return path


def data_set(path: Path, **values: object) -> Path:
    """A data set's JSON, as ``--data-set`` takes it."""
    path.write_text(json.dumps({"title": "A test", **values}))
    return path
