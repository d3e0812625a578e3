"""What a pod uploads is bound to a length where one is known; what is larger is found."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("boto3")
pytest.importorskip("moto")

from tests.contract.s3_bucket import bucket, connected, credentials, prefix, request, silent, stored
from tests.contract.test_pod_upload import POD, account, save, settle, uploader
from tests.standins.s3 import BUCKET, S3, s3, store_at
from tests.standins.strict_store import SECRET, StrictStore, strict_store
from trmcloud.adapters.s3 import bucket as adapter
from trmcloud.adapters.s3.bucket import S3Bucket
from trmcloud.adapters.s3.client import Client
from trmcloud.core.contract import bucket as bk
from trmcloud.core.contract import bucket_layout
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket_layout import (
    CHECKPOINT_NAMES,
    Place,
    is_oversized,
    pieces_of,
    slots_of,
)
from trmcloud.core.contract.records import MAX_JSON_BYTES
from trmcloud.io.files import write_atomic
from trmcloud.pod.storage.presigned import Objects, StoreError

__all__ = ["bucket", "connected", "credentials", "prefix", "s3"]

pytestmark = pytest.mark.usefixtures("credentials")
FEW = {"fast": 5000}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_layout, "PIECE_BYTES", 1000)


@pytest.fixture
def strict(s3: S3) -> Iterator[StrictStore]:
    if s3.is_other:
        pytest.skip("the store is another one")
    with strict_store() as store:
        yield store


def put(url: str, body: bytes) -> None:
    md5 = hashlib.md5(body).digest()
    Objects().put(url, len(body), md5, lambda at, count: body[at : at + count])


def strict_bucket(connected: Client, strict: StrictStore) -> S3Bucket:
    made = S3Bucket(Place(BUCKET, "p"))
    client = store_at(strict.url, "id", SECRET).client
    made.__dict__["client"] = replace(connected, s3=client, place=Place(BUCKET, "p"))
    return made


def test_full_pieces_are_signed_with_their_length_alone(
    bucket: S3Bucket,
) -> None:
    puts = bucket.grant(request(phases={"fast": 1}, file_bytes=FEW)).puts
    bound = {}
    for key, url in puts.items():
        signed = parse_qs(urlsplit(url).query)["X-Amz-SignedHeaders"][0].split(";")
        _, _, length = key.partition(":")
        assert ("content-length" in signed) == bool(length)
        if length:
            bound[key] = int(length)
            assert urlsplit(url).path.endswith(key.partition(":")[0].removeprefix("fast/"))
    slots = slots_of(1, 1)
    assert set(bound.values()) == {1000}
    assert len(bound) == len(slots) * 2 * 5, "as many as a file of 5,000 bytes has, of both files"
    assert len(puts) - len(bound) == len(slots) * len(CHECKPOINT_NAMES)


def test_a_store_by_the_rules_takes_no_other_length(connected: Client, strict: StrictStore) -> None:
    grants = strict_bucket(connected, strict).grant(request(phases={"fast": 1}, file_bytes=FEW))
    url = grants.puts["fast/g1-slot-0/weights.safetensors.part-00002:1000"]
    for size in (0, 1, 999, 1001, 5000):
        with pytest.raises(StoreError, match="403 SignatureDoesNotMatch") as caught:
            put(url, bytes(size))
        assert caught.value.refused
    assert strict.objects == {}
    put(url, bytes(1000))
    for other in (url.replace("part-00002", "part-00003"), url.replace("content-length%3B", "")):
        with pytest.raises(StoreError, match="SignatureDoesNotMatch"):
            put(other, bytes(1000))
    put(grants.puts["fast/g1-slot-0/manifest.json"], b"any length")
    assert {name.rpartition("/")[2] for name in strict.objects} == {
        "weights.safetensors.part-00002", "manifest.json",
    }  # fmt: skip


@pytest.mark.parametrize("size", [999, 1000, 1001, 2000, 4500, 5000])
def test_a_pod_uploads_any_checkpoint_that_it_was_granted(
    connected: Client, strict: StrictStore, tmp_path: Path, size: int
) -> None:
    grants = strict_bucket(connected, strict).grant(
        request(pod_name=POD, phases={"fast": 1}, file_bytes=FEW)
    )
    folder = tmp_path / contract.PODS_DIR / POD
    folder.mkdir(parents=True)
    phases = (contract.PhaseLease("fast", 0.0, 1.0, 1.0),)
    lease = contract.Lease(
        "r1", POD, 1, 0.0, 1.0, 2.0, 1.0, phases, fits_budget=True, min_useful_s=1.0
    )
    write_atomic(folder / contract.LEASE_NAME, contract.dump(lease))
    write_atomic(folder / bk.GRANTS_NAME, bk.dump_grants(grants), mode=0o600)
    made = save(tmp_path, 10, 1.0, size=size)
    settle(uploader(tmp_path))
    assert [kept.sha256 for kept in account(tmp_path).uploaded] == [made.sha256]
    names = [piece.name for piece in pieces_of("weights.safetensors", size)]
    whole = b"".join(strict.objects[f"/{BUCKET}/p/runs/r1/fast/g1-slot-0/{name}"] for name in names)
    assert hashlib.sha256(whole).hexdigest() == made.sha256


def test_what_is_larger_than_granted_is_found_never_read_and_dropped(
    bucket: S3Bucket, s3: S3, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(bucket, tmp_path, 10, 1.0, slot=0)
    stored(bucket, tmp_path, 20, 2.0, slot=1)
    at = f"{prefix}/runs/r1"
    large = {
        f"{at}/fast/g1-slot-1/state.json": 1001,
        f"{at}/fast/g1-slot-2/weights.safetensors": 1001,
        f"{at}/fast/g1-slot-2/manifest.json": mf.MAX_MANIFEST_BYTES + 1,
        f"{at}/g1-report.json": MAX_JSON_BYTES + 1,
    }
    others = {
        f"{at}/fast/g1-slot-2/optimizer.safetensors": 1000,
        f"{at}/notes/of/somebody/large.bin": 5000,
        f"{at}/fast/g1-slot-0/large.bin": 5000,
    }
    for key, size in {**large, **others}.items():
        s3.client.put_object(Bucket=BUCKET, Key=key, Body=bytes(size))
    read = []

    def noted(client: Client, key: str, most: int) -> bytes | None:
        read.append(key)
        return adapter_get_bytes(client, key, most)

    adapter_get_bytes = adapter.get_bytes  # type: ignore[attr-defined]
    monkeypatch.setattr(adapter, "get_bytes", noted)
    shelf = bucket.checkpoints("r1", FEW)
    assert [one.manifest.step for one in shelf.whole] == [10]
    assert dict(shelf.half) == {
        "fast/g1-slot-1": "state.json is larger than any grant of a pod",
        "fast/g1-slot-2": "weights.safetensors is larger than any grant of a pod",
    }
    assert read == [f"{at}/fast/g1-slot-0/manifest.json"]
    found = dict(bucket.oversized("r1", FEW))
    assert found == large
    bucket.drop(list(found))
    assert bucket.oversized("r1", FEW) == ()
    assert not large.keys() & s3.keys(BUCKET, prefix).keys()
    assert others.keys() <= s3.keys(BUCKET, prefix).keys()


def test_a_run_whose_sizes_nobody_knows_has_limits_all_the_same(
    bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bucket_layout, "PIECE_BYTES", 64 << 20)
    largest = 4 << 30
    slot = "fast/g1-slot-0"
    assert not is_oversized(f"{slot}/weights.safetensors.part-00015", largest, {})
    assert is_oversized(f"{slot}/weights.safetensors.part-00015", largest + 1, {})
    assert not is_oversized(f"{slot}/state.json", 64 << 20, {})
    assert is_oversized(f"{slot}/state.json", (64 << 20) + 1, {})
    grants = bucket.grant(request(until=time.time() + 60, file_bytes={}))
    assert len(bk.dump_grants(grants)) < bk.MAX_GRANTS_BYTES / 4
    assert bk.load_grants(bk.dump_grants(grants)) == grants
    silent(0, 0)
