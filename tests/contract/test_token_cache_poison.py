"""A pod that wants later runs to believe false tokens, with nothing but its own grants."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from model.preparing.cache import believed
from tests.contract.test_token_cache import KEY, Pods, files, pods, settle, tokens
from tests.standins.s3 import BUCKET
from trmcloud.pod.storage.presigned import Objects, StoreError

__all__ = ["pods"]

pytest.importorskip("boto3")
pytest.importorskip("moto")

pytestmark = pytest.mark.usefixtures("credentials")

NAME = "ab" * 16
IDS = np.arange(1, 2001, dtype=np.uint16)
LIES = np.full(2000, 7, dtype=np.uint16)


def write(folder: Path, ids: np.ndarray, text_bytes: int) -> None:
    """A token file and its record, which agree with one another."""
    (folder / "tokens").mkdir(parents=True, exist_ok=True)
    path = folder / f"tokens/{NAME}.bin"
    path.write_bytes(ids.tobytes())
    record = {
        "name": "shard_00000.parquet", "tokens": len(ids), "documents": 1,
        "text_bytes": text_bytes, "sha256": hashlib.sha256(ids.tobytes()).hexdigest(),
        "largest": int(ids.max()), "dtype": "uint16",
    }  # fmt: skip
    (folder / f"tokens/{NAME}.json").write_text(json.dumps(record))


def put(url: str, content: bytes) -> bool:
    """Whether the store took it."""
    try:
        md5 = hashlib.md5(content).digest()
        Objects().put(url, len(content), md5, lambda at, count: content[at : at + count])
    except StoreError:
        return False
    return True


def key_of(url: str) -> str:
    return urlsplit(url).path.removeprefix(f"/{BUCKET}/")


def test_a_hostile_pod_does_not_poison_the_next(pods: Pods) -> None:
    honest, cache = pods.next()
    write(cache, IDS, 8000)
    settle(honest)
    hostile, cache = pods.next()
    write(cache, LIES, 10**9)
    for known in ("_held", "_stored"):  # it stores again what it knows to be there
        setattr(hostile, known, {})
    settle(hostile)
    _, cache = pods.next()
    record = believed(cache / f"tokens/{NAME}.bin", 50257)
    assert record is not None
    assert record.text_bytes == 8000
    assert np.array_equal(np.fromfile(cache / f"tokens/{NAME}.bin", np.uint16), IDS)


def test_no_grant_reaches_an_object_that_is_there(pods: Pods) -> None:
    honest, cache = pods.next()
    write(cache, IDS, 8000)
    settle(honest)
    there = pods.s3.keys(BUCKET, f"{pods.at}/")
    assert len(there) == 5  # two files, two entries, and the probe
    for pod in ("pod-1", "pod-2"):  # its own grants renewed, and another's
        granted = {key_of(url) for url in pods.grants(pod).puts.values()}
        assert granted
        assert not granted & set(there)
        assert all(key.startswith(f"{pods.at}/{pod}/slot-") for key in granted)


def test_a_held_slot_and_its_entry_cannot_be_put_again(pods: Pods) -> None:
    grants = pods.grants("pod-1")
    if not any("if-none-match" in url for url in grants.puts.values()):
        pytest.skip("this store takes no conditions: the next test is about such")
    made, cache = pods.with_grants("pod-1", grants)
    write(cache, IDS, 8000)
    settle(made)
    taken = 0
    for name, url in grants.puts.items():
        key = key_of(url)
        if key in pods.s3.keys(BUCKET, f"{pods.at}/"):
            before = pods.s3.read(BUCKET, key)
            assert not put(url, b"x" * len(before)), name
            assert pods.s3.read(BUCKET, key) == before
            taken += 1
    assert taken == 4


def test_where_a_store_takes_no_conditions_the_pinned_hash_holds(
    pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer itself writes over what it stored, after it was pinned."""
    monkeypatch.setattr("trmcloud.adapters.s3.token_slots.takes_conditions", lambda *_: False)
    grants = pods.grants("pod-1")
    assert not any("if-none-match" in url for url in grants.puts.values())
    made, cache = pods.with_grants("pod-1", grants)
    write(cache, IDS, 8000)
    settle(made)
    pods.next()
    assert put(grants.puts["pod-1/slot-0000"], LIES.tobytes())
    pods.next()
    refused = f"tokens/{NAME}.bin in the bucket is not what the ledger pinned: it is made anew"
    assert pods.said[0] == refused
    assert len(pods.said) == 2


def test_what_was_never_pinned_is_not_there(pods: Pods) -> None:
    """A cache of an earlier version, and files of a pod that this ledger does not know."""
    made, cache = pods.next()
    name = tokens(cache, 0)
    settle(made)
    for key in list(pods.s3.keys(BUCKET, f"{pods.at}/")):
        slot = key.rpartition("/")[2]
        content = pods.s3.read(BUCKET, key)
        for at in (f"{pods.at}/stranger/{slot}", f"{pods.at}/{slot}"):
            moved = content.replace(b"pod-1/", at.removeprefix(f"{pods.at}/").encode()[:-9])
            pods.s3.client.put_object(Bucket=BUCKET, Key=at, Body=moved)
        pods.s3.client.delete_object(Bucket=BUCKET, Key=key)
    index = {"version": 1, "files": [{"name": f"{name}.bin", "slot": "slot-0000"}]}
    pods.s3.client.put_object(
        Bucket=BUCKET, Key=f"{pods.at}/index.json", Body=json.dumps(index).encode()
    )
    _, brought = pods.next()
    assert not brought.exists() or files(brought) == {}


def test_two_pods_at_once_keep_apart_and_the_first_pin_stays(pods: Pods) -> None:
    """The later one lies: the next one has what was pinned first."""
    both = [pods.grants(name) for name in ("pod-1", "pod-2")]
    (first, cache), (second, other) = (
        pods.with_grants(f"pod-{n}", grants) for n, grants in enumerate(both, 1)
    )
    write(cache, IDS, 8000)
    write(other, LIES, 10**9)
    settle(first)
    pods.pins += pods.bucket.stored_tokens(KEY, ["pod-1"], pods.pins)
    settle(second)
    pods._count = 2
    _, brought = pods.next()
    assert np.array_equal(np.fromfile(brought / f"tokens/{NAME}.bin", np.uint16), IDS)
    # With the same bytes either copy will do, and the second stands in where one is lost.
    third, cache = pods.next()
    write(cache, IDS, 8000)
    third._stored = {}
    settle(third)
    pods.next()
    pods.s3.client.delete_object(Bucket=BUCKET, Key=f"{pods.at}/pod-1/slot-0000")
    _, brought = pods.next()
    assert np.array_equal(np.fromfile(brought / f"tokens/{NAME}.bin", np.uint16), IDS)
