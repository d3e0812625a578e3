"""Checkpoints that are written beside training, and which rank writes which rows."""

from __future__ import annotations

import errno
import hashlib
import json
import platform
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from model.data.feed import Feed
from model.data.folder import PreparedData
from model.families.protocol import LanguageModel
from model.machine.distributed import World
from model.machine.precision import LossScale
from model.machine.tensors import Piece, Snapshot, file_bytes, free_memory_bytes, piece_of
from model.training.checkpoint import (
    CheckpointFolder,
    Chunks,
    Contents,
    write_contents,
    write_rest,
    write_shard,
)
from model.training.number_format import EXTRA, Decision
from model.training.optim import Average, Optimizer
from model.training.progress import Progress, rows_to_json
from model.training.reporting import SaveReport, say
from model.training.sharding import is_sharded
from model.training.soundness import Soundness
from trmcloud.core.contract.manifest import (
    KINDS,
    PROVENANCE,
    CheckpointFile,
    CheckpointManifest,
    with_metric,
)
from trmcloud.core.contract.trainer_contract import PhaseJob
from trmcloud.core.errors import CheckpointError
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.values import replace
from trmcloud.io.hashing import tree_sha256

# Work that runs beside training: writing, hashing and syncing, which wait for the disk.

Work = Callable[[], tuple[CheckpointFile, ...]]


class Job:
    """``work`` in a thread of its own; without work it is done at once."""

    def __init__(self, work: Work | None) -> None:
        self.made: tuple[CheckpointFile, ...] = ()
        """Its result, once it is done."""
        self.error: OSError | None = None
        self._thread: threading.Thread | None = None
        if work is not None:
            # It must not keep a process alive that is to end.
            self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
            self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _run(self, work: Work) -> None:
        try:
            self.made = work()
        except OSError as error:
            self.error = error
        except Exception as error:  # nobody reads a thread's own: it is told as a failed write
            self.error = OSError(f"{type(error).__name__}: {error}")


# What a checkpoint was trained with: the trainer's own sources, Python, torch, the packages.

SUFFIXES = (".py", ".toml", ".txt", ".csv")
"""Of what is sent to a pod of the trainer's package."""


@cache
def provenance() -> dict[str, str]:
    """Return the manifest's entry of it. ``code_sha256`` is that of the trainer's package wherever
    it lies, ``packages_sha256`` of the sorted lines ``name==version`` of all that is installed.
    Computed once; takes about a tenth of a second."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "code_sha256": tree_sha256(Path(__file__).resolve().parents[1], SUFFIXES),
        "packages_sha256": packages_sha256(),
    }


def packages_sha256() -> str:
    lines = {f"{found.name.lower()}=={found.version}\n" for found in distributions() if found.name}
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


# The way of each rank's shard to the folder of a checkpoint, which lies with the first rank.
#
# Ranks of its machine write there themselves. Those of other machines send theirs to the first
# rank, piece by piece through a group of its own beside training's, and that writes them one
# after another.


class Route(NamedTuple):
    """The ranks that write the shards."""

    rank: int
    size: int
    distant: tuple[int, ...]
    """Ranks on other machines than the first."""
    group: Any
    """Theirs and the first rank's, for shards alone; None where there are no such."""

    @classmethod
    def of(cls, world: World) -> Route:
        """A collective call."""
        nodes = [int(each) for each in world.gather(torch.tensor([world.node]))]
        distant = tuple(rank for rank, node in enumerate(nodes) if node != nodes[0])
        return cls(world.rank, world.size, distant, world.saving)

    def write(self, making: Path, taken: Contents) -> tuple[CheckpointFile, ...]:
        """This rank's shards: on disk, or with the first rank.

        Returns:
            The files that this rank has written.

        Raises:
            OSError: one could not be written.
        """
        both: Mapping[str, Mapping[str, Piece]] = {
            "weights": taken.weights,
            "optimizer": taken.optimizer,
        }
        if self.rank in self.distant:
            for pieces in both.values():
                self._send(file_bytes(pieces, is_shard=True))
            return ()
        failed: OSError | None = None
        made: list[CheckpointFile] = []
        try:
            for kind, pieces in both.items():
                content = file_bytes(pieces, is_shard=True)
                made.append(write_shard(making, kind, self.rank + 1, self.size, content))
            if self.rank == 0:
                made += write_rest(making, taken)
        except OSError as error:
            failed = error
        for rank in self.distant if self.rank == 0 else ():
            for kind in both:
                arriving = self._arriving(rank)
                try:
                    if failed is None:
                        made.append(write_shard(making, kind, rank + 1, self.size, arriving))
                except OSError as error:
                    failed = error
                for _ in arriving:  # who sends must not wait for a disk that is full
                    pass
        if failed is not None:
            raise failed
        return tuple(made)

    def _send(self, content: Chunks) -> None:
        for chunk in content:
            piece = torch.frombuffer(bytearray(chunk), dtype=torch.uint8)
            dist.send(torch.tensor([len(piece)]), 0, group=self.group)
            dist.send(piece, 0, group=self.group)
        dist.send(torch.tensor([0]), 0, group=self.group)

    def _arriving(self, rank: int) -> Iterator[memoryview]:
        size = torch.zeros(1, dtype=torch.int64)
        while True:
            dist.recv(size, rank, group=self.group)
            if not int(size):
                return
            piece = torch.empty(int(size), dtype=torch.uint8)
            dist.recv(piece, rank, group=self.group)
            yield memoryview(piece.numpy())  # type: ignore[arg-type]


def as_bytes(files: tuple[CheckpointFile, ...]) -> bytearray:
    """Encode the list of a rank's files for another one; blanks may follow."""
    return bytearray(json.dumps([asdict(file) for file in files]).encode())


def of_bytes(content: bytes) -> tuple[CheckpointFile, ...]:
    return tuple(CheckpointFile(**each) for each in json.loads(content))


# A run's own checkpoints: what goes into one, written beside training.
#
# Where a rank cannot write, all of them learn of it.

CARRIED = "carried."
"""Before the names of what the model carries from step to step, beside the optimizer's state."""
_SPARE = 2
"""Times the bytes of a second copy, the memory that must be free for one."""
TALLIES = "tallies"
"""In a manifest: what the model adapted to after its weights were saved."""


@dataclass
class TrainingState:
    """The state that a run changes: weights, optimizer, loss scale, and progress.

    ``shards`` are the hashes of those that the checkpoint it goes on from had before it.
    """

    model: LanguageModel
    optimizer: Optimizer
    loss_scale: LossScale
    progress: Progress
    shards: tuple[str, ...] = ()
    average: Average | None = None
    """Of the weights, where the recipe asks for one."""
    soundness: Soundness = field(default_factory=Soundness)
    went_back_to: int | None = None
    """The step whose weights it goes on from, where that is not its latest: see ``resume``."""
    decision: Decision | None = None
    """In which number format, and why."""
    carried: Mapping[str, Tensor] = field(default_factory=dict)
    """The state that the model continues from: see ``LanguageModel.carry_on``."""

    def judged(self) -> AbstractContextManager[None]:
        """The model has the weights that are evaluated and handed out, for the block."""
        return self.average.applied() if self.average is not None else nullcontext()

    def weights(self) -> dict[str, Piece]:
        """Those that are evaluated and handed out, as far as this rank holds them."""
        averaged = self.average.weights() if self.average is not None else {}
        own = {name: piece_of(each) for name, each in self.model.state_dict().items()}
        return {**own, **averaged}

    def beside(self) -> dict[str, Piece]:
        """Return the content of the optimizer's file: every other tensor that a resumed run
        needs."""
        trained = self.average.trained() if self.average is not None else {}
        # Each rank has its own; only what one process carries can be taken up by one again.
        carried = {CARRIED + name: piece_of(each) for name, each in self.model.carried().items()}
        return {**self.optimizer.pieces(), **trained, **carried}


@dataclass
class _PendingSave:
    """A save that is being written, or waits for that."""

    step: int
    landing: bool
    is_best: bool
    manifest: CheckpointManifest
    content: Contents | None
    """None: this rank writes nothing."""
    copy: int
    """Of the two copies in memory, the one that ``content`` is."""
    before: tuple[int | None, float | None, int | None]
    bpb: float | None
    stall_s: float
    began: float = 0.0
    making: Path = Path()
    job: Job = field(default_factory=lambda: Job(None))
    is_finishing: bool = False
    """Every file is there: the first rank makes it a checkpoint."""
    was_scored: bool = False
    """Its metric came after that had begun."""


class Saver:
    """Saves ``trained`` as it stands, while training goes on.

    Training stands still for a copy of what this rank holds; threads write, hash and sync it. Of a
    sharded model every rank writes its own shard, of another the first rank everything. Once all
    files are there, which the ranks agree on between two steps, the first rank adds the manifest.

    One save is written at a time. The next waits in a second copy, where memory has room for one;
    a newer best takes the place of a best that waits.
    """

    def __init__(
        self,
        job: PhaseJob,
        settings: PhaseRecipe,
        world: World,
        data: PreparedData,
        trained: TrainingState,
        feed: Feed,
        checkpoints: CheckpointFolder,
        epoch: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._job, self._settings, self._world, self._data = job, settings, world, data
        self._trained, self._feed = trained, feed
        self._checkpoints, self._epoch, self._now = checkpoints, epoch, monotonic
        self._is_sharded = is_sharded(settings, world)
        self._route = Route.of(world) if self._is_sharded else None
        self._copies = tuple((Snapshot(), Snapshot()) for _ in range(2))
        self._pending: _PendingSave | None = None
        self._waiting: _PendingSave | None = None

    @property
    def owed(self) -> int:
        """The saves that were begun and are not on disk."""
        return (self._pending is not None) + (self._waiting is not None)

    def can_begin(self, *, is_best: bool = False) -> bool:
        """Whether a save can begin before another is on disk. A collective call."""
        if self._pending is None:
            return True
        if self._waiting is not None:
            return is_best and self._waiting.is_best
        first, second = (self._copies[self._pending.copy ^ each] for each in (0, 1))
        mine = sum(each.size_bytes for each in first)
        # All ranks of a sharded model may be on this machine, and each copies its share.
        needed = _SPARE * mine * (self._world.size if self._is_sharded else 1)
        free = free_memory_bytes()
        lacks = not second[0].size_bytes and (free is None or free < needed)
        return not self._world.largest([int(lacks)])[0]

    @property
    def told(self) -> tuple[int | None, float | None, int | None]:
        """The last step that is saved, the best bits per byte and their step, as far as all of it
        is on disk."""
        return self._pending.before if self._pending is not None else self._noted()

    def pin(self) -> None:
        """The newest save is wanted for more than being the best: none takes its place."""
        if self._waiting is not None:
            self._waiting.is_best = False

    def begin(
        self,
        generators: list[Tensor],
        *,
        cooled: bool,
        cooldown_from: int | None = None,
        landing: bool = False,
        is_best: bool = False,
    ) -> None:
        """Copies this step's state, and begins to write it as soon as nothing else is written;
        only where ``can_begin``.

        Args:
            generators: all ranks' random states.
            cooled: whether the rate has come down to its end.
            cooldown_from: the step at which it began to.
            is_best: it is saved as the best so far, and for nothing else.
        """
        began, progress = self._now(), self._trained.progress
        before = self._waiting.before if self._waiting is not None else self._noted()
        progress.note_saved()
        copy = self._pending.copy ^ 1 if self._pending is not None else 0
        writes = self._is_sharded or self._world.is_main
        made = _PendingSave(
            step=progress.step,
            landing=landing,
            is_best=is_best,
            manifest=self._manifest(cooled, cooldown_from),
            content=self._content(copy, generators) if writes else None,
            copy=copy,
            before=before,
            bpb=progress.val_bpb if progress.is_evaluated else None,
            stall_s=self._now() - began,
        )
        if self._pending is not None:
            self._waiting = made
        else:
            self._start(made)
            made.stall_s = self._now() - began

    def settle(self, *, wait: bool = False) -> SaveReport | None:
        """A collective call: what was begun, once it is a checkpoint; None where there is nothing,
        or where it is not done yet.

        Raises:
            OSError: on all ranks, where one could not write; the progress is as it was before.
        """
        while (pending := self._pending) is not None:
            if wait:
                pending.job.wait()
            error = pending.job.error
            number = (error.errno or errno.EIO) if error is not None else 0
            # The other ranks learn of a failure here, and end in the same way.
            running, failed = self._world.largest([int(pending.job.is_running), number])
            if running:
                return None
            if failed:
                self._give_up(pending)
                raise error or OSError(failed, "another rank could not write a checkpoint")
            if pending.is_finishing:
                return self._done(pending)
            files = self._files(pending)
            pending.is_finishing = True
            pending.job = Job(self._finishing(pending, files) if self._world.is_main else None)
            if not wait:
                return None
        return None

    def rescue(self) -> None:
        """Something has failed that is not the save: what was begun is brought to its end where
        this rank alone decides that."""
        while (pending := self._pending) is not None:
            if self._is_sharded or not self._world.is_main:
                self._give_up(pending)
                return
            pending.job.wait()
            if pending.job.error is None and not pending.is_finishing:
                pending.job = Job(self._finishing(pending, pending.job.made))
                pending.job.wait()
            if pending.job.error is not None:
                self._give_up(pending)
                return
            if pending.was_scored:
                with suppress(OSError):
                    self._add_late_metric(pending)
            self._start_next()

    def add_metric(self, tallies: Sequence[float] = ()) -> None:
        """Puts this step's metric into the manifest that was saved without it, and what the model
        adapted to since.

        Raises:
            OSError: on all ranks: the manifest could not be replaced.
        """
        progress = self._trained.progress
        pending = self._waiting or self._pending
        if pending is None or pending.step != progress.step:
            self._written(
                lambda: self._add_metric(
                    progress.step, progress.val_bpb or 0.0, progress.val_step_losses, tallies
                )
            )
            return
        scored = with_metric(pending.manifest, progress.val_bpb or 0.0, progress.val_step_losses)
        if tallies:
            scored = replace(scored, extra={**scored.extra, TALLIES: list(tallies)})
        pending.manifest, pending.was_scored = scored, pending.is_finishing

    # -- what the threads do --------------------------------------------------------------------

    def _content(self, copy: int, generators: list[Tensor]) -> Contents:
        """A copy of the state to write. The buffer of an earlier copy is reused."""
        trained = self._trained
        weights, optimizer = self._copies[copy]
        return Contents(
            weights=weights.take(trained.weights()),
            optimizer=optimizer.take(self._own(trained.beside())),
            state={
                "progress": trained.progress.to_json(),
                "loss_scale": trained.loss_scale.to_json(),
                "generators": rows_to_json(generators),
                "shards": self._feed.shards(),
                "soundness": trained.soundness.to_json(),
            },
            tokenizer_json=self._data.tokenizer_json,
        )

    def _start(self, save: _PendingSave) -> None:
        """Begin to write it. A collective call for a sharded model."""
        checkpoints, route, content = self._checkpoints, self._route, save.content
        # The copy was a part of it, whenever that was made.
        save.began = self._now() - save.stall_s
        save.making = making = self._making(save.step)

        def write() -> tuple[CheckpointFile, ...]:
            assert content is not None
            if route is not None:
                return route.write(making, content)
            checkpoints.begin(making)
            return write_contents(making, content)

        save.job = Job(write if content is not None else None)
        self._pending = save

    def _own(self, pieces: dict[str, Piece]) -> dict[str, Piece]:
        """Without what is the same on all ranks, where this is not the first."""
        if self._world.is_main or not self._is_sharded:
            return pieces
        return {name: piece for name, piece in pieces.items() if piece.shape}

    def _finishing(self, pending: _PendingSave, files: tuple[CheckpointFile, ...]) -> Work:
        complete = replace(pending.manifest, files=files)

        def finish() -> tuple[CheckpointFile, ...]:
            self._checkpoints.finish(pending.making, complete)
            self._checkpoints.prune(self._settings.keep_best)
            return files

        return finish

    # -- between two steps ----------------------------------------------------------------------

    def _making(self, step: int) -> Path:
        making = self._checkpoints.making(step)
        if not self._is_sharded:
            return making
        # All ranks write into one folder, whose name says which process made it.
        name = self._world.told(making.name.encode()).decode()
        making = making.with_name(name)
        if self._world.is_main:
            with suppress(OSError):  # those that write there meet it again
                self._checkpoints.begin(making)
        self._world.part()
        return making

    def _files(self, pending: _PendingSave) -> tuple[CheckpointFile, ...]:
        """On the first rank, what all of them have written."""
        if not self._is_sharded:
            return pending.job.made
        mine = as_bytes(pending.job.made)
        [longest] = self._world.largest([len(mine)])
        rows = self._world.gather(torch.frombuffer(mine.ljust(longest), dtype=torch.uint8))
        return tuple(
            sorted((file for row in rows for file in of_bytes(row.numpy().tobytes())), key=_order)
        )

    def _done(self, pending: _PendingSave) -> SaveReport:
        made = SaveReport(
            pending.step,
            sum(file.size_bytes for file in pending.job.made),
            pending.bpb,
            self._now() - pending.began,
            pending.stall_s,
            pending.landing,
        )
        self._start_next()
        if pending.was_scored:
            self._written(lambda: self._add_late_metric(pending))
        return made

    def _start_next(self) -> None:
        waiting, self._pending, self._waiting = self._waiting, None, None
        if waiting is not None:
            self._start(waiting)

    def _give_up(self, pending: _PendingSave) -> None:
        """It will be no checkpoint, nor is what waits for it begun."""
        self._pending = self._waiting = None
        if self._world.is_main:
            self._checkpoints.abandon(pending.making)
        progress = self._trained.progress
        progress.saved_step, progress.best_bpb, progress.best_step = pending.before

    def _noted(self) -> tuple[int | None, float | None, int | None]:
        progress = self._trained.progress
        return progress.saved_step, progress.best_bpb, progress.best_step

    def _written(self, write: Callable[[], None]) -> None:
        failed: OSError | None = None
        if self._world.is_main:
            try:
                write()
            except OSError as error:
                failed = error
        [number] = self._world.largest([(failed.errno or errno.EIO) if failed else 0])
        if number:
            raise failed or OSError(number, "rank 0 could not write a checkpoint")

    def _add_late_metric(self, pending: _PendingSave) -> None:
        """The metric that came while the first rank was finishing the checkpoint."""
        scored = pending.manifest
        tallies = scored.extra.get(TALLIES, ())
        self._add_metric(pending.step, scored.val_bpb or 0.0, scored.step_losses, tallies)

    def _add_metric(
        self, step: int, bpb: float, losses: Sequence[float], tallies: Sequence[float]
    ) -> None:
        try:
            extra = {TALLIES: list(tallies)} if tallies else {}
            self._checkpoints.add_metric(step, bpb, losses, extra)
        except CheckpointError as error:  # somebody has deleted it: no reason to stop training
            say(f"warning: the metric of step {step} could not be added to its checkpoint: {error}")
        self._checkpoints.prune(self._settings.keep_best)

    def _manifest(self, cooled: bool, cooldown_from: int | None) -> CheckpointManifest:
        settings, progress = self._settings, self._trained.progress
        decision = self._trained.decision
        return CheckpointManifest(
            run_id=self._job.run_id,
            phase=self._job.phase,
            step=progress.step,
            tokens=progress.tokens,
            created_at=self._epoch(),
            recipe=settings.recipe,
            settings=settings.to_json(),
            world_size=self._world.size,
            val_bpb=progress.val_bpb if progress.is_evaluated else None,
            step_losses=tuple(progress.val_step_losses) if progress.is_evaluated else (),
            cooled=cooled,
            cooldown_from=cooldown_from,
            data_sha256=self._data.source_sha256,
            tokenizer_sha256=self._data.tokenizer_sha256,
            files=(),
            extra={
                "byte_unigram_bits": self._data.meta["byte_unigram_bits"],
                "byte_bigram_bits": self._data.meta["byte_bigram_bits"],
                PROVENANCE: provenance(),
                **({EXTRA: decision.to_json()} if decision and decision.is_told else {}),
            },
        )


def _order(file: CheckpointFile) -> tuple[int, str]:
    return KINDS.index(file.kind), file.name
