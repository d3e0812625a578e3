"""A callback that lets Lightning's Trainer speak to trmcloud; it needs lightning, which the script
has. Without trmcloud around it, it does nothing.

    from trmcloud_job_lightning import TrmcloudCallback

    Trainer(..., callbacks=[TrmcloudCallback("checkpoints")]).fit(module)
"""

from __future__ import annotations

import os
from typing import Any

import trmcloud_job
from lightning.pytorch import Callback, LightningModule, Trainer

__all__ = ["TrmcloudCallback"]


class TrmcloudCallback(Callback):
    """Reports what is logged, and when told, saves into ``folder`` and leaves.

    Every ``every`` steps it asks and reports; ranks leave at the same step, as rank 0 says.
    """

    def __init__(self, folder: str = "checkpoints", every: int = 10) -> None:
        self._folder, self._every = folder, every

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if trainer.global_step % self._every:
            return
        self._report(trainer)
        told = trmcloud_job.should_stop()
        if trainer.world_size > 1:
            told = trainer.strategy.broadcast(told)
        if told and not trainer.should_stop:
            trainer.should_stop = True
            self._save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._report(trainer)

    def _report(self, trainer: Trainer) -> None:
        if trainer.is_global_zero and trainer.callback_metrics:
            numbers = {name: float(value) for name, value in trainer.callback_metrics.items()}
            numbers.pop("step", None)
            trmcloud_job.report(trainer.global_step, **numbers)

    def _save(self, trainer: Trainer) -> None:
        path = os.path.join(self._folder, f"step-{trainer.global_step}.ckpt")
        trainer.save_checkpoint(path)  # by all ranks
        if trainer.is_global_zero:
            trmcloud_job.checkpoint(path, step=trainer.global_step)
