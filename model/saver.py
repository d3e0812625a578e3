"""A run's own checkpoints: what goes into one, and that all ranks learn of a failure to write."""

from __future__ import annotations

import errno
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Callable, Mapping, Sequence

from torch import Tensor

from model.average import Average
from model.checkpoint import CheckpointFolder, Contents
from model.data.feed import Feed
from model.data.folder import PreparedData
from model.distributed import World
from model.families.protocol import LanguageModel
from model.optim import Optimizer
from model.precision import LossScale
from model.progress import Progress, rows_to_json
from model.provenance import provenance
from model.reporting import say
from model.soundness import Soundness
from model.trial import EXTRA, Decision
from trmcloud.core.contract.manifest import PROVENANCE, CheckpointManifest
from trmcloud.core.contract.trainer_contract import PhaseJob
from trmcloud.core.errors import CheckpointError
from trmcloud.core.spec.recipe import PhaseRecipe

TALLIES = "tallies"
"""In a manifest: what the model adapted to after its weights were saved."""


@dataclass
class Trained:
    """What a run changes: weights, optimizer, loss scale, and where it stands.

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

    def judged(self) -> AbstractContextManager[None]:
        """The model has the weights that are evaluated and handed out, for the block."""
        return self.average.applied() if self.average is not None else nullcontext()

    def weights(self) -> Mapping[str, Tensor]:
        """Those that are evaluated and handed out."""
        averaged = self.average.weights() if self.average is not None else {}
        plain = {name: piece.tensor for name, piece in averaged.items()}
        return {**self.model.state_dict(), **plain}

    def beside(self) -> dict[str, Tensor]:
        """What the optimizer's file holds: every other tensor that a resumed run needs."""
        trained = self.average.trained() if self.average is not None else {}
        return {**self.optimizer.state(), **{n: piece.tensor for n, piece in trained.items()}}


class Saver:
    """Writes checkpoints of ``trained`` as it stands; only rank 0 does, all ranks wait for it."""

    def __init__(
        self,
        job: PhaseJob,
        settings: PhaseRecipe,
        world: World,
        data: PreparedData,
        trained: Trained,
        feed: Feed,
        checkpoints: CheckpointFolder,
        epoch: Callable[[], float],
    ) -> None:
        self._job, self._settings, self._world, self._data = job, settings, world, data
        self._trained, self._feed = trained, feed
        self._checkpoints, self._epoch = checkpoints, epoch

    def save(
        self, generators: list[Tensor], *, cooled: bool, cooldown_from: int | None = None
    ) -> int:
        """Writes this step's checkpoint; ``generators`` are all ranks' random states.

        Args:
            cooled: whether the rate has come down to its end.
            cooldown_from: the step at which it began to.

        Returns:
            Its size in bytes; 0 on the ranks that wrote nothing.

        Raises:
            OSError: on all ranks, where it failed; the progress is as it was before.
        """
        progress = self._trained.progress
        before = progress.saved_step, progress.best_bpb, progress.best_step
        progress.note_saved()
        try:
            return self._written(lambda: self._write(generators, cooled, cooldown_from))
        except OSError:
            progress.saved_step, progress.best_bpb, progress.best_step = before
            raise

    def add_metric(self, tallies: Sequence[float] = ()) -> None:
        """Puts this step's metric into the manifest that was saved without it, and what the model
        adapted to since.

        Raises:
            OSError: on all ranks: the manifest could not be replaced.
        """
        self._written(lambda: self._add_metric(tallies))

    def _written(self, write: Callable[[], int]) -> int:
        failed: OSError | None = None
        size = 0
        if self._world.is_main:
            try:
                size = write()
            except OSError as error:
                failed = error
        # The other ranks learn of a failure here, and end in the same way.
        [number] = self._world.largest([(failed.errno or errno.EIO) if failed else 0])
        if number:
            raise failed or OSError(number, "rank 0 could not write a checkpoint")
        return size

    def _add_metric(self, tallies: Sequence[float]) -> int:
        progress = self._trained.progress
        try:
            self._checkpoints.add_metric(
                *(progress.step, progress.val_bpb or 0.0, progress.val_step_losses),
                {TALLIES: list(tallies)} if tallies else {},
            )
        except CheckpointError as error:  # somebody has deleted it: no reason to stop training
            say(f"warning: the metric of step {progress.step} has no checkpoint: {error}")
        self._checkpoints.prune(self._settings.keep_best)
        return 0

    def _write(self, generators: list[Tensor], cooled: bool, cooldown_from: int | None) -> int:
        settings, trained, progress = self._settings, self._trained, self._trained.progress
        decision = trained.decision
        manifest = CheckpointManifest(
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
        contents = Contents(
            weights=trained.weights(),
            optimizer=trained.beside(),
            state={
                "progress": progress.to_json(),
                "loss_scale": trained.loss_scale.to_json(),
                "generators": rows_to_json(generators),
                "shards": self._feed.shards(),
                "soundness": trained.soundness.to_json(),
            },
            tokenizer_json=self._data.tokenizer_json,
        )
        saved = self._checkpoints.save(contents, manifest)
        self._checkpoints.prune(settings.keep_best)
        return saved.manifest.size_bytes
