"""The token cache: its names, its listing, and whether its tokens are to be believed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from model.data.folder import DTYPES
from model.data.tokenizers import TextTokenizer
from model.preparing.corpus import Corpus, ShardFile
from model.preparing.fetch import Fetcher
from trmcloud.core.catalog import datasets
from trmcloud.core.catalog.datasets import DataSet
from trmcloud.core.errors import DataError
from trmcloud.io.files import write_atomic
from trmcloud.io.hashing import file_sha256

# Token files by what they are made of, kept for the next run, checked before they are believed.

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
        """Return the path of a shard's download, or of its local file."""
        if file.path is not None:
            return file.path
        key = hashlib.sha256(file.address.encode()).hexdigest()[:16]
        return self.root / "raw" / key / file.name.replace("/", "_")

    def tokens(self, corpus: Corpus, file: ShardFile, tokenizer_sha256: str, part: str) -> Path:
        """Return the path of a shard's tokens.

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


def read_checked_record(path: Path, vocab_size: int) -> Tokens | None:
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


# Token files that others made, held to their text: all of its counts, and the tokens of one unit.
#
# Who can foresee no unit cannot tell which of them will be tokenized again. What is counted needs
# no tokenizing, so it is counted of every unit.

_AT_ONCE = 1 << 20


def matches_text(
    record: Tokens,
    path: Path,
    *,
    name: str,
    dtype: str,
    tokenizer: TextTokenizer,
    documents: Sequence[int],
    text_bytes: int,
    chosen: int,
    made: bytes,
    given_bytes: int | None,
    per_document: int,
) -> bool:
    """Whether a token file and its record are what this machine would have made.

    Args:
        documents: of each unit of the source, as counted here.
        text_bytes: of all units, as counted here.
        chosen: the unit that was tokenized here, and ``made`` its tokens.
        given_bytes: bytes of text that all ids stand for; None where not all of them count.
        per_document: how many special ids stand in each document.
    """
    stated = (record.name, record.dtype, record.documents, record.text_bytes)
    if stated != (name, dtype, sum(documents), text_bytes):
        return False
    if [each[1] for each in record.parts] != list(documents):
        return False
    ids = np.memmap(path, DTYPES[dtype], mode="r") if record.tokens else np.zeros(0, DTYPES[dtype])
    start = sum(tokens for tokens, _ in record.parts[:chosen])
    if ids[start : start + record.parts[chosen][0]].tobytes() != made:
        return False
    lengths = tokenizer.byte_lengths()
    largest, stand_for, begun = 0, 0, 0
    for at in range(0, len(ids), _AT_ONCE):
        some = ids[at : at + _AT_ONCE]
        largest = max(largest, int(some.max()))
        if largest >= len(lengths):
            return False
        stand_for += int(lengths[some].sum())
        begun += int(np.count_nonzero(some == tokenizer.bos))
    return (
        largest == record.largest
        and begun == record.documents * per_document
        and (given_bytes is None or stand_for == given_bytes)
    )


# The hashes of a data set's files, as its host published them to the launching machine.


def with_published_hashes(data_set: DataSet, cache: Cache, fetcher: Fetcher) -> DataSet:
    """The data set with its files' hashes: those of its host, held to the one hash of all of them
    that the launching machine gave.

    Raises:
        DataError: the host has others, or none. PassingError: it stayed away.
    """
    files = datasets.hub_files(data_set)
    if not data_set.listing or files is None:
        return data_set
    name = hashlib.sha256(data_set.listing.encode()).hexdigest()[:32]
    kept = cache.root / "listings" / f"{name}.json"
    try:
        hashes = {str(file): str(sha256) for file, sha256 in json.loads(kept.read_text()).items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        hashes = {}
    if datasets.listing_sha256(hashes) != data_set.listing:
        listed: dict[str, str] = {}
        for page in fetcher.pages(files.tree_address):
            listed |= datasets.hashes_in(page, files.folder)
        hashes = datasets.hub_files_of(data_set, listed)
        if datasets.listing_sha256(hashes) != data_set.listing:
            raise DataError(
                f"{data_set.name}: its host publishes different hashes here than on the machine "
                "that launched the run",
                where=files.tree_address,
                next_step="launch again; compare the data set's page on both machines",
            )
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(kept, json.dumps(hashes), durable=False)
    return replace(data_set, sha256={**hashes, **data_set.sha256})
