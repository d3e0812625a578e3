"""One growing folder from beginning to end: what it is to hold, the work, and how it ended."""

from __future__ import annotations

import errno
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.data.folder import open_data
from model.data.tokenizers import CharTokenizer, load_tokenizer
from model.preparing import readers
from model.preparing.cache import Cache
from model.preparing.corpus import Corpus, is_merges, tokenizer_from_merges
from model.preparing.crew import cores
from model.preparing.fetch import (
    PATIENCE_S,
    Fetcher,
    PreparationStopped,
    RetryClock,
    TransientError,
)
from model.preparing.folder import GrowingFolder
from model.preparing.pipeline import Pipeline
from model.preparing.whole import check_ids, check_size
from trmcloud.core.catalog.datasets import GPT2_BPE_SHA256, GPT2_BPE_URL, is_address
from trmcloud.core.errors import DataError, MissingExtra, TrmcloudError
from trmcloud.core.spec.settings import SEGMENTS, PhaseRecipe
from trmcloud.io.installation import install_command

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class PreparationOptions:
    """The resources of a preparation."""

    environment: Mapping[str, str]
    cache: Path
    workers: int = 0
    """Processes; 0: one a core."""
    patience_s: float = PATIENCE_S
    stop: threading.Event = field(default_factory=threading.Event)
    told: Callable[[str, int, int], None] = lambda stage, done, total: None
    choose: Callable[[int], int] | None = None
    """Of a cache that others filled too: see ``Pipeline``."""

    def fetcher(self) -> Fetcher:
        return Fetcher(
            self.environment,
            self._pauses(),
            patience_s=self.patience_s,
            waits=lambda why: self.told(why, 0, 0),
        )

    def _pauses(self) -> RetryClock:
        def sleep(seconds: float) -> None:
            if self.stop.wait(seconds):
                raise PreparationStopped

        return RetryClock(sleep, time.monotonic, time.time, random.random)


def grow(
    corpus: Corpus,
    settings: PhaseRecipe,
    out: Path,
    means: PreparationOptions,
    *,
    wanted: int,
    tokenizer: str,
) -> dict[str, Any]:
    """Fills ``out``; returns what its ``meta.json`` says.

    Args:
        wanted: training tokens.
        tokenizer: a file or an address; empty: as the settings say.

    Raises:
        ConflictError: ``out`` holds something else, or is being filled.
        DataError: something cannot be had or used; ``out`` says so, too.
        Stopped: told to.
    """
    _need_packages(corpus)
    dtype = "uint16" if settings.vocab_size <= 1 << 16 else "uint32"
    folder = GrowingFolder(out, corpus.source, dtype)
    folder.open(_identity(corpus, settings, tokenizer))
    cache = Cache(means.cache)
    pipeline = None
    try:
        fetcher = means.fetcher()
        text = load_given_tokenizer(tokenizer, corpus.layout, settings, cache, fetcher)
        pipeline = Pipeline(
            corpus,
            settings,
            folder,
            cache,
            fetcher,
            wanted=wanted,
            workers=means.workers or cores(),
            tokenizer_json=text,
            dtype=dtype,
            stop=means.stop,
            told=means.told,
            choose=means.choose,
        )
        meta = pipeline.run()
        check_size(meta["train_tokens"], meta["validation_tokens"], settings, corpus.source)
        if settings.row_is_text:
            open_data(out).validation_rows(settings)  # at least one text fits
        folder.reached("done")
        folder.end("done")
        return meta
    except PreparationStopped:
        folder.end("stopped")
        raise
    except TrmcloudError as error:
        folder.end("failed", error, again=isinstance(error, TransientError))
        raise
    except OSError as error:
        problem: DataError = DataError(f"the data cannot be written: {error}", where=str(out))
        if error.errno in _NO_ROOM:
            problem = TransientError(
                "the disk is full: the tokens cannot be written",
                where=error.filename or str(out),
                next_step="free some disk space and run the same command again: it continues "
                "from there",
            )
        folder.end("failed", problem, again=isinstance(problem, TransientError))
        raise problem from None
    finally:
        if pipeline is not None:
            pipeline.close()


def load_given_tokenizer(
    named: str, layout: str, settings: PhaseRecipe, cache: Cache, fetcher: Fetcher
) -> str:
    """``tokenizer.json`` of the tokenizer given or stated; empty where one is to be trained.

    Raises:
        DataError: it cannot be had, is none, or has more ids than the model.
    """
    where = named
    if not named and settings.characters:
        return CharTokenizer(settings.characters).to_json()
    if not named and (settings.tokenizer == "gpt2" or layout == "gpt2"):
        where = f"{GPT2_BPE_URL}#sha256={GPT2_BPE_SHA256}"
    if not where:
        return ""
    if is_address(where):
        address, _, digest = where.partition("#sha256=")
        kept = cache.root / "tokenizers" / address.rpartition("/")[2]
        path = fetcher.fetch(address, kept, sha256=digest).path
    else:
        path = Path(where)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"the tokenizer cannot be read: {error}", where=where) from None
    if is_merges(text):
        text = tokenizer_from_merges(text, where)
    made = load_tokenizer(text, where)
    check_ids(made.vocab_size, settings, where)
    return text


def stop_at_sigterm(stop: threading.Event) -> None:
    """SIGTERM ends a preparation at its next look, everything done so far being kept."""
    signal.signal(signal.SIGTERM, lambda *_: stop.set())


def _identity(corpus: Corpus, settings: PhaseRecipe, tokenizer: str) -> dict[str, Any]:
    return {
        "source_sha256": corpus.sha256(settings.seed),
        "tokenizer": tokenizer or settings.tokenizer,
        "characters": settings.characters,
        "vocab_size": settings.text_ids,
        "validation_fraction": None if corpus.validation else settings.validation_fraction,
        **({SEGMENTS: readers.VERSION} if settings.rows == SEGMENTS else {}),
    }


def _need_packages(corpus: Corpus) -> None:
    if corpus.layout != "parquet":
        return
    try:
        import pyarrow.parquet  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtra("reading parquet", "data", install_command("data")) from None
