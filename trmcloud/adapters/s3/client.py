"""A client of one bucket in the bucket's own region, and its errors."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from trmcloud.adapters.s3 import settings
from trmcloud.core.contract.bucket_layout import Place
from trmcloud.core.errors import (
    AccessDenied,
    AuthError,
    NotFoundError,
    ProviderError,
    ProviderRefused,
    TrmcloudError,
)
from trmcloud.core.values import Value
from trmcloud.io.network import wrong_setting

LANES = 4
"""Requests side by side."""
BLOCK = 1 << 20

# A client of one bucket, in the bucket's own region; what goes wrong, in one line each.
#
# botocore's own messages may hold access keys and signed addresses: only its codes are shown.

CONNECT_S, READ_S = 10, 120
POOL, TRIES = 16, 5
BRIEF_CONNECT_S, BRIEF_READ_S = 3, 5
_WRONG_KEY = frozenset(
    (
        *("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken"),
        *("ExpiredTokenException", "TokenRefreshRequired", "InvalidClientTokenId"),
    )
)
_DENIED = frozenset(("AccessDenied", "AllAccessDisabled", "AccountProblem", "403", "Forbidden"))
_NO_BUCKET = frozenset(("NoSuchBucket", "404", "NotFound"))
_ELSEWHERE = frozenset(
    ("PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IncorrectEndpoint")
)
_UNKNOWN_CALL = frozenset(
    ("NotImplemented", "UnsupportedOperation", "MethodNotAllowed", "NotSupported")
)
_FULL = frozenset(("QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "507"))


class Client(Value):
    """``s3`` is boto3's. ``until`` is when its credentials end (epoch s); None: not known to.

    ``endpoint`` is '' for AWS itself. ``plain``: neither presigned requests, nor deletions in
    batches, nor conditional writes.
    """

    s3: Any
    place: Place
    region: str
    endpoint: str
    plain: bool
    until: float | None


def connect(
    place: Place, environ: Mapping[str, str] = os.environ, *, brief: bool = False
) -> Client:
    """``brief``: for one who cannot wait for a store that does not answer.

    Raises:
        MissingExtra: there is no boto3. AuthError: there are no credentials, or wrong ones.
        NotFoundError: there is no such bucket. ProviderError: it cannot be reached.
    """
    settings.require_client()
    import boto3
    from botocore.config import Config
    from botocore.exceptions import ClientError

    url = settings.endpoint(environ)
    with translate_errors(place):
        session = boto3.session.Session()
        region = settings.region_of(url) or session.region_name or "us-east-1"
        credentials = session.get_credentials()
    if credentials is None:
        raise _no_credentials(place)

    def made(where: str) -> Any:
        config = Config(
            region_name=where,
            signature_version="s3v4",
            connect_timeout=BRIEF_CONNECT_S if brief else CONNECT_S,
            read_timeout=BRIEF_READ_S if brief else READ_S,
            max_pool_connections=POOL,
            retries={"mode": "standard", "max_attempts": 1 if brief else TRIES},
            # Every body bears its MD5, which any store checks; newer sums not every store knows.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"payload_signing_enabled": False},
        )
        return session.client("s3", endpoint_url=url or None, config=config)

    with translate_errors(place):
        s3 = made(region)
        try:
            answer = s3.head_bucket(Bucket=place.bucket)
        except ClientError as error:
            headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
            actual = headers.get("x-amz-bucket-region", "")
            if not actual or actual == region:
                raise
            s3, region = made(actual), actual
            answer = s3.head_bucket(Bucket=place.bucket)
        actual = answer.get("BucketRegion") or ""
        if actual and actual != region:
            s3, region = made(actual), actual
    plain = not settings.supports_presigned(url)
    return Client(s3, place, region, url, plain, _until(credentials))


def _until(credentials: Any) -> float | None:
    """When temporary credentials end: what they signed ends with them."""
    ends = getattr(credentials, "_expiry_time", None)
    return ends.timestamp() if ends is not None else None


@contextlib.contextmanager
def translate_errors(place: Place, doing: str = "") -> Iterator[None]:
    """Convert errors of boto3 in the block to errors of ours."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (ClientError, BotoCoreError) as error:
        raise explain(error, place, doing) from None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        # boto3's parsers take an answer for what it should be.
        raise ProviderError(
            "the store's answer cannot be understood",
            where=str(place),
            next_step="check AWS_ENDPOINT_URL_S3: that server may not support S3",
        ) from None


def code_of(error: Any) -> str:
    """The store's own code, else the HTTP status, else ''."""
    response = getattr(error, "response", None) or {}
    code = str(response.get("Error", {}).get("Code", ""))
    return code or str(response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))


def explain(error: Any, place: Place, doing: str = "") -> TrmcloudError:
    """One line: what, where, and what to do next."""
    from botocore import exceptions as be

    where = str(place)
    if isinstance(error, be.ClientError):
        return _refused(error, where, doing)
    if isinstance(error, (be.NoCredentialsError, be.PartialCredentialsError)):
        return _no_credentials(place)
    named = type(error).__name__
    if "Credential" in named or "Token" in named or isinstance(error, be.ProfileNotFound):
        return AuthError(
            f"the AWS credentials cannot be read: {named}",
            where=where,
            next_step="aws sso login, or export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    if isinstance(error, be.InvalidEndpointDiscoveryConfigurationError | be.InvalidRegionError):
        return ProviderRefused("the region or endpoint is malformed", where=where)
    if (wrong := wrong_setting(("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"))) is not None:
        return ProviderError(
            f"the bucket cannot be reached: {wrong.what}", where=where, next_step=wrong.next_step
        )
    return ProviderError(
        f"the bucket cannot be reached: {named}",
        where=where,
        next_step="check the network, and AWS_ENDPOINT_URL_S3 if the store is not AWS",
    )


def _refused(error: Any, where: str, doing: str) -> TrmcloudError:
    code = code_of(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if code in _WRONG_KEY:
        expired = "Expired" in code or "Refresh" in code
        return AuthError(
            f"the AWS credentials {'have expired' if expired else 'are not accepted'} ({code})",
            where=where,
            next_step="renew them: aws sso login, or set other AWS_… variables",
        )
    if code in ("RequestTimeTooSkewed", "RequestExpired"):
        return ProviderRefused(
            "this machine's clock is too far from the store's",
            where=where,
            next_step="set it (NTP)",
        )
    if code in _DENIED or status == 403:
        return AccessDenied(
            f"the credentials may not {doing or 'use this bucket'} ({code})",
            where=where,
            next_step="they need s3:ListBucket, GetObject, PutObject, DeleteObject and "
            "AbortMultipartUpload there",
        )
    if code == "NoSuchBucket" or (code in _NO_BUCKET and error.operation_name == "HeadBucket"):
        return NotFoundError(
            "there is no such bucket", where=where, next_step="create it, or use another: --bucket"
        )
    if code in _ELSEWHERE or status == 301:
        return ProviderRefused(
            "the bucket is in another region; the store does not say which",
            where=where,
            next_step="export AWS_REGION=… with the bucket's region",
        )
    if code in _FULL:
        return ProviderRefused(f"the store is full ({code})", where=where)
    why = code or "it gives no reason"
    return ProviderError(f"the store did not {doing or 'answer'}: {why}", where=where)


def is_missing(error: Any) -> bool:
    """Whether an object, not the bucket, is not there."""
    return code_of(error) in ("NoSuchKey", "404", "NotFound")


def is_unsupported(error: Any) -> bool:
    """Whether the store does not know what it was asked for: doing without may be of use."""
    about = (getattr(error, "response", None) or {}).get("ResponseMetadata", {})
    unknown = about.get("HTTPStatusCode") in (404, 405, 501) or code_of(error) in _UNKNOWN_CALL
    return unknown and not is_final_error(error)


def is_final_error(error: Any) -> bool:
    """Whether nothing else that is asked of the bucket will be answered better."""
    return code_of(error) in _WRONG_KEY or code_of(error) == "NoSuchBucket"


def _no_credentials(place: Place) -> AuthError:
    return AuthError(
        "there are no AWS credentials",
        where=str(place),
        next_step="export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or aws configure",
    )


def clock_skew_s(client: Client) -> float | None:
    """Return the seconds by which this machine's clock is ahead of the store's; None without a
    time."""
    from email.utils import parsedate_to_datetime

    with translate_errors(client.place):
        answer = client.s3.head_bucket(Bucket=client.place.bucket)
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    try:
        return time.time() - parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        return None
