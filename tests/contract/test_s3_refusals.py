"""A bucket that cannot be used: each refusal in one line without secrets, and what doctor says."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.standins.s3 import BUCKET, CANARY, S3
from trmcloud.adapters.s3 import client
from trmcloud.adapters.s3.bucket import S3Bucket
from trmcloud.adapters.s3.checkup import check_bucket
from trmcloud.core.contract.bucket_layout import Place
from trmcloud.core.errors import AccessDenied, AuthError, MissingExtra, NotFoundError, ProviderError

pytestmark = pytest.mark.usefixtures("credentials")


# -- bad input ------------------------------------------------------------------------------------


def test_a_bucket_that_is_missing_is_named(prefix: str) -> None:
    with pytest.raises(NotFoundError, match="no such bucket") as told:
        S3Bucket(Place("trmc-nowhere", prefix)).check()
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
        S3Bucket(Place(BUCKET)).check()
    assert "AWS_ACCESS_KEY_ID" in told.value.next_step


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="'s3' extra") as told:
        S3Bucket(Place(BUCKET)).check()
    assert told.value.next_step == "pip install 'trmcloud[s3]'"


def test_a_store_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setattr(client, "TRIES", 1)
    with pytest.raises(ProviderError, match="cannot be reached"):
        S3Bucket(Place(BUCKET)).check()


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
        made = S3Bucket(Place(BUCKET, "x"))
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
