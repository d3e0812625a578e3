"""The environment's settings of buckets. Nothing here needs boto3."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping

from trmcloud.core.errors import MissingExtra
from trmcloud.io.installation import install_command

ENV_BUCKET = "TRMCLOUD_BUCKET"
ENV_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_RUNPOD = re.compile(r"https://s3api-([a-z0-9-]+)\.runpod\.io/?")


def endpoint(environ: Mapping[str, str]) -> str:
    """The store's address where it is not AWS's own; '' where it is."""
    return next((environ[name] for name in ENV_ENDPOINTS if environ.get(name)), "")


def supports_presigned(url: str) -> bool:
    """RunPod's S3 to network volumes takes none, nor deletions in batches or conditional writes."""
    return _RUNPOD.fullmatch(url) is None


def region_of(url: str) -> str:
    """The region that an endpoint's own name tells; '' where it tells none."""
    found = _RUNPOD.fullmatch(url)
    return found.group(1).upper() if found else ""


def require_client() -> None:
    """
    Raises:
        MissingExtra: boto3 is not installed.
    """
    if importlib.util.find_spec("boto3") is None:
        raise MissingExtra("a bucket", "s3", install_command("s3"))
