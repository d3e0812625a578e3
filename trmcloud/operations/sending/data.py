"""Training data: named, checked against its own records, and made ready before anything is
rented.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trmcloud.core.catalog.datasets import is_address, layout_of, nearest_name
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.pod_contract import DATA_CACHE_DIR, DATA_DIR
from trmcloud.core.contract.records import ContractError
from trmcloud.core.contract.trainer_contract import SHARDS_NAME, ShardRecord, load_shard
from trmcloud.core.errors import CheckpointError, DataError, MissingExtra, TrmcloudError
from trmcloud.core.spec.settings import CHAT, PhaseRecipe
from trmcloud.core.spec.spec import KEY_CHARS, DataSource, growing_key
from trmcloud.io.files import write_atomic
from trmcloud.io.hashing import file_sha256
from trmcloud.io.installation import install_command
from trmcloud.operations.home import bundle_root, make_home

# Names of data: a data set's name, an address, or a path of this machine.


def resolve_source(named: str, settings: PhaseRecipe | None = None) -> str:
    """The source to train on: the user's, else the recipe's own.

    Raises:
        DataError: there is none, or it does not exist.
    """
    source = named or (settings.data if settings is not None else "")
    if not source:
        recipe = settings.recipe if settings is not None else ""
        raise DataError(
            f"recipe {recipe} has no data set of its own",
            next_step="give a data set (trmcloud data list), or a file or folder: --data PATH",
        )
    if is_address(source) or source in data_set_names():
        return source
    path = Path(source).expanduser().absolute()
    if not path.exists():
        if "/" in source or path.suffix:
            raise DataError(
                "there is no such file or folder", where=str(path), next_step="--data PATH"
            )
        near = nearest_name(source, data_set_names())
        raise DataError(f"there is no data set or file named {source!r}", next_step=near)
    if not os.access(path, os.R_OK):
        raise DataError("the data cannot be read", where=str(path), next_step="chmod +r it")
    return str(path)


def data_set_names() -> list[str]:
    """The data sets that go by a name."""
    return sorted(path.stem for path in (bundle_root() / "model" / "datasets").glob("*.toml"))


# A folder of prepared data held to its own records: sizes, hashes, and whether all of it is
# there.
# docs/decisions/0014 describes the files.

_WIDTHS = {"uint16": 2, "uint32": 4}


class CheckedFile(NamedTuple):
    """One file, and what was found."""

    name: str
    good: bool
    detail: str


def is_prepared(folder: Path) -> bool:
    """Whether the folder holds prepared data, finished or not."""
    return folder.is_dir() and any(
        (folder / name).is_file() for name in (contract.DATA_META_NAME, SHARDS_NAME)
    )


def check_folder(folder: Path) -> Iterator[CheckedFile]:
    """Every file of it, the small ones first."""
    meta = _cached_meta(folder)
    if (
        meta is not None
        and isinstance(meta.get(CHAT), bool)
        and isinstance(meta.get("files"), dict)
    ):
        told = f"{meta.get('source')}, {meta.get('conversations')} conversations to train on"
        yield CheckedFile(contract.DATA_META_NAME, True, told)
        for name, wanted in meta["files"].items():
            yield _conversations(folder / str(name), wanted)
        return
    if meta is None or not isinstance(meta.get("train_tokens"), int):
        yield CheckedFile(
            contract.DATA_META_NAME, False, "missing or damaged: the preparation did not finish"
        )
        return
    width = _WIDTHS.get(str(meta.get("dtype")), 0)
    complete = bool(meta.get("complete", True))
    about = f"{meta.get('source')}, {meta.get('train_tokens'):,} tokens to train on"
    yield CheckedFile(
        contract.DATA_META_NAME, complete and width > 0, about if complete else f"{about} so far"
    )
    yield _tokenizer(folder / contract.DATA_TOKENIZER_NAME, meta)
    yield _tokens(folder / contract.DATA_VALIDATION_NAME, meta.get("validation_tokens"), width)
    if not (folder / SHARDS_NAME).exists():
        yield _tokens(folder / contract.DATA_TRAIN_NAME, meta.get("train_tokens"), width)
        return
    for line in (folder / SHARDS_NAME).read_bytes().splitlines():
        try:
            yield _shard(folder, load_shard(line), width)
        except ContractError as error:
            yield CheckedFile(SHARDS_NAME, False, str(error))


def _conversations(path: Path, wanted: Any) -> CheckedFile:
    try:
        good = file_sha256(path) == wanted
    except OSError:
        return CheckedFile(path.name, False, "missing")
    return CheckedFile(path.name, good, "hash as recorded" if good else "damaged")


def _tokenizer(path: Path, meta: dict[str, Any]) -> CheckedFile:
    about = meta.get("tokenizer")
    about = about if isinstance(about, dict) else {}
    try:
        found = file_sha256(path)
    except OSError:
        return CheckedFile(path.name, False, "missing")
    if found != about.get("sha256"):
        return CheckedFile(path.name, False, "not the tokenizer that made these tokens")
    return CheckedFile(path.name, True, f"{about.get('kind')}, {about.get('vocab_size'):,} ids")


def _tokens(path: Path, tokens: Any, width: int) -> CheckedFile:
    try:
        size = path.stat().st_size
    except OSError:
        return CheckedFile(path.name, False, "missing")
    good = isinstance(tokens, int) and size == tokens * width
    return CheckedFile(
        path.name, good, f"{size:,} bytes" + ("" if good else f", not {tokens} tokens")
    )


def _shard(folder: Path, record: ShardRecord, width: int) -> CheckedFile:
    try:
        found = file_sha256(folder / record.file, record.offset_bytes, record.tokens * width)
    except OSError:
        return CheckedFile(record.file, False, f"missing ({record.name})")
    good = found == record.sha256
    told = f"{record.name}: {record.tokens:,} tokens"
    return CheckedFile(
        record.file, good, f"{told}, hash as recorded" if good else f"{told}, damaged"
    )


# Training data, made ready before anything is rented: read, split, tokenized, cached.

STDLIB_SOURCE = "python-stdlib"
_FOR_DATA = ("numpy", "pyarrow", "tokenizers")
FOR_TRAINING = ("torch", "numpy", "pyarrow", "safetensors", "tokenizers")
_SHARDS = ("parquet", "gpt2")

Progress = Callable[[str, int, int], None]


def need_training_extra(purpose: str = "training on this machine") -> None:
    """
    Raises:
        MissingExtra: something of the ``train`` extra is not installed.
    """
    _need(FOR_TRAINING, purpose, "train")


def need_data_extra() -> None:
    """For a machine that is rented, this one makes the data ready and no more.

    Raises:
        MissingExtra: something of the ``data`` extra is not installed.
    """
    _need(_FOR_DATA, "preparing data", "data")


def _need(names: Sequence[str], purpose: str, extra: str) -> None:
    if any(importlib.util.find_spec(name) is None for name in names):
        raise MissingExtra(purpose, extra, install_command(extra))


def prepare_data(
    home: Path,
    source: DataSource,
    settings: PhaseRecipe,
    python_path: Sequence[str],
    progress: Progress,
    *,
    tokenizer: Path | None = None,
    tokens: int = 0,
) -> tuple[Path, dict[str, Any]]:
    """The folder of prepared data for ``source`` and its ``meta.json``, made now if need be.

    ``tokenizer`` is the file of one to use; without it, one is learnt from the text. ``tokens`` is
    how many are needed of a source that is made shard by shard: its folder only grows, from where
    an earlier call stopped.

    Raises:
        DataError: the data cannot be had or used, said by the trainer's own ``prepare``; or there
            is no room for it.
    """
    grows = source.made_there or _are_shards(source, settings)
    if not grows:
        folder = home / DATA_DIR / _key(source, settings, tokenizer)
    elif source.data_set is not None:
        folder = growing_folder(home, source, settings, tokenizer)
    else:
        # It may be sent as it is, so it must not grow while another launch reads it.
        more = [*_signature(source.name), str(tokens)]
        more += [settings.data] if settings.row_is_text else []
        folder = growing_folder(home, source, settings, tokenizer, *more)
    meta = _cached_meta(folder)
    if meta is None or (grows and not (meta.get("complete") and meta["train_tokens"] >= tokens)):
        # Made aside, so that data which a run reads already is never replaced under its feet.
        making = folder if grows else folder.with_name(f".{folder.name}.{os.getpid()}")
        words = _write_request(home, folder, source, settings, needs_cache=grows)
        words += ["--out", str(making)]
        words += ["--tokenizer", str(tokenizer)] if tokenizer is not None else []
        words += ["--tokens", str(tokens)] if tokens else []
        try:
            _run_prepare(words, python_path, progress, source.name)
            if not grows:
                with contextlib.suppress(OSError):  # another command was quicker with the very same
                    making.rename(folder)
        finally:
            if not grows:
                shutil.rmtree(making, ignore_errors=True)
        meta = _cached_meta(folder)
        if meta is None:
            raise DataError("the preparation of the data made no files", where=str(folder))
    _check_size(meta, settings)
    return folder, meta


def growing_folder(
    home: Path, source: DataSource, settings: PhaseRecipe, tokenizer: Path | None, *more: str
) -> Path:
    """Return the folder of this machine in which data grows shard by shard."""
    made_with = [] if tokenizer is None else [str(tokenizer)]
    return home / DATA_DIR / growing_key(source, settings, *made_with, *more)


def _are_shards(source: DataSource, settings: PhaseRecipe) -> bool:
    """Whether files of this machine are the kind that is prepared one by one: where a row is a
    text, lines of JSON are texts, too."""
    path = Path(source.name)
    if source.data_set is not None or not path.exists():
        return False
    files = [path] if path.is_file() else [f for f in path.iterdir() if f.name[:1] != "."]
    if settings.file_layout:
        return path.is_file()
    kinds = (*_SHARDS, "jsonl") if settings.row_is_text else _SHARDS
    return bool(files) and all(layout_of(file.name) in kinds for file in files)


def _write_request(
    home: Path, folder: Path, source: DataSource, settings: PhaseRecipe, *, needs_cache: bool
) -> list[str]:
    """Write the files beside ``folder`` that the trainer's ``prepare`` reads; return its words."""
    settings_path = folder.with_suffix(".settings.json")
    named_path = folder.with_suffix(".data-set.json")
    words = ["--source", source.name, "--settings", str(settings_path)]
    remote = source.data_set if source.data_set is not None and source.data_set.is_remote else None
    if remote is not None or needs_cache:
        words += ["--cache", str(home / DATA_CACHE_DIR)]
    try:
        make_home(home)
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(settings_path, json.dumps(settings.to_json()))
        if remote is not None:
            write_atomic(named_path, json.dumps(remote.to_json()))
            words += ["--data-set", str(named_path)]
    except OSError as error:
        raise DataError(
            f"the prepared data cannot be saved: {error.strerror}",
            where=str(folder.parent),
            next_step="set TRMCLOUD_HOME to a folder that you own",
        ) from None
    return words


TASK_FILES = "eval-tasks"
"""In the home's cache: the folder of downloaded files of tasks."""


def fetch_tasks(home: Path, suite: str, python_path: Sequence[str], progress: Progress) -> Path:
    """Download the files of a suite of tasks that are not here yet, and compare all with its table.

    Raises:
        DataError: a file is not to be had, or is not the published one.
        MissingExtra: the packages that fetch data are not installed.
    """
    need_data_extra()
    folder = home / DATA_CACHE_DIR / TASK_FILES
    folder.mkdir(parents=True, exist_ok=True)
    progress(f"files of {suite}", 0, 0)
    words = ["--suite", suite, "--cache", str(folder), "--fetch"]
    _run_prepare(words, python_path, progress, suite, "model.tasks")
    return folder


def _run_prepare(
    words: Sequence[str],
    python_path: Sequence[str],
    progress: Progress,
    source: str,
    module: str = "model.prepare",
) -> None:
    """
    Raises:
        DataError: the trainer's own ``module`` refuses the source.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(python_path)},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stdout:
        try:
            said = json.loads(line)
            progress(said["stage"], int(said.get("done", 0)), int(said.get("total", 0)))
        except (ValueError, KeyError, TypeError):
            continue
    errors = process.stderr.read()
    if process.wait() != 0:
        raise error_of(errors, process.returncode, source)


def prepared_from(folder: Path) -> str:
    """The source that ``folder`` was prepared from; empty where it holds no prepared data."""
    meta = _cached_meta(folder)
    return str(meta.get("source", "")) if meta is not None else ""


def error_of(stderr: str, code: int, where: str) -> TrmcloudError:
    """The error a trainer's command ended with, from the JSON object on its last line."""
    last = stderr.strip().splitlines()[-1:] or [""]
    try:
        said = json.loads(last[0])
        kind = {9: DataError, 10: CheckpointError}.get(code, TrmcloudError)
        error: TrmcloudError = kind(
            said["what"], where=said.get("where", ""), next_step=said.get("next_step", "")
        )
        error.exit_code = code
    except (ValueError, KeyError, TypeError, AttributeError):
        error = DataError(contract.strip_control(last[0]) or f"exit code {code}", where=where)
    return error


def _check_size(meta: dict[str, Any], settings: PhaseRecipe) -> None:
    """Prepared data may be cached from a smaller batch than the one asked for now."""
    if settings.leaves_targets_out:
        return
    needed = (settings.sequence + 1) * settings.batch
    if meta["train_tokens"] < needed or meta["validation_tokens"] < settings.sequence + 1:
        raise DataError(
            f"the data has {meta['train_tokens']} training and {meta['validation_tokens']} "
            f"validation tokens; one batch needs {needed} and {settings.sequence + 1}",
            where=str(meta.get("source", "")),
            next_step="give more text, or --set batch=1 --set sequence=64",
        )


def _cached_meta(folder: Path) -> dict[str, Any] | None:
    try:
        meta = json.loads((folder / contract.DATA_META_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return meta if isinstance(meta, dict) else None


def _key(source: DataSource, settings: PhaseRecipe, tokenizer: Path | None) -> str:
    """A name for what is prepared: the source as it is now, and all that shapes the tokens."""
    parts = [source.name, *_signature(source.name)]
    if source.data_set is not None and source.data_set.listing:
        parts += [source.data_set.base_url, source.data_set.listing]
    parts += [
        settings.tokenizer,
        settings.characters,
        str(settings.text_ids),
        repr(settings.validation_fraction),
        *([CHAT] if settings.rows == CHAT else []),
    ]
    if tokenizer is not None:
        parts.append(hashlib.sha256(tokenizer.read_bytes()).hexdigest())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:KEY_CHARS]


def _signature(source: str) -> list[str]:
    """Names, sizes and times of the source's files: cheap, and changed by any edit."""
    if source == STDLIB_SOURCE:
        return [sys.version, sys.base_prefix]
    if is_address(source):
        return []
    if source in data_set_names():
        return [(bundle_root() / "model" / "datasets" / f"{source}.toml").read_text()]
    path = Path(source)
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    stats = ((file, file.stat()) for file in files)
    return [f"{file} {stat.st_size} {stat.st_mtime_ns}" for file, stat in stats]
