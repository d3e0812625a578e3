"""Running one of the trainer's own commands on a checkpoint: what ``sample``, ``eval`` and
``serve`` share."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

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


def run_trainer_command(
    module: str, arguments: Sequence[str], *, until_interrupted: bool = False
) -> None:
    """``python -m MODULE ARGUMENTS``, its output ours; its error becomes one of ours.

    Args:
        until_interrupted: it goes on until Ctrl-C or SIGTERM, which are passed on to it and are no
            failure of its or ours. Its standard input is a pipe that nothing is written to, and
            that ends with us, even where we are killed.

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
        stdin=subprocess.PIPE if until_interrupted else None,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stderr is not None
    with _passed_on(process, until_interrupted) as told_to_end:
        errors = process.stderr.read()
        code = process.wait()
    if code != 0 and not told_to_end:
        raise error_of(errors, code, module)


@contextlib.contextmanager
def _passed_on(process: subprocess.Popen[str], wanted: bool) -> Iterator[list[int]]:
    """Ends ``process`` by SIGTERM where we are told to end, if ``wanted``. Gives the signals that
    came. Ctrl-C reaches it from the terminal, too: a second SIGINT would be taken for
    impatience."""
    came: list[int] = []
    if not wanted:
        yield came
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        came.append(number)
        process.terminate()

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(each, pass_on) for each in signals]
    try:
        yield came
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)
