"""What a folder of growing data says of itself, read as hostile as anything that a pod writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trmcloud.core.contract.data_progress import (
    STATES,
    DataProgress,
    ShardRecord,
    load_progress,
    load_shard,
)
from trmcloud.core.contract.records import ContractError

PROGRESS = {
    "source": "s",
    "state": "working",
    "at": 5.0,
    "pid": 7,
    "pid_started": "x",
    "version": 1,
}
SHARD = {"name": "a", "file": "shard-0", "tokens": 5, "documents": 1, "sha256": "h", "version": 1}


def shard(**changes: Any) -> ShardRecord:
    return load_shard(json.dumps({**SHARD, **changes}))


def test_what_is_left_out_is_nothing() -> None:
    assert load_progress(json.dumps(PROGRESS)) == DataProgress(
        source="s", state="working", at=5.0, pid=7, pid_started="x", host="", stage="",
        wanted_tokens=0, tokens=0, shards=0, planned_shards=0, downloaded_bytes=0,
        download_bytes=0, message="", next_step="", again=False, note="", seconds={}, peaks={},
        version=1,
    )  # fmt: skip
    assert shard() == ShardRecord(
        "a", "shard-0", 5, 1, "h", offset_bytes=0, text_bytes=0, version=1
    )
    assert shard(tokens=0, offset_bytes=0).tokens == 0


@pytest.mark.parametrize("state", STATES)
def test_every_state_that_there_is(state: str) -> None:
    assert load_progress(json.dumps({**PROGRESS, "state": state})).state == state


@pytest.mark.parametrize("change", [{"state": "dead"}, {"version": 2}, {"version": 0}, {"at": "5"}])
def test_what_is_no_progress_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ContractError):
        load_progress(json.dumps({**PROGRESS, **change}))


@pytest.mark.parametrize(
    "change",
    [{"file": "../shard-0"}, {"file": "shard-0/x"}, {"file": "meta.json"}, {"tokens": -1},
     {"offset_bytes": -1}, {"version": 2}],
)  # fmt: skip
def test_what_is_no_shard_of_the_folder_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ContractError):
        shard(**change)
