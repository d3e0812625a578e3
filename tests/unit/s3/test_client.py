"""What a store refuses, lists and gives, taken apart."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from io import BytesIO
from typing import Any

import pytest
from botocore import exceptions as be
from botocore.exceptions import ClientError

from tests.unit.core.manifests import manifest
from trmcloud.adapters.s3 import bucket as adapter
from trmcloud.adapters.s3.bucket import S3Bucket
from trmcloud.adapters.s3.client import (
    Client,
    _until,
    code_of,
    explain,
    is_final_error,
    is_missing,
    is_unsupported,
    translate_errors,
)
from trmcloud.adapters.s3.fetching import get_bytes
from trmcloud.core.contract.bucket_layout import PIECE_BYTES, Place
from trmcloud.core.contract.manifest import CheckpointFile, CheckpointManifest, to_json
from trmcloud.core.errors import (
    AccessDenied,
    AuthError,
    CheckpointError,
    ConflictError,
    NotFoundError,
    ProviderError,
    ProviderRefused,
    TrmcloudError,
)

# -- client -------------------------------------------------------------------------------------
# What a store refuses, by the codes of S3's published list and of its kin, in one line of ours.


PLACE = Place("bucket", "p")


def refusal(code: Any = "", status: int | None = None, verb: str = "GetObject") -> be.ClientError:
    answer: dict[str, Any] = {"Error": {"Code": code, "Message": "AKIASECRET"}}
    if status is not None:
        answer["ResponseMetadata"] = {"HTTPStatusCode": status}
    return be.ClientError(answer, verb)


def explained(error: Any, doing: str = "") -> TrmcloudError:
    found = explain(error, PLACE, doing)
    assert found.where == "s3://bucket/p"
    assert "AKIASECRET" not in str(found)
    return found


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (refusal("InvalidAccessKeyId"), AuthError, "are not accepted (InvalidAccessKeyId)"),
        (refusal("ExpiredToken", 403), AuthError, "have expired (ExpiredToken)"),
        (refusal("TokenRefreshRequired"), AuthError, "have expired (TokenRefreshRequired)"),
        (refusal("RequestTimeTooSkewed", 403), ProviderRefused, "too far from the store's"),
        (refusal("RequestExpired"), ProviderRefused, "too far from the store's"),
        (refusal("AccessDenied"), AccessDenied, "may not use this bucket (AccessDenied)"),
        (refusal("Odd", 403), AccessDenied, "may not use this bucket (Odd)"),
        (refusal("NoSuchBucket"), NotFoundError, "there is no such bucket"),
        (refusal("404", 404, "HeadBucket"), NotFoundError, "there is no such bucket"),
        (refusal("404", 404), ProviderError, "the store did not answer: 404"),
        (refusal("Odd", 404, "HeadBucket"), ProviderError, "the store did not answer: Odd"),
        (refusal("PermanentRedirect"), ProviderRefused, "in another region"),
        (refusal("Odd", 301), ProviderRefused, "in another region"),
        (refusal("QuotaExceeded"), ProviderRefused, "the store is full (QuotaExceeded)"),
        (refusal("", 500), ProviderError, "the store did not answer: 500"),
        (refusal(), ProviderError, "the store did not answer: it gives no reason"),
        (be.NoCredentialsError(), AuthError, "there are no AWS credentials"),
        (be.PartialCredentialsError(provider="x", cred_var="y"), AuthError, "are no AWS cred"),
        (
            be.CredentialRetrievalError(provider="x", error_msg="y"),
            AuthError,
            "AWS credentials cannot be read",
        ),
        (
            be.TokenRetrievalError(provider="x", error_msg="y"),
            AuthError,
            "AWS credentials cannot be read: Token",
        ),
        (
            be.ProfileNotFound(profile="x"),
            AuthError,
            "AWS credentials cannot be read: ProfileNotFound",
        ),
        (be.InvalidRegionError(region_name="!"), ProviderRefused, "malformed"),
        (
            be.EndpointConnectionError(endpoint_url="https://AKIASECRET"),
            ProviderError,
            "cannot be reached: EndpointConnectionError",
        ),
    ],
)
def test_every_refusal_has_one_meaning(error: Any, kind: type[TrmcloudError], says: str) -> None:
    found = explained(error)
    assert type(found) is kind
    assert says in found.what


def test_what_was_being_done_is_told() -> None:
    assert explained(refusal("AccessDenied"), "list").what == (
        "the credentials may not list (AccessDenied)"
    )
    assert explained(refusal("SlowDown", 503), "read").what == "the store did not read: SlowDown"


def test_the_stores_own_code_comes_before_its_status() -> None:
    assert code_of(refusal("SlowDown", 503)) == "SlowDown"
    assert code_of(refusal("", 503)) == "503"
    assert code_of(refusal(404, 404)) == "404"
    assert code_of(refusal()) == ""
    assert code_of(ValueError()) == ""


def test_an_object_that_is_not_there() -> None:
    for code in ("NoSuchKey", "404", "NotFound"):
        assert is_missing(refusal(code))
    assert is_missing(refusal("", 404))
    assert not is_missing(refusal("NoSuchBucket", 404))
    assert not is_missing(refusal("AccessDenied", 403))


@pytest.mark.parametrize(
    ("error", "missing"),
    [
        (refusal("x", 404), True),
        (refusal("x", 405), True),
        (refusal("x", 501), True),
        (refusal("NotImplemented", 400), True),
        (refusal("x", 400), False),
        (refusal("NoSuchBucket", 404), False),
        (refusal("InvalidAccessKeyId", 404), False),
        (ValueError(), False),
    ],
)
def test_what_a_store_does_not_know_may_be_done_without(error: Any, missing: bool) -> None:
    assert is_unsupported(error) is missing


def test_a_wrong_key_or_no_bucket_makes_all_else_of_no_use() -> None:
    assert is_final_error(refusal("ExpiredToken"))
    assert is_final_error(refusal("NoSuchBucket"))
    assert not is_final_error(refusal("NoSuchKey"))


@pytest.mark.parametrize(
    "error", [ValueError(), TypeError(), KeyError("x"), AttributeError(), RecursionError()]
)
def test_an_answer_that_boto3_trips_over_is_an_error_of_ours(error: Exception) -> None:
    with pytest.raises(ProviderError, match="cannot be understood") as odd, translate_errors(PLACE):
        raise error
    assert odd.value.where == "s3://bucket/p"


def test_within_boto3_its_errors_become_ours_and_others_stay() -> None:
    with pytest.raises(AccessDenied, match="may not list"), translate_errors(PLACE, "list"):
        raise refusal("AccessDenied")
    with pytest.raises(ProviderError, match="cannot be reached"), translate_errors(PLACE):
        raise be.ConnectTimeoutError(endpoint_url="x")
    with pytest.raises(OSError, match="mine"), translate_errors(PLACE):
        raise OSError("mine")
    with translate_errors(PLACE):
        pass


def test_temporary_credentials_end() -> None:
    class Temporary:
        _expiry_time = datetime(2026, 11, 22, tzinfo=timezone.utc)

    assert _until(Temporary()) == 1_795_305_600.0
    assert _until(object()) is None


# -- listings -----------------------------------------------------------------------------------
# What a store lists and gives, taken apart: pages, shelves of checkpoints, owners. The rows are
# those of S3's published ``ListObjectsV2``; ``tests/contract/test_s3*.py`` ask the same of moto's
# server, and ``tests/fuzz/test_buckets.py`` of anything.


RUN = "p/runs/r-1"
ONE = "fast/g1-slot-0"


class Store:
    """An S3 whose objects are written down; ``pages`` lists instead of them."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes | int] = {}
        self.pages: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.lies: dict[str, int] = {}

    def list_objects_v2(self, **asked: Any) -> dict[str, Any]:
        self.asked.append(asked)
        if self.pages:
            return self.pages[min(len(self.asked), len(self.pages)) - 1]
        rows = [
            {"Key": key, "Size": held if isinstance(held, int) else len(held)}
            for key, held in sorted(self.objects.items())
            if key.startswith(asked["Prefix"])
        ]
        return {"Contents": rows} if rows else {}

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        held = self.objects.get(Key)
        if held is None:
            raise ClientError({"Error": {"Code": "NoSuchKey"}}, "GetObject")
        content = held if isinstance(held, bytes) else b" " * held
        return {"ContentLength": self.lies.get(Key, len(content)), "Body": BytesIO(content)}

    def put_object(self, *, Bucket: str, Key: str, Body: bytes, **more: Any) -> dict[str, Any]:
        if "IfNoneMatch" in more and Key in self.objects:
            raise ClientError({"Error": {"Code": "PreconditionFailed"}}, "PutObject")
        self.objects[Key] = bytes(Body)
        return {}

    def holds(self, made: CheckpointManifest, at: str = ONE, **sizes: int) -> None:
        self.objects[f"{RUN}/{at}/manifest.json"] = to_json(made).encode()
        for file in made.files:
            self.objects[f"{RUN}/{at}/{file.name}"] = sizes.get(file.name, file.size_bytes)


@pytest.fixture
def store() -> Store:
    return Store()


def bucket(store: Store) -> S3Bucket:
    made = S3Bucket(PLACE)
    made.__dict__["client"] = client(store)
    return made


def client(store: Store) -> Client:
    return Client(store, PLACE, "us-east-1", "", False, None)


MADE = manifest()


# -- lists -------------------------------------------------------------------------------------


def page(*keys: str, token: Any = None) -> dict[str, Any]:
    rows = [{"Key": key, "Size": len(key)} for key in keys]
    return {"Contents": rows} | ({"NextContinuationToken": token} if token else {})


def test_pages_are_walked_to_their_end(store: Store) -> None:
    store.pages = [page("a", token="t1"), page(token="t2"), page("bc")]
    assert list(bucket(store)._keys("p/x")) == [("a", 1), ("bc", 2)]
    asked = {"Bucket": "bucket", "Prefix": "p/x"}
    assert store.asked == [
        asked, asked | {"ContinuationToken": "t1"}, asked | {"ContinuationToken": "t2"},
    ]  # fmt: skip


def test_a_token_that_comes_twice_ends_the_list(store: Store) -> None:
    store.pages = [page("a", token="t")]
    assert list(bucket(store)._keys("")) == [("a", 1), ("a", 1)]


def test_a_list_that_does_not_end_is_none(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "_MOST_PAGES", 3)
    store.pages = [page("a", token=f"t{n}") for n in range(4)]
    with pytest.raises(ProviderError, match="does not end") as endless:
        list(bucket(store)._keys(""))
    assert endless.value.where == "s3://bucket/p"
    assert len(store.asked) == 3


@pytest.mark.parametrize("row", [{}, {"Key": "a"}, {"Key": "a", "Size": "x"}, "odd", None])
def test_a_row_that_is_none_makes_the_list_none(store: Store, row: Any) -> None:
    store.pages = [{"Contents": [row]}]
    with pytest.raises(ProviderError, match="cannot be understood"):
        list(bucket(store)._keys(""))


# -- small objects -----------------------------------------------------------------------------


def test_a_small_object_is_read_and_a_large_one_is_none(store: Store) -> None:
    store.objects = {"a": b"12345"}
    assert get_bytes(client(store), "a", 5) == b"12345"
    assert get_bytes(client(store), "a", 4) is None
    assert get_bytes(client(store), "b", 5) is None


def test_an_object_that_lies_about_its_length_is_not_read_beyond_the_most(store: Store) -> None:
    store.objects, store.lies = {"a": b"1" * 100}, {"a": 0}
    assert get_bytes(client(store), "a", 4) == b"11111"


def test_a_refusal_is_no_absence(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**asked: Any) -> Any:
        raise ClientError({"Error": {"Code": "SlowDown"}}, "GetObject")

    monkeypatch.setattr(store, "get_object", refuse)
    with pytest.raises(ProviderError, match="did not read: SlowDown"):
        get_bytes(client(store), "a", 4)


# -- shelves -----------------------------------------------------------------------------------


def halves(store: Store, **sizes: int) -> dict[str, str]:
    return dict(bucket(store).checkpoints("r-1", sizes).half)


def test_a_checkpoint_is_whole_where_all_that_it_names_is_there(store: Store) -> None:
    store.holds(MADE)
    shelf = bucket(store).checkpoints("r-1")
    (stored,) = shelf.whole
    assert (stored.manifest, stored.at, shelf.half) == (MADE, f"{RUN}/{ONE}", ())
    assert stored.text_bytes == len(to_json(MADE).encode())
    assert [asked["Prefix"] for asked in store.asked] == [f"{RUN}/"]


def test_what_lacks_a_file_or_has_it_cut_short_is_half(store: Store) -> None:
    store.holds(MADE)
    name = MADE.files[0].name
    for change in ({}, {f"{RUN}/{ONE}/{name}": MADE.files[0].size_bytes - 1}):
        store.objects.pop(f"{RUN}/{ONE}/{name}", None)
        store.objects.update(change)
        says = halves(store)[ONE]
        assert f"{name} is missing or incomplete" in says
        assert bucket(store).checkpoints("r-1").whole == ()


def test_what_has_no_manifest_was_never_completed(store: Store) -> None:
    store.holds(MADE)
    for text in (None, b""):
        store.objects.pop(f"{RUN}/{ONE}/manifest.json", None)
        if text is not None:
            store.objects[f"{RUN}/{ONE}/manifest.json"] = text
        assert halves(store) == {ONE: "it was never completed"}


def test_a_manifest_that_is_gone_once_it_is_asked_for_makes_it_half(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.holds(MADE)
    monkeypatch.setattr(adapter, "get_bytes", lambda *asked: None)
    assert "no JSON" in halves(store)[ONE]


@pytest.mark.parametrize("change", [{"run_id": "r-2"}, {"phase": "extreme"}])
def test_the_manifest_of_another_checkpoint_is_half(store: Store, change: dict[str, str]) -> None:
    store.holds(replace(MADE, **change))  # type: ignore[arg-type]
    assert "the manifest belongs to another checkpoint" in halves(store)[ONE]


def test_what_is_larger_than_any_grant_is_half_whatever_else_there_is(
    store: Store,
) -> None:
    store.holds(MADE)
    store.objects[f"{RUN}/{ONE}/state.json"] = PIECE_BYTES + 1
    assert halves(store) == {ONE: "state.json is larger than any grant of a pod"}
    assert bucket(store).checkpoints("r-1").whole == ()


def test_what_lies_in_no_slot_is_none_of_it(store: Store) -> None:
    store.objects = {
        f"{RUN}/owner.json": 5,
        f"{RUN}/g1-report.json": 5,
        f"{RUN}/fast/other/manifest.json": 5,
        f"{RUN}/g1-slot-0/manifest.json": 5,
        f"{RUN}/fast/more/g1-slot-0/manifest.json": 5,
    }
    shelf = bucket(store).checkpoints("r-1")
    assert (shelf.whole, shelf.half) == ((), ())


def test_of_two_of_the_same_bits_the_one_with_its_metric_counts(store: Store) -> None:
    bare = replace(MADE, val_bpb=None, step_losses=())
    for first, second in ((bare, MADE), (MADE, bare)):
        store.holds(first, "fast/g1-slot-0")
        store.holds(second, "fast/g1-slot-1")
        (stored,) = bucket(store).checkpoints("r-1").whole
        assert stored.manifest.val_bpb == MADE.val_bpb


def test_a_file_of_pieces_is_there_where_each_is(store: Store) -> None:
    size = 2 * PIECE_BYTES + 1
    weights = replace(MADE.files[0], size_bytes=size)
    made = replace(MADE, files=(weights, *MADE.files[1:]))
    store.holds(made)
    del store.objects[f"{RUN}/{ONE}/{weights.name}"]
    for piece, length in (("part-00000", PIECE_BYTES), ("part-00001", PIECE_BYTES)):
        store.objects[f"{RUN}/{ONE}/{weights.name}.{piece}"] = length
    assert weights.name in halves(store)[ONE]
    store.objects[f"{RUN}/{ONE}/{weights.name}"] = 1
    (stored,) = bucket(store).checkpoints("r-1").whole
    assert stored.manifest.files[0].size_bytes == size


def test_a_file_beyond_all_pieces_cannot_be_there() -> None:
    with pytest.raises(CheckpointError, match="larger than 16 pieces") as huge:
        adapter._pieces("at", CheckpointFile("weights.safetensors", "weights", 1 << 50, "0" * 64))
    assert huge.value.where == "at"


# -- whose -------------------------------------------------------------------------------------


def test_a_run_is_claimed_once_and_found_again(store: Store) -> None:
    made = bucket(store)
    made.claim("r-1", "l")
    assert json.loads(store.objects[f"{RUN}/owner.json"]) == {"ledger": "l", "run": "r-1"}  # type: ignore[arg-type]
    made.claim("r-1", "l")
    with pytest.raises(ConflictError, match="the bucket already has a run r-1 from another ledger"):
        made.claim("r-1", "another")


@pytest.mark.parametrize("text", [b"null", b"[1]", b"", b"no json", b'{"run": "r-1"}', b"[" * 9000])
def test_an_owner_that_is_none_is_somebody_else(store: Store, text: bytes) -> None:
    store.objects[f"{RUN}/owner.json"] = text
    with pytest.raises(ConflictError, match="from another ledger: it was not changed"):
        bucket(store).claim("r-1", "l")


def test_what_lies_there_without_an_owner_is_somebody_elses(store: Store) -> None:
    store.objects[f"{RUN}/{ONE}/state.json"] = 5
    with pytest.raises(ConflictError, match="from another ledger: it was not changed") as other:
        bucket(store).claim("r-1", "l")
    assert other.value.where == "s3://bucket/p"
    assert f"{RUN}/owner.json" not in store.objects


class Overtaken(Store):
    """Another one claims the run between our look and our own claim; ``leaves``: what is found of
    it then."""

    def __init__(self, leaves: bytes | None) -> None:
        super().__init__()
        self.leaves = leaves

    def put_object(self, **asked: Any) -> dict[str, Any]:
        assert asked["IfNoneMatch"] == "*", "what is there is never replaced"
        if self.leaves is not None:
            self.objects[asked["Key"]] = self.leaves
        raise ClientError({"Error": {"Code": "PreconditionFailed"}}, "PutObject")


@pytest.mark.parametrize("leaves", [b'{"ledger": "other", "run": "r-1"}', None])
def test_of_two_that_claim_a_run_at_once_one_has_it(leaves: bytes | None) -> None:
    with pytest.raises(ConflictError, match="from another ledger: it was not changed"):
        bucket(Overtaken(leaves)).claim("r-1", "l")


def test_a_claim_that_came_through_unheard_is_ours() -> None:
    bucket(Overtaken(b'{"ledger": "l", "run": "r-1"}')).claim("r-1", "l")


def test_a_list_may_be_asked_of_a_client_of_less_patience(store: Store) -> None:
    brief = Store()
    brief.objects = {"p/x": 5}
    assert list(bucket(store)._keys("p/", client(brief))) == [("p/x", 5)]
    assert store.asked == []


def test_an_object_of_no_told_length_is_as_long_as_it_is(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "get_object", lambda **asked: {"Body": BytesIO(b"")})
    assert get_bytes(client(store), "a", 0) == b""
