"""Checkpoints and data to and from a real S3 server, whole or not at all; stores that lack a
part of S3."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.s3_bucket import request, silent, stored
from tests.standins.s3 import BUCKET, S3
from trmcloud.adapters.s3 import bucket as adapter
from trmcloud.adapters.s3 import fetching, sending
from trmcloud.adapters.s3.bucket import S3Bucket
from trmcloud.adapters.s3.checkup import check_bucket
from trmcloud.core.contract import bucket_layout
from trmcloud.core.contract import manifest as mf
from trmcloud.core.errors import (
    AccessDenied,
    AuthError,
    CheckpointError,
    ConflictError,
    DataError,
    ProviderError,
    TrmcloudError,
)
from trmcloud.ports.compute import StageItem

# -- Checkpoints and data to and from a real S3 server, whole or not at all ---------------------


pytestmark = pytest.mark.usefixtures("credentials")


@contextlib.contextmanager
def asked(bucket: S3Bucket, event: str, note: Callable[[Any], Any]) -> Iterator[list[Any]]:
    """What ``note`` says of each request of a kind until the block ends."""
    found: list[Any] = []

    def hear(params: Any, **more: Any) -> None:
        found.append(note(params))

    events = bucket.client.s3.meta.events
    events.register(event, hear)
    yield found
    events.unregister(event, hear)


@contextlib.contextmanager
def waiting(bucket: S3Bucket, event: str, number: int) -> Iterator[threading.Event]:
    """The request of that number waits until the event is set, or for a while."""
    free, seen = threading.Event(), itertools.count(1)

    def hear(**more: Any) -> None:
        if next(seen) >= number:
            free.wait(20)

    events = bucket.client.s3.meta.events
    events.register(event, hear)
    yield free
    events.unregister(event, hear)


# -- checkpoints ----------------------------------------------------------------------------------


def test_what_is_stored_comes_back_bit_by_bit(
    bucket: S3Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_layout, "PIECE_BYTES", 1000)
    monkeypatch.setattr(fetching, "RANGE_BYTES", 700)
    made = stored(bucket, tmp_path, 10, 1.0, size=4500)
    shelf = bucket.checkpoints("r1")
    assert [one.manifest for one in shelf.whole] == [made]
    told: list[tuple[int, int]] = []
    names = [file.name for file in made.files]
    target = tmp_path / "back"
    bucket.fetch(shelf.whole[0], names, target, lambda done, whole: told.append((done, whole)))
    assert sorted(entry.name for entry in target.iterdir()) == sorted(names)
    for name in names:
        assert (target / name).read_bytes() == (tmp_path / "10" / name).read_bytes()
    assert told[-1] == (9000, 9000)


def test_a_fetch_that_was_cut_goes_on_where_it_stopped(
    bucket: S3Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "RANGE_BYTES", 1000)
    monkeypatch.setattr(fetching, "LANES", 1)
    made = stored(bucket, tmp_path, 10, 1.0, size=5000)
    (found,) = bucket.checkpoints("r1").whole

    target = tmp_path / "back"
    with waiting(bucket, "before-call.s3.GetObject", 4) as free:

        def cut(done: int, whole: int) -> None:
            if done >= 3000:
                free.set()
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            bucket.fetch(found, ["weights.safetensors"], target, cut)
    assert not (target / "weights.safetensors").exists()
    with asked(
        bucket, "before-call.s3.GetObject", lambda p: p["headers"].get("Range", "")
    ) as ranges:
        bucket.fetch(found, ["weights.safetensors"], target, silent)
    assert "bytes=0-999" not in ranges
    assert "bytes=4000-4999" in ranges
    data = (target / "weights.safetensors").read_bytes()
    assert hashlib.sha256(data).hexdigest() == made.sha256
    assert len(list(target.iterdir())) == 1


def test_damage_in_the_bucket_fails(bucket: S3Bucket, s3: S3, tmp_path: Path, prefix: str) -> None:
    stored(bucket, tmp_path, 10, 1.0)
    (found,) = bucket.checkpoints("r1").whole
    key = f"{prefix}/runs/r1/fast/g1-slot-0/weights.safetensors"
    s3.client.put_object(Bucket=BUCKET, Key=key, Body=b"?" * 3000)
    with pytest.raises(CheckpointError, match="damaged"):
        bucket.fetch(found, ["weights.safetensors"], tmp_path / "back", silent)
    assert list((tmp_path / "back").iterdir()) == []
    s3.client.put_object(Bucket=BUCKET, Key=key, Body=b"?" * 2000)
    with pytest.raises(CheckpointError, match="does not have the length"):
        bucket.fetch(found, ["weights.safetensors"], tmp_path / "back", silent)
    s3.client.delete_object(Bucket=BUCKET, Key=key)
    with pytest.raises(CheckpointError, match="missing"):
        bucket.fetch(found, ["weights.safetensors"], tmp_path / "back", silent)


def test_hostile_names_are_refused(bucket: S3Bucket, s3: S3, tmp_path: Path, prefix: str) -> None:
    made = stored(bucket, tmp_path, 10, 1.0)
    evil = mf.to_json(made).replace("optimizer.safetensors", "../../x.safetensors")
    key = f"{prefix}/runs/r1/fast/g1-slot-0/manifest.json"
    s3.client.put_object(Bucket=BUCKET, Key=key, Body=evil.encode())
    shelf = bucket.checkpoints("r1")
    assert shelf.whole == ()
    assert "name is not what it should be" in shelf.half[0][1]


def test_deleting_takes_the_manifest_first_and_nothing_else(
    bucket: S3Bucket, s3: S3, tmp_path: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(bucket, tmp_path, 10, 1.0, slot=0)
    kept = stored(bucket, tmp_path, 20, 2.0, slot=1)
    first, second = sorted(bucket.checkpoints("r1").whole, key=lambda one: one.manifest.step)
    with asked(
        bucket, "before-call.s3.DeleteObject", lambda p: p["url_path"].rpartition("/")[2]
    ) as names:
        bucket.delete(first)
    assert names == ["manifest.json"]
    bucket.delete(second, ["optimizer.safetensors"])
    (left,) = bucket.checkpoints("r1").whole
    assert left.manifest == replace(kept, files=kept.files[:1])
    assert set(s3.keys(BUCKET, prefix)) == {
        f"{prefix}/runs/r1/fast/g1-slot-1/{name}"
        for name in ("manifest.json", "weights.safetensors")
    }
    object.__setattr__(bucket.client, "plain", True)
    bucket.delete(left)
    assert s3.keys(BUCKET, prefix) == {}


# -- data -----------------------------------------------------------------------------------------


def item(folder: Path, content: bytes) -> StageItem:
    folder.mkdir(exist_ok=True)
    (folder / "train.bin").write_bytes(content)
    (folder / "meta.json").write_text("{}")
    hashes = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("train.bin", "meta.json")
    }
    return StageItem(folder, "/workspace/trmcloud/data/0123abcd", hashes)


def test_data_is_sent_once_and_goes_on_after_a_cut(
    bucket: S3Bucket, s3: S3, tmp_path: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "UP_PART_BYTES", 5 << 20)
    monkeypatch.setattr(sending, "UP_LANES", 1)
    content = hashlib.shake_128(b"data").digest(12 << 20)
    sent = item(tmp_path / "data", content)

    with waiting(bucket, "before-call.s3.UploadPart", 2) as free:

        def cut(done: int, whole: int) -> None:
            if done >= 5 << 20:
                free.set()
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            bucket.send(sent, cut)
    assert f"{prefix}/data/0123abcd/data.json" not in s3.keys(BUCKET, prefix)
    event = "before-parameter-build.s3.UploadPart"
    with asked(bucket, event, lambda p: p["PartNumber"]) as parts:
        bucket.send(sent, silent)
        assert s3.read(BUCKET, f"{prefix}/data/0123abcd/train.bin") == content
        bucket.send(sent, silent)
    anew = sending.unfinished(bucket.client, prefix) is None  # a store that lists none
    expected = ([1, 2, 3],) if anew else ([2, 3], [3])
    assert parts in expected, "one more may have been on its way when it was cut"
    (get, _) = bucket.grant(request(folders=[sent])).gets[0].files
    assert (get.size_bytes, get.sha256) == (len(content), sent.sha256["train.bin"])


def test_data_that_changed_meanwhile_is_not_told_as_sent(
    bucket: S3Bucket, s3: S3, tmp_path: Path, prefix: str
) -> None:
    sent = item(tmp_path / "data", b"as it was")
    (tmp_path / "data" / "train.bin").write_bytes(b"as it is.")
    with pytest.raises(DataError, match="changed"):
        bucket.send(sent, silent)
    assert s3.keys(BUCKET, prefix) == {}


def test_a_part_that_fails_after_success_fails_the_upload(
    bucket: S3Bucket, s3: S3, tmp_path: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store loses a part between its answer and the end: nothing stands under the name."""
    monkeypatch.setattr(sending, "UP_PART_BYTES", 5 << 20)
    sent = item(tmp_path / "data", hashlib.shake_128(b"data").digest(11 << 20))
    real = bucket.client.s3.complete_multipart_upload

    def lossy(**asked: Any) -> Any:
        asked["MultipartUpload"]["Parts"][1]["ETag"] = '"0123"'
        return real(**asked)

    monkeypatch.setattr(bucket.client.s3, "complete_multipart_upload", lossy)
    if s3.is_other:
        pytest.skip("not every store looks at the parts it is told")
    with pytest.raises(ProviderError, match="InvalidPart"):
        bucket.send(sent, silent)
    names = {key.rpartition("/")[2] for key in s3.keys(BUCKET, prefix)}
    assert not names & {"train.bin", "data.json"}


def test_only_own_old_uploads_are_swept(bucket: S3Bucket, s3: S3, prefix: str) -> None:
    if sending.unfinished(bucket.client, prefix) is None:
        pytest.skip("this store lists no uploads")

    def uploads() -> set[str]:
        listed = s3.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ())
        return {upload["Key"] for upload in listed if prefix in upload["Key"]}

    ours, theirs = f"{prefix}/data/k/train.bin", f"x-{prefix}/data/k/train.bin"
    for key in (ours, theirs):
        s3.client.create_multipart_upload(Bucket=BUCKET, Key=key)
    # moto says of every upload that it began at the same instant, years ago.
    listed = s3.client.list_multipart_uploads(Bucket=BUCKET)["Uploads"]
    began = listed[0]["Initiated"].timestamp()
    bucket._now = lambda: began + adapter.ABANDONED_AFTER_S - 60
    assert bucket.sweep() == 0
    assert uploads() == {ours, theirs}
    bucket._now = lambda: began + adapter.ABANDONED_AFTER_S + 60
    assert bucket.sweep() == 1
    assert uploads() == {theirs}


# -- s3 lacking ---------------------------------------------------------------------------------
# Stores that lack a part of S3: what is sent there arrives all the same, and nothing is left.


NOT_IMPLEMENTED = (501, "NotImplemented")
LAKEFS = (405, "ERRLakeFSNotSupported")
"""As lakeFS answers (treeverse/lakeFS#8422)."""
NO_RIGHT = (403, "AccessDenied")
"""AWS itself, where the policy has no s3:ListBucketMultipartUploads."""
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


def test_nothing_is_left_of_a_large_file_that_changed_meanwhile(
    bucket: S3Bucket, s3: S3, prefix: str, data: StageItem
) -> None:
    (data.local / "train.bin").write_bytes(bytes(12 << 20))
    with pytest.raises(DataError, match="changed"):
        bucket.send(data, silent)
    assert s3.keys(BUCKET, prefix) == {}
    assert unfinished(s3, prefix) == []


@pytest.mark.parametrize("answer", [NOT_IMPLEMENTED, NO_RIGHT, WEB_PAGE])
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
    refused = pytest.raises(TrmcloudError, match="not accept uploads in parts")
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


def test_a_store_without_conditions_is_claimed(bucket: S3Bucket, s3: S3, prefix: str) -> None:
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


def test_doctor_says_what_stores_lack(s3: S3, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "unfinished", lambda client, prefix: None)
    (found,) = check_bucket(s3.environment, f"s3://{BUCKET}/{prefix}")
    assert found.state == "ok"
    assert (
        "does not list unfinished uploads, so a large upload that is interrupted starts again"
        in found.detail
    )
