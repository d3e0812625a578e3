"""Stores that lack a part of S3: what is sent there arrives all the same, and nothing is left."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.s3_bucket import silent
from tests.standins.s3 import BUCKET, S3
from trmcloud.adapters.s3 import sending
from trmcloud.adapters.s3.bucket import S3Bucket
from trmcloud.adapters.s3.checkup import check_bucket
from trmcloud.core.errors import AccessDenied, AuthError, ConflictError, TrmcloudError
from trmcloud.ports.link import StageItem

pytestmark = pytest.mark.usefixtures("credentials")

NOT_IMPLEMENTED = (501, "NotImplemented")
LAKEFS = (405, "ERRLakeFSNotSupported")
"""As lakeFS answers (treeverse/lakeFS#8422)."""
NO_RIGHT = (403, "AccessDenied")
"""AWS itself, where the policy has no s3:ListBucketMultipartUploads."""
NO_SUCH_CALL = (404, "")
WEB_PAGE = (200, "<!doctype html><p>welcome")


class _Body(io.BytesIO):
    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.read()


@contextlib.contextmanager
def lacking(
    bucket: S3Bucket, operation: str, answer: tuple[int, str]
) -> Iterator[Callable[[], int]]:
    """The store answers so to every such request until the block ends; how often it did."""
    from botocore.awsrequest import AWSResponse

    asked: list[str] = []
    status, code = answer
    text = code if code.startswith("<!") else f"<Error><Code>{code}</Code></Error>" if code else ""

    def answered(request: Any, **_: Any) -> Any:
        asked.append(request.url)
        return AWSResponse(request.url, status, {}, _Body(text.encode()))

    events, event = bucket.client.s3.meta.events, f"before-send.s3.{operation}"
    events.register(event, answered)
    try:
        yield lambda: len(asked)
    finally:
        events.unregister(event, answered)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StageItem:
    monkeypatch.setattr(sending, "UP_PART_BYTES", 5 << 20)
    folder = tmp_path / "data"
    folder.mkdir()
    content = hashlib.shake_128(b"data").digest(12 << 20)
    (folder / "train.bin").write_bytes(content)
    name = {"train.bin": hashlib.sha256(content).hexdigest()}
    return StageItem(folder, "/workspace/trmcloud/data/0123abcd", name)


def unfinished(s3: S3, prefix: str) -> list[str]:
    if s3.is_other:
        return []  # such a store may not tell
    listed = s3.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ())
    return [upload["Key"] for upload in listed if prefix in upload["Key"]]


@pytest.mark.parametrize("answer", [NOT_IMPLEMENTED, LAKEFS, NO_RIGHT, NO_SUCH_CALL, WEB_PAGE])
def test_large_files_are_sent_where_unfinished_uploads_are_not_listed(
    bucket: S3Bucket, s3: S3, prefix: str, data: StageItem, answer: tuple[int, str]
) -> None:
    with lacking(bucket, "ListMultipartUploads", answer) as asked:
        bucket.send(data, silent)
        assert asked() >= 2, "before it, and for the sweep"
    content = (data.local / "train.bin").read_bytes()
    assert s3.read(BUCKET, f"{prefix}/data/0123abcd/train.bin") == content


def test_what_is_cut_off_and_could_not_be_found_again_costs_nothing(
    bucket: S3Bucket, s3: S3, prefix: str, data: StageItem
) -> None:
    def cut(done: int, whole: int) -> None:
        if done:
            raise KeyboardInterrupt

    with lacking(bucket, "ListMultipartUploads", NOT_IMPLEMENTED):
        with pytest.raises(KeyboardInterrupt):
            bucket.send(data, cut)
        assert unfinished(s3, prefix) == []
        bucket.send(data, silent)
    assert f"{prefix}/data/0123abcd/data.json" in s3.keys(BUCKET, prefix)


def test_where_parts_are_not_listed_a_large_file_starts_anew(
    bucket: S3Bucket, s3: S3, prefix: str, data: StageItem
) -> None:
    def cut(done: int, whole: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bucket.send(data, cut)
    with lacking(bucket, "ListParts", NO_RIGHT):
        bucket.send(data, silent)
    content = (data.local / "train.bin").read_bytes()
    assert s3.read(BUCKET, f"{prefix}/data/0123abcd/train.bin") == content


@pytest.mark.parametrize("answer", [NOT_IMPLEMENTED, LAKEFS])
def test_a_store_without_uploads_in_parts_gets_the_whole_file(
    bucket: S3Bucket, s3: S3, prefix: str, data: StageItem, answer: tuple[int, str]
) -> None:
    with lacking(bucket, "CreateMultipartUpload", answer):
        bucket.send(data, silent)
        bucket.send(data, silent)
    content = (data.local / "train.bin").read_bytes()
    assert s3.read(BUCKET, f"{prefix}/data/0123abcd/train.bin") == content


def test_above_5_gb_such_a_store_is_refused_in_one_line(
    bucket: S3Bucket, data: StageItem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_LARGEST_PUT_BYTES", 6 << 20)
    refused = pytest.raises(TrmcloudError, match="no uploads in parts")
    with lacking(bucket, "CreateMultipartUpload", NOT_IMPLEMENTED), refused as told:
        bucket.send(data, silent)
    assert told.value.next_step


@pytest.mark.parametrize(
    ("operation", "answer", "kind"),
    [
        ("CreateMultipartUpload", NO_RIGHT, AccessDenied),
        ("ListMultipartUploads", (403, "SignatureDoesNotMatch"), AuthError),
        ("ListMultipartUploads", (400, "ExpiredToken"), AuthError),
    ],
)
def test_a_key_that_is_refused_is_still_refused(
    bucket: S3Bucket,
    data: StageItem,
    operation: str,
    answer: tuple[int, str],
    kind: type[TrmcloudError],
) -> None:
    with lacking(bucket, operation, answer), pytest.raises(kind):
        bucket.send(data, silent)


def test_a_store_without_conditional_writes_can_be_claimed(
    bucket: S3Bucket, s3: S3, prefix: str
) -> None:
    from botocore.awsrequest import AWSResponse

    def answered(request: Any, **_: Any) -> Any:
        if "If-None-Match" not in request.headers:
            return None
        text = b"<Error><Code>NotImplemented</Code></Error>"
        return AWSResponse(request.url, 501, {}, _Body(text))

    events = bucket.client.s3.meta.events
    events.register("before-send.s3.PutObject", answered)
    try:
        bucket.claim("r1", "aaaa")
        bucket.claim("r1", "aaaa")
        with pytest.raises(ConflictError):
            bucket.claim("r1", "bbbb")
    finally:
        events.unregister("before-send.s3.PutObject", answered)
    assert f"{prefix}/runs/r1/owner.json" in s3.keys(BUCKET, prefix)


def test_doctor_says_what_a_store_cannot_do(
    s3: S3, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "unfinished", lambda client, prefix: None)
    (found,) = check_bucket(s3.environment, f"s3://{BUCKET}/{prefix}")
    assert found.state == "ok"
    assert "lists no unfinished uploads, so a large one that is cut off starts anew" in found.detail
