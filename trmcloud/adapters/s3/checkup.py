"""The checks of a bucket for ``doctor``."""

from __future__ import annotations

from collections.abc import Mapping

from trmcloud.adapters.s3 import settings
from trmcloud.core.contract.bucket_layout import parse_place
from trmcloud.core.errors import TrmcloudError
from trmcloud.operations.checks.doctor import Finding

MOST_SKEW_S = 300.0
"""S3 takes no request that is signed further from its own time than fifteen minutes."""


def check_bucket(environ: Mapping[str, str], named: str) -> list[Finding]:
    """Check that the bucket (or the environment's) can be used; empty where none is named."""
    text = named or environ.get(settings.ENV_BUCKET, "")
    if not text:
        return []
    try:
        place = parse_place(text)
        settings.require_client()
        from trmcloud.adapters.s3.bucket import S3Bucket
        from trmcloud.adapters.s3.client import clock_skew_s
        from trmcloud.adapters.s3.sending import unfinished

        bucket = S3Bucket(place)
        client = bucket.client
        bucket.check()
        resumes = unfinished(client, place.key("data") + "/") is not None
        skew_s = clock_skew_s(client)
    except TrmcloudError as error:
        return [Finding("bucket", "bad", str(error), error.next_step)]
    where = client.endpoint or "AWS"
    detail = f"{place} at {where}, {client.region}: written, read and deleted"
    if not resumes:
        detail += (
            "; does not list unfinished uploads, so a large upload that is interrupted starts again"
        )
    if client.plain:
        detail += (
            "; does not accept presigned requests, so checkpoints are pulled and uploaded from here"
        )
    if skew_s is not None and abs(skew_s) > MOST_SKEW_S:
        ahead = "ahead of" if skew_s > 0 else "behind"
        far = f"this machine's clock is {abs(skew_s):.0f} s {ahead} the store's"
        return [Finding("bucket", "warn", f"{detail}; {far}", "set the clock (NTP)")]
    return [Finding("bucket", "ok", detail)]
