"""A folder of conversations in the ids of one tokenizer, made where a chat phase trains."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from model.data.chat import ChatTokens, judged, render_all
from model.data.folder import DTYPES, WHOLE_VERSION
from model.data.tokenizers import BOS, TextTokenizer, load_tokenizer
from model.preparing.conversations import TRAIN_NAME, VALIDATION_NAME, VERSION
from model.preparing.entropy import ByteCounts
from model.preparing.whole import made_aside
from trmcloud.core.contract.pod_contract import (
    DATA_META_NAME,
    DATA_TOKENIZER_NAME,
    DATA_TRAIN_NAME,
    DATA_VALIDATION_NAME,
)
from trmcloud.core.errors import DataError
from trmcloud.core.spec.settings import CHAT

_AT_ONCE = 1_000


def are_conversations(folder: Path) -> bool:
    """Whether the folder holds conversations as text."""
    try:
        return bool(json.loads((folder / DATA_META_NAME).read_text())["version"] == VERSION)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def tokenize_conversations(
    folder: Path, tokenizer_json: str, out: Path, between: Callable[[], object] = lambda: None
) -> Path:
    """Writes the conversations of ``folder`` as ids into ``out``, a folder of prepared data, and
    returns that. One that is there already of the same conversations and tokenizer is kept.

    Args:
        between: called every thousand conversations.

    Raises:
        DataError: the tokenizer lacks tokens for conversations, or the folder is damaged.
    """
    tokenizer = load_tokenizer(tokenizer_json, str(folder))
    tokens = ChatTokens.of(tokenizer, str(folder))
    wanted = hashlib.sha256(tokenizer_json.encode()).hexdigest()
    try:
        said = json.loads((folder / DATA_META_NAME).read_text())
        source = str(said["source_sha256"])
        if _is_made(out, source, wanted):
            return out
        dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
        with made_aside(out) as making:
            written = [
                _Written(making / name, tokenizer, tokens, dtype)
                for name in (DATA_TRAIN_NAME, DATA_VALIDATION_NAME)
            ]
            for each, name in zip(written, (TRAIN_NAME, VALIDATION_NAME), strict=True):
                each.take(folder / name, between)
            train, held_out = written
            meta = {
                "version": WHOLE_VERSION,
                CHAT: True,
                "source": said["source"],
                "source_sha256": source,
                "documents": train.conversations + held_out.conversations,
                "validation_documents": held_out.conversations,
                "tokenizer": {
                    "kind": tokenizer.kind,
                    "vocab_size": tokenizer.vocab_size,
                    "sha256": wanted,
                },
                "dtype": dtype,
                "train_tokens": train.tokens,
                "validation_tokens": held_out.tokens,
                "validation_bytes": held_out.counts.total,
                "special_tokens": {BOS: tokenizer.bos},
                "byte_unigram_bits": held_out.counts.unigram_bits(),
                "byte_bigram_bits": held_out.counts.bigram_bits(),
            }
            (making / DATA_TOKENIZER_NAME).write_text(tokenizer_json, encoding="utf-8")
            (making / DATA_META_NAME).write_text(json.dumps(meta, indent=1) + "\n")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"the conversations cannot be used: {error!r}",
            where=str(folder),
            next_step="prepare them again",
        ) from None
    return out


class _Written:
    """One file of ids, and the figures of its conversations."""

    def __init__(
        self, path: Path, tokenizer: TextTokenizer, special: ChatTokens, dtype: str
    ) -> None:
        self._path, self._tokenizer, self._special = path, tokenizer, special
        self._dtype = np.dtype(DTYPES[dtype])
        self.counts = ByteCounts()
        """The bytes of the text that is judged."""
        self.tokens = self.conversations = 0

    def take(self, lines: Path, between: Callable[[], object]) -> None:
        with open(lines, "rb") as read, open(self._path, "wb") as write:
            for first, many in _thousands(read):
                places = [f"{lines}, line {first + number}" for number in range(len(many))]
                for ids in render_all(self._tokenizer, many, places):
                    write.write(ids.astype(self._dtype).tobytes())
                    self.tokens += len(ids)
                    self.conversations += 1
                    if self._path.name == DATA_VALIDATION_NAME:
                        self.counts.end_document()
                        text = self._tokenizer.decode(ids[judged(ids, self._special)])
                        self.counts.add(text.encode())
                between()
            write.flush()
            os.fsync(write.fileno())


def _thousands(lines: BinaryIO) -> Iterator[tuple[int, list[Any]]]:
    """(the first one's line, from 1 on; conversations)"""
    first = 1
    while some := [json.loads(line)["messages"] for line in islice(lines, _AT_ONCE)]:
        yield first, some
        first += len(some)


def _is_made(out: Path, source_sha256: str, tokenizer_sha256: str) -> bool:
    try:
        meta = json.loads((out / DATA_META_NAME).read_text())
        made = meta["source_sha256"], meta["tokenizer"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(made == (source_sha256, tokenizer_sha256))
