"""The publication of shards in the folder: in the list's order, as soon as all before it are
there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.data.folder import GROWING_VERSION
from model.data.tokenizers import BOS, TextTokenizer
from model.preparing import readers
from model.preparing.cache import Tokens
from model.preparing.corpus import HEADER_BYTES, Corpus, ShardFile
from model.preparing.folder import GrowingFolder
from model.preparing.work import JobResult
from trmcloud.core.contract.pod_contract import (
    DATA_META_NAME,
    DATA_TOKENIZER_NAME,
    DATA_VALIDATION_NAME,
)
from trmcloud.core.contract.trainer_contract import ShardRecord
from trmcloud.core.spec.settings import SEGMENTS, PhaseRecipe

VALIDATION = -1


@dataclass
class Shard:
    """The state of one file of a corpus on its way to tokens.

    ``jobs`` is in how many parts it is tokenized, 0 before anything was begun; ``made`` the parts
    that are done; ``record`` and ``tokens`` are set at the end. ``doubted`` are records of tokens
    that others made, of the shard and of what it holds for validation, until the unit ``chosen``
    was held to its text.
    """

    number: int
    file: ShardFile
    path: Path | None = None
    fetched: bool = False
    jobs: int = 0
    made: dict[int, JobResult] = field(default_factory=dict)
    record: Tokens | None = None
    tokens: Path | None = None
    doubted: tuple[Tokens, ...] = ()
    chosen: int | None = None


class Publisher:
    """Writes into the folder what a training needs, when it may be read."""

    def __init__(
        self, corpus: Corpus, settings: PhaseRecipe, folder: GrowingFolder, dtype: str, wanted: int
    ) -> None:
        self._corpus, self._settings = corpus, settings
        self._folder, self._dtype, self._wanted = folder, dtype, wanted
        self._tokenizer: dict[str, Any] = {}
        self._bos = 0
        self.may_begin = False
        """Whether training may begin."""

    def place_tokenizer(self, tokenizer: TextTokenizer, text: str, sha256: str) -> None:
        self._tokenizer = {
            "kind": tokenizer.kind,
            "vocab_size": tokenizer.vocab_size,
            "sha256": sha256,
        }
        self._bos = tokenizer.bos
        self._folder.write(DATA_TOKENIZER_NAME, text)
        self._folder.tell(stage="encode")
        self._folder.reached("tokenizer")

    def publish(self, train: Sequence[Shard], validation: Shard) -> None:
        """Puts into the folder what is next in the list, and what training needs to begin."""
        folder = self._folder
        while len(folder.records) < len(train) and folder.now.tokens < self._wanted:
            shard = train[len(folder.records)]
            if shard.record is None or shard.tokens is None:
                break
            made = shard.record
            record = ShardRecord(
                made.name,
                f"shard-{shard.number:05d}.bin",
                made.tokens,
                made.documents,
                made.sha256,
                HEADER_BYTES if self._corpus.layout == "gpt2" else 0,
                made.text_bytes,
            )
            folder.add(record, shard.tokens)
        enough = (self._settings.sequence + 1) * self._settings.batch
        if not self.may_begin and validation.record and folder.now.tokens >= enough:
            self.may_begin = True
            self.write_meta(validation, complete=False)
            folder.reached("ready")

    def is_done(self, train: Sequence[Shard], validation: Shard) -> bool:
        if validation.record is None:
            return False
        return len(self._folder.records) == len(train) or self._folder.now.tokens >= self._wanted

    def write_meta(self, validation: Shard, *, complete: bool) -> dict[str, Any]:
        folder, made = self._folder, validation.record
        assert made is not None
        if validation.tokens is not None:
            folder.place(DATA_VALIDATION_NAME, validation.tokens)
        meta = {
            "version": GROWING_VERSION,
            "complete": complete,
            "source": self._corpus.source,
            "source_sha256": self._corpus.sha256(self._settings.seed),
            "source_bytes": sum(record.text_bytes for record in folder.records),
            "documents": sum(record.documents for record in folder.records),
            "validation_documents": made.documents,
            "skipped_files": 0,
            "shards": len(folder.records),
            "tokenizer": self._tokenizer,
            "dtype": self._dtype,
            "train_tokens": folder.now.tokens,
            "validation_tokens": made.tokens,
            "validation_bytes": made.text_bytes,
            "special_tokens": {BOS: self._bos},
            "byte_unigram_bits": made.unigram_bits,
            "byte_bigram_bits": made.bigram_bits,
            "seconds": round(folder.elapsed_s, 3),
            **({SEGMENTS: readers.VERSION} if self._settings.rows == SEGMENTS else {}),
        }
        folder.write(DATA_META_NAME, json.dumps(meta, indent=1) + "\n")
        return meta
