"""Text to token files: ``python -m model.prepare --source SRC --settings FILE --out DIR``.

A named data set, an address, or parquet and token files make a growing folder, which may be trained
on while it grows (``model.preparing.growing``); any other text a whole one, which appears when it
is done (``model.preparing.whole``): ``train.bin`` and ``validation.bin`` (little-endian ids, ready
to be mapped into memory), ``tokenizer.json``, and last of all ``meta.json``. Progress is one JSON
object a line on stdout; the last one has the stage ``done``.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, Sequence

from model.command import run_command
from model.preparing.fetch import PreparationStopped
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import CHAT, SEGMENTS, PhaseRecipe


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
        help="least number of training tokens to prepare (default: as for one GPU)",
    )
    parser.add_argument("--cache", default="", help="where downloads and tokens are kept")
    parser.add_argument(
        "--doubt-cache",
        action="store_true",
        help="other users write to the cache: check a random part of each file against its source",
    )
    parser.add_argument(
        "--workers", type=int, default=0, help="processes (default: one for each core)"
    )
    parser.add_argument("--data-set", default="", help="the definition of the data set, as JSON")
    parser.add_argument(
        "--column", default="", help="column or field that holds the text in parquet or JSONL"
    )
    parser.add_argument(
        "--patience-s", type=float, default=600.0, help="longest time to wait for data from a host"
    )
    chosen = parser.parse_args(arguments)
    stopped = False

    def command() -> None:
        nonlocal stopped
        settings = _read_settings(Path(chosen.settings))
        try:
            meta = _make(chosen, settings)
        except PreparationStopped:
            stopped = True
            return
        print(json.dumps({"stage": "done", "done": 1, "total": 1, "meta": meta}), flush=True)

    code = run_command(command)
    return 128 + signal.SIGTERM if stopped else code


def _make(chosen: argparse.Namespace, settings: PhaseRecipe) -> dict[str, Any]:
    """Prepares what the arguments ask for, as a growing folder or a whole one."""
    from model.preparing import corpus as corpora
    from model.preparing.cache import Cache, with_published_hashes
    from model.preparing.conversations import prepare_conversations
    from model.preparing.growing import (
        PreparationOptions,
        grow,
        load_given_tokenizer,
        stop_at_sigterm,
    )
    from model.preparing.sources import PYTHON_STDLIB
    from model.preparing.whole import prepare

    began = time.monotonic()
    if chosen.tokens < 0 or chosen.workers < 0 or chosen.patience_s <= 0:
        raise UsageError(
            "--tokens and --workers cannot be negative, --patience-s must be above zero"
        )
    out = Path(chosen.out)
    means = PreparationOptions(
        os.environ,
        Path(chosen.cache) if chosen.cache else out.absolute().parent / "cache",
        workers=chosen.workers,
        patience_s=chosen.patience_s,
        told=_ThrottledProgress(_print_progress),
        choose=secrets.randbelow if chosen.doubt_cache else None,
    )
    stop_at_sigterm(means.stop)
    given = Path(chosen.data_set) if chosen.data_set else None
    data_set = corpora.find_data_set(chosen.source, given)
    is_chat_set = data_set is not None and data_set.layout == CHAT
    if settings.rows == CHAT:
        is_text = data_set is not None or chosen.source == PYTHON_STDLIB
        if is_text and not is_chat_set:
            raise UsageError(
                f"{chosen.source} is text, not conversations",
                next_step="give a file of conversations: FILE.jsonl",
            )
        return prepare_conversations(
            chosen.source,
            out,
            settings.validation_fraction,
            is_generated=is_chat_set,
            progress=_print_progress,
        )
    if is_chat_set:
        raise UsageError(
            f"{chosen.source} is only for the chat phase", next_step="give a text: --data TEXT"
        )
    corpus = None
    if data_set is None:
        by_rows = settings.row_is_text
        corpus = corpora.local_corpus(chosen.source, by_rows=by_rows, like=settings.data)
    elif not data_set.is_whole:
        data_set = with_published_hashes(data_set, Cache(means.cache), means.fetcher())
        corpus = corpora.named_corpus(chosen.source, data_set)
    if corpus is not None:
        corpus = corpora.with_column(corpus, chosen.column)
    if settings.rows == SEGMENTS:
        corpora.check_parts(corpus, chosen.source)
    if corpus is not None:
        wanted = settings.tokens_per_step(1) * settings.steps
        return grow(
            corpus,
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
        tokenizer_json=load_given_tokenizer(chosen.tokenizer, "text", settings, cache, fetcher),
        source_called=chosen.source,
        progress=_print_progress,
        seconds=lambda: time.monotonic() - began,
    )


def _read_settings(path: Path) -> PhaseRecipe:
    try:
        return PhaseRecipe.from_json(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"the settings cannot be read: {error}", where=str(path)) from None


class _ThrottledProgress:
    """Tells each stage's progress twice a second at most, and only what is new."""

    def __init__(self, told: Callable[[str, int, int], None]) -> None:
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
