"""The files of tasks: found in a folder or downloaded once, and compared by their hashes."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from trmcloud.core.catalog.eval_tasks import PROGRAM, SUITES, EvalTask, Suite
from trmcloud.core.errors import DataError
from trmcloud.io.hashing import file_sha256

_BLOCK_BYTES = 1 << 20
_FOLDERS = ("", "local_data", "eval_data", "scripts/eval/local_data", "ai2_arc", "mmlu")
"""Below which a folder may have the files: those of llm-foundry, of nanochat's bundle, and data
sets by their names."""
_RUNS_PROGRAMS = "it runs generated programs, which this version does not do"


def find_files(suite: Suite, folder: Path) -> tuple[dict[EvalTask, Path], dict[EvalTask, str]]:
    """The file of each task in ``folder``, and for the tasks that have none, why.

    Raises:
        DataError: a file is not the one that the suite names; there is none at all.
    """
    found: dict[EvalTask, Path] = {}
    missing: dict[EvalTask, str] = {}
    compared: dict[Path, None] = {}
    for task in suite.tasks:
        if task.kind == PROGRAM:
            missing[task] = _RUNS_PROGRAMS
            continue
        path = _find(task, folder)
        if path is None:
            missing[task] = f"no {task.file} in {folder}"
            continue
        if path not in compared:
            _compare(task, path)
            compared[path] = None
        found[task] = path
    if not found:
        raise DataError(
            f"it has no file of {suite.title}: {next(iter(missing.values()))}"
            if len(suite.tasks) == 1
            else f"it has no file of {suite.title}, such as {suite.tasks[0].file}",
            where=str(folder),
            next_step="give the folder that has these files"
            + ", or leave --data out to download them" * suite.can_be_fetched,
        )
    return found, missing


def fetch_files(
    suite: Suite,
    folder: Path,
    environment: Mapping[str, str] = os.environ,
    waits: Callable[[str], None] = lambda why: None,
) -> None:
    """Download each file of ``suite`` that is not in ``folder`` yet, and compare it.

    Raises:
        DataError: a file is not there, is not the one that the suite names, or has no known hash.
        TransientError: the host stayed away, or the disk is full.
    """
    from model.preparing.fetch import Fetcher, RetryClock

    wanted = [task for task in suite.tasks if task.kind != PROGRAM]
    unknown = [task for task in wanted if not task.has_hash]
    if unknown:
        raise DataError(
            f"no hash of the file of {unknown[0].name} is known, so it is not downloaded",
            where=unknown[0].address,
            next_step="download it yourself and give its folder: --data FOLDER",
        )
    clock = RetryClock(time.sleep, time.monotonic, time.time, random.random)
    fetcher = Fetcher(environment, clock, waits=waits)
    for task in wanted:
        path = folder / task.file
        made = fetcher.fetch(task.address, path, sha256=task.sha256)
        try:
            _compare(task, made.path)
        except DataError:
            made.path.unlink()
            raise


def git_object_id(path: Path) -> str:
    """The id that Git gives a file with this content.

    Raises:
        OSError: it cannot be read.
    """
    # No protection against an attacker is asked of it: it names the same file as the commit does.
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _find(task: EvalTask, folder: Path) -> Path | None:
    named = [folder / below / task.file for below in _FOLDERS]
    # A name by which several tasks call their files is not looked for alone.
    files = {other.file for suite in SUITES.values() for other in suite.tasks}
    name = Path(task.file).name
    if sum(Path(file).name == name for file in files) <= 1:
        named.append(folder / name)
    return next((path for path in named if path.is_file()), None)


def _compare(task: EvalTask, path: Path) -> None:
    """
    Raises:
        DataError: the file is another one than the table names, or cannot be read.
    """
    try:
        if task.sha256:
            kind, is_now, wanted = "SHA-256", file_sha256(path), task.sha256
        elif task.git_id:
            kind, is_now, wanted = "Git object", git_object_id(path), task.git_id
        else:
            return
    except OSError as error:
        raise DataError((error.strerror or "unreadable").lower(), where=str(path)) from None
    if is_now != wanted:
        raise DataError(
            f"the file of {task.name} is not the published one: its {kind} is {is_now[:16]}…, "
            f"not {wanted[:16]}…",
            where=str(path),
            next_step="delete it, or leave --data out to download the published one",
        )
