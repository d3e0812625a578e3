"""The items that a rented pod needs from this machine: code, data, weights to start from, and
checkpoints to continue from. Each lies in a folder on the pod that is named by its content, so that
it is sent once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.command import RECIPE
from trmcloud.core.contract.command_resuming import checkpoints_to_put_back
from trmcloud.core.contract.pod_contract import DATA_DIR
from trmcloud.core.contract.trainer_contract import DONE
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import DataError
from trmcloud.core.spec.settings import SINGLE_PHASE
from trmcloud.io.hashing import file_sha256
from trmcloud.operations.home import home_dir
from trmcloud.operations.sending.packing import trainers_share
from trmcloud.operations.sending.secret_files import KEY_FOLDERS, looks_like_key
from trmcloud.ports.compute import PodItems, StageItem
from trmcloud.ports.machine import RunFiles

CODE_DIR, WEIGHTS_DIR, TOKENIZER_DIR, TASKS_DIR = "code", "weights", "tokenizer", "tasks"
_CODE_SUFFIXES = (".py", ".toml", ".txt", ".csv")
_KEY_CHARS = 24


def remote_folder(kind: str, local: Path) -> str:
    """Return a local folder's path on a pod: by its content."""
    return _item(kind, local).remote


def content_key(hashes: Mapping[str, str]) -> str:
    """One name for a set of files: what they are called and what is in them."""
    lines = "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes))
    return hashlib.sha256(os.fsencode(lines)).hexdigest()[:_KEY_CHARS]


def hashes_of(folder: Path, names: Sequence[str] | None = None) -> Mapping[str, str]:
    """Return the SHA-256 of each of the files ``names`` of ``folder``, by its relative name;
    without ``names``, of all below it that are not hidden.

    Raises:
        DataError: there is nothing, or it cannot be read.
    """
    try:
        if names is None:
            paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
            names = sorted(path.as_posix() for path in paths if not is_hidden(path))
        about = ((name, os.stat(folder / name)) for name in names)
        found = _hashes(folder, tuple((name, at.st_size, at.st_mtime_ns) for name, at in about))
    except OSError as error:
        raise unreadable(error, folder) from error
    if not found:
        raise DataError("there is nothing to send", where=str(folder))
    return found


class DataFiles(NamedTuple):
    """The files of a folder of data that a machine gets, by their relative names, and what stays
    here: the home, ``.git`` and the like, and hidden files that look like keys."""

    names: list[str]
    left_out: list[str]


def data_files(folder: Path) -> DataFiles:
    """List the files of a folder of data, hidden ones too.

    Raises:
        DataError: a part of it cannot be read, or is a link to a folder or to nothing.
    """
    names, left_out, waiting = list[str](), list[str](), [""]
    home = os.path.realpath(home_dir(os.environ))
    while waiting:
        below = waiting.pop()
        try:
            entries = list(os.scandir(folder / below))
        except OSError as error:
            raise unreadable(error, folder) from error
        for entry in entries:
            name = f"{below}/{entry.name}" if below else entry.name
            if entry.name in KEY_FOLDERS:
                left_out.append(name)
            elif entry.is_dir(follow_symlinks=False):
                is_home = os.path.realpath(entry) == home
                (left_out if is_home else waiting).append(name)
            elif os.path.isfile(entry):
                is_key = is_hidden(Path(name)) and looks_like_key(Path(entry), name)
                (left_out if is_key else names).append(name)
            elif entry.is_symlink():
                raise DataError(
                    f"--data: {ascii(name)[1:-1]} is a link to a folder, or to nothing",
                    where=str(folder),
                    next_step="put the files in its place (cp -rL), or remove it",
                )
    return DataFiles(sorted(names), sorted(left_out))


def unreadable(error: OSError, folder: Path) -> DataError:
    """The error of a file, or of ``folder``, that cannot be read, with the way to mend it."""
    return DataError(
        f"it cannot be read: {error.strerror or error}",
        where=str(error.filename or folder),
        next_step="make it readable with chmod -R u+rX, or move it out of the folder",
    )


def stage_items(
    files: RunFiles,
    note: Mapping[str, Any],
    trainer: Path,
    run: RunState,
    home: Path,
) -> tuple[StageItem, ...]:
    """Everything for a pod of the run. ``trainer`` is the trainer's package; ``note`` is the run's
    launch note; ``home`` is where the trainer's code is put together.

    Raises:
        DataError: something of it is missing here.
    """
    if note.get("code") and not _is_sweep_of_recipe(run):
        items = [_item(CODE_DIR, Path(note["code"])), *data_items(note["data_dir"], "")]
        return (*items, *_to_go_on_from(files, run))
    made_there = bool(note.get("data"))
    if not made_there and not note["data_dir"]:
        return ()  # a run without phases; the empty path would be the working folder
    of_sweep = note.get("code")
    items = [_item(CODE_DIR, Path(of_sweep)) if of_sweep else code_item(trainer, home)]
    if not made_there:
        items.append(_item(DATA_DIR, Path(note["data_dir"])))
    if chat := note.get("chat_dir"):
        items.append(_item(DATA_DIR, Path(chat)))
        if weights := weights_for_chat(files, run):
            items.append(_item(WEIGHTS_DIR, Path(weights)))
    if tasks := note.get("tasks_dir"):
        items.append(_item(TASKS_DIR, Path(tasks)))
    if note["initial_weights"]:
        items.append(_item(WEIGHTS_DIR, Path(note["initial_weights"])))
    elif made_there and (tokenizer := tokenizer_item(files, run)) is not None:
        items.append(tokenizer)
    items += _to_go_on_from(files, run)
    return tuple(items)


def pod_items(
    files: RunFiles, note: Mapping[str, Any], trainer: Path, run: RunState, home: Path
) -> PodItems:
    """Return ``stage_items`` by their ways to the pod.

    Raises:
        DataError: something of it is missing here.
    """
    items = stage_items(files, note, trainer, run, home)
    fetched = through_bucket(run, items)
    return PodItems(tuple(item for item in items if item not in fetched), fetched)


def through_bucket(run: RunState, items: Sequence[StageItem]) -> tuple[StageItem, ...]:
    """Those that the run's pod fetches from its bucket by itself: what may be large. Of several
    machines only one has the right to."""
    if not run.spec.pod_uploads or run.errand is not None or run.spec.nodes > 1:
        return ()
    large = tuple(f"{contract.POD_ROOT}/{kind}/" for kind in (DATA_DIR, WEIGHTS_DIR))
    return tuple(item for item in items if item.remote.startswith(large))


def weights_for_chat(files: RunFiles, run: RunState) -> str:
    """The folder of the weights that a chat phase starts from on another machine than the one that
    trained them: the best checkpoint here of the train phase, once that has finished; else
    empty."""
    account = run.phases.get(SINGLE_PHASE)
    if account is None or account.outcome not in DONE:
        return ""
    trained = [each for each in files.manifests(run.run_id) if each.phase == SINGLE_PHASE]
    best = mf.pick_best(trained) or mf.pick_latest(trained)
    return files.folder_of(best) if best is not None else ""


def data_items(data_dir: str, weights: str, chat: str = "") -> tuple[StageItem, ...]:
    """Return the items that a launch with a bucket uploads before anything is rented."""
    named = ((DATA_DIR, data_dir), (DATA_DIR, chat), (WEIGHTS_DIR, weights))
    return tuple(_item(kind, Path(folder)) for kind, folder in named if folder)


def code_item(package: Path, home: Path, beside: Mapping[str, bytes] | None = None) -> StageItem:
    """An allow-list: the sources of the trainer's package and what they import of trmcloud, put
    together below ``home``, with the files ``beside`` them, and nothing else that lies there."""
    files = {
        f"{package.name}/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.suffix in _CODE_SUFFIXES
        and path.is_file()
        and not is_hidden(path.relative_to(package))
    }
    if not files:
        raise DataError("the trainer's package has no source files", where=str(package))
    files |= {**trainers_share(package), **(beside or {})}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    key = content_key(hashes)
    folder = home / CODE_DIR / key
    if not folder.is_dir():
        _put_together(folder, files)
    return StageItem(folder, f"{contract.POD_ROOT}/{CODE_DIR}/{key}", hashes)


def _put_together(folder: Path, files: Mapping[str, bytes]) -> None:
    making = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        for name, content in files.items():
            path = making / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        with contextlib.suppress(OSError):  # another command was quicker with the very same
            making.rename(folder)
    except OSError as error:
        where = str(folder.parent)
        raise DataError(
            f"the code archive cannot be made: {error.strerror}", where=where
        ) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)


def tokenizer_item(files: RunFiles, run: RunState) -> StageItem | None:
    """The tokenizer of what the run has trained so far; None where nothing of it is here."""
    for manifest in files.manifests(run.run_id):
        for file in manifest.files:
            if file.kind == "tokenizer" and file.name == contract.DATA_TOKENIZER_NAME:
                hashes = {file.name: file.sha256}
                folder = f"{contract.POD_ROOT}/{TOKENIZER_DIR}/{content_key(hashes)}"
                return StageItem(Path(files.folder_of(manifest)), folder, hashes)
    return None


def _to_go_on_from(files: RunFiles, run: RunState) -> Iterator[StageItem]:
    """The newest copy here of each phase that has not finished, and what was saved before the
    cooldown that it is in: a new pod has neither. Of a command, what is put back."""
    done = {name for name, account in run.phases.items() if account.outcome in DONE}
    manifests = [m for m in files.manifests(run.run_id) if m.phase not in done]
    if (
        run.recorded_plan is not None and run.spec.sweep is not None
    ):  # each may be the one that a trial continues from
        yield from (_checkpoint_item(files, run, manifest) for manifest in manifests)
        return
    for phase in dict.fromkeys(m.phase for m in manifests):
        mine = [m for m in manifests if m.phase == phase]
        latest = mf.pick_latest(mine)
        wanted = [m for m in mine if m == latest or mf.is_before_cooldown(m, latest)]
        is_of_command = latest is not None and latest.recipe == RECIPE
        for manifest in checkpoints_to_put_back(mine) if is_of_command else wanted:
            if is_of_command or any(file.kind == "optimizer" for file in manifest.files):
                yield _checkpoint_item(files, run, manifest)


def _checkpoint_item(files: RunFiles, run: RunState, manifest: mf.CheckpointManifest) -> StageItem:
    local = Path(files.folder_of(manifest))
    folder = f"{contract.RUNS_DIR}/{run.run_id}/{manifest.phase}/{contract.CHECKPOINTS_DIR}"
    return StageItem(local, f"{contract.POD_ROOT}/{folder}/{local.name}", hashes_of(local))


def _is_sweep_of_recipe(run: RunState) -> bool:
    """Whether its code is the bundled trainer's, with a sweep's terms beside it."""
    spec = run.spec if run.recorded_plan is not None else None
    return spec is not None and spec.sweep is not None and spec.command is None


def _item(kind: str, local: Path) -> StageItem:
    hashes = hashes_of(local, data_files(local).names if kind == DATA_DIR else None)
    return StageItem(local, f"{contract.POD_ROOT}/{kind}/{content_key(hashes)}", hashes)


def is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "__pycache__")) for part in path.parts)


@lru_cache(maxsize=32)
def _hashes(folder: Path, files: tuple[tuple[str, int, int], ...]) -> Mapping[str, str]:
    """Sizes and times are in the key, so that a file is read again once it has changed."""
    return {name: file_sha256(folder / name) for name, _, _ in files}
