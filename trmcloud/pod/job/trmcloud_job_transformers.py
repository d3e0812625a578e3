"""A callback that lets Hugging Face's Trainer speak to trmcloud; it needs transformers, which the
script has. Without trmcloud around it, it does nothing.

    from trmcloud_job_transformers import TrmcloudCallback

    Trainer(..., callbacks=[TrmcloudCallback()]).train()
"""

from __future__ import annotations

import os
from typing import Any

import trmcloud_job
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

__all__ = ["TrmcloudCallback"]


class TrmcloudCallback(TrainerCallback):
    """Reports what is logged, says which checkpoints are whole, and saves and leaves when told.

    Ranks must leave at the same step: of several, rank 0 says to all of them, every ``every``
    steps, whether to stop.
    """

    def __init__(self, every: int = 10) -> None:
        self._every = every

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        numbers = {
            name: float(value)
            for name, value in (logs or {}).items()
            if isinstance(value, (int, float)) and name != "step"
        }
        if state.is_world_process_zero:
            trmcloud_job.report(state.global_step, **numbers)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **more: Any,
    ) -> None:
        if args.world_size > 1 and state.global_step % self._every:
            return
        told = [trmcloud_job.should_stop()]
        if args.world_size > 1:
            broadcast_object_list(told)
        if told[0]:
            control.should_save = control.should_training_stop = True

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **more: Any,
    ) -> None:
        folder = os.path.join(args.output_dir or "", f"checkpoint-{state.global_step}")
        if state.is_world_process_zero and os.path.isdir(folder):
            trmcloud_job.checkpoint(folder, step=state.global_step)
