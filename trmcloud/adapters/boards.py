"""Boards that draw a run's figures: TensorBoard's event files and server, Weights & Biases."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trmcloud.core.contract.metric_names import PAID_HOURS, SPENT_USD
from trmcloud.core.errors import UsageError
from trmcloud.core.text import one_line

# TensorBoard's event files, written by TensorBoard's own writer: one folder for each phase.

_QUEUE = 1000
_FLUSH_S = 5


class EventFiles:
    """A ``Board`` below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def begin(self, phase: str, step: int) -> None:
        """A reader drops what it knew of this step and later ones."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if phase not in self._writers:
            self._writers[phase] = EventFileWriter(
                str(self._folder / phase), max_queue_size=_QUEUE, flush_secs=_FLUSH_S
            )
            return
        log = SessionLog(status=SessionLog.SessionStatus.START)
        self._writers[phase].add_event(Event(step=step, session_log=log))

    def tell(
        self, phase: str, step: int, on_axis: int, at: float, values: Mapping[str, float]
    ) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        figures = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        event = Event(wall_time=at, step=step, summary=Summary(value=figures))
        self._writers[phase].add_event(event)

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


# TensorBoard in this process, on loopback: it ends with it.


def serve_board(folder: Path, port: int) -> str:
    """Its address.

    Raises:
        UsageError: it cannot listen there.
    """
    from tensorboard import program

    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    board = program.TensorBoard()
    board.configure(
        logdir=str(folder), host="127.0.0.1", port=port, reload_interval=2.0, load_fast="false"
    )
    try:
        return str(board.launch()).rstrip("/")
    except program.TensorBoardServerException as error:
        raise UsageError(one_line(str(error)), next_step="use another --port") from None


# A run of Weights & Biases, by its own library: its key is its own business, here.

_STEP, _LOGGED_AT = "trainer/step", "trainer/at"


class WandbRun:
    """A ``Board``. What was sent of this run before is not sent again: W&B knows its last step. Of
    a step that was trained twice it keeps the first figures, since its steps only grow.

    It gets nothing about this machine: no host, no user, no folder, no code, no output.

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
                f"Weights & Biases refuses the upload: {one_line(str(error))}",
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
