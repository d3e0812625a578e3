"""A run of Weights & Biases, by its own library: its key is its own business, here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trmcloud.core.contract.metric_names import PAID_HOURS, SPENT_USD
from trmcloud.core.errors import UsageError
from trmcloud.core.plain_text import one_line

_STEP, _LOGGED_AT = "trainer/step", "trainer/at"


class WandbRun:
    """A ``Board``. What was sent of this run before is not sent again: W&B knows its last step. Of
    a step that was trained twice it keeps the first figures, since its steps only grow.

    Of this machine it is told nothing: no host, no user, no folder, no code, no output.

    Args:
        folder: where W&B keeps its own files.
        about: shown as the run's configuration.

    Raises:
        UsageError: W&B refuses.
    """

    def __init__(
        self,
        run_id: str,
        about: Mapping[str, Any],
        *,
        folder: Path,
        project: str,
        entity: str | None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        import wandb

        offline = environ.get("WANDB_MODE", "online") != "online"
        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_code=True,
            disable_git=True,
            save_code=False,
            host="trmcloud",
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        try:
            self._run = wandb.init(
                project=project, entity=entity, id=run_id, name=run_id, config=dict(about),
                dir=str(folder), resume=None if offline else "allow", settings=settings,
            )  # fmt: skip
        except wandb.Error as error:
            raise UsageError(
                f"Weights & Biases refuses: {one_line(str(error))}",
                next_step="wandb login, or WANDB_MODE=offline",
            ) from None
        self._next_step = self._run.step
        for axis in (SPENT_USD, PAID_HOURS):
            self._run.define_metric(axis, hidden=True)

    @property
    def where(self) -> str:
        """Its address; a folder where it is kept offline."""
        return str(Path(self._run.dir).parent) if self._run.offline else str(self._run.url)

    def begin(self, phase: str, step: int) -> None:
        pass

    def tell(
        self, phase: str, step: int, on_axis: int, at: float, values: Mapping[str, float]
    ) -> None:
        if on_axis < self._next_step:
            return
        self._next_step = on_axis
        self._run.log({**values, _STEP: step, _LOGGED_AT: at, "_timestamp": at}, step=on_axis)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._run.finish()
