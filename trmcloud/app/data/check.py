"""A folder of prepared data held to its own records: sizes, hashes, and whether all of it is there.

What the files are stands in docs/decisions/0014.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.data_progress import SHARDS_NAME, ShardRecord, load_shard
from trmcloud.core.contract.records import ContractError
from trmcloud.io.hashing import file_sha256

_WIDTHS = {"uint16": 2, "uint32": 4}


class Checked(NamedTuple):
    """One file, and what was found."""

    name: str
    good: bool
    detail: str


def is_prepared(folder: Path) -> bool:
    """Whether the folder holds prepared data, finished or not."""
    return folder.is_dir() and any(
        (folder / name).is_file() for name in (contract.DATA_META_NAME, SHARDS_NAME)
    )


def check_folder(folder: Path) -> Iterator[Checked]:
    """Every file of it, the small ones first."""
    meta = _meta(folder / contract.DATA_META_NAME)
    if meta is None:
        yield Checked(contract.DATA_META_NAME, False, "missing or damaged: it is not finished")
        return
    width = _WIDTHS.get(str(meta.get("dtype")), 0)
    complete = bool(meta.get("complete", True))
    about = f"{meta.get('source')}, {meta.get('train_tokens'):,} tokens to train on"
    yield Checked(
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
            yield Checked(SHARDS_NAME, False, str(error))


def _meta(path: Path) -> dict[str, Any] | None:
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    known = isinstance(meta, dict) and isinstance(meta.get("train_tokens"), int)
    return meta if known else None


def _tokenizer(path: Path, meta: dict[str, Any]) -> Checked:
    about = meta.get("tokenizer")
    about = about if isinstance(about, dict) else {}
    try:
        found = file_sha256(path)
    except OSError:
        return Checked(path.name, False, "missing")
    if found != about.get("sha256"):
        return Checked(path.name, False, "not the one that made these tokens")
    return Checked(path.name, True, f"{about.get('kind')}, {about.get('vocab_size'):,} ids")


def _tokens(path: Path, tokens: Any, width: int) -> Checked:
    try:
        size = path.stat().st_size
    except OSError:
        return Checked(path.name, False, "missing")
    good = isinstance(tokens, int) and size == tokens * width
    return Checked(path.name, good, f"{size:,} bytes" + ("" if good else f", not {tokens} tokens"))


def _shard(folder: Path, record: ShardRecord, width: int) -> Checked:
    try:
        found = file_sha256(folder / record.file, record.offset_bytes, record.tokens * width)
    except OSError:
        return Checked(record.file, False, f"missing ({record.name})")
    good = found == record.sha256
    told = f"{record.name}: {record.tokens:,} tokens"
    return Checked(record.file, good, f"{told}, hash as recorded" if good else f"{told}, damaged")
