"""What a store refuses, by the codes of S3's published list and of its kin, in one line of ours."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from botocore import exceptions as be

from trmcloud.adapters.s3.client import _until, code_of, explain, is_missing, lacks, of_no_use, told
from trmcloud.core.contract.bucket_layout import Place
from trmcloud.core.errors import (
    AccessDenied,
    AuthError,
    NotFoundError,
    ProviderError,
    ProviderRefused,
    TrmcloudError,
)

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
        (refusal(), ProviderError, "the store did not answer: it does not say why"),
        (be.NoCredentialsError(), AuthError, "there are no AWS credentials"),
        (be.PartialCredentialsError(provider="x", cred_var="y"), AuthError, "are no AWS cred"),
        (be.CredentialRetrievalError(provider="x", error_msg="y"), AuthError, "cannot be had"),
        (be.TokenRetrievalError(provider="x", error_msg="y"), AuthError, "cannot be had: Token"),
        (be.ProfileNotFound(profile="x"), AuthError, "cannot be had: ProfileNotFound"),
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
    assert lacks(error) is missing


def test_a_wrong_key_or_no_bucket_makes_all_else_of_no_use() -> None:
    assert of_no_use(refusal("ExpiredToken"))
    assert of_no_use(refusal("NoSuchBucket"))
    assert not of_no_use(refusal("NoSuchKey"))


@pytest.mark.parametrize(
    "error", [ValueError(), TypeError(), KeyError("x"), AttributeError(), RecursionError()]
)
def test_an_answer_that_boto3_trips_over_is_an_error_of_ours(error: Exception) -> None:
    with pytest.raises(ProviderError, match="cannot be understood") as odd, told(PLACE):
        raise error
    assert odd.value.where == "s3://bucket/p"


def test_within_boto3_its_errors_become_ours_and_others_stay() -> None:
    with pytest.raises(AccessDenied, match="may not list"), told(PLACE, "list"):
        raise refusal("AccessDenied")
    with pytest.raises(ProviderError, match="cannot be reached"), told(PLACE):
        raise be.ConnectTimeoutError(endpoint_url="x")
    with pytest.raises(OSError, match="mine"), told(PLACE):
        raise OSError("mine")
    with told(PLACE):
        pass


def test_temporary_credentials_end() -> None:
    class Temporary:
        _expiry_time = datetime(2026, 11, 22, tzinfo=timezone.utc)

    assert _until(Temporary()) == 1_795_305_600.0
    assert _until(object()) is None
