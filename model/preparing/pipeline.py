"""Shards to token files: downloads, tokenizer and all cores at once, in an order that never shows.

One thread decides; downloads and checks run in threads, tokenizing in processes. Each shard goes
its way by itself (looked up, fetched, divided, tokenized in parts, joined) and is published when
all before it are, so that the folder's list is the same whatever arrived first.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from model.data.tokenizers import TextTokenizer, load_tokenizer
from model.preparing import readers, work
from model.preparing.cache import (
    Cache,
    Tokens,
    matches_text,
    read_checked_record,
    record_path,
    write_record,
)
from model.preparing.corpus import HEADER_BYTES, Corpus, count_tokens
from model.preparing.crew import DOWNLOADS_AT_ONCE, DownloadCounter, Told, WorkerPool
from model.preparing.entropy import ByteCounts
from model.preparing.fetch import (
    DamagedFile,
    FetchedFile,
    Fetcher,
    PreparationStopped,
    TransientError,
)
from model.preparing.folder import GrowingFolder
from model.preparing.learning import KeptTokenizer
from model.preparing.publishing import VALIDATION, Publisher, Shard
from model.preparing.readers import Unit
from model.preparing.work import Job, JobResult, TokenizerSample
from trmcloud.core.catalog.datasets import PUZZLES
from trmcloud.core.errors import DataError
from trmcloud.core.spec.settings import SEGMENTS, PhaseRecipe
from trmcloud.io.hashing import file_sha256

_AHEAD = 12
"""Shards beyond the tokenizer's that may be on the disk as text at once."""
_BYTES_PER_TOKEN = 4


class Pipeline:
    """Fills one folder from one corpus, with ``wanted`` training tokens or all there are."""

    def __init__(
        self,
        corpus: Corpus,
        settings: PhaseRecipe,
        folder: GrowingFolder,
        cache: Cache,
        fetcher: Fetcher,
        *,
        wanted: int,
        workers: int,
        tokenizer_json: str,
        dtype: str,
        stop: threading.Event,
        told: Told,
        choose: Callable[[int], int] | None,
    ) -> None:
        """
        Args:
            tokenizer_json: empty: one is trained on the first shards.
            choose: a number from 0 up to its argument, not included, that nobody can foresee: of
                the unit by which a cache that others filled is held to its source. None: the cache
                is this machine's own.
        """
        self._corpus, self._settings, self._dtype = corpus, settings, dtype
        self._folder, self._cache, self._fetcher = folder, cache, fetcher
        self._wanted, self._telling = wanted, DownloadCounter(folder, told, wanted)
        self._crew = WorkerPool(workers, stop)
        self._publisher = Publisher(corpus, settings, folder, dtype, wanted)
        self._kept = KeptTokenizer(corpus, settings, cache, is_own=choose is None)
        self._tokenizer: TextTokenizer | None = None
        self._tokenizer_json, self._tokenizer_sha256 = tokenizer_json, ""
        self._train = [Shard(number, file) for number, file in enumerate(corpus.train)]
        self._validation = Shard(VALIDATION, corpus.validation or corpus.train[0])
        self._next = 0
        self._split = 0
        if corpus.validation is None:
            self._split = max(2, round(1 / settings.validation_fraction))
        self._waiting: list[tuple[int, int, Shard, Job]] = []
        self._is_learning = False
        self._choose = choose

    def run(self) -> dict[str, Any]:
        """Works until all is there; returns what ``meta.json`` says.

        Raises:
            DataError: a shard cannot be had or used; what is done stays.
            PassingError: the same may succeed later.
            Stopped: told to.
        """
        (self._cache.root / "tokens").mkdir(parents=True, exist_ok=True)
        # Where validation is part of the only shard, both are looked up together.
        taken_up = () if self._split else self._folder.records
        for record, shard in zip(taken_up, self._train, strict=False):
            shard.record = Tokens(
                record.name, record.tokens, record.documents, record.text_bytes, record.sha256,
                0, self._dtype,
            )  # fmt: skip
        try:
            if self._tokenizer_json:
                self._know_tokenizer(self._tokenizer_json)
            else:
                self._begin_tokenizer()
            while not self._publisher.is_done(self._train, self._validation):
                self._launch()
                self._crew.step()
                self._publisher.publish(self._train, self._validation)
                self._telling.now(
                    may_begin=self._publisher.may_begin,
                    encodes=self._tokenizer is not None,
                    planned_shards=max(self._next, self._corpus.data_set.shards_for(self._wanted)),
                )
        except DamagedFile as error:
            self._drop(Path(error.where))
            raise
        except BrokenProcessPool:
            raise TransientError(
                "a worker process was killed, probably because memory ran out",
                where=self._corpus.source,
                next_step="run it again with fewer --workers",
            ) from None
        return self._publisher.write_meta(self._validation, complete=True)

    def _drop(self, path: Path) -> None:
        """Forgets a download, so that the same command fetches it anew; a user's own file stays."""
        if self._cache.root / "raw" in path.parents:
            path.unlink(missing_ok=True)
            path.with_name(path.name + ".json").unlink(missing_ok=True)

    def close(self) -> None:
        """Ends what is still at work."""
        self._crew.close()

    # -- what to begin --------------------------------------------------------------------------

    def _launch(self) -> None:
        """Begins shards as long as they are needed and there is room, and fills the workers."""
        self._begin(self._validation)
        while self._next < len(self._train) and self._needs_another():
            self._begin(self._train[self._next])
            self._next += 1
        while self._waiting and self._crew.has_room:
            _, number, shard, job = heappop(self._waiting)
            self._crew.work(partial(self._tokenized, shard, number), work.tokenize, job)

    def _needs_another(self) -> bool:
        begun = self._train[: self._next]
        ready = [shard.record.tokens for shard in begun if shard.record]
        average = sum(ready) // len(ready) if ready else self._corpus.data_set.shard_tokens
        unready = len(begun) - len(ready)
        if sum(ready) + unready * average >= self._wanted and begun:
            return False
        return unready < _AHEAD + DOWNLOADS_AT_ONCE

    def _begin(self, shard: Shard) -> None:
        if shard.jobs or shard.record or (shard.number == VALIDATION and self._split):
            return
        shard.jobs = 1
        if self._tokenizer is not None:
            self._look_up(shard)
        else:
            self._fetch(shard)

    def _look_up(self, shard: Shard) -> None:
        """Asks the cache first."""
        tokens = self._place(shard)
        held_out = self._place(self._validation) if self._split else None
        vocab_size = self._known().vocab_size
        if self._choose is not None and shard.number == VALIDATION:
            self._fetch(shard)  # what bits per byte are measured on is made from the text itself
            return

        def look() -> tuple[Tokens | None, Tokens | None]:
            return read_checked_record(tokens, vocab_size), read_checked_record(
                held_out, vocab_size
            ) if held_out else None

        def looked(found: tuple[Tokens | None, Tokens | None]) -> None:
            if found[0] is None or (held_out is not None and found[1] is None):
                if record_path(tokens).exists():
                    self._telling.damaged(shard.file.name)
                self._fetch(shard)
            elif self._choose is not None and self._corpus.layout != "gpt2":
                shard.doubted = (found[0], *([found[1]] if found[1] is not None else []))
                self._fetch(shard)
            else:
                self._end(shard, found[0], tokens)
                if held_out is not None and found[1] is not None:
                    self._end(self._validation, found[1], held_out)

        self._crew.chore(look, looked)

    # -- fetching ---------------------------------------------------------------------------------

    def _fetch(self, shard: Shard) -> None:
        file = shard.file
        if shard.fetched or not file.address:
            self._have(shard, shard.path or file.path)
            return
        target = self._cache.raw(file)
        if self._corpus.data_set.shard_bytes:
            self._telling.expects(file.name, self._corpus.data_set.shard_bytes)

        def told(done: int, total: int) -> None:
            self._telling.downloaded(file.name, done, total)
            if self._crew.stop.is_set():
                raise PreparationStopped

        def fetch() -> FetchedFile:
            return self._fetcher.fetch(file.address, target, sha256=file.sha256, told=told)

        self._crew.download(fetch, lambda fetched: self._have(shard, fetched.path))

    def _have(self, shard: Shard, path: Path | None) -> None:
        shard.path, shard.fetched = path, True
        if self._tokenizer is not None:
            self._divide(shard)
        else:
            lesson = self._train[: self._corpus.data_set.tokenizer_shards]
            if not self._is_learning and all(each.fetched for each in lesson):
                self._learn(lesson)

    # -- the tokenizer ----------------------------------------------------------------------------

    def _begin_tokenizer(self) -> None:
        if text := self._kept.read():
            self._know_tokenizer(text)
            return
        if self._kept.was_refused:
            self._telling.refused_tokenizer()
        for shard in self._train[: self._corpus.data_set.tokenizer_shards]:
            shard.jobs = 1
            self._fetch(shard)
            self._next = shard.number + 1

    def _learn(self, shards: list[Shard]) -> None:
        self._is_learning = True
        self._telling.trains_a_tokenizer()
        lesson = TokenizerSample(
            self._corpus.data_set,
            tuple((shard.file, shard.path) for shard in shards),
            self._settings.tokenizer,
            self._settings.text_ids,
            self._settings.seed,
            self._in_segments,
        )

        def learnt(result: tuple[str, int, int]) -> None:
            text, size, peak = result
            self._telling.trained_a_tokenizer(size, peak)
            self._kept.write(text)
            self._know_tokenizer(text)

        self._crew.teach(lesson, learnt)

    def _know_tokenizer(self, text: str) -> None:
        self._tokenizer = load_tokenizer(text, self._corpus.source)
        self._tokenizer_json = text
        self._tokenizer_sha256 = hashlib.sha256(text.encode()).hexdigest()
        self._publisher.place_tokenizer(self._tokenizer, text, self._tokenizer_sha256)
        self._crew.start_workers(text)
        for shard in (self._validation, *self._train[: self._next]):
            if shard.fetched and shard.record is None:
                self._look_up(shard)

    def _known(self) -> TextTokenizer:
        assert self._tokenizer is not None
        return self._tokenizer

    # -- tokenizing -------------------------------------------------------------------------------

    def _divide(self, shard: Shard) -> None:
        if self._corpus.layout == "gpt2":
            self._measure(shard)
            return

        def divided(units: list[Unit]) -> None:
            wanted, size = [], 0
            for unit in units:
                if shard.number == VALIDATION and size >= self._validation_bytes:
                    break
                wanted.append(unit)
                size += unit.text_bytes
            shard.jobs = len(wanted)
            if not wanted:
                raise DataError(f"{shard.file.name} holds no text", where=self._corpus.source)
            shard.chosen = None
            if shard.doubted and self._choose is not None:
                shard.chosen = self._choose(len(wanted))
            for number, unit in enumerate(wanted):
                job = self._job(shard, number, unit)
                job = replace(job, encode=shard.chosen in (None, number))
                # Validation first: training cannot begin without it.
                heappush(self._waiting, (shard.number, number, shard, job))

        self._crew.work(divided, work.divide, self._corpus.data_set, shard.file, shard.path)

    @property
    def _validation_bytes(self) -> int:
        return self._corpus.data_set.validation_text_bytes

    def _job(self, shard: Shard, number: int, unit: Unit) -> Job:
        out = self._place(shard)
        job = Job(
            self._corpus.data_set,
            shard.file,
            shard.path,
            unit,
            self._settings.seed,
            self._dtype,
            _part(out, number),
            count_bytes=shard.number == VALIDATION or bool(self._split),
            in_segments=self._in_segments,
        )
        if self._split:
            held_out = _part(self._place(self._validation), number)
            job = replace(job, held_out=held_out, every=self._split)
        return job

    def _tokenized(self, shard: Shard, number: int, made: JobResult) -> None:
        shard.made[number] = made
        self._telling.made(made)
        if len(shard.made) < shard.jobs:
            return
        parts = [shard.made[each] for each in range(shard.jobs)]
        if shard.doubted:
            self._compare(shard, parts)
            return
        self._join(shard, parts, [(m.tokens, m.documents, m.largest) for m in parts])
        if self._split:
            self._join(self._validation, parts, [m.held_out for m in parts])

    def _compare(self, shard: Shard, parts: list[JobResult]) -> None:
        """Believes tokens that others made where they are those of the text, as far as one unit
        tells, and their counts of all of it are right; otherwise makes them anew."""
        chosen, doubted = shard.chosen, shard.doubted
        assert chosen is not None
        targets = [self._place(shard), *([self._place(self._validation)] if self._split else [])]

        counts = _merged(parts) if self._split else None
        counted = [([m.documents for m in parts], sum(m.text_bytes for m in parts))]
        if counts is not None:
            counted.append(([m.held_out[1] for m in parts], counts.total))

        def compare() -> bool:
            same = []
            for record, target, (documents, text_bytes) in zip(
                doubted, targets, counted, strict=True
            ):
                made = _part(target, chosen)
                questions = self._in_segments and record is not doubted[0]
                same.append(
                    matches_text(
                        record,
                        target,
                        name=shard.file.name,
                        dtype=self._dtype,
                        tokenizer=self._known(),
                        documents=documents,
                        text_bytes=text_bytes,
                        chosen=chosen,
                        made=made.read_bytes(),
                        given_bytes=None if questions else text_bytes,
                        per_document=readers.PARTS if self._in_segments else 1,
                    )
                )
                made.unlink()
            if counts is not None and counts.total:
                bits = doubted[1].unigram_bits, doubted[1].bigram_bits
                same.append(bits == (counts.unigram_bits(), counts.bigram_bits()))
            return all(same)

        def compared(same: bool) -> None:
            shard.doubted = ()
            if same:
                for each, record, target in zip(
                    (shard, self._validation), doubted, targets, strict=False
                ):
                    self._end(each, record, target)
                return
            self._telling.refused(shard.file.name)
            shard.made.clear()
            self._divide(shard)

        self._crew.chore(compare, compared)

    def _join(
        self, shard: Shard, parts: list[JobResult], figures: list[tuple[int, int, int]]
    ) -> None:
        target = self._place(shard)
        files = [_part(target, number) for number in range(len(parts))]
        tokens, documents, _ = (sum(each) for each in zip(*figures, strict=True))
        unigram, bigram = 0.0, 0.0
        text_bytes = sum(made.text_bytes for made in parts)
        if shard.number == VALIDATION:
            counts = _merged(parts)
            text_bytes = counts.total
            if text_bytes:
                unigram, bigram = counts.unigram_bits(), counts.bigram_bits()
        largest = max(each[2] for each in figures)

        def join() -> Tokens:
            sha256 = work.join(files, target)
            record = Tokens(
                shard.file.name, tokens, documents, text_bytes, sha256, largest, self._dtype,
                unigram, bigram, tuple((each[0], each[1]) for each in figures),
            )  # fmt: skip
            write_record(target, record)
            return record

        self._crew.chore(join, lambda record: self._end(shard, record, target))

    def _end(self, shard: Shard, record: Tokens, tokens: Path) -> None:
        shard.record, shard.tokens = record, tokens
        shard.made.clear()
        if shard.path is not None and self._corpus.layout != "gpt2":
            self._drop(shard.path)  # its tokens are kept; the text would only take room

    def _place(self, shard: Shard) -> Path:
        part = ""
        if shard.number == VALIDATION:
            part = f"validation {self._split or self._validation_bytes}"
        elif self._split:
            part = f"train {self._split}"
        if self._corpus.data_set.is_generated or self._corpus.layout == PUZZLES:
            part += f" seed {self._settings.seed} size {self._corpus.data_set.shard_text_bytes}"
        if self._in_segments:
            part += f" segments {readers.VERSION}"
        return self._cache.tokens(self._corpus, shard.file, self._tokenizer_sha256, part)

    @property
    def _in_segments(self) -> bool:
        return self._settings.rows == SEGMENTS

    # -- token files that are there already ------------------------------------------------------

    def _measure(self, shard: Shard) -> None:
        """Takes a file of GPT-2 tokens as it is; a validation part is copied out of it."""
        path = shard.path
        assert path is not None
        there = count_tokens(path)
        limit = self._validation_bytes // _BYTES_PER_TOKEN
        cut = there
        if self._split:
            cut = there - min(limit, there // self._split)
        if shard.number == VALIDATION:
            self._copy(path, 0, min(there, limit))
            return
        if self._split:
            self._copy(path, cut, there)

        def measured(made: JobResult) -> None:
            if made.largest >= self._known().vocab_size:
                raise DataError("it holds token ids that GPT-2 does not have", where=str(path))
            self._telling.made(made)

            def digest() -> str:
                return file_sha256(path, HEADER_BYTES, 2 * cut)

            def digested(sha256: str) -> None:
                record = Tokens(
                    shard.file.name, cut, made.documents, 0, sha256, made.largest, self._dtype
                )
                self._end(shard, record, path)

            self._crew.chore(digest, digested)

        self._crew.work(measured, work.measure_tokens, path, HEADER_BYTES, 0, cut)

    def _copy(self, path: Path, start: int, stop: int) -> None:
        shard = self._validation
        part = _part(self._place(shard), 0)

        def copied(made: JobResult) -> None:
            self._telling.made(made)
            self._join(shard, [made], [(made.tokens, made.documents, made.largest)])

        self._crew.work(copied, work.copy_tokens, path, HEADER_BYTES, start, stop, part)


def _merged(parts: list[JobResult]) -> ByteCounts:
    """The counts of all parts, which stay as they are."""
    counts = ByteCounts()
    for made in parts:
        counts.merge(made.counts)
    return counts


def _part(target: Path, number: int) -> Path:
    return target.with_name(f"{target.stem}-{number:05d}.part")
