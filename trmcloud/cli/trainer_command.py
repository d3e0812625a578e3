"""Running one of the trainer's own commands on a checkpoint: what ``sample`` and ``eval`` share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from trmcloud.app.context import Context, find_run


def checkpoint_folder(context: Context, named: str) -> str:
    """A checkpoint folder: the one named, or the best checkpoint of the run named (or newest)."""
    from trmcloud.app.checkpoints import fetching

    folder = Path(named).expanduser() if named else None
    if folder is not None and folder.is_dir():
        fetching.read_manifest(folder)
        return str(folder.absolute())
    run = find_run(context, named or None)
    return context.files.folder_of(fetching.choose(context, run))


def run_trainer_command(module: str, arguments: Sequence[str]) -> None:
    """``python -m MODULE ARGUMENTS``, its output ours; its error becomes one of ours.

    Raises:
        MissingExtra, DataError, CheckpointError
    """
    from trmcloud.app.data.prepare import error_of, need_training_extra
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
