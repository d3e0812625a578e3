"""The progress record of a growing folder of prepared data; see docs/decisions (0014).

Written by the trainer's ``model.prepare``; read by the trainer, by the agent that started both, and
by whoever shows it. Like everything that may come from a pod it is read strictly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from trmcloud.core.contract.records import ContractError, load
from trmcloud.core.values import dataclass

PROGRESS_VERSION = 1
PROGRESS_NAME = "progress.json"
SHARDS_NAME = "shards.jsonl"

STATES = ("working", "done", "failed", "stopped")

STALE_AFTER_S = 120.0
"""A preparer that has not rewritten its progress for so long is taken for dead."""


@dataclass(frozen=True)
class ShardRecord:
    """A line of ``shards.jsonl``: one shard's tokens are whole and in place.

    ``file`` lies in the folder; ``tokens`` ids begin at ``offset_bytes`` in it; ``sha256`` is that
    of those ids' bytes.
    """

    name: str
    file: str
    tokens: int
    documents: int
    sha256: str
    offset_bytes: int = 0
    text_bytes: int = 0
    version: int = PROGRESS_VERSION


@dataclass(frozen=True)
class DataProgress:
    """``progress.json``. Instants are epoch seconds.

    ``wanted_tokens`` is how many training tokens were asked for; ``tokens`` how many are in place,
    in ``shards`` shards of about ``planned_shards``. ``message`` and ``next_step`` are the
    failure's; ``again`` says that the same command may succeed, given time or room.
    """

    source: str
    state: str
    at: float
    pid: int
    pid_started: str
    host: str = ""
    """The host on which process ``pid`` runs."""
    stage: str = ""
    wanted_tokens: int = 0
    tokens: int = 0
    shards: int = 0
    planned_shards: int = 0
    downloaded_bytes: int = 0
    download_bytes: int = 0
    """Of all that will be downloaded: counted where a file's length is known, else estimated."""
    message: str = ""
    next_step: str = ""
    again: bool = False
    note: str = ""
    """A note for the user: kept tokens that are damaged and are made again."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds since the start by what had been reached: tokenizer, ready, done."""
    peaks: Mapping[str, float] = field(default_factory=dict)
    """Largest resident memory in bytes: of a worker, and of the tokenizer's training."""
    version: int = PROGRESS_VERSION


def load_progress(text: str | bytes) -> DataProgress:
    """
    Raises:
        ContractError: the text is no such record.
    """
    record = load(DataProgress, PROGRESS_VERSION, text)
    if record.state not in STATES:
        raise ContractError(f"unknown state {record.state!r}")
    return record


def load_shard(text: str | bytes) -> ShardRecord:
    """
    Raises:
        ContractError: the text is no such record.
    """
    record = load(ShardRecord, PROGRESS_VERSION, text)
    if "/" in record.file or not record.file.startswith("shard-"):
        raise ContractError(f"ShardRecord: {record.file!r} is no file of the folder")
    if record.tokens < 0 or record.offset_bytes < 0:
        raise ContractError("ShardRecord: a size below zero")
    return record
