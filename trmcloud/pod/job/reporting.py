"""Heartbeat, metrics and measured pace of a command, as agent and controller read them."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.command_terms import MeasuredSteps
from trmcloud.core.contract.trainer_contract import Heartbeat, PhaseJob
from trmcloud.core.values import replace
from trmcloud.io.files import write_atomic
from trmcloud.pod.job.metric_order import AT_ONCE_S, MetricOrder, Value
from trmcloud.pod.job.readings import Reading
from trmcloud.pod.machine import processes

# What the agent and the controller read of a command: its heartbeat, and lines of metrics.

_LINE_EVERY_S = 0.5
"""Lines of a loss at most so often: a quick script may print thousands a second, and each is an
append to a file."""
_PACE_S = 0.2
"""The least time over which a pace is measured."""
_MOST_HISTORY = 20_000
_LOSSES = ("loss", "train_loss", "train/loss")
_MOST_BYTES = contract.MAX_METRICS_BYTES - (1 << 20)


class AttemptReporter:
    """``heartbeat.json`` and ``metrics.jsonl`` of one attempt. Times are epoch seconds."""

    beat_every_s = 1.0

    def __init__(self, folder: Path, job: PhaseJob, attempt: int, at: float, steps: int = 0):
        self._folder = folder
        self._written_at, self._state_at = -math.inf, at
        pid = os.getpid()
        self.beat = Heartbeat(
            run_id=job.run_id,
            phase=job.phase,
            attempt=attempt,
            pid=pid,
            pid_started=processes.started(pid) or "",
            at=at,
            state="starting",
            step=0,
            steps=steps,
        )

    def enter(self, state: str, now: float) -> None:
        """The seconds until now were spent in the state before."""
        seconds = self._seconds(now)
        self._state_at = now
        self.beat = replace(self.beat, state=state, seconds=seconds)
        self.write(now, force=True)

    def _seconds(self, now: float) -> dict[str, float]:
        """By state, the seconds of this attempt until ``now``."""
        seconds = dict(self.beat.seconds)
        lasted_s = max(0.0, now - self._state_at)
        seconds[self.beat.state] = seconds.get(self.beat.state, 0.0) + lasted_s
        return seconds

    def end(self, outcome: str, message: str, now: float) -> None:
        self.beat = replace(self.beat, outcome=outcome, message=message)
        self.enter("ended", now)

    def write(self, now: float, *, force: bool = False) -> None:
        if not force and now - self._written_at < self.beat_every_s:
            return
        self._written_at = now
        self.beat = replace(self.beat, at=now)
        # A full disk must not end what watches over the training.
        with contextlib.suppress(OSError):
            path = self._folder / contract.HEARTBEAT_NAME
            beat = replace(self.beat, seconds=self._seconds(now))
            write_atomic(path, contract.dump(beat), durable=force)

    def line(
        self, kind: str, now: float, said: Mapping[str, object], step: int | None = None
    ) -> None:
        """One line of metrics, as long as anybody would read it."""
        path = self._folder / contract.METRICS_NAME
        about = {"kind": kind, "step": self.beat.step if step is None else step, "at": now}
        with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:
            if file.tell() < _MOST_BYTES:
                file.write(json.dumps({**about, **said}) + "\n")


class CommandReporter(AttemptReporter):
    """Heartbeat and metrics of a command."""

    def __init__(self, folder: Path, job: PhaseJob, command: Command, attempt: int, at: float):
        super().__init__(folder, job, attempt, at, int(job.settings.get("steps") or 0))
        self._command = command
        self._lined_at = -math.inf
        self._stepped: tuple[int, float] | None = None
        self._steps: deque[tuple[float, int]] = deque(maxlen=_MOST_HISTORY)
        self.metric: float | None = None
        """The last value of the metric, as the command told it."""
        self.metric_name = command.metric_name
        self.order = MetricOrder()
        self._furthest = (0, 0)
        """The highest step and epoch that the log has named."""

    def sign(self, count: int) -> None:
        """It gets on, as ``count`` shows, which only grows."""
        if count != self.beat.signs:
            self.beat = replace(self.beat, signs=count)

    def read(self, reading: Reading, now: float) -> None:
        """Note a reading of a line of the log, or of a report."""
        at = now if reading.at is None else min(reading.at, now)
        if reading.by_bar and reading.step is not None:
            self.reach(reading.step, at, now)
            return
        loss = next((reading.metrics[key] for key in _LOSSES if key in reading.metrics), None)
        advances = self._advances(reading)
        if reading.step is not None:
            self._note_step(reading.step, now)
        value = reading.metrics.get(self.metric_name)
        if value is not None:
            self._note_metric(value, now)
            told = Value(
                at, value, reading.step, reading.epoch, reading.counter, reading.is_redrawn
            )
            self.order.saw(told, reading.source, reading.state)
        elif advances or loss is not None:
            self.order.saw_training(at, reading.step)
        if loss is not None:
            known = loss if math.isfinite(loss) else None
            self.beat = replace(self.beat, loss=known, finite=known is not None)
            if now - self._lined_at >= _LINE_EVERY_S:
                self._lined_at = now
                self.line("train", now, {"loss": known})

    def reach(self, step: int, at: float, now: float) -> None:
        """Note a step that no line names: a progress bar's, or a checkpoint's. It says nothing of
        what was trained when, since bars are redrawn."""
        if step > self.beat.step:
            self.order.note_step(at, step)
            self._note_step(step, now)

    def _advances(self, reading: Reading) -> bool:
        """Whether it names a step or an epoch beyond those before."""
        step, epoch = reading.step or 0, reading.epoch or 0
        if step <= self._furthest[0] and epoch <= self._furthest[1]:
            return False
        self._furthest = max(step, self._furthest[0]), max(epoch, self._furthest[1])
        return True

    def note(self, text: str) -> None:
        """Show a warning beside the progress."""
        if text != self.beat.note:
            self.beat = replace(self.beat, note=text)

    def step_at(self, saved_at: float) -> int | None:
        """The step that was reported last by then; None where no steps are reported."""
        told = [step for at, step in self._steps if at <= saved_at + AT_ONCE_S]
        return (told[-1] if told else None) or None

    def saved(self, step: int, score: float | None, now: float) -> None:
        """A checkpoint was taken; lower scores are better."""
        self.beat = replace(self.beat, saved_step=max(step, self.beat.saved_step or 0))
        self.line("save", now, {}, step=step)
        self.scored(step, score, now)

    def scored(self, step: int, score: float | None, now: float) -> None:
        """The score of a checkpoint is known."""
        best = self.beat.best_bpb
        if score is not None and math.isfinite(score) and (best is None or score < best):
            self.beat = replace(self.beat, best_bpb=score, best_step=step)
        self.write(now, force=True)

    def _note_step(self, step: int, now: float) -> None:
        before = self._stepped
        if before is None or step < before[0]:
            self._stepped = step, now
        elif step > before[0] and now - before[1] >= _PACE_S:
            pace_s = (now - before[1]) / (step - before[0])
            self._stepped = step, now
            self.beat = replace(self.beat, step_seconds=pace_s)
        if step != self.beat.step:
            self._steps.append((now, step))
            self.beat = replace(
                self.beat, step=step, steps=max(step, self.beat.steps) if self.beat.steps else 0
            )

    def _note_metric(self, value: float, now: float) -> None:
        self.metric = value
        known = math.isfinite(value)
        score = self._command.score(value) if known else None
        self.beat = replace(self.beat, val_bpb=score, finite=known)
        told = {"name": self._command.metric_name, "value": value if known else None}
        self.line("eval", now, {"val_bpb": score, "metric": told})
        if not known:
            self.line("train", now, {"loss": None})  # as our own trainer tells it


# What a command's first steps cost here: their pace, its memory, its share of the processors.

_WINDOW_S = 1.0
"""A log is looked at a few times a second: a pace over less would be one of the looks."""
_LEAST_S = 5.0
_WARM_UP_S = 2.0
"""After the first step that is told, of which compiling and filling caches is a part."""


class StepProbe:
    """Until ``wanted`` steps behind the warm-up are measured; times are of a steady clock."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._points: list[tuple[float, int]] = []
        self._began: float | None = None
        self._memory_bytes = 0
        self._cpu: dict[int, float] = {}
        self._cpu_before_s = 0.0

    def stepped(self, step: int, now: float) -> None:
        """The newest step that the command has told by ``now``."""
        if self._began is None and step > 0:
            self._began = now
        if self._began is None or now - self._began < _WARM_UP_S:
            return
        if not self._points:
            self._cpu_before_s = sum(self._cpu.values())
        if not self._points or (
            step > self._points[-1][1] and now - self._points[-1][0] >= _WINDOW_S
        ):
            self._points.append((now, step))

    def look(self, pids: Iterable[int]) -> None:
        """At the command's processes: now and then."""
        resident = 0
        for pid in pids:
            resident += processes.resident_bytes(pid)
            if (used_s := processes.cpu_s(pid)) is not None:
                self._cpu[pid] = used_s
        self._memory_bytes = max(self._memory_bytes, resident)

    @property
    def done(self) -> bool:
        if len(self._points) < 2:
            return False
        (began, first), (ended, last) = self._points[0], self._points[-1]
        return last - first >= self._wanted and ended - began >= _LEAST_S

    def measured(self) -> MeasuredSteps | None:
        """None where too few steps were told to know a pace."""
        if len(self._points) < 2:
            return None
        (began, first), (ended, last) = self._points[0], self._points[-1]
        between = zip(self._points, self._points[1:], strict=False)
        paces = sorted((b[0] - a[0]) / (b[1] - a[1]) for a, b in between)
        used_s = sum(self._cpu.values()) - self._cpu_before_s
        return MeasuredSteps(
            steps=last - first,
            fast_s=paces[len(paces) // 10],
            step_s=(ended - began) / (last - first),
            slow_s=paces[-1 - len(paces) // 10],
            memory_bytes=self._memory_bytes,
            cores=max(0.0, used_s / (ended - began)),
        )
