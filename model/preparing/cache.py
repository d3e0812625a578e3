"""Token files by what they are made of, kept for the next run, checked before they are believed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from model.data.folder import DTYPES
from model.preparing.corpus import Corpus, ShardFile
from trmcloud.io.files import write_atomic
from trmcloud.io.hashing import file_sha256

FORMAT_VERSION = 2
"""Of the token files: a change of what is written for the same text is a new version."""


@dataclass(frozen=True)
class Tokens:
    """The record beside a token file.

    ``largest`` is the largest id, ``sha256`` that of the file. The entropies of its text's bytes
    are known where it is for validation. ``parts`` are the tokens and documents of each unit of
    its shard, by which one unit can be held to its text.
    """

    name: str
    tokens: int
    documents: int
    text_bytes: int
    sha256: str
    largest: int
    dtype: str
    unigram_bits: float = 0.0
    bigram_bits: float = 0.0
    parts: tuple[tuple[int, int], ...] = ()


class Cache:
    """One folder: downloads below ``raw``, token files below ``tokens``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def raw(self, file: ShardFile) -> Path:
        """Where a shard is downloaded to, or lies already."""
        if file.path is not None:
            return file.path
        key = hashlib.sha256(file.address.encode()).hexdigest()[:16]
        return self.root / "raw" / key / file.name.replace("/", "_")

    def tokens(self, corpus: Corpus, file: ShardFile, tokenizer_sha256: str, part: str) -> Path:
        """Where a shard's tokens belong.

        Args:
            part: which of its documents, where it is not all of them.
        """
        said = [
            str(FORMAT_VERSION),
            corpus.layout,
            file.identity,
            tokenizer_sha256,
            corpus.data_set.column,
            *corpus.data_set.fields,
            part,
        ]
        key = hashlib.sha256("\0".join(said).encode()).hexdigest()[:32]
        return self.root / "tokens" / f"{key}.bin"

    def tokenizer(self, key: str) -> Path:
        return self.root / "tokenizers" / f"{key}.json"


def record_path(path: Path) -> Path:
    return path.with_suffix(".json")


def write_record(path: Path, record: Tokens) -> None:
    """Last: a token file without its record is none."""
    write_atomic(record_path(path), json.dumps(asdict(record)), durable=False)


def believed(path: Path, vocab_size: int) -> Tokens | None:
    """The record of a token file, if the file is what it says and holds ids of the vocabulary."""
    try:
        said = json.loads(record_path(path).read_text())
        parts = tuple((int(tokens), int(texts)) for tokens, texts in said.get("parts", ()))
        record = Tokens(**{**said, "parts": parts})
        if parts and (min(map(min, parts)) < 0 or sum(t for t, _ in parts) != record.tokens):
            return None
        width = np.dtype(DTYPES[record.dtype]).itemsize
        if path.stat().st_size != record.tokens * width or record.largest >= vocab_size:
            return None
        return record if file_sha256(path) == record.sha256 else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
