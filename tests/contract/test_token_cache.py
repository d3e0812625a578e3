"""Tokens that a bucket keeps: stored by one pod, believed by the next as far as hashes allow."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from model.preparing.cache import read_checked_record
from tests.contract.s3_bucket import request
from tests.present import present
from tests.standins.s3 import BUCKET, S3
from trmcloud.adapters.s3.bucket import S3Bucket
from trmcloud.core.contract.bucket import CachedFile, CacheGrants, dump_grants, load_grants
from trmcloud.core.contract.bucket_layout import MOST_SLOTS, token_slots_for
from trmcloud.pod.storage.presigned import Objects, StoreError
from trmcloud.pod.storage.token_cache import TokenCache
from trmcloud.ports.bucket import CacheRequest

# -- token cache --------------------------------------------------------------------------------
# Tokens that a bucket keeps: stored by one pod, believed by the next as far as hashes allow.


pytest.importorskip("boto3")
pytest.importorskip("moto")

pytestmark = pytest.mark.usefixtures("credentials")

KEY = "0123456789abcdef"


class Pods:
    """Machines that make tokens of the same data, one after another."""

    def __init__(self, folder: Path, s3: S3, bucket: S3Bucket, prefix: str) -> None:
        self.folder, self.s3, self.bucket = folder, s3, bucket
        self.at = f"{prefix}/tokens/{KEY}"
        self.said: list[str] = []
        self.now = 0.0
        self.pins: tuple[CachedFile, ...] = ()
        """What the ledger would have."""
        self._count = 0

    def next(self, shards: int = 3) -> tuple[TokenCache, Path]:
        """(its part in the cache, the folder of the cache), what there was brought."""
        self._count += 1
        name = f"pod-{self._count}"
        return self.with_grants(name, self.grants(name, shards))

    def grants(self, name: str, shards: int = 3) -> CacheGrants:
        """As a controller gives them: what earlier pods stored is pinned first."""
        earlier = [f"pod-{number}" for number in range(self._count + 1)]
        self.pins += self.bucket.stored_tokens(KEY, earlier, self.pins)
        wanted = CacheRequest(KEY, str(self.folder / name / "data-cache"), shards, self.pins)
        grants = self.bucket.grant(request(cache=wanted, pod_name=name))
        cache = load_grants(dump_grants(grants)).cache  # as it goes to the pod
        assert cache is not None
        return cache

    def with_grants(self, name: str, grants: CacheGrants) -> tuple[TokenCache, Path]:
        self.said.clear()
        made = TokenCache(self.folder / name, grants, self.said.append, lambda: self.now)
        made.bring(lambda: None)
        return made, Path(grants.folder)

    def stored(self) -> dict[str, dict[str, Any]]:
        """What the bucket's entries say, by the files' names."""
        keys = self.s3.keys(BUCKET, f"{self.at}/")
        texts = [self.s3.read(BUCKET, k) for k in keys if "slot-" in k and k.endswith(".json")]
        return {entry["name"]: entry for entry in map(json.loads, texts)}


@pytest.fixture
def pods(tmp_path: Path, s3: S3, bucket: S3Bucket, prefix: str) -> Pods:
    return Pods(tmp_path, s3, bucket, prefix)


def tokens(cache: Path, number: int) -> str:
    """Token file and record, as the trainer's preparation writes them; its name in the cache."""
    name = hashlib.sha256(f"key {number}".encode()).hexdigest()[:32]
    content = hashlib.shake_128(name.encode()).digest(4000)
    (cache / "tokens").mkdir(parents=True, exist_ok=True)
    (cache / f"tokens/{name}.bin").write_bytes(content)
    record = {"sha256": hashlib.sha256(content).hexdigest(), "tokens": 2000}
    (cache / f"tokens/{name}.json").write_text(json.dumps(record))
    return f"tokens/{name}"


def tokenizer(cache: Path) -> str:
    (cache / "tokenizers").mkdir(parents=True, exist_ok=True)
    name = f"tokenizers/{hashlib.sha256(b'corpus').hexdigest()}.json"
    (cache / name).write_text('{"tokenizer": "…", "sha256": "…"}', encoding="utf-8")
    return name


def settle(cache: TokenCache) -> None:
    while cache.store_next():
        pass


def files(cache: Path) -> dict[str, bytes]:
    return {
        path.relative_to(cache).as_posix(): path.read_bytes()
        for path in cache.rglob("*")
        if path.is_file() and path.name[0] != "."
    }


def test_what_one_pod_made_the_next_one_has(pods: Pods) -> None:
    first, cache = pods.next()
    tokenizer(cache)
    for number in range(2):
        tokens(cache, number)
    (cache / "tokens" / "half-made.bin.part").write_bytes(b"x")
    (cache / "raw").mkdir()
    (cache / "raw" / "shard.parquet").write_bytes(b"its host has it")
    settle(first)
    (cache / "tokens" / "half-made.bin.part").unlink()
    (cache / "raw" / "shard.parquet").unlink()
    second, brought = pods.next()
    assert files(brought) == files(cache)
    assert pods.said == ["5 files of tokens came from the bucket"]
    tokens(brought, 2)
    settle(second)
    third, all_of_it = pods.next()
    assert files(all_of_it) == files(brought)
    assert not third.store_next(), "nothing is stored twice"


def test_a_poisoned_one_is_not_believed_made_anew_and_stored_again(pods: Pods) -> None:
    first, cache = pods.next()
    names = [tokens(cache, number) for number in range(2)]
    settle(first)
    bad = pods.stored()[f"{names[0]}.bin"]
    poisoned = bytes(bad["size_bytes"])
    key = f"{pods.at}/{bad['slot']}"
    pods.s3.client.put_object(Bucket=BUCKET, Key=key, Body=poisoned)
    second, brought = pods.next()
    assert f"{names[0]}.bin" not in files(brought)
    assert f"{names[1]}.bin" in files(brought)
    refused = "in the bucket differs from the ledger: made again"
    assert pods.said[0] == f"{names[0]}.bin {refused}"
    tokens(brought, 0)
    settle(second)
    assert files(pods.next()[1]) == files(cache)


def test_what_is_not_as_its_record_says_is_not_stored(pods: Pods) -> None:
    first, cache = pods.next()
    name = tokens(cache, 0)
    (cache / f"{name}.bin").write_bytes(b"cut short")
    settle(first)
    assert list(pods.stored()) == [f"{name}.json"]


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 9},
        {"name": "../../etc/passwd"},
        {"slot": "pod-9/slot-0000"},
        {"size_bytes": 1},
        {"sha256": "0"},
    ],
)
def test_an_entry_that_is_none_is_never_pinned(pods: Pods, changes: dict[str, Any]) -> None:
    first, cache = pods.next()
    name = tokens(cache, 0)
    settle(first)
    entry = pods.stored()[f"{name}.bin"]
    at = f"{pods.at}/{entry['slot']}.json"
    for text in (json.dumps(entry | changes).encode(), b"no entry", b"[" * 5000):
        pods.s3.client.put_object(Bucket=BUCKET, Key=at, Body=text)
        _, brought = pods.next()
        assert list(files(brought)) == [f"{name}.json"]


def test_a_silent_store_holds_nobody_up(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    first, cache = pods.next()
    tokens(cache, 0)
    settle(first)
    granted = pods.grants("later")
    monkeypatch.setattr("trmcloud.io.transfer._FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(
        "trmcloud.pod.storage.presigned.http.client.HTTPConnection.connect",
        lambda self: (_ for _ in ()).throw(ConnectionRefusedError(111, "Connection refused")),
    )
    made, brought = pods.with_grants("later", granted)
    (told,) = pods.said
    assert told.startswith("bucket tokens not readable, made again")
    tokens(brought, 1)
    for _ in range(20):
        made.store_next()
        pods.now += 100
    assert sum("not stored" in line for line in pods.said) == 5, "and is left at last"


def test_more_than_was_granted_for_is_left(pods: Pods) -> None:
    made, cache = pods.next(shards=1)
    for number in range(8):
        tokens(cache, number)
    settle(made)
    assert len(pods.stored()) == len(token_slots_for("pod-1", 1)) == 8
    assert len(token_slots_for("pod-1", 10_000)) == MOST_SLOTS


# -- A pod that wants later runs to believe false tokens, with nothing but its own grants -------


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
    return urlsplit(url).path.partition(f"/{BUCKET}/")[2]


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
    assert present(read_checked_record(cache / f"tokens/{NAME}.bin", 50257)).text_bytes == 8000
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
    monkeypatch.setattr("trmcloud.adapters.s3.bucket.supports_conditions", lambda *_: False)
    grants = pods.grants("pod-1")
    assert not any("if-none-match" in url for url in grants.puts.values())
    made, cache = pods.with_grants("pod-1", grants)
    write(cache, IDS, 8000)
    settle(made)
    pods.next()
    assert put(grants.puts["pod-1/slot-0000"], LIES.tobytes())
    pods.next()
    refused = f"tokens/{NAME}.bin in the bucket differs from the ledger: made again"
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
