"""Training data, made ready before anything is rented: read, split, tokenized, cached."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trmcloud.app.bundle import bundle_root
from trmcloud.core import pod_contract as contract
from trmcloud.core.datasets import is_address
from trmcloud.core.errors import CheckpointError, DataError, MissingExtra, TrmcloudError
from trmcloud.core.recipe import PhaseRecipe
from trmcloud.pod.files import write_atomic

DATA_DIR = "data"
STDLIB_SOURCE = "python-stdlib"
_FOR_DATA = ("numpy", "tokenizers")
_FOR_TRAINING = ("torch", "numpy", "safetensors", "tokenizers")

Progress = Callable[[str, int, int], None]


def need_training_extra() -> None:
    """
    Raises:
        MissingExtra: something of the ``train`` extra is not installed.
    """
    _need(_FOR_TRAINING, "training on this machine", "train")


def need_data_extra() -> None:
    """For a machine that is rented, this one makes the data ready and no more.

    Raises:
        MissingExtra: something of the ``data`` extra is not installed.
    """
    _need(_FOR_DATA, "making data ready", "data")


def _need(names: Sequence[str], purpose: str, extra: str) -> None:
    import importlib.util

    if any(importlib.util.find_spec(name) is None for name in names):
        raise MissingExtra(purpose, extra)


def resolve_source(named: str, settings: PhaseRecipe) -> str:
    """The source to train on: the user's, else the recipe's own.

    Raises:
        DataError: there is none, or it does not exist.
    """
    source = named or settings.data
    if not source:
        raise DataError(
            f"recipe {settings.recipe} brings no data of its own",
            next_step="name a text file or a folder: --data PATH",
        )
    if is_address(source) or source in data_set_names():
        return source
    path = Path(source).expanduser().absolute()
    if not path.exists():
        raise DataError("no such file or folder", where=str(path), next_step="--data PATH")
    if not os.access(path, os.R_OK):
        raise DataError("the data cannot be read", where=str(path), next_step="chmod +r it")
    return str(path)


def data_set_names() -> list[str]:
    """The data sets that go by a name."""
    return sorted(path.stem for path in (bundle_root() / "model" / "datasets").glob("*.toml"))


def prepare(
    home: Path,
    source: str,
    settings: PhaseRecipe,
    python_path: Sequence[str],
    progress: Progress,
    *,
    tokenizer: Path | None = None,
) -> tuple[Path, dict[str, Any]]:
    """The folder of prepared data for ``source`` and its ``meta.json``, made now if need be.

    ``tokenizer`` is the file of one to use; without it, one is learnt from the text.

    Raises:
        DataError: the text cannot be used, said by the trainer's own ``prepare``; or there is no
            room for it.
    """
    folder = home / DATA_DIR / _key(source, settings, tokenizer)
    meta = _meta(folder)
    if meta is not None:
        _check_size(meta, settings)
        return folder, meta
    settings_path = folder.with_suffix(".settings.json")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(settings_path, json.dumps(settings.to_json()))
    except OSError as error:
        raise DataError(
            f"the prepared data cannot be kept: {error.strerror}",
            where=str(folder.parent),
            next_step="set TRMCLOUD_HOME to a folder of yours",
        ) from None
    # Made aside, so that data which a run reads already is never replaced under its feet.
    making = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        _run_prepare(
            [
                *("--source", source, "--settings", str(settings_path), "--out", str(making)),
                *(("--tokenizer", str(tokenizer)) if tokenizer is not None else ()),
            ],
            source,
            python_path,
            progress,
        )
        with contextlib.suppress(OSError):  # somebody else was quicker with the very same
            making.rename(folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    meta = _meta(folder)
    if meta is None:
        raise DataError("preparing the data left nothing behind", where=str(folder))
    return folder, meta


def _run_prepare(
    arguments: Sequence[str], source: str, python_path: Sequence[str], progress: Progress
) -> None:
    """The trainer's own ``prepare``, its progress told on.

    Raises:
        DataError: what it says about ``source``.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(python_path)}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "model.prepare", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
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
    meta = _meta(folder)
    return str(meta.get("source", "")) if meta is not None else ""


def error_of(stderr: str, code: int, where: str) -> TrmcloudError:
    """The error a trainer's command ended with, from the JSON object on its last line."""
    last = stderr.strip().splitlines()[-1:] or [""]
    try:
        said = json.loads(last[0])
        error: TrmcloudError = _by_exit_code(code)(
            said["what"], where=said.get("where", ""), next_step=said.get("next_step", "")
        )
        error.exit_code = code
    except (ValueError, KeyError, TypeError, AttributeError):
        error = DataError(contract.strip_control(last[0]) or f"exit code {code}", where=where)
    return error


def _by_exit_code(code: int) -> type[TrmcloudError]:
    return {9: DataError, 10: CheckpointError}.get(code, TrmcloudError)


def _check_size(meta: dict[str, Any], settings: PhaseRecipe) -> None:
    """Prepared data may be cached from a smaller batch than the one asked for now."""
    needed = (settings.sequence + 1) * settings.batch
    if meta["train_tokens"] < needed or meta["validation_tokens"] < settings.sequence + 1:
        raise DataError(
            f"the data has {meta['train_tokens']} training and {meta['validation_tokens']} "
            f"validation tokens; one batch needs {needed} and {settings.sequence + 1}",
            where=str(meta.get("source", "")),
            next_step="give more text, or --set batch=1 --set sequence=64",
        )


def _meta(folder: Path) -> dict[str, Any] | None:
    try:
        meta = json.loads((folder / contract.DATA_META_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return meta if isinstance(meta, dict) else None


def _key(source: str, settings: PhaseRecipe, tokenizer: Path | None) -> str:
    """A name for what is prepared: the source as it is now, and all that shapes the tokens."""
    parts = [
        source,
        *_signature(source),
        settings.tokenizer,
        str(settings.vocab_size),
        repr(settings.validation_fraction),
    ]
    if tokenizer is not None:
        parts.append(hashlib.sha256(tokenizer.read_bytes()).hexdigest())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _signature(source: str) -> list[str]:
    """Names, sizes and times of the source's files: cheap, and changed by any edit."""
    if source == STDLIB_SOURCE:
        return [sys.version, sys.base_prefix]
    if is_address(source):
        return []
    if source in data_set_names():
        return [(bundle_root() / "model" / "datasets" / f"{source}.toml").read_text()]
    path = Path(source)
    if path.is_file():
        files = [path]
    else:
        files = sorted(entry for entry in path.rglob("*") if entry.is_file())
    signed = []
    for file in files:
        stat = file.stat()
        signed.append(f"{file} {stat.st_size} {stat.st_mtime_ns}")
    return signed
