"""Our side of a bucket against a real S3 server: whose it is, what a pod may do in it, and each
refusal."""

from __future__ import annotations

import hashlib
import importlib.util
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from tests.contract.s3_bucket import SMALL_BYTES, request, silent, stored
from tests.standins.loopback import Handler, serving_at
from tests.standins.s3 import BUCKET, CANARY, S3
from trmcloud.adapters.s3 import settings
from trmcloud.adapters.s3.bucket import S3Bucket
from trmcloud.adapters.s3.checkup import check_bucket
from trmcloud.core.contract import bucket as bk
from trmcloud.core.contract import bucket_layout
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.bucket_layout import Place, puts_in_slot, report_name
from trmcloud.core.contract.records import MAX_JSON_BYTES
from trmcloud.core.errors import (
    AccessDenied,
    ConflictError,
    MissingExtra,
    NotFoundError,
    NotSupported,
)
from trmcloud.io.installation import install_command
from trmcloud.pod.storage.presigned import Objects
from trmcloud.ports.bucket import BucketCheckpoints
from trmcloud.ports.compute import StageItem

# -- s3 -----------------------------------------------------------------------------------------
# Our side of a bucket against a real S3 server: whose it is, and what a pod may do in it.


pytestmark = pytest.mark.usefixtures("credentials")


# -- whose ----------------------------------------------------------------------------------------


def test_a_bucket_is_probed_and_left_as_it_was(bucket: S3Bucket, s3: S3, prefix: str) -> None:
    bucket.check()
    assert s3.keys(BUCKET, prefix) == {}


def test_a_run_of_somebody_else_is_never_taken(bucket: S3Bucket, s3: S3, prefix: str) -> None:
    bucket.claim("r1", "aaaa")
    bucket.claim("r1", "aaaa")
    with pytest.raises(ConflictError, match="from another ledger") as told:
        bucket.claim("r1", "bbbb")
    assert prefix in str(told.value)
    s3.client.put_object(Bucket=BUCKET, Key=f"{prefix}/runs/r2/fast/x", Body=b"theirs")
    with pytest.raises(ConflictError):
        bucket.claim("r2", "aaaa")
    assert s3.read(BUCKET, f"{prefix}/runs/r2/fast/x") == b"theirs"
    assert f"{prefix}/runs/r2/owner.json" not in s3.keys(BUCKET, prefix)


# -- grants ---------------------------------------------------------------------------------------


def test_a_grant_is_one_object_and_one_verb(bucket: S3Bucket, s3: S3, prefix: str) -> None:
    grants = bucket.grant(request())
    assert len(grants.puts) == 5 * len(puts_in_slot(SMALL_BYTES))
    url = grants.puts["fast/g1-slot-0/state.json"]
    objects = Objects()
    objects.put(url, 2, hashlib.md5(b"{}").digest(), lambda at, count: b"{}"[at : at + count])
    assert s3.read(BUCKET, f"{prefix}/runs/r1/fast/g1-slot-0/state.json") == b"{}"
    assert CANARY not in bk.dump_grants(grants)
    # moto checks no signature of a presigned request; what is signed is ours to look at.
    assert all(f"/{name.partition(':')[0]}?" in signed for name, signed in (
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
    assert bucket.checkpoints("r1") == BucketCheckpoints()
    key, large = f"{prefix}/runs/r1/{report_name(1)}", bytes(MAX_JSON_BYTES + 1)
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
    from trmcloud.pod.storage.presigned import fetch_folder

    monkeypatch.setattr(bucket_layout, "PIECE_BYTES", 1000)
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


def test_data_of_any_name_comes_to_a_pod_unchanged(
    bucket: S3Bucket, s3: S3, prefix: str, tmp_path: Path
) -> None:
    from trmcloud.pod.storage.presigned import fetch_folder

    names = ["plain.bin", "data.json", ".zarray", "a b/é文#(1)&.bin", "-x", "d/" * 20 + "n" * 200]
    for name in names:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    hashes = {name: hashlib.sha256(name.encode()).hexdigest() for name in names}
    target = tmp_path / "pod/data/0123"
    item = StageItem(tmp_path / "data", str(target), hashes)
    bucket.send(item, silent)
    keys = set(s3.keys(BUCKET, prefix))
    assert {f"{prefix}/data/0123/plain.bin", f"{prefix}/data/0123/data.json"} < keys
    assert all(key.isascii() for key in keys)
    bucket.send(item, lambda done, whole: pytest.fail("it is there"))
    (folder,) = bk.load_grants(bk.dump_grants(bucket.grant(request(folders=[item])))).gets
    fetch_folder(tmp_path / "pod", folder, lambda: None)
    assert {name: (target / name).read_text() for name in names} == {name: name for name in names}


def test_what_was_before_a_cooldown_comes_with_the_cooled(bucket: S3Bucket, tmp_path: Path) -> None:
    for step, since in ((10, None), (20, 10), (30, 10)):
        stored(bucket, tmp_path, step, 1.0, slot=step // 10, cooldown_from=since)
    found = sorted(bucket.checkpoints("r1").whole, key=lambda each: -each.manifest.step)
    grants = bucket.grant(request(go_on_from=[(each, f"/{each.at}") for each in found]))
    assert [(get.needed, get.beside) for get in grants.gets] == [
        *((False, False), (False, False), (False, True)),
    ]  # fmt: skip
    assert bk.load_grants(bk.dump_grants(grants)) == grants


def test_a_store_without_presigned_requests_is_known_by_its_name(
    bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.supports_presigned("")
    assert settings.supports_presigned("http://127.0.0.1:9000")
    assert not settings.supports_presigned("https://s3api-eu-ro-1.runpod.io/")
    assert settings.region_of("https://s3api-eu-ro-1.runpod.io/") == "EU-RO-1"
    object.__setattr__(bucket.client, "plain", True)
    with pytest.raises(NotSupported, match="not accept presigned"):
        bucket.grant(request())
    bucket.claim("r1", "aaaa")  # by reading first: there are no conditional writes either


# -- doctor ---------------------------------------------------------------------------------------


# -- s3 refusals --------------------------------------------------------------------------------
# A bucket that cannot be used: each refusal in one line without secrets, and what doctor says.


# -- bad input ------------------------------------------------------------------------------------


def test_a_bucket_that_is_missing_is_named(prefix: str) -> None:
    with pytest.raises(NotFoundError, match="no such bucket") as told:
        S3Bucket(Place("trmc-nowhere", prefix)).check()
    assert "s3://trmc-nowhere" in str(told.value)
    assert "--bucket" in told.value.next_step


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "boto3" else find(name)
    )
    with pytest.raises(MissingExtra, match="'s3' extra") as told:
        S3Bucket(Place(BUCKET)).check()
    assert told.value.next_step == install_command("s3")


class _Moody(Handler):
    """Answers every request of a kind as it is told."""

    said: ClassVar[dict[str, tuple[int, str, dict[str, str]]]] = {}
    once: ClassVar[dict[str, tuple[int, str, dict[str, str]]]] = {}

    def do_GET(self) -> None:
        self.read_body()
        usual = self.said.get(self.command, (200, "", {}))
        status, code, headers = self.once.pop(self.command, usual)
        body = f"<Error><Code>{code}</Code><Message>{CANARY}</Message></Error>" if code else ""
        self.answer(status, body.encode(), headers=headers)

    do_PUT = do_HEAD = do_DELETE = do_POST = do_GET


@pytest.fixture(scope="module")
def moody_url() -> Iterator[str]:
    with serving_at(_Moody) as port:
        yield f"http://127.0.0.1:{port}"


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
        made = S3Bucket(Place(BUCKET, "x"))
        assert made.client.region == "us-east-1"
    return made


@pytest.mark.parametrize(
    ("verb", "answer", "kind", "words"),
    [
        ("PUT", (403, "AccessDenied", {}), AccessDenied, "may not write"),
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


def test_a_bucket_in_another_region_is_followed_there(moody: type[_Moody]) -> None:
    there = {"x-amz-bucket-region": "eu-west-1"}
    moody.said, moody.once = {"HEAD": (200, "", there)}, {"HEAD": (301, "", there)}
    assert S3Bucket(Place(BUCKET)).client.region == "eu-west-1"


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
