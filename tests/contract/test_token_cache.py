"""Tokens that a bucket keeps: stored by one pod, believed by the next as far as hashes allow."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.s3_bucket import request
from tests.standins.s3 import BUCKET, S3
from trmcloud.adapters.s3.bucket import S3Bucket
from trmcloud.core.contract.bucket import CachedFile, CacheGrants, dump_grants, load_grants
from trmcloud.core.contract.token_cache import MOST_SLOTS, slots_for
from trmcloud.pod.storage.token_cache import TokenCache
from trmcloud.ports.bucket import CacheRequest

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
    refused = "in the bucket is not what the ledger pinned: it is made anew"
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


def test_a_store_that_does_not_answer_holds_nobody_up(
    pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, cache = pods.next()
    tokens(cache, 0)
    settle(first)
    granted = pods.grants("later")
    monkeypatch.setattr("trmcloud.pod.storage.fetch.time.sleep", lambda seconds: None)
    monkeypatch.setattr(
        "trmcloud.pod.storage.presigned.http.client.HTTPConnection.connect",
        lambda self: (_ for _ in ()).throw(ConnectionRefusedError(111, "Connection refused")),
    )
    made, brought = pods.with_grants("later", granted)
    (told,) = pods.said
    assert told.startswith("tokens in the bucket cannot be had, and are made anew: ")
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
    assert len(pods.stored()) == len(slots_for("pod-1", 1)) == 8
    assert len(slots_for("pod-1", 10_000)) == MOST_SLOTS
