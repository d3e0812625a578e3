"""What is read of a bucket's names and records: grants, uploads, places, sizes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trmcloud.core.contract import bucket as bk
from trmcloud.core.contract.bucket_layout import Place, is_oversized, is_slot, parse_place
from trmcloud.core.contract.manifest import MAX_MANIFEST_BYTES
from trmcloud.core.contract.records import MAX_JSON_BYTES, ContractError
from trmcloud.core.errors import UsageError

SHA256 = "0" * 64
FILE = {"name": "a/b.bin", "size_bytes": 5, "sha256": SHA256, "urls": ["https://x"]}


def grants(**changes: Any) -> bk.Grants:
    data: dict[str, Any] = {
        "pod_name": "trmc-x", "until": 5.0, "phases": {}, "puts": {}, "version": 1, **changes,
    }  # fmt: skip
    return bk.load_grants(json.dumps(data))


def folder(path: str = "/data", *files: dict[str, Any]) -> dict[str, Any]:
    return {"folder": path, "files": [*files]}


def cache(path: str = "/cache", *files: dict[str, Any]) -> dict[str, Any]:
    return {"folder": path, "gets": [*files], "held": [], "puts": {}, "index": "https://x"}


def test_grants_may_lead_into_their_folders() -> None:
    made = grants(gets=[folder("/data", FILE)], cache=cache("/cache", FILE))
    assert made.gets[0].files[0].name == "a/b.bin"
    assert made.gets[0].needed is True
    assert made.cache is not None
    assert (grants().gets, grants().report, grants().cache) == ((), "", None)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/../b", "a//b", "/etc/passwd", "a/", "a\0b", "a/./b"]
)
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    bad = {**FILE, "name": name}
    for change in (
        {"gets": [folder("/data", FILE, bad)]},
        {"gets": [folder("/data", FILE), folder("/more", bad)]},
        {"cache": cache("/cache", FILE, bad)},
    ):
        with pytest.raises(ContractError, match="leads elsewhere"):
            grants(**change)


@pytest.mark.parametrize("path", ["", "data", "./data", "~/data"])
def test_a_folder_that_is_no_absolute_path_is_refused(path: str) -> None:
    for change in ({"gets": [folder(path)]}, {"cache": cache(path)}):
        with pytest.raises(ContractError, match="leads elsewhere"):
            grants(**change)


def test_grants_have_bounds_of_their_own() -> None:
    many = {f"fast/g1-slot-0/{n}": "https://x" for n in range(65_536)}
    assert len(grants(puts=many).puts) == 65_536
    with pytest.raises(ContractError, match="longer than any real one"):
        grants(puts={**many, "one": "more"})
    with pytest.raises(ContractError, match="larger than any real one"):
        bk.load_grants(" " * ((16 << 20) + 1))
    with pytest.raises(ContractError, match="no JSON"):
        bk.load_grants(" " * (16 << 20))


def test_uploads_are_read_and_their_trouble_is_cut() -> None:
    read = bk.load_uploads(json.dumps({"trouble": "x" * 201, "fetched": True}))
    assert read == bk.Uploads(trouble="x" * 200, fetched=True)
    assert bk.load_uploads('{"trouble": "why"}').trouble == "why"
    with pytest.raises(ContractError):
        bk.load_uploads('{"fetched": "yes"}')


def test_a_place_has_at_most_twelve_folders() -> None:
    twelve = "/".join("abcdefghijkl")
    assert parse_place(f"s3://bucket/{twelve}") == Place("bucket", twelve)
    assert parse_place("s3://bucket//a//") == Place("bucket", "a")
    for text in (f"s3://bucket/{twelve}/m", "bucket/a", "s3://b", "s3://bucket/a/.."):
        with pytest.raises(UsageError, match="does not name a bucket"):
            parse_place(text)


@pytest.mark.parametrize(
    ("name", "slot"),
    [("g1-slot-0", True), ("g1-slot-0x", False), ("g12345-slot-0", False), ("slot-0", False)],
)
def test_what_is_a_slot(name: str, slot: bool) -> None:
    assert is_slot(name) is slot


PIECE = 64 << 20


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("g1-report.json", MAX_JSON_BYTES),
        ("fast/g1-slot-0/manifest.json", MAX_MANIFEST_BYTES),
        ("fast/g1-slot-0/state.json", PIECE),
        ("fast/g1-slot-0/weights.safetensors", 2 * PIECE),
        ("fast/g1-slot-0/weights.safetensors.part-00000", 2 * PIECE),
        ("fast/g1-slot-0/state.json.part-00000", 2 * PIECE),
        ("extreme/g1-slot-0/weights.safetensors", 4096 << 20),
    ],
)
def test_each_object_has_a_most(path: str, most: int) -> None:
    """Files of up to 32 pieces in ``fast``: twice as large; of the other nothing is known."""
    sizes = {"fast": 32 * PIECE}
    assert not is_oversized(path, most, sizes)
    assert is_oversized(path, most + 1, sizes)


@pytest.mark.parametrize(
    "path",
    ["", "fast", "fast/g1-slot-0", "fast/g1-slot-0/other.bin", "fast/slot-0/state.json",
     "fast/g1-slot-0/state.json/x", "owner.json", "report.json", "x/g1-report.json"],
)  # fmt: skip
def test_what_no_pod_is_granted_has_none(path: str) -> None:
    assert not is_oversized(path, 1 << 50, {})
