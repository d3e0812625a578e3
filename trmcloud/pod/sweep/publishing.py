"""The checkpoints of a sweep: those of its trials, as checkpoints of the run.

A published checkpoint has the trial's files by hard links, a number that only rises, and the
journal of the sweep. So whatever pulls, uploads and prunes a run's checkpoints does so with a
sweep's, and another machine continues from what came home.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.manifest import CheckpointFile, CheckpointManifest
from trmcloud.core.values import replace
from trmcloud.io.files import read_small, sync_folder, write_atomic
from trmcloud.pod.sweep.children import manifests_in

SWEEP = "sweep"
"""The key in ``extra`` of a published checkpoint: its trial, rung and settings, and the trial's own
manifest's fields that differ."""
JOURNAL_FILE = "sweep_journal.json"
"""Among a published checkpoint's files: the journal until then, as a list of its lines."""
_MOST_JOURNAL_BYTES = 16 << 20


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
            text = json.dumps(list(journal)).encode()
            (making / JOURNAL_FILE).write_bytes(text)
            digest = hashlib.sha256(text).hexdigest()
            files = (*made.files, CheckpointFile(JOURNAL_FILE, "state", len(text), digest))
            own = {"step": made.step, "cooldown_from": made.cooldown_from}
            published = replace(
                made,
                step=number,
                created_at=at,
                files=files,
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
            lines = _journal_of(self._folder / mf.step_dir_name(made.step), made)
            found = lines if len(lines) > len(found) else found
        return found

    def put_back(self, trial: int, into: Path) -> int | None:
        """Give a trial whose folder has no checkpoint its newest published one; return its rung,
        None where none is published.

        Raises:
            OSError: it cannot be written.
        """
        mine = [m for m in self.manifests() if about_of(m).get("trial") == trial]
        made = mf.pick_latest(mine)
        if made is None:
            return None
        about = about_of(made)
        source = self._folder / mf.step_dir_name(made.step)
        step = int(about["step"])
        target = into / mf.step_dir_name(step)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        own = tuple(file for file in made.files if file.name != JOURNAL_FILE)
        for file in own:
            _link(source / file.name, target / file.name)
        extra = {key: value for key, value in made.extra.items() if key != SWEEP}
        before = about.get("cooldown_from")
        restored = replace(
            made,
            step=step,
            files=own,
            extra=extra,
            cooldown_from=before if isinstance(before, int) else None,
        )
        write_atomic(target / mf.MANIFEST_NAME, mf.to_json(restored))
        return int(about["rung"])


def about_of(made: CheckpointManifest) -> Mapping[str, Any]:
    """The facts of a published checkpoint's trial; empty for one that is no sweep's."""
    about = made.extra.get(SWEEP)
    if not isinstance(about, dict):
        return {}
    is_known = all(type(about.get(name)) is int for name in ("trial", "rung", "step"))
    return about if is_known else {}


def _journal_of(folder: Path, made: CheckpointManifest) -> list[str]:
    file = next((file for file in made.files if file.name == JOURNAL_FILE), None)
    if file is None:
        return []
    try:
        text = read_small(folder / JOURNAL_FILE, _MOST_JOURNAL_BYTES) or ""
        if hashlib.sha256(text.encode()).hexdigest() != file.sha256:
            return []
        lines = json.loads(text)
    except (OSError, ValueError):
        return []
    return [str(line) for line in lines] if isinstance(lines, list) else []


def _link(source: Path, target: Path) -> None:
    """No copy, where the file system has links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
