"""Batches that are read ahead, and data that is still arriving."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from model.data.batch import Batch, RowSelection, ids_and_targets
from model.data.folder import PreparedData, Preparer, ShardFeeder, nothing_fits
from model.data.order import batch_samples
from model.machine.distributed import World
from trmcloud.core.contract.pod_contract import DATA_META_NAME
from trmcloud.core.errors import DataError
from trmcloud.core.spec.settings import CHAT, PhaseRecipe

# Batches for the training loop, read ahead by threads, through pinned memory where there is a
# GPU.
#
# The order of the batches is fixed by the sample counter alone; how many threads read ahead, and
# how far, changes nothing but the waiting.

READY, WAITING, FAILED = 0, 1, 2
_AHEAD = 2
"""Micro-batches that each thread keeps ready."""


class Feed:
    """One rank's micro-batches, from the run's sample ``first`` on."""

    def __init__(
        self,
        data: PreparedData,
        settings: PhaseRecipe,
        world: World,
        first: int,
        *,
        epoch: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._world = settings, world
        self._monotonic, self._folder = monotonic, data.folder
        self._stream = data.train_stream(settings)
        self._supply = ShardFeeder(data, self._stream, epoch=epoch, monotonic=monotonic)
        self._global_batch = settings.global_batch(world.size)
        self._next = 0  # micro-batches since the first one that were taken
        self._first = first
        self._threads: ThreadPoolExecutor | None = None
        if settings.loader_workers:
            self._threads = ThreadPoolExecutor(settings.loader_workers, "loader")
        self._ahead: deque[Future[Tensor]] = deque()
        self._pinned = _PinnedBuffers(settings) if world.device.type == "cuda" else None
        self._expected: Sequence[str] = ()
        self._compared = 0
        self.problem: DataError | None = None
        self.waited_s = 0.0
        """Seconds that ``batch`` stood still since this was last set to 0."""

    def state(self) -> int:
        """READY where this rank has what the next step reads, WAITING where it may come, FAILED
        where it cannot; then ``problem`` says why."""
        if self._can_step():
            return READY
        try:
            self._supply.refresh()
            self._compare()
            if self._can_step():
                return READY
            self.problem = self._supply.trouble()
            if self._supply.complete and not self._stream.rows:
                self.problem = nothing_fits(self.left_out, self._settings, self._folder)
        except DataError as error:
            self.problem = error
        return FAILED if self.problem is not None else WAITING

    @property
    def left_out(self) -> int:
        """Texts so far that no row has room for."""
        return self._stream.left_out

    def batch(self) -> Batch:
        """The next micro-batch, on the device."""
        samples, step = self._samples(self._next), self._step_start(self._next)
        rows = [sample - step for sample in samples]
        draws = RowSelection(self._settings.seed, step, rows, self._global_batch)
        began = self._monotonic()
        if self._threads is None:
            tokens = self._read(samples)
        else:
            self._fill()
            tokens = self._ahead.popleft().result()
        self._next += 1
        if self._pinned is not None:
            tokens = self._pinned.send(tokens, self._world.device)
        if self._threads is not None:
            self._fill()
        self.waited_s += self._monotonic() - began
        return Batch(*ids_and_targets(tokens, is_chat=self._settings.rows == CHAT), draws)

    def shards(self) -> list[str]:
        """The shards that are here, by their hashes, in order: what a checkpoint keeps of them."""
        return [shard.sha256 for shard in self._stream.shards]

    def expect(self, shards: Sequence[str]) -> None:
        """Holds the shards, those that are here and those still to come, to a checkpoint's.

        Raises:
            DataError: they are others, so the samples would be.
        """
        self._expected = shards
        self._compared = 0
        self._compare()

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _compare(self) -> None:
        here = self._stream.shards
        for number in range(self._compared, min(len(here), len(self._expected))):
            if here[number].sha256 != self._expected[number]:
                raise DataError(
                    f"shard {number} ({here[number].name}) is not the shard that the checkpoint "
                    "was trained on",
                    where=str(here[number].path),
                    next_step="give the data it was trained on, or start a new run from its "
                    "weights",
                )
        self._compared = len(here)

    # -- reading ahead ---------------------------------------------------------------------------

    def _can_step(self) -> bool:
        start = self._step_start(self._next)
        return self._stream.covers(range(start, start + self._global_batch))

    def _fill(self) -> None:
        assert self._threads is not None
        depth = self._settings.loader_workers * _AHEAD
        while len(self._ahead) < depth:
            samples = self._samples(self._next + len(self._ahead))
            if not self._stream.covers(samples):
                break
            self._ahead.append(self._threads.submit(self._read, samples))

    def _step_start(self, number: int) -> int:
        """The first sample of the step that takes this micro-batch."""
        return self._first + number // self._settings.accumulation * self._global_batch

    def _samples(self, number: int) -> range:
        first, micro = self._step_start(number), number % self._settings.accumulation
        world = self._world
        return batch_samples(first, micro, world.rank, world.size, self._settings.batch)

    def _read(self, samples: Sequence[int]) -> Tensor:
        tokens = torch.from_numpy(self._stream.read(samples))
        return tokens if self._pinned is None else self._pinned.hold(tokens)


class _PinnedBuffers:
    """Page-locked buffers, used in turn: a copy to the device need not be waited for."""

    def __init__(self, settings: PhaseRecipe) -> None:
        shape = (settings.batch, settings.sequence + 1)
        number = settings.loader_workers * _AHEAD + 2
        self._free = deque(
            torch.empty(shape, dtype=torch.int64, pin_memory=True) for _ in range(number)
        )
        self._sent: deque[tuple[Tensor, torch.cuda.Event]] = deque()
        self._lock = threading.Lock()

    def hold(self, tokens: Tensor) -> Tensor:
        """``tokens`` in a buffer that no copy reads from any more."""
        with self._lock:
            if self._free:
                buffer, copied = self._free.popleft(), None
            else:
                buffer, copied = self._sent.popleft()
        if copied is not None:
            copied.synchronize()
        return buffer.copy_(tokens)

    def send(self, buffer: Tensor, device: torch.device) -> Tensor:
        there = buffer.to(device, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        with self._lock:
            self._sent.append((buffer, copied))
        return there


# The wait for a folder of data that is still to come: all ranks leave it together.


class Arrival:
    """A check that a folder may be trained on. One that is not growing is not waited for. One that
    is not growing is not waited for.

    ``expected``: it is to grow, though nothing of it may be there yet.
    """

    def __init__(
        self,
        folder: Path,
        *,
        expected: bool = False,
        epoch: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._preparer = Preparer(folder, epoch=epoch, monotonic=monotonic)
        self._grows = expected or self._preparer.progress() is not None
        self._problem: DataError | None = None

    def is_late(self, world: World) -> bool:
        """Whether any rank has to wait for it."""
        return world.largest([self._state()])[0] != READY

    def wait(self, world: World, pause: Callable[[], bool]) -> bool:
        """Waits until every rank has what it may begin with.

        Args:
            pause: waits a moment, and says whether this rank is to wait on.

        Returns:
            Whether all came before any rank was to wait no more.

        Raises:
            DataError: on some rank they cannot come any more.
        """
        goes_on = True
        while True:
            state, ends = world.largest([self._state(), int(not goes_on)])
            if state == FAILED:
                raise self._problem or DataError("data from another machine can no longer arrive")
            if state == READY or ends:
                return state == READY
            goes_on = pause()

    def _state(self) -> int:
        if not self._grows or (self._folder / DATA_META_NAME).exists():
            return READY
        self._problem = self._preparer.trouble()
        return FAILED if self._problem is not None else WAITING
