"""TensorBoard's event files, written by TensorBoard's own writer: one folder for each phase."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
