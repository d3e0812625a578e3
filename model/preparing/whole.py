"""Text that is prepared as a whole: read, split, tokenized, and there when all of it is.

Every document begins with the special id. A folder's validation documents are chosen by a hash of
their names, so that they are a fair sample and stay the same when others come and go; a single
file gives its end, cut at a line.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

from model.data.folder import WHOLE_VERSION
from model.preparing.sources import Document, Source, open_source, read_pieces, source_sha256
from trmcloud.core.contract.pod_contract import (
    DATA_META_NAME,
    DATA_TOKENIZER_NAME,
    DATA_TRAIN_NAME,
    DATA_VALIDATION_NAME,
)
from trmcloud.core.errors import ConflictError, DataError
from trmcloud.core.spec.settings import BYTE_PAIRS, PhaseRecipe

#: The tokenizer learns from a sample of at most this much text: more changes its merges little,
#: and would make the time to the first step grow with the text.
TOKENIZER_SAMPLE_BYTES = 16 << 20
_ENCODE_AT_ONCE = 4 << 20

Progress = Callable[[str, int, int], None]


@contextmanager
def made_aside(out: Path) -> Iterator[Path]:
    """An empty folder that takes the place of ``out`` once all of it is written; an error leaves
    ``out`` as it was.

    Raises:
        OSError: it cannot be written.
    """
    making = out.with_name(f".{out.name}.making-{os.getpid()}")
    shutil.rmtree(making, ignore_errors=True)
    try:
        making.mkdir(parents=True)
        yield making
        shutil.rmtree(out, ignore_errors=True)
        os.replace(making, out)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def prepare(
    source_name: str,
    settings: PhaseRecipe,
    out: Path,
    *,
    tokenizer_json: str = "",
    source_called: str = "",
    progress: Progress = lambda stage, done, total: None,
    seconds: Callable[[], float] = lambda: 0.0,
) -> dict[str, Any]:
    """Prepares ``out`` and returns what its ``meta.json`` says.

    Args:
        tokenizer_json: of the tokenizer to use; empty: one is made of the text.
        source_called: what the source is called, where it is not the text's path.

    The folder appears whole or not at all; what was there before is replaced.

    Raises:
        DataError: the text is missing, empty, binary, unreadable, too small for one batch, or
            holds a character that the given tokenizer lacks.
        ConflictError: ``out`` is a folder of something else.
    """
    from model.data.tokenizers import BOS, load_tokenizer, train_tokenizer

    if out.exists() and not (out / DATA_META_NAME).exists() and any(out.iterdir()):
        raise ConflictError(
            "the folder holds files that are not prepared data",
            where=str(out),
            next_step="name a new folder",
        )
    progress("scan", 0, 1)
    source = open_source(source_name)
    digest = source_sha256(source)
    parts = split(source, settings.validation_fraction)
    progress("scan", 1, 1)

    if tokenizer_json:
        tokenizer = load_tokenizer(tokenizer_json, where=source_name)
    else:
        size = source.size_bytes
        if settings.tokenizer in BYTE_PAIRS:
            size = min(size, TOKENIZER_SAMPLE_BYTES)
            texts = sample_text(parts.train, source.size_bytes, size)
        else:
            # A character seen in validation alone would otherwise be refused.
            texts = sample_text(parts.train + parts.validation, size, size)
        progress("tokenizer", 0, size)
        tokenizer = train_tokenizer(
            settings.tokenizer, texts, settings.text_ids, settings.characters
        )
        progress("tokenizer", size, size)
    check_ids(tokenizer.vocab_size, settings, source_name)

    try:
        with made_aside(out) as making:
            writer = _Encoder(tokenizer, making, source.size_bytes, progress)
            train_tokens, _, _ = writer.write(DATA_TRAIN_NAME, parts.train)
            validation_tokens, counts, documents = writer.write(
                DATA_VALIDATION_NAME, parts.validation
            )
            check_size(train_tokens, validation_tokens, settings, source_name)
            tokenizer_text = tokenizer.to_json()
            _write(making / DATA_TOKENIZER_NAME, tokenizer_text)
            meta = {
                "version": WHOLE_VERSION,
                "source": source_called or source_name,
                "source_sha256": digest,
                "source_bytes": source.size_bytes,
                "documents": len(source.documents),
                "validation_documents": documents,
                "skipped_files": source.skipped,
                "tokenizer": {
                    "kind": tokenizer.kind,
                    "vocab_size": tokenizer.vocab_size,
                    "sha256": hashlib.sha256(tokenizer_text.encode()).hexdigest(),
                },
                "dtype": writer.dtype,
                "train_tokens": train_tokens,
                "validation_tokens": validation_tokens,
                "validation_bytes": counts.total,
                "special_tokens": {BOS: tokenizer.bos},
                "byte_unigram_bits": counts.unigram_bits(),
                "byte_bigram_bits": counts.bigram_bits(),
                "seconds": round(seconds(), 3),
            }
            _write(making / DATA_META_NAME, json.dumps(meta, indent=1) + "\n")
    except OSError as error:
        raise DataError(
            f"the prepared data cannot be written: {error.strerror or error}", where=str(out)
        ) from None
    return meta


@dataclass(frozen=True)
class Span:
    """Part of a document: characters ``start`` up to ``stop`` (None: its end)."""

    document: Document
    start: int = 0
    stop: int | None = None

    def pieces(self) -> Iterator[str]:
        at = 0
        for piece in read_pieces(self.document):
            low = max(self.start - at, 0)
            high = len(piece) if self.stop is None else min(self.stop - at, len(piece))
            if low < high:
                yield piece[low:high]
            at += len(piece)


@dataclass(frozen=True)
class Split:
    train: tuple[Span, ...]
    validation: tuple[Span, ...]


def split(source: Source, fraction: float) -> Split:
    """Which text is trained on, and which ``fraction`` of it (by bytes) is kept for validation."""
    if len(source.documents) == 1:
        document = source.documents[0]
        at = _line_start(document, 1.0 - fraction)
        return Split((Span(document, 0, at),), (Span(document, at),))
    wanted = source.size_bytes * fraction
    chosen: set[str] = set()
    taken = 0
    by_hash = sorted(
        source.documents,
        key=lambda each: hashlib.sha256(each.name.encode("utf-8", "surrogateescape")).digest(),
    )
    for document in by_hash[:-1]:
        # A file that would overshoot by half is passed over: one giant is no fair sample.
        if taken < wanted and taken + document.size_bytes <= 1.5 * wanted:
            chosen.add(document.name)
            taken += document.size_bytes
    if not chosen:
        chosen.add(min(source.documents, key=lambda each: (each.size_bytes, each.name)).name)
    return Split(
        tuple(Span(each) for each in source.documents if each.name not in chosen),
        tuple(Span(each) for each in source.documents if each.name in chosen),
    )


def sample_text(spans: Sequence[Span], size_bytes: int, limit_bytes: int) -> Iterator[str]:
    """All pieces of the text, or every k-th, so that at most about ``limit_bytes`` come out."""
    every = max(1, -(-size_bytes // limit_bytes))
    number = 0
    for span in spans:
        for piece in span.pieces():
            if number % every == 0:
                yield piece
            number += 1


class _Encoder:
    """Writes token files into one folder, telling how far it is."""

    def __init__(self, tokenizer: Any, folder: Path, total: int, progress: Progress) -> None:
        self._tokenizer = tokenizer
        self._folder = folder
        self._total = total
        self._done = 0
        self._progress = progress
        self.dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"

    def write(self, name: str, spans: Sequence[Span]) -> tuple[int, Any, int]:
        """Tokens written, the text's byte counts, and documents."""
        import numpy as np

        from model.preparing.entropy import ByteCounts

        counts = ByteCounts()
        tokens = 0
        little_endian = np.dtype(self.dtype).newbyteorder("<")
        bos = np.array([self._tokenizer.bos], dtype=little_endian).tobytes()
        with open(self._folder / name, "wb") as file:
            for group in _grouped(spans):
                texts = [text for _, _, text in group]
                places = [span.document.name for span, _, _ in group]
                for (_, first, text), ids in zip(
                    group, self._tokenizer.encode(texts, places), strict=True
                ):
                    if first:
                        counts.end_document()
                        file.write(bos)
                        tokens += 1
                    file.write(ids.astype(little_endian).tobytes())
                    tokens += len(ids)
                    encoded = text.encode()
                    counts.add(encoded)
                    self._done += len(encoded)
                self._progress("encode", self._done, self._total)
            file.flush()
            os.fsync(file.fileno())
        return tokens, counts, len(spans)


def _grouped(spans: Sequence[Span]) -> Iterator[list[tuple[Span, bool, str]]]:
    """(span, whether it begins here, text), a few mebibytes at a time, for all cores at once."""
    group: list[tuple[Span, bool, str]] = []
    size = 0
    for span in spans:
        for number, piece in enumerate(span.pieces()):
            group.append((span, number == 0, piece))
            size += len(piece)
            if size >= _ENCODE_AT_ONCE:
                yield group
                group, size = [], 0
    if group:
        yield group


def _line_start(document: Document, fraction: float) -> int:
    """The character where the line begins that follows ``fraction`` of the document."""
    characters = sum(len(piece) for piece in read_pieces(document))
    wanted = int(characters * fraction)
    at = 0
    for piece in read_pieces(document):
        if at + len(piece) > wanted:
            line = piece.find("\n", wanted - at)
            after = at + line + 1
            # Text without line breaks is cut where the fraction says.
            return after if line >= 0 and after < characters else wanted
        at += len(piece)
    return wanted


def check_ids(known_ids: int, settings: PhaseRecipe, where: str) -> None:
    """
    Raises:
        DataError: the tokenizer has more ids than the model has for text.
    """
    if known_ids > settings.text_ids:
        needed = known_ids + settings.vocab_size - settings.text_ids
        raise DataError(
            f"the tokenizer has {known_ids} ids, but vocab_size is {settings.text_ids}",
            where=where,
            next_step=f"--set vocab_size={needed}",
        )


def check_size(train: int, validation: int, settings: PhaseRecipe, where: str) -> None:
    """
    Raises:
        DataError: too few tokens for one batch, or for one sequence of validation.
    """
    if settings.row_is_text:
        return
    needed = (settings.sequence + 1) * settings.batch
    if train < needed:
        raise DataError(
            f"the text is smaller than one batch: {train} tokens to train on, {needed} needed "
            f"({settings.batch} sequences of {settings.sequence} + 1)",
            where=where,
            next_step="give more text, or set a smaller batch or sequence with --set",
        )
    if validation < settings.sequence + 1:
        raise DataError(
            f"the validation text is smaller than one sequence: {validation} tokens, "
            f"{settings.sequence + 1} needed",
            where=where,
            next_step="give more text, or a higher validation_fraction with --set",
        )


def _write(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
