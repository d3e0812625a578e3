"""Text to token files: ``python -m model.prepare --source SRC --settings FILE --out DIR``.

A named data set, an address, or parquet and token files make a growing folder (see
``model.preparing``); any other text a whole one, made here: ``train.bin`` and ``validation.bin``
(little-endian ids, ready to be mapped into memory), ``tokenizer.json``, and last of all
``meta.json``: without it the folder is not prepared data. Progress is one JSON object a line on
stdout; the last one has the stage ``done``.

Every document begins with ``<|bos|>``. A folder's validation documents are chosen by a hash of
their names, so that they are a fair sample and stay the same when others come and go; a single
file gives its end, cut at a line.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

from model.command import run_command
from model.preparing.pipeline import Stopped as _Stopped
from model.sources import Document, Source, open_source, read_pieces, source_sha256
from trmcloud.core.errors import ConflictError, DataError, UsageError
from trmcloud.core.pod_contract import (
    DATA_META_NAME,
    DATA_TOKENIZER_NAME,
    DATA_TRAIN_NAME,
    DATA_VALIDATION_NAME,
)
from trmcloud.core.recipe import PhaseRecipe

META_VERSION = 1
#: The tokenizer learns from a sample of at most this much text: more changes its merges little,
#: and would make the time to the first step grow with the text.
TOKENIZER_SAMPLE_BYTES = 16 << 20
_ENCODE_AT_ONCE = 4 << 20

Progress = Callable[[str, int, int], None]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m model.prepare",
        description=__doc__.partition("\n")[0],
        epilog="example: python -m model.prepare --source python-stdlib "
        "--settings settings.json --out data/",
    )
    parser.add_argument(
        "--source", required=True, help="a named data set, an address, a file or a folder"
    )
    parser.add_argument("--settings", required=True, help="JSON of a phase's settings")
    parser.add_argument("--out", required=True, help="the folder to make")
    parser.add_argument(
        "--tokenizer", default="", help="tokenizer.json or merges, file or URL[#sha256=HEX]"
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=0,
        help="training tokens to prepare at least (default: a GPU's)",
    )
    parser.add_argument("--cache", default="", help="where downloads and tokens are kept")
    parser.add_argument("--workers", type=int, default=0, help="processes (default: one a core)")
    parser.add_argument("--data-set", default="", help="the named data set itself, as JSON")
    parser.add_argument("--column", default="", help="where the text stands in parquet or JSONL")
    parser.add_argument(
        "--patience-s", type=float, default=600.0, help="how long a host may give nothing"
    )
    chosen = parser.parse_args(arguments)
    stopped = False

    def command() -> None:
        nonlocal stopped
        settings = _read_settings(Path(chosen.settings))
        try:
            meta = _make(chosen, settings)
        except _Stopped:
            stopped = True
            return
        print(json.dumps({"stage": "done", "done": 1, "total": 1, "meta": meta}), flush=True)

    code = run_command(command)
    return 128 + signal.SIGTERM if stopped else code


def _make(chosen: argparse.Namespace, settings: PhaseRecipe) -> dict[str, Any]:
    """Prepares what the arguments ask for, as a growing folder or a whole one."""
    from model.preparing import corpus as corpora
    from model.preparing.cache import Cache
    from model.preparing.growing import Means, given_tokenizer, grow, stop_at_sigterm

    began = time.monotonic()
    if chosen.tokens < 0 or chosen.workers < 0 or chosen.patience_s <= 0:
        raise UsageError("--tokens and --workers are not below zero, --patience-s is above it")
    out = Path(chosen.out)
    means = Means(
        os.environ,
        Path(chosen.cache) if chosen.cache else out.absolute().parent / "cache",
        workers=chosen.workers,
        patience_s=chosen.patience_s,
        told=_Throttled(_print_progress),
    )
    stop_at_sigterm(means.stop)
    given = Path(chosen.data_set) if chosen.data_set else None
    data_set = corpora.find_data_set(chosen.source, given)
    corpus = None
    if data_set is None:
        corpus = corpora.local_corpus(chosen.source)
    elif not data_set.is_whole:
        corpus = corpora.named_corpus(chosen.source, data_set)
    if corpus is not None:
        wanted = settings.tokens_per_step(1) * settings.steps
        return grow(
            corpora.with_column(corpus, chosen.column),
            settings,
            out,
            means,
            wanted=chosen.tokens or wanted,
            tokenizer=chosen.tokenizer,
        )
    text = chosen.source
    cache, fetcher = Cache(means.cache), means.fetcher()
    if data_set is not None and data_set.is_remote:
        [file] = corpora.named_corpus(chosen.source, data_set).train
        told = functools.partial(means.told, "download")
        text = str(fetcher.fetch(file.address, cache.raw(file), sha256=file.sha256, told=told).path)
    return prepare(
        text,
        settings,
        out,
        tokenizer_json=given_tokenizer(chosen.tokenizer, "text", settings, cache, fetcher),
        source_called=chosen.source,
        progress=_print_progress,
        seconds=lambda: time.monotonic() - began,
    )


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
    from model.tokenizers import BOS, load_tokenizer, train_tokenizer

    if out.exists() and not (out / DATA_META_NAME).exists() and any(out.iterdir()):
        raise ConflictError(
            "the folder holds something that is not prepared data",
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
        if settings.tokenizer == "bpe":
            size = min(size, TOKENIZER_SAMPLE_BYTES)
            texts = sample_text(parts.train, source.size_bytes, size)
        else:
            # A character seen in validation alone would otherwise be refused.
            texts = sample_text(parts.train + parts.validation, size, size)
        progress("tokenizer", 0, size)
        tokenizer = train_tokenizer(
            settings.tokenizer, texts, settings.vocab_size, settings.characters
        )
        progress("tokenizer", size, size)
    if tokenizer.vocab_size > settings.vocab_size:
        raise DataError(
            f"the tokenizer has {tokenizer.vocab_size} ids, the model room for "
            f"{settings.vocab_size}",
            where=source_name,
            next_step=f"--set vocab_size={tokenizer.vocab_size}",
        )

    making = out.with_name(f".{out.name}.making-{os.getpid()}")
    shutil.rmtree(making, ignore_errors=True)
    try:
        making.mkdir(parents=True)
        writer = _Encoder(tokenizer, making, source.size_bytes, progress)
        train_tokens, _, _ = writer.write(DATA_TRAIN_NAME, parts.train)
        validation_tokens, counts, documents = writer.write(DATA_VALIDATION_NAME, parts.validation)
        check_size(train_tokens, validation_tokens, settings, source_name)
        tokenizer_text = tokenizer.to_json()
        _write(making / DATA_TOKENIZER_NAME, tokenizer_text)
        meta = {
            "version": META_VERSION,
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
        shutil.rmtree(out, ignore_errors=True)
        os.replace(making, out)
    except OSError as error:
        raise DataError(
            f"the prepared data cannot be written: {error.strerror or error}", where=str(out)
        ) from None
    finally:
        shutil.rmtree(making, ignore_errors=True)
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

        from model.entropy import ByteCounts

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


def check_size(train: int, validation: int, settings: PhaseRecipe, where: str) -> None:
    """
    Raises:
        DataError: too few tokens for one batch, or for one sequence of validation.
    """
    needed = (settings.sequence + 1) * settings.batch
    if train < needed:
        raise DataError(
            f"the text is smaller than one batch: {train} tokens to train on, {needed} needed "
            f"({settings.batch} sequences of {settings.sequence} + 1)",
            where=where,
            next_step="give more text, or a smaller batch or sequence with --set",
        )
    if validation < settings.sequence + 1:
        raise DataError(
            f"the validation text is smaller than one sequence: {validation} tokens, "
            f"{settings.sequence + 1} needed",
            where=where,
            next_step="give more text, or --set validation_fraction higher",
        )


def _read_settings(path: Path) -> PhaseRecipe:
    try:
        return PhaseRecipe.from_json(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"the settings cannot be read: {error}", where=str(path)) from None


def _write(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


class _Throttled:
    """Tells each stage's progress twice a second at most, and only what is new."""

    def __init__(self, told: Progress) -> None:
        self._told = told
        self._last: dict[str, tuple[float, int, int]] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        at, *before = self._last.get(stage, (-1.0, -1, -1))
        now = time.monotonic()
        if before != [done, total] and (now - at >= 0.5 or done >= total):
            self._last[stage] = (now, done, total)
            self._told(stage, done, total)


def _print_progress(stage: str, done: int, total: int) -> None:
    print(json.dumps({"stage": stage, "done": done, "total": total}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
