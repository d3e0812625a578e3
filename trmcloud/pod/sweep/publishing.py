"""The checkpoints of a sweep: those of its trials, as checkpoints of the run.

A published checkpoint has the trial's files by hard links, a number that only rises, and the
journal of the sweep. So whatever pulls, uploads and prunes a run's checkpoints does so with a
sweep's, and another machine continues from what came home.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.sweep.journal import (
    JOURNAL,
    SWEEP,
    about_trial,
    pack_journal,
    unpack_journal,
)
from trmcloud.core.values import replace
from trmcloud.io.files import sync_folder, write_atomic
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
                JOURNAL: pack_journal(journal),
            }
            published = replace(
                made,
                step=number,
                created_at=at,
                cooldown_from=None,
                extra={**made.extra, SWEEP: {**about, **own}},
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
            lines = unpack_journal(made.extra)
            found = lines if len(lines) > len(found) else found
        return found

    def put_back(self, trial: int, into: Path) -> int | None:
        """Give a trial whose folder has no checkpoint its newest published one; return its rung,
        None where none is published.

        Raises:
            OSError: it cannot be written.
        """
        mine = [m for m in self.manifests() if about_trial(m.extra).get("trial") == trial]
        made = mf.pick_latest(mine)
        if made is None:
            return None
        about = about_trial(made.extra)
        source = self._folder / mf.step_dir_name(made.step)
        step = int(about["step"])
        target = into / mf.step_dir_name(step)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for file in made.files:
            _link(source / file.name, target / file.name)
        extra = {key: value for key, value in made.extra.items() if key != SWEEP}
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
