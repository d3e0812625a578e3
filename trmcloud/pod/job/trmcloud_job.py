"""The interface of a training script to trmcloud. One file, standard library only.

Every call also works where the script runs by itself: then nothing stops it and nobody listens.

    import trmcloud_job

    for step in range(steps):
        ...
        trmcloud_job.report(step, val_loss=loss)
        if trmcloud_job.should_stop():
            save("out/last.pt")
            trmcloud_job.report(step, val_loss=loss, checkpoint="out/last.pt")
            break
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

__all__ = ["checkpoint", "deadline", "report", "seconds_left", "should_stop"]

_STOP_FILE = os.environ.get("TRMCLOUD_STOP_FILE", "")
_REPORTS = os.environ.get("TRMCLOUD_REPORTS", "")
_RANK = os.environ.get("RANK", "0")
_last_step: int | None = None


def deadline() -> float | None:
    """Epoch seconds at which this is to stop, or None where nothing stops it. It may be moved to a
    later time while the script runs."""
    text = os.environ.get("TRMCLOUD_DEADLINE_AT", "")
    if text and _STOP_FILE:
        try:
            with open(os.path.join(os.path.dirname(_STOP_FILE), "deadline")) as moved:
                return float(moved.read())
        except (OSError, ValueError):
            pass  # it was not moved
    return float(text) if text else None


def seconds_left() -> float:
    """Until the deadline; infinite where there is none."""
    at = deadline()
    return float("inf") if at is None else at - time.time()


def should_stop() -> bool:
    """Whether to save and to leave now: asked in every step, it costs a microsecond or two."""
    return bool(_STOP_FILE) and os.path.exists(_STOP_FILE)


def report(step: int, checkpoint: str | None = None, **metrics: float) -> None:
    """Report the metrics of a step: ``report(120, val_loss=1.87)``. ``checkpoint``: the path of a
    whole file or folder that was saved at this step and has these metrics. Of several ranks the
    lowest one that reports counts."""
    global _last_step
    _last_step = int(step)
    line: dict[str, Any] = {"step": _last_step}
    line["metrics"] = {key: float(value) for key, value in metrics.items()}
    if checkpoint is not None:
        _say(line)  # the metric, and then its file
        line["checkpoint"] = os.path.abspath(checkpoint)
    _say(line)


def checkpoint(path: str, metric: float | None = None, step: int | None = None) -> None:
    """Say that the file or folder at ``path`` is a whole checkpoint: it is copied within a second
    or two, unless it changes meanwhile. ``step`` is that of the last report unless it is given."""
    line: dict[str, Any] = {"checkpoint": os.path.abspath(path)}
    if metric is not None:
        line["metric"] = float(metric)
    at = _last_step if step is None else step
    if at is not None:
        line["step"] = int(at)
    _say(line)


def _say(line: dict[str, Any]) -> None:
    if not _REPORTS:
        return
    line["at"] = time.time()
    if _RANK.isdigit() and _RANK != "0":
        line["rank"] = int(_RANK)
    try:
        with open(_REPORTS, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except OSError:
        pass  # a full disk must not end a training


_say({"listens": True})
