"""The tasks of worker processes: divide a shard, tokenize a part of it, train a tokenizer.

A worker has one thread and one core: the tokenizer's own threads would fight over cores with the
other workers. It holds a few megabytes of text at a time, whatever the corpus.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.preparing import readers
from model.preparing.corpus import ShardFile
from model.preparing.readers import Unit, documents, units_of
from trmcloud.core.catalog.datasets import DataSet
from trmcloud.core.errors import DataError

_PR_SET_PDEATHSIG = 1
_state: dict[str, Any] = {}


@dataclass(frozen=True)
class Job:
    """A part of a shard to tokenize into ``out``.

    ``every``: one document in so many is for validation and goes to ``held_out`` (0: none).
    ``count_bytes``: whether to count the bytes of the validation text. ``in_segments``: whether
    each document is to come as its parts, of which the question's bytes are not counted.
    ``encode``: False where its text is counted alone, and nothing is written.
    """

    data_set: DataSet
    file: ShardFile
    path: Path | None
    unit: Unit
    seed: int
    dtype: str
    out: Path
    held_out: Path | None = None
    every: int = 0
    count_bytes: bool = False
    in_segments: bool = False
    encode: bool = True


@dataclass(frozen=True)
class JobResult:
    """The result of a job: figures of ``out``, of ``held_out``, and the worker's own."""

    tokens: int = 0
    documents: int = 0
    text_bytes: int = 0
    largest: int = 0
    held_out: tuple[int, int, int] = (0, 0, 0)
    """Tokens, documents and the largest id."""
    counts: Any = None
    cpu_s: float = 0.0
    peak_bytes: int = 0


def start(tokenizer_json: str) -> None:
    """Makes this process a worker."""
    _end_with_the_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from model.data.tokenizers import load_tokenizer

    _state["tokenizer"] = load_tokenizer(tokenizer_json, "tokenizer.json")
    with contextlib.suppress(OSError, AttributeError):
        # Parsing a large vocabulary takes 30 MB that glibc would keep for this process.
        ctypes.CDLL(None).malloc_trim(0)


def divide(data_set: DataSet, file: ShardFile, path: Path | None) -> list[Unit]:
    return units_of(data_set, file.name, path)


def tokenize(job: Job) -> JobResult:
    """
    Raises:
        DataError: the shard is damaged, or holds what the tokenizer does not know.
        OSError: the tokens cannot be written.
    """
    import numpy as np

    from model.data.folder import DTYPES
    from model.preparing.entropy import ByteCounts

    began = time.process_time()
    tokenizer = _state["tokenizer"]
    dtype = np.dtype(DTYPES[job.dtype])
    counts = ByteCounts() if job.count_bytes else None
    with_tokenizer = tokenizer if job.encode else None
    kept, aside = (_Output(with_tokenizer, dtype, job.file.name) for _ in range(2))
    number, parts = 0, readers.PARTS if job.in_segments else 1
    with contextlib.ExitStack() as files:
        out = files.enter_context(open(job.out if job.encode else os.devnull, "wb"))
        held_out = None
        if job.held_out:
            held_out = files.enter_context(open(job.held_out if job.encode else os.devnull, "wb"))
        made = documents(
            job.data_set, job.file.name, job.path, job.unit, job.seed, in_parts=job.in_segments
        )
        for texts in made:
            if held_out is not None:
                places = [at // parts % job.every for at in range(number, number + len(texts))]
                apart = [text for text, at in zip(texts, places, strict=True) if at == 0]
                rest = [text for text, at in zip(texts, places, strict=True) if at]
                number += len(texts)
                held_out.write(aside.take(apart))
                _count(counts, apart, parts)
                texts = rest
            else:
                _count(counts, texts, parts)
            out.write(kept.take(texts))
    return JobResult(
        kept.tokens,
        kept.documents // parts,
        kept.text_bytes,
        kept.largest,
        (aside.tokens, aside.documents // parts, aside.largest),
        counts,
        time.process_time() - began,
        _peak_bytes(),
    )


def measure_tokens(path: Path, offset: int, start: int, stop: int) -> JobResult:
    """Of ids that are there already, from ``start`` up to ``stop`` of a token file: documents and
    the largest id."""
    import numpy as np

    ids = np.memmap(path, dtype="<u2", mode="r", offset=offset)[start:stop]
    bos = _state["tokenizer"].bos
    documents = int(np.count_nonzero(ids == bos))
    return JobResult(len(ids), documents, 0, int(ids.max(initial=0)), peak_bytes=_peak_bytes())


def copy_tokens(path: Path, offset: int, start: int, stop: int, out: Path) -> JobResult:
    """Ids of a token file as a file of their own, their text's bytes counted."""
    import numpy as np

    from model.data.packing import document_starts
    from model.preparing.entropy import ByteCounts

    tokenizer = _state["tokenizer"]
    ids = np.array(np.memmap(path, dtype="<u2", mode="r", offset=offset)[start:stop])
    if int(ids.max(initial=0)) >= tokenizer.vocab_size:
        raise DataError("it holds token ids that GPT-2 does not have", where=str(path))
    out.write_bytes(ids.tobytes())
    counts = ByteCounts()
    begins = document_starts(ids, tokenizer.bos)
    for begin, end in zip(begins, [*begins[1:], len(ids)], strict=True):
        counts.end_document()
        counts.add(tokenizer.decode(ids[begin:end]).encode())
    return JobResult(
        len(ids), len(begins), counts.total, int(ids.max(initial=0)), counts=counts,
        peak_bytes=_peak_bytes(),
    )  # fmt: skip


class _Output:
    """Documents as ids' bytes, and the figures of all of them; without a tokenizer those of their
    text."""

    def __init__(self, tokenizer: Any, dtype: Any, place: str) -> None:
        self._tokenizer, self._dtype, self._place = tokenizer, dtype, place
        self.tokens = self.documents = self.text_bytes = self.largest = 0

    def take(self, texts: list[str]) -> bytes:
        self.documents += len(texts)
        self.text_bytes += sum(map(_utf8_bytes, texts))
        if self._tokenizer is None:
            return b""
        ids = _encoded(self._tokenizer, texts, self._place)
        self.tokens += len(ids)
        self.largest = max(self.largest, int(ids.max(initial=0)))
        return bytes(ids.astype(self._dtype).data)


def join(parts: list[Path], target: Path) -> str:
    """Puts parts together under ``target``, durably; returns the SHA-256 of the whole."""
    digest = hashlib.sha256()
    making = target.with_name(target.name + ".part")
    with open(making, "wb") as file:
        for part in parts:
            with open(part, "rb") as read:
                while chunk := read.read(1 << 20):
                    digest.update(chunk)
                    file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    os.replace(making, target)
    for part in parts:
        part.unlink()
    return digest.hexdigest()


@dataclass(frozen=True)
class TokenizerSample:
    """The sample that a tokenizer is trained on: of each shard, one document in ``every``."""

    data_set: DataSet
    shards: tuple[tuple[ShardFile, Path | None], ...]
    kind: str
    vocab_size: int
    seed: int
    in_segments: bool = False


def train(lesson: TokenizerSample) -> tuple[str, int, int]:
    """A tokenizer's JSON, the bytes of text it learnt from, and the largest memory that took.

    Raises:
        DataError: a shard is damaged.
    """
    _end_with_the_parent()
    from model.data.tokenizers import train_tokenizer

    seen = [0]

    def texts() -> Iterator[str]:
        divided = [(f, p, units_of(lesson.data_set, f.name, p)) for f, p in lesson.shards]
        size = sum(unit.text_bytes for _, _, units in divided for unit in units)
        every = max(1, -(-size // lesson.data_set.tokenizer_text_bytes))
        number = 0
        for file, path, units in divided:
            for unit in units:
                made = documents(
                    lesson.data_set,
                    file.name,
                    path,
                    unit,
                    lesson.seed,
                    in_parts=lesson.in_segments,
                )
                for batch in made:
                    for text in batch:
                        if number % every == 0:
                            seen[0] += len(text)
                            yield text
                        number += 1

    tokenizer = train_tokenizer(lesson.kind, texts(), lesson.vocab_size)
    return tokenizer.to_json(), seen[0], _peak_bytes()


def _encoded(tokenizer: Any, texts: list[str], place: str) -> Any:
    try:
        return tokenizer.encode_documents(texts, place)
    except DataError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"a document cannot be tokenized: {error}", where=place) from None


def _count(counts: Any, texts: list[str], parts: int) -> None:
    if counts is not None:
        for at, text in enumerate(texts):
            if parts > 1 and at % parts == readers.QUESTION:
                continue  # it is given, so no loss is held to it
            counts.end_document()
            counts.add(text.encode())


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _end_with_the_parent() -> None:
    """A worker whose parent was killed would wait for its next job for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:
        os._exit(1)  # it was killed before it could be asked for


def _peak_bytes() -> int:
    """The most resident memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
