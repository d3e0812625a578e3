"""Our side of a bucket, and a pod's, against the S3 gateway of Hugging Face's storage buckets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.checkpoints import checkpoint
from tests.contract.s3_bucket import request, silent
from tests.standins.huggingface.buckets import Gateway, bucket_gateway
from tests.standins.loopback import Handler, serving_at
from tests.standins.s3 import BUCKET, S3
from trmcloud.adapters.s3.bucket import S3Bucket
from trmcloud.core.contract import bucket as bk
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.bucket_layout import Place, slot_name
from trmcloud.pod.storage.presigned import Objects, StoreError, fetch_folder
from trmcloud.ports.compute import StageItem

pytestmark = pytest.mark.usefixtures("credentials")


@pytest.fixture
def gateway(s3: S3, credentials: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    with bucket_gateway(s3.port) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", made.url)
        yield made


def test_a_checkpoint_and_data_go_there_and_come_back_to_a_pod(
    gateway: Gateway, prefix: str, tmp_path: Path
) -> None:
    bucket = S3Bucket(Place(BUCKET, prefix))
    bucket.check()
    bucket.claim("r1", "aaaa")
    made = checkpoint(tmp_path / "10", 10, 1.0)
    bucket.store(tmp_path / "10", made, slot_name(1, 1), silent)
    text = b"some text " * 1000
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.bin").write_bytes(text)
    sha256 = {"train.bin": hashlib.sha256(text).hexdigest()}
    pod = tmp_path / "pod"
    item = StageItem(tmp_path / "data", f"{pod}/data/0123abcd", sha256)
    bucket.send(item, silent)
    bucket.send(item, silent)

    (found,) = bucket.checkpoints("r1").whole
    grants = bucket.grant(request(go_on_from=[(found, f"{pod}/checkpoints/step")], folders=[item]))
    assert all("/acme/" in url for url in grants.puts.values())
    for folder in bk.load_grants(bk.dump_grants(grants)).gets:
        fetch_folder(pod, folder, lambda: None)
    assert (pod / "data" / "0123abcd" / "train.bin").read_bytes() == text
    there = pod / "checkpoints" / "step"
    assert mf.from_json((there / mf.MANIFEST_NAME).read_bytes(), "") == made
    Objects().put_bytes(grants.report, b"{}")
    assert bucket.last_report("r1", 1) == b"{}"

    fetched = tmp_path / "fetched"
    bucket.fetch(found, [file.name for file in made.files], fetched, silent)
    for file in made.files:
        assert (fetched / file.name).read_bytes() == (there / file.name).read_bytes()
    bucket.delete(found)
    assert bucket.checkpoints("r1").whole == ()
    assert gateway.refused == []
    assert gateway.cached_gets == len(made.files) + 2


@pytest.mark.parametrize(
    "location", ["", "file:///etc/passwd", "https://127.0.0.1:1/o", "ftp://127.0.0.1/o", "/again"]
)
def test_a_redirect_leads_to_an_address_of_its_kind_and_ends(location: str) -> None:
    asked: list[str] = []

    class Redirecting(Handler):
        def do_GET(self: BaseHTTPRequestHandler) -> None:
            asked.append(self.path)
            self.answer(302, headers={"Location": location})  # type: ignore[attr-defined]

    with serving_at(Redirecting) as port:
        get = partial(Objects().get, f"http://127.0.0.1:{port}/a/b?X-Amz-Signature=f00d", 0, 9)
        with pytest.raises(StoreError) as told:
            get(lambda block: None)
    assert told.value.refused
    assert "f00d" not in str(told.value)
    assert len(asked) == (3 if location == "/again" else 1)
    assert not any("f00d" in path for path in asked[1:])
