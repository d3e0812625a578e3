"""Checkpoints of a trial on their way between two machines of a sweep.

One side offers what a trial's folder has, the other asks for what it lacks. Each file is held to
the hash in its manifest, and a folder becomes a checkpoint only when all of its files are whole.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.command_terms import PARTS_KEY_NAME
from trmcloud.core.contract.manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    from_json,
    parse_step_dir,
    step_dir_name,
    to_json,
)
from trmcloud.core.contract.trainer_contract import PhaseJob
from trmcloud.core.errors import CheckpointError
from trmcloud.io.files import read_small, sync_folder, write_atomic
from trmcloud.pod.job.parts import Channel, Refused
from trmcloud.pod.sweep.children import manifests_in

Interval = tuple[int, int]
"""(trial, attempt): no two intervals of a sweep have the same."""
_MOST_KEYS = 256
_SPARE_BYTES = 256 << 20
"""Of the disk, left to the trials when a file is received."""


def send_checkpoints(channel: Channel, folder: Path) -> None:
    """Offer the checkpoints of ``folder`` and send those that the other side asks for.

    Raises:
        OSError: the other side has gone, or does not keep to the protocol.
    """
    made = manifests_in(folder)
    channel.send({"manifests": [to_json(each) for each in made]})
    asked = channel.hear().get("steps")
    for each in made:
        if isinstance(asked, list) and each.step in asked:
            for file in each.files:
                channel.send_file(folder / step_dir_name(each.step) / file.name)


def receive_checkpoints(
    channel: Channel,
    folder: Path,
    *,
    run: tuple[str, str],
    moved: Callable[[], None],
    installing: Callable[[], AbstractContextManager[bool]],
) -> bool:
    """Make ``folder`` hold exactly the checkpoints that ``send_checkpoints`` offers; return whether
    it does now.

    Args:
        run: (run, phase) that they must be of.
        moved: called whenever bytes have come.
        installing: entered while files are put in their place; False: they are not wanted any more.

    Raises:
        OSError: the other side has gone, does not keep to the protocol, or there is no room.
    """
    offered = _manifests_of(channel.hear(), run)
    there = {each.step: each for each in manifests_in(folder)}
    lacking = [each for each in offered if there.get(each.step) != each]
    channel.send({"steps": [each.step for each in lacking]})
    coming = folder.with_name(f".coming-{folder.name}")
    shutil.rmtree(coming, ignore_errors=True)
    coming.mkdir(parents=True)
    try:
        whole = True
        for each in lacking:
            target = coming / step_dir_name(each.step)
            target.mkdir()
            for file in each.files:
                room = shutil.disk_usage(coming).free - _SPARE_BYTES
                whole &= channel.receive_file(target / file.name, room, moved, sha256=file.sha256)
            write_atomic(target / MANIFEST_NAME, to_json(each))
        if not whole:
            return False
        with installing() as is_wanted:
            if is_wanted:
                _install(coming, folder, {each.step for each in offered})
            return is_wanted
    finally:
        shutil.rmtree(coming, ignore_errors=True)


def _install(coming: Path, folder: Path, steps: Iterable[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(coming.iterdir()):
        _delete(folder / path.name)
        os.rename(path, folder / path.name)
    for path in folder.iterdir():
        if (step := parse_step_dir(path.name)) is not None and step not in set(steps):
            _delete(path)
    sync_folder(folder)


def _delete(folder: Path) -> None:
    """What is left without a manifest is no checkpoint."""
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _manifests_of(said: Any, run: tuple[str, str]) -> list[CheckpointManifest]:
    texts = said.get("manifests")
    if not isinstance(texts, list):
        raise Refused("no checkpoints are offered")
    try:
        made = [from_json(str(text), "of another machine") for text in texts]
    except CheckpointError as error:
        raise Refused(str(error)) from error
    if any((each.run_id, each.phase) != run for each in made):
        raise Refused("checkpoints of another run")
    return made


def read_intervals(rows: Any) -> list[Interval]:
    """
    Raises:
        Refused: they are no pairs of whole numbers.
    """
    if not isinstance(rows, list) or len(rows) > _MOST_KEYS:
        raise Refused("no list of intervals")
    found = []
    for row in rows:
        if not isinstance(row, list) or len(row) != 2 or any(type(each) is not int for each in row):
            raise Refused("no interval")
        found.append((row[0], row[1]))
    return found


def key_of(job: PhaseJob, environment: Mapping[str, str]) -> str:
    """Return the key by which the machines of this pod know each other; empty where it has none."""
    root = Path(job.out_dir).parents[2]  # runs/RUN/PHASE
    pod = environment.get(contract.ENV_POD, "")
    return read_small(root / contract.PODS_DIR / pod / PARTS_KEY_NAME) or ""
