"""Why a command failed, as far as its log tells: its last lines, and a file that it did not find
though it is on this machine, with the option that sends it.
"""

from __future__ import annotations

import os
import re
import shlex
import tarfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.command import CODE_NAME, PHASE, Command
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import DataError, Outcome
from trmcloud.core.text import one_line
from trmcloud.core.values import Value
from trmcloud.io.archives import open_tar
from trmcloud.operations.commands.trial_facts import (
    folders_around,
    missing_module,
    places_of_module,
)
from trmcloud.operations.context import Context
from trmcloud.operations.reasons import sentence
from trmcloud.operations.sending.ignore_rules import IGNORE_NAME

_LAST = 10
_READ_BYTES = 1 << 16
_WIDEST = 300
_OWN_LINE = "trmcloud: "
_FILE = (
    re.compile(r"No such file or directory: '([^']{1,500})'"),
    re.compile(r"can't open file '([^']{1,500})'"),
    re.compile(r"(?:^|[\s'\"])([^\s'\":]{1,500})['\"]?: No such file or directory"),
    re.compile(r"[Uu]nable to (?:open|find) (?:file )?['\"]?([^\s'\"]{1,500})"),
)
_WORK = f"/{PHASE}/work/"
"""In the path of a file below the tree that was sent."""


class Failure(Value):
    """``lines`` are the last of its log; ``missing`` is a name that it did not find and that is
    here, with ``fix``, the option that sends it; both empty where there is none."""

    lines: tuple[str, ...]
    missing: str = ""
    fix: str = ""


def failure_of(context: Context, run: RunState) -> Failure | None:
    """Return the log's account of a command's failure; None where it did not fail."""
    if run.spec.command is None or run.outcome is not Outcome.FAILED:
        return None
    path = context.home / contract.RUNS_DIR / run.run_id / PHASE / contract.TRAIN_LOG_NAME
    lines = last_lines(path)
    missing, fix = "", ""
    with suppress(DataError, OSError):
        note = context.notes.launch(run.run_id)
        if here := str(note.get("here", "")):
            sent = _sent(Path(str(note.get("code", ""))))
            said = (*lines, one_line(sentence(run.reason)))  # of a command that was not started
            missing, fix = missing_in(said, run.spec.command, Path(here), sent)
    return Failure(lines, missing, fix)


def last_lines(path: Path) -> tuple[str, ...]:
    """Return the last lines that the command itself wrote; none where there is no log."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _READ_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    # Of a bar that rewrites its line, the last state is what stood there.
    rows = [row.rsplit("\r", 1)[-1].rstrip() for row in text.replace("\r\n", "\n").split("\n")]
    own = [row for row in rows if row and not row.startswith(_OWN_LINE)]
    return tuple(one_line(row)[:_WIDEST] for row in own[-_LAST:])


def missing_in(
    lines: Sequence[str], command: Command, here: Path, sent: Iterable[str]
) -> tuple[str, str]:
    """Return a name that ``lines`` say is missing and that is below or above ``here``, where the
    command was typed, and the option that sends it; empty where there is none."""
    names = set(sent)
    for line in reversed(lines):
        if module := missing_module(line):
            return _module(module, here)
        for pattern in _FILE:
            found = pattern.search(line)
            if found is not None and (told := _file(found[1], command, here, names)) is not None:
                return told
    return "", ""


def _file(said: str, command: Command, here: Path, sent: set[str]) -> tuple[str, str] | None:
    if _WORK in said:
        below = said.partition(_WORK)[2]
        said = os.path.relpath(below, command.folder or ".")
    name = os.path.normpath(said)
    place = Path(name) if os.path.isabs(name) else here / name
    in_tree = os.path.normpath(os.path.join(command.folder, name))
    if not place.exists() or in_tree in sent:
        return None
    if place.is_dir() and any(each.startswith(f"{in_tree}/") for each in sent):
        return None
    if os.path.isabs(name):
        outside = place if place.is_dir() else place.parent
        return (
            name,
            f"--data {shlex.quote(str(outside))}; the command finds it in $TRMCLOUD_DATA",
        )
    if name.startswith(os.pardir):
        up = "/".join(part for part in PurePosixPath(name).parts if part == os.pardir)
        return name, f"--root {up} sends the folder that contains this one"
    folder = PurePosixPath(name) if place.is_dir() else PurePosixPath(name).parent
    if str(folder) != ".":
        return name, f"--data {shlex.quote(str(folder))} sends this folder separately from the code"
    return name, (
        f"git ignores it, or {IGNORE_NAME} excludes it: git add -f {shlex.quote(name)}, or pass "
        "its folder with --data"
    )


def _module(module: str, here: Path) -> tuple[str, str]:
    """Of a module: where it is in the repository around the folder."""
    for folder in folders_around(here):
        for path in places_of_module(folder, module):
            is_beside_it = folder == here and folder / "src" not in path.parents
            if path.exists() and not is_beside_it:
                up = os.path.relpath(folder, here)
                return module, f"--root {up} sends the folder that contains it"
    return "", ""


def _sent(code_dir: Path) -> set[str]:
    with suppress(OSError, tarfile.TarError), open_tar(code_dir / CODE_NAME) as archive:
        return set(archive.getnames())
    return set()
