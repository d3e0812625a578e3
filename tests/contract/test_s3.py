"""Our side of a bucket against a real S3 server: whose it is, and what a pod may do in it."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import pytest

from tests.contract.s3_bucket import SMALL_BYTES, request, stored
from tests.standins.s3 import BUCKET, CANARY, S3
from trmcloud.adapters.s3 import settings
from trmcloud.adapters.s3.bucket import S3Bucket
from trmcloud.core.contract import bucket as bk
from trmcloud.core.contract import bucket_layout
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.bucket_layout import puts_in_slot, report_name
from trmcloud.core.contract.pod_contract import MAX_JSON_BYTES
from trmcloud.core.errors import ConflictError, NotSupported
from trmcloud.pod.storage.presigned import Objects, StoreError
from trmcloud.ports.bucket import Shelf

pytestmark = pytest.mark.usefixtures("credentials")


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
    assert bucket.checkpoints("r1") == Shelf()
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
    from trmcloud.pod.storage.fetch import fetch_folder

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


def test_what_was_saved_before_a_cooldown_comes_with_what_has_cooled(
    bucket: S3Bucket, tmp_path: Path
) -> None:
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
    assert settings.takes_presigned("")
    assert settings.takes_presigned("http://127.0.0.1:9000")
    assert not settings.takes_presigned("https://s3api-eu-ro-1.runpod.io/")
    assert settings.region_of("https://s3api-eu-ro-1.runpod.io/") == "EU-RO-1"
    object.__setattr__(bucket.client, "plain", True)
    with pytest.raises(NotSupported, match="no presigned"):
        bucket.grant(request())
    bucket.claim("r1", "aaaa")  # by reading first: there are no conditional writes either


# -- doctor ---------------------------------------------------------------------------------------


def test_a_grant_of_another_store_is_no_right_here(bucket: S3Bucket) -> None:
    url = bucket.grant(request()).puts["fast/g1-slot-0/state.json"]
    with pytest.raises(StoreError):
        Objects().put(url.replace(BUCKET, "no-such-bucket"), 0, hashlib.md5(b"").digest(),
                      lambda at, count: b"")  # fmt: skip
