"""Running one of the trainer's own commands on a checkpoint: what ``sample`` and ``eval`` share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from trmcloud.app.world import World, find_run


def checkpoint_folder(world: World, named: str) -> str:
    """A checkpoint folder: the one named, or the best checkpoint of the run named (or newest)."""
    from trmcloud.app import checkpoints

    folder = Path(named).expanduser() if named else None
    if folder is not None and folder.is_dir():
        checkpoints.read_manifest(folder)
        return str(folder.absolute())
    run = find_run(world, named or None)
    return world.files.folder_of(checkpoints.choose(world, run))


def run_trainer_command(module: str, arguments: Sequence[str]) -> None:
    """``python -m MODULE ARGUMENTS``, its output ours; its error becomes one of ours.

    Raises:
        MissingExtra, DataError, CheckpointError
    """
    from trmcloud.app.data import error_of, need_training_extra
    from trmcloud.wiring import python_path

    need_training_extra()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(python_path())}
    # What a model writes may hold any character; the terminal may not.
    environment["PYTHONIOENCODING"] = f"{sys.stdout.encoding or 'utf-8'}:replace"
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stderr is not None
    errors = process.stderr.read()
    if process.wait() != 0:
        raise error_of(errors, process.returncode, module)
