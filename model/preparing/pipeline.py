"""Shards to token files: downloads, tokenizer and all cores at once, in an order that never shows.

One thread decides; downloads and checks run in threads, tokenizing in processes. Each shard goes
its way by itself (looked up, fetched, divided, tokenized in parts, joined) and is published when
all before it are, so that the folder's list is the same whatever arrived first.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from model.preparing import work
from model.preparing.cache import Cache, Tokens, believed, write_record
from model.preparing.corpus import Corpus, ShardFile
from model.preparing.errors import DamagedFile, PassingError
from model.preparing.fetch import Fetched, Fetcher, file_sha256
from model.preparing.folder import GrowingFolder
from model.preparing.gpt2 import HEADER_BYTES, count_tokens
from model.preparing.readers import Unit
from model.preparing.work import Job, Lesson, Made
from model.tokenizers import TextTokenizer, load_tokenizer
from trmcloud.core.data_progress import ShardRecord
from trmcloud.core.errors import DataError
from trmcloud.core.pod_contract import DATA_META_NAME, DATA_TOKENIZER_NAME, DATA_VALIDATION_NAME
from trmcloud.core.recipe import PhaseRecipe

DOWNLOADS_AT_ONCE = 8
_CHORES_AT_ONCE = 2
_AHEAD = 12
"""Shards beyond the tokenizer's that may be on the disk as text at once."""
_LOOK_EVERY_S = 0.5
_BYTES_PER_TOKEN = 4
_VALIDATION = -1

Told = Callable[[str, int, int], None]


class Stopped(Exception):
    """Told to stop; what is done stays."""


@dataclass
class _Shard:
    number: int
    file: ShardFile
    path: Path | None = None
    fetched: bool = False
    jobs: int = 0
    made: dict[int, Made] = field(default_factory=dict)
    record: Tokens | None = None
    tokens: Path | None = None


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
    ) -> None:
        """
        Args:
            tokenizer_json: empty: one is trained on the first shards.
        """
        self._corpus, self._settings, self._dtype = corpus, settings, dtype
        self._folder, self._cache, self._fetcher = folder, cache, fetcher
        self._wanted, self._worker_count = wanted, workers
        self._stop, self._told = stop, told
        self._tokenizer: TextTokenizer | None = None
        self._tokenizer_json, self._tokenizer_sha256 = tokenizer_json, ""
        self._train = [_Shard(number, file) for number, file in enumerate(corpus.train)]
        self._validation = _Shard(_VALIDATION, corpus.validation or corpus.train[0])
        self._next = 0
        self._split = 0
        if corpus.validation is None:
            self._split = max(2, round(1 / settings.validation_fraction))
        self._running: dict[Future[Any], Callable[[Any], None]] = {}
        self._waiting: list[tuple[int, int, _Shard, Job]] = []
        self._busy_workers = 0
        self._workers: ProcessPoolExecutor | None = None
        self._school: ProcessPoolExecutor | None = None
        self._downloads = ThreadPoolExecutor(DOWNLOADS_AT_ONCE, "download")
        self._chores = ThreadPoolExecutor(_CHORES_AT_ONCE, "chores")
        self._bytes: dict[str, tuple[int, int]] = {}
        self._text_bytes = 0
        self._ready = False

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
            while not self._is_done():
                if self._stop.is_set():
                    raise Stopped
                self._launch()
                done, _ = wait(self._running, _LOOK_EVERY_S, FIRST_COMPLETED)
                for future in done:
                    self._running.pop(future)(future.result())
                self._publish()
                self._tell()
        except DamagedFile as error:
            self._drop(Path(error.where))
            raise
        except BrokenProcessPool:
            raise PassingError(
                "a worker process was killed, as the system does where memory runs out",
                where=self._corpus.source,
                next_step="run it again with fewer --workers",
            ) from None
        return self._write_meta(complete=True)

    def _drop(self, path: Path) -> None:
        """Forgets a download, so that the same command fetches it anew; a user's own file stays."""
        if self._cache.root / "raw" in path.parents:
            path.unlink(missing_ok=True)
            path.with_name(path.name + ".json").unlink(missing_ok=True)

    def close(self) -> None:
        """Ends what is still at work."""
        self._stop.set()  # downloads look at it between two pieces
        for pool in (self._workers, self._school):
            if pool is not None:
                processes = list((getattr(pool, "_processes", None) or {}).values())
                pool.shutdown(wait=False, cancel_futures=True)
                for process in processes:
                    process.terminate()
                for process in processes:
                    process.join(5.0)
        for threads in (self._downloads, self._chores):
            threads.shutdown(wait=True, cancel_futures=True)

    # -- what to begin --------------------------------------------------------------------------

    def _launch(self) -> None:
        """Begins shards as long as they are needed and there is room, and fills the workers."""
        self._begin(self._validation)
        while self._next < len(self._train) and self._needs_another():
            self._begin(self._train[self._next])
            self._next += 1
        while self._waiting and self._workers and self._busy_workers < self._worker_count + 2:
            _, number, shard, job = heappop(self._waiting)
            self._busy_workers += 1

            def done(made: Made, shard: _Shard = shard, number: int = number) -> None:
                self._busy_workers -= 1
                self._tokenized(shard, number, made)

            self._running[self._workers.submit(work.tokenize, job)] = done

    def _needs_another(self) -> bool:
        begun = self._train[: self._next]
        ready = [shard.record.tokens for shard in begun if shard.record]
        average = sum(ready) // len(ready) if ready else self._corpus.data_set.shard_tokens
        unready = len(begun) - len(ready)
        if sum(ready) + unready * average >= self._wanted and begun:
            return False
        return unready < _AHEAD + DOWNLOADS_AT_ONCE

    def _begin(self, shard: _Shard) -> None:
        if shard.jobs or shard.record or (shard.number == _VALIDATION and self._split):
            return
        shard.jobs = 1
        if self._tokenizer is not None:
            self._look_up(shard)
        else:
            self._fetch(shard)

    def _look_up(self, shard: _Shard) -> None:
        """Asks the cache first."""
        tokens = self._place(shard)
        held_out = self._place(self._validation) if self._split else None
        vocab_size = self._known().vocab_size

        def look() -> tuple[Tokens | None, Tokens | None]:
            return believed(tokens, vocab_size), believed(
                held_out, vocab_size
            ) if held_out else None

        def looked(found: tuple[Tokens | None, Tokens | None]) -> None:
            if found[0] is None or (held_out is not None and found[1] is None):
                self._fetch(shard)
            else:
                self._end(shard, found[0], tokens)
                if held_out is not None and found[1] is not None:
                    self._end(self._validation, found[1], held_out)

        self._do(self._chores.submit(look), looked)

    # -- fetching ---------------------------------------------------------------------------------

    def _fetch(self, shard: _Shard) -> None:
        file = shard.file
        if shard.fetched or not file.address:
            self._have(shard, shard.path or file.path)
            return
        target = self._cache.raw(file)
        if self._corpus.data_set.shard_bytes:
            self._bytes.setdefault(file.name, (0, self._corpus.data_set.shard_bytes))

        def told(done: int, total: int) -> None:
            self._bytes[file.name] = (done, total or done)
            if self._stop.is_set():
                raise Stopped

        def fetch() -> Fetched:
            return self._fetcher.fetch(file.address, target, sha256=file.sha256, told=told)

        self._do(self._downloads.submit(fetch), lambda fetched: self._have(shard, fetched.path))

    def _have(self, shard: _Shard, path: Path | None) -> None:
        shard.path, shard.fetched = path, True
        if self._tokenizer is not None:
            self._divide(shard)
        else:
            lesson = self._train[: self._corpus.data_set.tokenizer_shards]
            if self._school is None and all(each.fetched for each in lesson):
                self._learn(lesson)

    # -- the tokenizer ----------------------------------------------------------------------------

    def _begin_tokenizer(self) -> None:
        try:
            kept = json.loads(self._cached_tokenizer().read_text())
            if hashlib.sha256(kept["tokenizer"].encode()).hexdigest() == kept["sha256"]:
                self._know_tokenizer(kept["tokenizer"])
                return
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        for shard in self._train[: self._corpus.data_set.tokenizer_shards]:
            shard.jobs = 1
            self._fetch(shard)
            self._next = shard.number + 1

    def _cached_tokenizer(self) -> Path:
        import tokenizers

        data_set, settings = self._corpus.data_set, self._settings
        files = self._corpus.train[: data_set.tokenizer_shards]
        said = [
            tokenizers.__version__,
            *(file.identity for file in files),
            data_set.column,
            *data_set.fields,
            str(data_set.tokenizer_text_bytes),
            settings.tokenizer,
            str(settings.vocab_size),
        ]
        return self._cache.tokenizer(hashlib.sha256("\0".join(said).encode()).hexdigest())

    def _learn(self, shards: list[_Shard]) -> None:
        self._folder.tell(stage="tokenizer", at_once=True)
        self._told("tokenizer", 0, 1)
        lesson = Lesson(
            self._corpus.data_set,
            tuple((shard.file, shard.path) for shard in shards),
            self._settings.tokenizer,
            self._settings.vocab_size,
            self._settings.seed,
        )
        # Alone with all cores, in a process whose memory is given back.
        self._school = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))

        def learnt(result: tuple[str, int, int]) -> None:
            text, size, peak = result
            self._told("tokenizer", size, size)
            self._folder.tell(peaks={**self._folder.now.peaks, "tokenizer": peak})
            kept = self._cached_tokenizer()
            kept.parent.mkdir(parents=True, exist_ok=True)
            digest = hashlib.sha256(text.encode()).hexdigest()
            kept.write_text(json.dumps({"tokenizer": text, "sha256": digest}))
            self._know_tokenizer(text)

        self._do(self._school.submit(work.train, lesson), learnt)

    def _know_tokenizer(self, text: str) -> None:
        self._tokenizer = load_tokenizer(text, self._corpus.source)
        self._tokenizer_json = text
        self._tokenizer_sha256 = hashlib.sha256(text.encode()).hexdigest()
        if self._school is not None:
            self._school.shutdown(wait=False)
        self._folder.write(DATA_TOKENIZER_NAME, text)
        self._folder.tell(stage="encode")
        self._folder.reached("tokenizer")
        self._workers = ProcessPoolExecutor(
            self._worker_count, multiprocessing.get_context("spawn"), work.start, (text,)
        )
        for shard in (self._validation, *self._train[: self._next]):
            if shard.fetched and shard.record is None:
                self._look_up(shard)

    def _known(self) -> TextTokenizer:
        assert self._tokenizer is not None
        return self._tokenizer

    # -- tokenizing -------------------------------------------------------------------------------

    def _divide(self, shard: _Shard) -> None:
        assert self._workers is not None
        if self._corpus.layout == "gpt2":
            self._measure(shard)
            return

        def divided(units: list[Unit]) -> None:
            wanted, size = [], 0
            for unit in units:
                if shard.number == _VALIDATION and size >= self._validation_bytes:
                    break
                wanted.append(unit)
                size += unit.text_bytes
            shard.jobs = len(wanted)
            if not wanted:
                raise DataError(f"{shard.file.name} holds no text", where=self._corpus.source)
            for number, unit in enumerate(wanted):
                job = self._job(shard, number, unit)
                # Validation first: training cannot begin without it.
                heappush(self._waiting, (shard.number, number, shard, job))

        future = self._workers.submit(work.divide, self._corpus.data_set, shard.file, shard.path)
        self._do(future, divided)

    @property
    def _validation_bytes(self) -> int:
        return self._corpus.data_set.validation_text_bytes

    def _job(self, shard: _Shard, number: int, unit: Unit) -> Job:
        out = self._place(shard)
        job = Job(
            self._corpus.data_set,
            shard.file,
            shard.path,
            unit,
            self._settings.seed,
            self._dtype,
            _part(out, number),
            count_bytes=shard.number == _VALIDATION or bool(self._split),
        )
        if self._split:
            held_out = _part(self._place(self._validation), number)
            job = replace(job, held_out=held_out, every=self._split)
        return job

    def _tokenized(self, shard: _Shard, number: int, made: Made) -> None:
        shard.made[number] = made
        self._text_bytes += made.text_bytes
        self._note_peak(made)
        if len(shard.made) < shard.jobs:
            return
        parts = [shard.made[each] for each in range(shard.jobs)]
        self._join(shard, parts, [(m.tokens, m.documents, m.largest) for m in parts])
        if self._split:
            self._join(self._validation, parts, [m.held_out for m in parts])

    def _join(self, shard: _Shard, parts: list[Made], figures: list[tuple[int, int, int]]) -> None:
        target = self._place(shard)
        files = [_part(target, number) for number in range(len(parts))]
        tokens, documents, _ = (sum(each) for each in zip(*figures, strict=True))
        unigram, bigram = 0.0, 0.0
        text_bytes = sum(made.text_bytes for made in parts)
        if shard.number == _VALIDATION:
            counts = parts[0].counts
            for made in parts[1:]:
                counts.merge(made.counts)
            text_bytes = counts.total
            if text_bytes:
                unigram, bigram = counts.unigram_bits(), counts.bigram_bits()
        largest = max(each[2] for each in figures)

        def join() -> Tokens:
            sha256 = work.join(files, target)
            record = Tokens(
                shard.file.name, tokens, documents, text_bytes, sha256, largest, self._dtype,
                unigram, bigram,
            )  # fmt: skip
            write_record(target, record)
            return record

        self._do(self._chores.submit(join), lambda record: self._end(shard, record, target))

    def _end(self, shard: _Shard, record: Tokens, tokens: Path) -> None:
        shard.record, shard.tokens = record, tokens
        shard.made.clear()
        if shard.path is not None and self._corpus.layout != "gpt2":
            self._drop(shard.path)  # its tokens are kept; the text would only take room

    def _place(self, shard: _Shard) -> Path:
        part = ""
        if shard.number == _VALIDATION:
            part = f"validation {self._split or self._validation_bytes}"
        elif self._split:
            part = f"train {self._split}"
        if self._corpus.layout == "generated":
            part += f" seed {self._settings.seed} size {self._corpus.data_set.shard_text_bytes}"
        return self._cache.tokens(self._corpus, shard.file, self._tokenizer_sha256, part)

    # -- token files that are there already ------------------------------------------------------

    def _measure(self, shard: _Shard) -> None:
        """Takes a file of GPT-2 tokens as it is; a validation part is copied out of it."""
        path = shard.path
        assert path is not None
        assert self._workers is not None
        there = count_tokens(path)
        limit = self._validation_bytes // _BYTES_PER_TOKEN
        cut = there
        if self._split:
            cut = there - min(limit, there // self._split)
        if shard.number == _VALIDATION:
            self._copy(path, 0, min(there, limit))
            return
        if self._split:
            self._copy(path, cut, there)

        def measured(made: Made) -> None:
            if made.largest >= self._known().vocab_size:
                raise DataError("it holds ids that GPT-2 does not have", where=str(path))
            self._note_peak(made)

            def digest() -> str:
                return file_sha256(path, HEADER_BYTES, 2 * cut)

            def digested(sha256: str) -> None:
                record = Tokens(
                    shard.file.name, cut, made.documents, 0, sha256, made.largest, self._dtype
                )
                self._end(shard, record, path)

            self._do(self._chores.submit(digest), digested)

        future = self._workers.submit(work.measure_tokens, path, HEADER_BYTES, 0, cut)
        self._do(future, measured)

    def _copy(self, path: Path, start: int, stop: int) -> None:
        assert self._workers is not None
        shard = self._validation
        part = _part(self._place(shard), 0)

        def copied(made: Made) -> None:
            self._note_peak(made)
            self._join(shard, [made], [(made.tokens, made.documents, made.largest)])

        future = self._workers.submit(work.copy_tokens, path, HEADER_BYTES, start, stop, part)
        self._do(future, copied)

    # -- telling --------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Puts into the folder what is next in the list; says once that training may begin."""
        folder = self._folder
        while len(folder.records) < len(self._train) and folder.now.tokens < self._wanted:
            shard = self._train[len(folder.records)]
            if shard.record is None or shard.tokens is None:
                break
            record = shard.record
            made = ShardRecord(
                record.name,
                f"shard-{shard.number:05d}.bin",
                record.tokens,
                record.documents,
                record.sha256,
                HEADER_BYTES if self._corpus.layout == "gpt2" else 0,
                record.text_bytes,
            )
            folder.add(made, shard.tokens)
        enough = (self._settings.sequence + 1) * self._settings.batch
        if not self._ready and self._validation.record and folder.now.tokens >= enough:
            self._ready = True
            self._write_meta(complete=False)
            folder.reached("ready")
            self._told("ready", folder.now.tokens, self._wanted)

    def _is_done(self) -> bool:
        if self._validation.record is None:
            return False
        records = self._folder.records
        return len(records) == len(self._train) or self._folder.now.tokens >= self._wanted

    def _write_meta(self, *, complete: bool) -> dict[str, Any]:
        validation, tokenizer = self._validation.record, self._known()
        assert validation is not None
        if self._validation.tokens is not None:
            self._folder.place(DATA_VALIDATION_NAME, self._validation.tokens)
        folder = self._folder
        meta = {
            "version": 2,
            "complete": complete,
            "source": self._corpus.source,
            "source_sha256": self._corpus.sha256(self._settings.seed),
            "source_bytes": sum(record.text_bytes for record in folder.records),
            "documents": sum(record.documents for record in folder.records),
            "validation_documents": validation.documents,
            "skipped_files": 0,
            "shards": len(folder.records),
            "tokenizer": {
                "kind": tokenizer.kind,
                "vocab_size": tokenizer.vocab_size,
                "sha256": self._tokenizer_sha256,
            },
            "dtype": self._dtype,
            "train_tokens": folder.now.tokens,
            "validation_tokens": validation.tokens,
            "validation_bytes": validation.text_bytes,
            "special_tokens": {"<|bos|>": tokenizer.bos},
            "byte_unigram_bits": validation.unigram_bits,
            "byte_bigram_bits": validation.bigram_bits,
            "seconds": round(folder.elapsed_s, 3),
        }
        folder.write(DATA_META_NAME, json.dumps(meta, indent=1) + "\n")
        return meta

    def _tell(self) -> None:
        done = sum(each[0] for each in self._bytes.values())
        total = sum(each[1] for each in self._bytes.values())
        self._told("download", done, total)
        if self._tokenizer is not None:
            self._told("encode", self._folder.now.tokens, self._wanted)
        self._folder.tell(
            wanted_tokens=self._wanted,
            downloaded_bytes=done,
            download_bytes=total,
            planned_shards=max(self._next, self._corpus.data_set.shards_for(self._wanted)),
            stage=self._folder.now.stage or "download",
        )

    def _note_peak(self, made: Made) -> None:
        peaks = self._folder.now.peaks
        largest = max(made.peak_bytes, int(peaks.get("worker", 0)))
        self._folder.tell(peaks={**peaks, "worker": largest})

    # -- running --------------------------------------------------------------------------------

    def _do(self, future: Future[Any], then: Callable[[Any], None]) -> None:
        self._running[future] = then


def _part(target: Path, number: int) -> Path:
    return target.with_name(f"{target.stem}-{number:05d}.part")
