"""What a sweep's executor leaves for agent and controller: its trials' checkpoints as checkpoints
of the run, a heartbeat, and metrics with the events of the journal.

A published checkpoint has the trial's files by hard links, a number that only rises, and the
journal of the sweep. So whatever pulls, uploads and prunes a run's checkpoints does so with a
sweep's, and another machine continues from what came home.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.contract.pod_contract import METRICS_NAME
from trmcloud.core.contract.trainer_contract import PhaseJob
from trmcloud.core.sweep import events as ev
from trmcloud.core.text import one_line
from trmcloud.core.values import replace
from trmcloud.io.files import sync_folder, write_atomic
from trmcloud.pod.job.reporting import AttemptReporter
from trmcloud.pod.sweep.children import manifests_in


class PublishedCheckpoints:
    """The ``checkpoints/`` folder of a sweep."""

    def __init__(self, folder: Path, keep_best: int) -> None:
        self._folder, self._keep_best = folder, keep_best

    def manifests(self) -> list[CheckpointManifest]:
        return manifests_in(self._folder)

    def publish(
        self,
        source: Path,
        made: CheckpointManifest,
        about: Mapping[str, Any],
        journal: Sequence[str],
        at: float,
    ) -> CheckpointManifest:
        """Make a trial's checkpoint in ``source`` one of the run's; prune the others.

        Args:
            about: the trial, its rung, its settings.
            journal: the lines of the sweep's journal.
            at: epoch seconds.

        Raises:
            OSError: it cannot be written. Nothing of it remains.
        """
        number = self.next_number(made.step)
        name = mf.step_dir_name(number)
        making = self._folder / f".making-{name}-{os.getpid()}"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        try:
            for file in made.files:
                _link(source / file.name, making / file.name)
            own = {
                "step": made.step,
                "cooldown_from": made.cooldown_from,
                ev.JOURNAL: ev.pack_journal(journal),
            }
            published = replace(
                made,
                step=number,
                created_at=at,
                cooldown_from=None,
                extra={**made.extra, ev.SWEEP: {**about, **own}},
            )
            write_atomic(making / mf.MANIFEST_NAME, mf.to_json(published))
            final = self._folder / name
            shutil.rmtree(final, ignore_errors=True)
            os.rename(making, final)
            sync_folder(self._folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
        self.prune()
        return published

    def next_number(self, step: int) -> int:
        """Return the number of the next checkpoint of a trial at ``step``: larger than all."""
        last = max((m.step for m in self.manifests()), default=0)
        return max(last + 1, min(step, 99_999_999))

    def prune(self) -> None:
        """Delete all but the best and the latest."""
        for each in mf.to_prune(self.manifests(), self._keep_best).checkpoints:
            folder = self._folder / mf.step_dir_name(each.step)
            (folder / mf.MANIFEST_NAME).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)

    def journal(self) -> list[str]:
        """Return the lines of the longest journal that a checkpoint here has."""
        found: list[str] = []
        for made in self.manifests():
            lines = ev.unpack_journal(made.extra)
            found = lines if len(lines) > len(found) else found
        return found

    def put_back(self, trial: int, into: Path) -> int | None:
        """Give a trial whose folder has no checkpoint its newest published one; return its rung,
        None where none is published.

        Raises:
            OSError: it cannot be written.
        """
        mine = [m for m in self.manifests() if ev.about_trial(m.extra).get("trial") == trial]
        made = mf.pick_latest(mine)
        if made is None:
            return None
        about = ev.about_trial(made.extra)
        source = self._folder / mf.step_dir_name(made.step)
        step = int(about["step"])
        target = into / mf.step_dir_name(step)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for file in made.files:
            _link(source / file.name, target / file.name)
        extra = {key: value for key, value in made.extra.items() if key != ev.SWEEP}
        before = about.get("cooldown_from")
        restored = replace(
            made,
            step=step,
            extra=extra,
            cooldown_from=before if isinstance(before, int) else None,
        )
        write_atomic(target / mf.MANIFEST_NAME, mf.to_json(restored))
        return int(about["rung"])


def _link(source: Path, target: Path) -> None:
    """No copy, where the file system has links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


class SweepReporter(AttemptReporter):
    """Heartbeat and metrics of a sweep, as agent and controller read a trainer's. ``now`` is epoch
    seconds."""

    beat_every_s = 2.0

    def __init__(self, folder: Path, job: PhaseJob, attempt: int, now: Callable[[], float]) -> None:
        super().__init__(folder, job, attempt, now())
        self._now = now
        self._steps: dict[int, int] = {}

    def begin(self, lines: Sequence[str]) -> None:
        """Write the journal so far as lines of metrics, where these stayed on another machine."""
        if lines and not (self._folder / METRICS_NAME).exists():
            for number, line in enumerate(lines):
                self.event(number, line)

    def event(self, number: int, line: str) -> None:
        self._line(ev.EVENT_KIND, {"n": number, "said": json.loads(line)})

    def cpu(self) -> None:
        """Write the processor time of this process, and of trials that have ended."""
        own, trials = (
            resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        seconds = {
            "own_s": round(own.ru_utime + own.ru_stime, 3),
            "trials_s": round(trials.ru_utime + trials.ru_stime, 3),
        }
        self._line(ev.CPU_KIND, {"attempt": self.beat.attempt, **seconds})

    def count(self, trials: int, running: int) -> None:
        """Trials that have begun, and those that run."""
        parts = {"trials": float(trials), "running": float(running)}
        self.beat = replace(self.beat, parts=parts)

    def stepped(self, trial: int, step: int) -> None:
        self._steps[trial] = max(step, self._steps.get(trial, 0))
        total = max(sum(self._steps.values()), self.beat.saved_step or 0, self.beat.step)
        self.beat = replace(self.beat, step=total)

    def sign(self) -> None:
        self.beat = replace(self.beat, signs=self.beat.signs + 1)

    def judged(self, score: float | None, trial: int) -> None:
        """A trial has reached a rung with ``score``; lower is better."""
        self.beat = replace(self.beat, val_bpb=score, finite=score is not None)
        if score is not None:
            self._line("eval", {"val_bpb": score, "trial": trial})

    def saved(self, made: CheckpointManifest) -> None:
        step = max(self.beat.step, made.step)
        self.beat = replace(self.beat, saved_step=made.step, step=step)
        self._line("save", {})
        self.write(self._now(), force=True)

    def best(self, made: CheckpointManifest) -> None:
        self.beat = replace(self.beat, best_bpb=made.val_bpb, best_step=made.step)

    def finish(self, outcome: str, message: str) -> None:
        self.say(f"{outcome}: {message}")
        self.end(outcome, one_line(message)[:1000], self._now())

    def say(self, text: str) -> None:
        print(f"trmcloud: {text}", flush=True)

    def _line(self, kind: str, said: Mapping[str, Any]) -> None:
        self.line(kind, round(self._now(), 3), said)
