"""The index of a bucket's token cache: a pod's text, which may say anything."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trmcloud.core.contract.bucket import CachedFile
from trmcloud.core.contract.bucket_layout import MAX_PUT_BYTES
from trmcloud.core.contract.records import MAX_JSON_BYTES, ContractError
from trmcloud.core.contract.token_cache import (
    CacheIndex,
    is_cache_file,
    load_index,
    slot_for,
    slots_for,
)

BIN, META = f"tokens/{'a' * 32}.bin", f"tokens/{'b' * 32}.json"
TOKENIZER = f"tokenizers/{'c' * 64}.json"
SHA256 = "0" * 64


def row(name: str = BIN, slot: str = "slot-0000", **more: Any) -> dict[str, Any]:
    return {"name": name, "slot": slot, "size_bytes": 5, "sha256": SHA256, **more}


def load(*rows: Any, version: int = 1) -> tuple[CachedFile, ...]:
    return load_index(json.dumps({"files": rows, "version": version}).encode())


def test_an_index_is_read_whole() -> None:
    assert load(row(), row(META, "slot-1023"), row(TOKENIZER, "slot-0007")) == (
        CachedFile(BIN, "slot-0000", 5, SHA256),
        CachedFile(META, "slot-1023", 5, SHA256),
        CachedFile(TOKENIZER, "slot-0007", 5, SHA256),
    )
    assert load(row(size_bytes=MAX_PUT_BYTES))[0].size_bytes == MAX_PUT_BYTES
    assert CacheIndex(()).version == 1
    assert load() == ()


@pytest.mark.parametrize(
    "name", ["tokens/x.bin", "../" + BIN, BIN + "\n", f"tokenizers/{'c' * 64}.bin", "", "slot-0000"]
)
def test_a_name_that_no_cache_has_is_refused(name: str) -> None:
    assert not is_cache_file(name)
    with pytest.raises(ContractError, match="no cache of tokens"):
        load(row(), row(name, "slot-0001"))


@pytest.mark.parametrize("slot", ["slot-1", "slot-00000", "slot-0000/x", "slot-٣٣٣٣", ""])
def test_a_slot_that_no_cache_has_is_refused(slot: str) -> None:
    with pytest.raises(ContractError, match="no cache of tokens"):
        load(row(slot=slot))


def test_what_cannot_be_or_stands_twice_is_refused() -> None:
    with pytest.raises(ContractError, match="larger than any"):
        load(row(size_bytes=MAX_PUT_BYTES + 1))
    with pytest.raises(ContractError, match="a name twice"):
        load(row(), row(slot="slot-0001"))
    with pytest.raises(ContractError, match="a slot twice"):
        load(row(), row(META))
    with pytest.raises(ContractError):
        load(version=2)
    with pytest.raises(ContractError, match="larger than any real one"):
        load_index(b" " * (MAX_JSON_BYTES + 1))


def test_as_many_slots_as_the_shards_may_need() -> None:
    assert slots_for(0) == tuple(f"slot-000{n}" for n in range(6))
    assert len(slots_for(3)) == 12
    assert slots_for(3)[-1] == "slot-0011"
    assert len(slots_for(508)) == 1022
    assert len(slots_for(100_000)) == 1024


def test_a_file_goes_where_it_lay_or_into_the_first_slot_that_is_free() -> None:
    held = [CachedFile(BIN, "slot-0000", 5, SHA256)]
    slots = {"slot-0000": "url", "slot-0001": "url"}
    assert slot_for(BIN, held, slots) == "slot-0000"
    assert slot_for(META, held, slots) == "slot-0001"
    assert slot_for(META, held, {"slot-0000": "url"}) == ""
    assert is_cache_file(BIN)
    assert is_cache_file(TOKENIZER)
