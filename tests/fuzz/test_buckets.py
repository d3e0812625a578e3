"""Whatever a bucket answers, by boto3's own parsers: a shelf, no word, or an error of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.mutate import briefly, variants
from tests.unit.core.manifests import manifest
from tests.unit.core.test_pod_contract import REPORT
from trmcloud.adapters.s3 import bucket as adapter
from trmcloud.adapters.s3.bucket import S3Bucket
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket_layout import Place
from trmcloud.core.contract.manifest import to_json
from trmcloud.core.errors import ProviderError, TrmcloudError

PLACE = Place("bucket", "p")
MANIFEST = to_json(manifest()).encode()
LISTING = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>'
    "<IsTruncated>false</IsTruncated><KeyCount>3</KeyCount>"
    + "".join(
        f"<Contents><Key>p/runs/r-1/fast/g1-slot-0/{name}</Key><Size>{size}</Size></Contents>"
        for name, size in (
            ("manifest.json", len(MANIFEST)), ("weights.safetensors", 1000), ("state.json", 10),
        )
    )
    + "</ListBucketResult>"
).encode()  # fmt: skip


class Raw(BytesIO):
    """A body as urllib3 gives it."""

    def stream(self, amount: int = 1 << 16, decode_content: bool = False) -> Iterator[bytes]:
        while chunk := self.read(amount):
            yield chunk


class Store:
    """Answers what it is told to, by the name of what is asked."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        self.headers: dict[str, str] = {}
        self.code = 200

    def answer(self, request: Any, **more: Any) -> Any:
        from botocore.awsrequest import AWSResponse

        body = b""
        if "list-type" in request.url:
            body = self.bodies["list"]
        elif request.method == "GET":
            body = self.bodies["get"]
        headers = {"content-length": str(len(body)), **self.headers}
        code = self.code if request.method == "GET" else 200
        return AWSResponse(request.url, code, headers, Raw(body))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return Store()


def bucket(store: Store) -> S3Bucket:
    import boto3
    from botocore.config import Config

    from trmcloud.adapters.s3.client import Client

    s3 = boto3.session.Session().client(
        "s3", region_name="us-east-1", config=Config(retries={"total_max_attempts": 1})
    )
    s3.meta.events.register("before-send.s3", store.answer)
    made = S3Bucket(PLACE)
    made.__dict__["client"] = Client(s3, PLACE, "us-east-1", "", False, None)
    return made


def tried(act: Callable[[], Any]) -> Any:
    with briefly(), suppress(TrmcloudError):
        return act()
    return None


def test_any_listing_and_any_manifest(store: Store) -> None:
    made = bucket(store)
    store.bodies = {"list": LISTING, "get": MANIFEST}
    (stored,) = made.checkpoints("r-1").whole
    assert stored.manifest == manifest()
    for variant in variants(LISTING, 300):
        store.bodies["list"] = variant
        tried(lambda: made.checkpoints("r-1"))
    store.bodies["list"] = LISTING
    for variant in variants(MANIFEST, 300):
        store.bodies["get"] = variant
        shelf = tried(lambda: made.checkpoints("r-1"))
        assert shelf is None or len(shelf.whole) + len(shelf.half) == 1
        assert shelf is None or all(one.manifest.run_id == "r-1" for one in shelf.whole)


def test_any_word_of_an_owner_and_any_headers(store: Store, tmp_path: Path) -> None:
    made = bucket(store)
    store.bodies = {"list": LISTING, "get": b'{"ledger": "l", "run": "r-1"}'}
    made.claim("r-1", "l")
    for number, variant in enumerate(variants(store.bodies["get"], 150)):
        store.bodies["get"] = variant
        store.code = (200, 200, 403, 404, 500)[number % 5]
        tried(lambda: made.claim("r-1", "l"))
    store.code = 200
    store.bodies["get"] = contract.dump(REPORT).encode()
    names = ("content-length", "content-range", "x-amz-meta-x", "etag", "last-modified")
    for number, variant in enumerate(variants(b"bytes 0-9/100 Mon, 01 Jan 2026 00:00:00 GMT", 150)):
        value = variant.decode("latin-1").replace("\r", "").replace("\n", "")[:5000]
        store.headers = {names[number % len(names)]: value}
        tried(lambda: made.claim("r-1", "l"))
        tried(lambda: made.checkpoints("r-1"))


def test_a_list_without_an_end_is_given_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "_MOST_PAGES", 5)
    made = bucket(store)
    tokens = iter(range(100))

    def page(**asked: Any) -> dict[str, Any]:
        return {"Contents": [], "NextContinuationToken": str(next(tokens))}

    monkeypatch.setattr(made.client.s3, "list_objects_v2", page)
    with pytest.raises(ProviderError, match="does not end"):
        made.checkpoints("r-1")
