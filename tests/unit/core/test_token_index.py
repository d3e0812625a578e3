"""The entries of a bucket's token cache, a pod's text which may say anything, and their pins."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trmcloud.core.contract.bucket import CachedFile
from trmcloud.core.contract.bucket_layout import MAX_PUT_BYTES
from trmcloud.core.contract.records import ContractError
from trmcloud.core.contract.token_cache import (
    MAX_ENTRY_BYTES,
    is_cache_file,
    load_entry,
    offered,
    slots_for,
    unpinned,
)
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import fold_ledger

BIN, META = f"tokens/{'a' * 32}.bin", f"tokens/{'b' * 32}.json"
TOKENIZER = f"tokenizers/{'c' * 64}.json"
SHA256, OTHER = "0" * 64, "1" * 64
SLOT = "pod-1/slot-0000"


def load(size_bytes: int = 5, at: str = SLOT, **more: Any) -> CachedFile:
    entry = {"name": BIN, "slot": at, "size_bytes": size_bytes, "sha256": SHA256, "version": 1}
    return load_entry(json.dumps(entry | more).encode(), at, size_bytes)


@pytest.mark.parametrize("name", [BIN, META, TOKENIZER])
def test_an_entry_is_read_whole(name: str) -> None:
    assert load(name=name) == CachedFile(name, SLOT, 5, SHA256)
    assert load(MAX_PUT_BYTES).size_bytes == MAX_PUT_BYTES


@pytest.mark.parametrize(
    "name", ["tokens/x.bin", "../" + BIN, BIN + "\n", f"tokenizers/{'c' * 64}.bin", "", "slot-0000"]
)
def test_a_name_that_no_cache_has_is_refused(name: str) -> None:
    assert not is_cache_file(name)
    with pytest.raises(ContractError, match="no cache of tokens"):
        load(name=name)


@pytest.mark.parametrize(
    "at", ["slot-0000", "p/slot-1", "p/slot-00000", "p/slot-0000/x", "../slot-0000", "p/slot-٣٣٣٣"]
)
def test_a_slot_that_no_cache_has_is_refused(at: str) -> None:
    with pytest.raises(ContractError, match="no cache of tokens"):
        load(at=at)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ContractError, match="another size"):
        load_entry(json.dumps({**vars_of(load()), "size_bytes": 6}).encode(), SLOT, 5)
    with pytest.raises(ContractError, match="another size"):
        load((64 << 20) + 1, name=TOKENIZER)
    with pytest.raises(ContractError, match="another size"):
        load(MAX_PUT_BYTES + 1)
    with pytest.raises(ContractError, match="no cache of tokens"):
        load_entry(json.dumps(vars_of(load())).encode(), "pod-2/slot-0000", 5)
    for text in (b"", b"[]", b"{}", b"[" * 3000, b" " * (MAX_ENTRY_BYTES + 1)):
        with pytest.raises(ContractError):
            load_entry(text, SLOT, 5)
    with pytest.raises(ContractError, match="version"):
        load(version=2)


def vars_of(file: CachedFile) -> dict[str, Any]:
    names = ("name", "slot", "size_bytes", "sha256", "version")
    return {name: getattr(file, name) for name in names}


def test_slots_are_those_of_one_pod() -> None:
    assert slots_for("pod-1", 0)[-1] == "pod-1/slot-0005"
    assert slots_for("pod-1", 3)[-1] == "pod-1/slot-0011"
    assert slots_for("pod-1", 10**6)[-1] == "pod-1/slot-1023"


def test_only_whole_files_of_known_pods_that_have_no_pin_are_unpinned() -> None:
    sizes = {
        "pod-1/slot-0000": 5, "pod-1/slot-0000.json": 9, "pod-1/slot-0001": 5,
        "pod-1/slot-0002": 5, "pod-1/slot-0002.json": 9, "pod-1/made.json": 2,
        "pod-9/slot-0000": 5, "pod-9/slot-0000.json": 9, "slot-0000": 5, "slot-0000.json": 5,
    }  # fmt: skip
    pins = [CachedFile(BIN, "pod-1/slot-0002", 5, SHA256)]
    assert unpinned(sizes, {"pod-1", "slot-0000"}, pins) == ("pod-1/slot-0000",)


def test_of_a_name_the_bytes_pinned_first_are_offered_while_any_copy_is_there() -> None:
    first, lie, copy = (
        CachedFile(BIN, f"pod-{n}/slot-0000", 5, sha256)
        for n, sha256 in enumerate((SHA256, OTHER, SHA256))
    )
    sizes = {file.slot: 5 for file in (first, lie, copy)}
    pins = (first, lie, copy)
    assert offered(pins, sizes) == (first, copy)
    assert offered(pins, {**sizes, first.slot: 6}) == (copy,)
    assert offered(pins, {lie.slot: 5}) == (lie,)
    assert offered(pins, {}) == ()


def test_a_slots_first_pin_stays_in_the_ledger() -> None:
    first = CachedFile(BIN, SLOT, 5, SHA256)
    second = CachedFile(META, "pod-1/slot-0001", 5, SHA256)
    lie = CachedFile(BIN, SLOT, 5, OTHER)
    at = "s3://b/p", "key"
    noted = [ev.TokensPinned(*at, (first,)), ev.TokensPinned(*at, (lie, second))]
    records = [ev.Record(n, "", 0, float(n), event) for n, event in enumerate(noted, 1)]
    assert fold_ledger("01234567", records).tokens == {at: (first, second)}
