"""Our side of a bucket against a real S3 server: whose it is, grants, lists, bytes, moods."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from trmcloud.core import bucket as bk
from trmcloud.core import manifest as mf
from trmcloud.core.errors import (
    AccessDenied,
    AuthError,
    CheckpointError,
    ConflictError,
    DataError,
    MissingExtra,
    NotFoundError,
    NotSupported,
    ProviderError,
)
from trmcloud.core.pod_contract import MAX_JSON_BYTES
from trmcloud.ports.bucket import GrantRequest, Shelf
from trmcloud.ports.link import StageItem

pytest.importorskip("boto3")
pytest.importorskip("moto")

from tests.standins.s3 import CANARY, S3, running
from trmcloud.adapters.s3 import bucket as adapter
from trmcloud.adapters.s3 import client, fetching, sending, settings
from trmcloud.adapters.s3.bucket import S3Bucket
from trmcloud.adapters.s3.checkup import check_bucket
from trmcloud.adapters.s3.client import Client
from trmcloud.pod.objects import Objects, StoreError

BUCKET = "trmc-test"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with running() as server:
        server.client.create_bucket(Bucket=BUCKET)
        yield server


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return f"of-{tmp_path.name}".replace("_", "-")[:60]


@pytest.fixture(autouse=True)
def credentials(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def connected(s3: S3) -> Client:
    """Connecting takes a while, and is the same each time."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        return S3Bucket(bk.Place(BUCKET)).client


def at(connected: Client, prefix: str) -> S3Bucket:
    made = S3Bucket(bk.Place(BUCKET, prefix))
    made.__dict__["client"] = replace(connected, place=bk.Place(BUCKET, prefix))
    return made


@pytest.fixture
def bucket(connected: Client, prefix: str) -> S3Bucket:
    return at(connected, prefix)


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


def checkpoint(folder: Path, step: int, bpb: float, size: int = 3000) -> mf.CheckpointManifest:
    """A checkpoint of r1's fast phase on this disk."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for kind in ("weights", "optimizer"):
        data = hashlib.shake_128(f"{kind}{step}".encode()).digest(size)
        name = f"{kind}.safetensors"
        (folder / name).write_bytes(data)
        files.append(mf.CheckpointFile(name, kind, size, hashlib.sha256(data).hexdigest()))
    return mf.CheckpointManifest(
        run_id="r1", phase="fast", step=step, tokens=step, created_at=1000.0 + step, recipe="t",
        settings={}, world_size=1, val_bpb=bpb, step_losses=(), cooled=False,
        data_sha256="0" * 64, tokenizer_sha256="0" * 64, files=tuple(files),
    )  # fmt: skip


def silent(done: int, whole: int) -> None:
    pass


def stored(
    bucket: S3Bucket, folder: Path, step: int, bpb: float, slot: int = 0, **more: Any
) -> Any:
    made = checkpoint(folder / str(step), step, bpb, **more)
    bucket.store(folder / str(step), made, bk.slot_name(1, slot), silent)
    return made


# -- whose ----------------------------------------------------------------------------------------


def test_a_bucket_is_probed_and_left_as_it_was(bucket: S3Bucket, s3: S3, prefix: str) -> None:
    bucket.check()
    assert s3.keys(BUCKET, prefix) == {}


def test_a_run_of_somebody_else_is_never_taken(bucket: S3Bucket, s3: S3, prefix: str) -> None:
    bucket.claim("r1", "aaaa")
    bucket.claim("r1", "aaaa")
    with pytest.raises(ConflictError, match="somebody else") as told:
        bucket.claim("r1", "bbbb")
    assert prefix in str(told.value)
    s3.client.put_object(Bucket=BUCKET, Key=f"{prefix}/runs/r2/fast/x", Body=b"theirs")
    with pytest.raises(ConflictError):
        bucket.claim("r2", "aaaa")
    assert s3.read(BUCKET, f"{prefix}/runs/r2/fast/x") == b"theirs"
    assert f"{prefix}/runs/r2/owner.json" not in s3.keys(BUCKET, prefix)


# -- grants ---------------------------------------------------------------------------------------


def request(**changes: Any) -> GrantRequest:
    return replace(GrantRequest("r1", "pod", 1, {"fast": 2}, time.time() + 600), **changes)


def test_a_grant_is_one_object_and_one_verb(bucket: S3Bucket, s3: S3, prefix: str) -> None:
    grants = bucket.grant(request())
    assert len(grants.puts) == 4 * len(bk.names_in_slot())
    url = grants.puts["fast/g1-slot-0/state.json"]
    objects = Objects()
    objects.put(url, 2, hashlib.md5(b"{}").digest(), lambda at, count: b"{}"[at : at + count])
    assert s3.read(BUCKET, f"{prefix}/runs/r1/fast/g1-slot-0/state.json") == b"{}"
    assert CANARY not in bk.dump_grants(grants)
    # moto checks no signature of a presigned request; what is signed is ours to look at.
    assert all(f"/{name}?" in signed for name, signed in (
        (key.partition("/")[2], url) for key, url in grants.puts.items()))  # fmt: skip
    assert "X-Amz-SignedHeaders=host&" in url


def test_what_an_agent_says_goes_where_it_is_looked_for_and_is_no_checkpoint(
    bucket: S3Bucket, s3: S3, prefix: str
) -> None:
    url = bucket.grant(request()).report
    assert bucket.last_report("r1", 1) is None
    Objects().put(url, 2, hashlib.md5(b"{}").digest(), lambda at, count: b"{}"[at : at + count])
    assert bucket.last_report("r1", 1) == b"{}"
    assert bucket.last_report("r1", 2) is None
    assert bucket.checkpoints("r1") == Shelf()
    key, large = f"{prefix}/runs/r1/{bk.report_name(1)}", bytes(MAX_JSON_BYTES + 1)
    s3.client.put_object(Bucket=BUCKET, Key=key, Body=large)
    assert bucket.last_report("r1", 1) is None


def test_grants_last_until_the_hard_stop_or_for_seven_days(bucket: S3Bucket) -> None:
    at = time.time()
    soon = bucket.grant(request(until=at + 600))
    assert soon.until == at + 600
    assert "X-Amz-Expires=59" in soon.puts["fast/g1-slot-0/state.json"]
    late = bucket.grant(request(until=at + 30 * 86_400))
    assert at + 7 * 86_400 - 60 < late.until <= at + 7 * 86_400
    expires = late.puts["fast/g1-slot-0/state.json"].partition("X-Amz-Expires=")[2].split("&")[0]
    assert 0 < int(expires) <= 7 * 86_400


def test_grants_tell_what_the_slots_hold_and_where_to_go_on_from(
    bucket: S3Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trmcloud.pod.fetch import fetch_folder

    monkeypatch.setattr(bk, "PIECE_BYTES", 1000)
    made = stored(bucket, tmp_path, 10, 1.0, slot=1)
    (found,) = bucket.checkpoints("r1").whole
    target = tmp_path / "pod" / "step"
    grants = bucket.grant(request(go_on_from=[(found, str(target))]))
    assert grants.phases["fast"].held["g1-slot-1"].step == 10
    (folder,) = bk.load_grants(bk.dump_grants(grants)).gets
    fetch_folder(tmp_path / "pod", folder, lambda: None)
    assert mf.from_json((target / mf.MANIFEST_NAME).read_bytes(), "") == made
    for file in made.files:
        data = (target / file.name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == file.sha256


def test_a_store_without_presigned_requests_is_known_by_its_name(
    bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.takes_presigned("")
    assert settings.takes_presigned("http://127.0.0.1:9000")
    assert not settings.takes_presigned("https://s3api-eu-ro-1.runpod.io/")
    assert settings.region_of("https://s3api-eu-ro-1.runpod.io/") == "EU-RO-1"
    object.__setattr__(bucket.client, "plain", True)
    with pytest.raises(NotSupported, match="no presigned"):
        bucket.grant(request())
    bucket.claim("r1", "aaaa")  # by reading first: there are no conditional writes either


# -- checkpoints ----------------------------------------------------------------------------------


def test_what_is_stored_comes_back_bit_by_bit(
    bucket: S3Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bk, "PIECE_BYTES", 1000)
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

    def cut(done: int, whole: int) -> None:
        if done >= 3000:
            raise KeyboardInterrupt

    target = tmp_path / "back"
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


def test_what_is_damaged_in_the_bucket_is_refused(
    bucket: S3Bucket, s3: S3, tmp_path: Path, prefix: str
) -> None:
    stored(bucket, tmp_path, 10, 1.0)
    (found,) = bucket.checkpoints("r1").whole
    key = f"{prefix}/runs/r1/fast/g1-slot-0/weights.safetensors"
    s3.client.put_object(Bucket=BUCKET, Key=key, Body=b"?" * 3000)
    with pytest.raises(CheckpointError, match="damaged"):
        bucket.fetch(found, ["weights.safetensors"], tmp_path / "back", silent)
    assert list((tmp_path / "back").iterdir()) == []
    s3.client.delete_object(Bucket=BUCKET, Key=key)
    with pytest.raises(CheckpointError, match="missing"):
        bucket.fetch(found, ["weights.safetensors"], tmp_path / "back", silent)


def test_what_is_half_there_is_no_checkpoint(
    bucket: S3Bucket, s3: S3, tmp_path: Path, prefix: str
) -> None:
    good = stored(bucket, tmp_path, 10, 1.0, slot=0)
    for number, (step, spoil) in enumerate(
        ((20, b""), (30, b"not JSON"), (40, None)),
        start=1,
    ):
        stored(bucket, tmp_path, step, 0.5, slot=number)
        at = f"{prefix}/runs/r1/fast/g1-slot-{number}"
        if spoil is None:
            s3.client.put_object(Bucket=BUCKET, Key=f"{at}/optimizer.safetensors", Body=b"cut")
        else:
            s3.client.put_object(Bucket=BUCKET, Key=f"{at}/manifest.json", Body=spoil)
    shelf = bucket.checkpoints("r1")
    assert [one.manifest for one in shelf.whole] == [good]
    whys = dict(shelf.half)
    assert len(whys) == 3
    assert "never completed" in whys["fast/g1-slot-1"]
    assert "not JSON" in whys["fast/g1-slot-2"]
    assert "optimizer.safetensors is missing or cut short" in whys["fast/g1-slot-3"]


def test_hostile_names_in_a_manifest_are_refused(
    bucket: S3Bucket, s3: S3, tmp_path: Path, prefix: str
) -> None:
    made = stored(bucket, tmp_path, 10, 1.0)
    evil = mf.to_json(made).replace("optimizer.safetensors", "../../x.safetensors")
    key = f"{prefix}/runs/r1/fast/g1-slot-0/manifest.json"
    s3.client.put_object(Bucket=BUCKET, Key=key, Body=evil.encode())
    shelf = bucket.checkpoints("r1")
    assert shelf.whole == ()
    assert "not allowed" in shelf.half[0][1]
    other = mf.to_json(replace(made, run_id="r9"))
    s3.client.put_object(Bucket=BUCKET, Key=key, Body=other.encode())
    assert "another checkpoint" in bucket.checkpoints("r1").half[0][1]


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

    def cut(done: int, whole: int) -> None:
        if done >= 5 << 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bucket.send(sent, cut)
    assert f"{prefix}/data/0123abcd/data.json" not in s3.keys(BUCKET, prefix)
    event = "before-parameter-build.s3.UploadPart"
    with asked(bucket, event, lambda p: p["PartNumber"]) as parts:
        bucket.send(sent, silent)
        assert s3.read(BUCKET, f"{prefix}/data/0123abcd/train.bin") == content
        bucket.send(sent, silent)
    assert parts in ([2, 3], [3]), "one more may have been on its way when it was cut"
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
    with pytest.raises(ProviderError, match="InvalidPart"):
        bucket.send(sent, silent)
    names = {key.rpartition("/")[2] for key in s3.keys(BUCKET, prefix)}
    assert not names & {"train.bin", "data.json"}


def test_only_old_uploads_below_our_own_prefix_are_swept(
    bucket: S3Bucket, s3: S3, prefix: str
) -> None:
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


# -- bad input ------------------------------------------------------------------------------------


def test_a_bucket_that_is_missing_is_named(prefix: str) -> None:
    with pytest.raises(NotFoundError, match="no such bucket") as told:
        S3Bucket(bk.Place("trmc-nowhere", prefix)).check()
    assert "s3://trmc-nowhere" in str(told.value)
    assert "--bucket" in told.value.next_step


def test_without_credentials_it_says_which_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(AuthError, match="no AWS credentials") as told:
        S3Bucket(bk.Place(BUCKET)).check()
    assert "AWS_ACCESS_KEY_ID" in told.value.next_step


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="'s3' extra") as told:
        S3Bucket(bk.Place(BUCKET)).check()
    assert told.value.next_step == "pip install 'trmcloud[s3]'"


def test_a_store_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setattr(client, "TRIES", 1)
    with pytest.raises(ProviderError, match="cannot be reached"):
        S3Bucket(bk.Place(BUCKET)).check()


class _Moody(http.server.BaseHTTPRequestHandler):
    """Answers every request of a kind as it is told."""

    protocol_version = "HTTP/1.1"
    said: ClassVar[dict[str, tuple[int, str, dict[str, str]]]] = {}
    once: ClassVar[dict[str, tuple[int, str, dict[str, str]]]] = {}

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        usual = self.said.get(self.command, (200, "", {}))
        status, code, headers = self.once.pop(self.command, usual)
        body = f"<Error><Code>{code}</Code><Message>{CANARY}</Message></Error>" if code else ""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body.encode())

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _answer

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def moody_url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Moody)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def moody(moody_url: str, monkeypatch: pytest.MonkeyPatch) -> type[_Moody]:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moody_url)
    _Moody.said, _Moody.once = {}, {}
    return _Moody


@pytest.fixture(scope="module")
def moody_bucket(s3: S3, moody_url: str) -> S3Bucket:
    """Connected while the store was in a better mood."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        patch.setenv("AWS_ENDPOINT_URL_S3", moody_url)
        made = S3Bucket(bk.Place(BUCKET, "x"))
        assert made.client.region == "us-east-1"
    return made


@pytest.mark.parametrize(
    ("verb", "answer", "kind", "words"),
    [
        ("PUT", (403, "AccessDenied", {}), AccessDenied, "may not write"),
        ("PUT", (403, "InvalidAccessKeyId", {}), AuthError, "not accepted"),
        ("PUT", (403, "SignatureDoesNotMatch", {}), AuthError, "not accepted"),
        ("PUT", (400, "ExpiredToken", {}), AuthError, "have expired"),
        ("PUT", (403, "RequestTimeTooSkewed", {}), ProviderError, "clock"),
        ("PUT", (404, "NoSuchBucket", {}), NotFoundError, "no such bucket"),
        ("PUT", (301, "PermanentRedirect", {}), ProviderError, "another region"),
        ("PUT", (400, "QuotaExceeded", {}), ProviderError, "full"),
        ("PUT", (400, "SomethingNew", {}), ProviderError, "SomethingNew"),
        ("DELETE", (403, "AccessDenied", {}), AccessDenied, "may not delete"),
    ],
)
def test_each_refusal_is_one_line_without_secrets(
    moody: type[_Moody],
    moody_bucket: S3Bucket,
    verb: str,
    answer: tuple[int, str, dict[str, str]],
    kind: type[Exception],
    words: str,
) -> None:
    moody.said = {verb: answer, "GET": (200, "", {})}
    delete = partial(moody_bucket._delete_singly, ["x"])
    with pytest.raises(kind, match=words) as told:
        (delete if verb == "DELETE" else moody_bucket.check)()
    assert "\n" not in str(told.value)
    assert CANARY not in str(told.value) + getattr(told.value, "next_step", "")


def test_a_bucket_in_another_region_is_followed_there(
    moody: type[_Moody],
) -> None:
    there = {"x-amz-bucket-region": "eu-west-1"}
    moody.said, moody.once = {"HEAD": (200, "", there)}, {"HEAD": (301, "", there)}
    assert S3Bucket(bk.Place(BUCKET)).client.region == "eu-west-1"


# -- doctor ---------------------------------------------------------------------------------------


def test_doctor_tells_region_and_clock_of_a_bucket_that_can_be_used(s3: S3, prefix: str) -> None:
    (found,) = check_bucket({}, f"s3://{BUCKET}/{prefix}")
    assert (found.name, found.state) == ("bucket", "ok")
    assert "us-east-1" in found.detail
    assert s3.keys(BUCKET, prefix) == {}


def test_doctor_tells_what_is_wrong_with_one(moody: type[_Moody]) -> None:
    moody.said = {"PUT": (403, "AccessDenied", {})}
    (found,) = check_bucket({}, f"s3://{BUCKET}/x")
    assert found.state == "bad"
    assert "may not write" in found.detail
    assert "PutObject" in found.fix
    assert check_bucket({}, "") == []
    assert check_bucket({}, "s3:/x")[0].state == "bad"


def test_a_grant_of_another_store_is_no_right_here(bucket: S3Bucket) -> None:
    url = bucket.grant(request()).puts["fast/g1-slot-0/state.json"]
    with pytest.raises(StoreError):
        Objects().put(url.replace(BUCKET, "no-such-bucket"), 0, hashlib.md5(b"").digest(),
                      lambda at, count: b"")  # fmt: skip
