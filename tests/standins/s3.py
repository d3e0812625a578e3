"""An S3 to test against: moto's server, a process of its own, on a port of its own choosing.

Or any other store: name its address in ``TRMCLOUD_TEST_S3``, with its keys in
``TRMCLOUD_TEST_S3_KEY`` and ``TRMCLOUD_TEST_S3_SECRET``; tests make a bucket there.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

CANARY = "CANARY-secret-key"
BUCKET = "trmc-test"
ENV_URL = "TRMCLOUD_TEST_S3"
ENV_KEY, ENV_SECRET = f"{ENV_URL}_KEY", f"{ENV_URL}_SECRET"


@dataclass(frozen=True)
class S3:
    """``environment`` is all that a user of it sets."""

    url: str
    client: Any
    key: str = "id"
    secret: str = CANARY
    is_other: bool = False
    """It is not moto's."""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 443

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def keys(self, bucket: str, prefix: str = "") -> dict[str, int]:
        """Every object's size by its key."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return {found["Key"]: found["Size"] for page in pages for found in page.get("Contents", ())}

    def read(self, bucket: str, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket=bucket, Key=key)["Body"].read())


@contextlib.contextmanager
def running(spool: Path | None = None) -> Iterator[S3]:
    """Until the block ends. ``spool`` is where it puts objects that are too large for memory."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    if spool is not None:
        environment["TMPDIR"] = str(spool)
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert server.stderr is not None
        lines = server.stderr
        port = next(m[1] for line in lines if (m := re.search(r"127\.0\.0\.1:(\d+)", line)))
        # A pipe that nobody reads would stop it after some hundred requests.
        threading.Thread(target=lambda: list(lines), daemon=True).start()
        yield store_at(f"http://127.0.0.1:{port}", "id", CANARY)
    finally:
        server.kill()
        server.wait()


def store_at(url: str, key: str, secret: str) -> S3:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(
            signature_version="s3v4",
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
    return S3(url, client, key, secret, is_other=secret != CANARY)


def _another() -> S3 | None:
    """The store that the environment names."""
    url = os.environ.get(ENV_URL, "")
    return store_at(url, os.environ[ENV_KEY], os.environ[ENV_SECRET]) if url else None


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """One server for all that a process tests, each below a prefix of its own in one bucket."""
    pytest.importorskip("boto3")
    if (other := _another()) is not None:
        there = other.client.exceptions
        with contextlib.suppress(there.BucketAlreadyOwnedByYou, there.BucketAlreadyExists):
            other.client.create_bucket(Bucket=BUCKET)
        yield other
        return
    pytest.importorskip("moto")
    with running() as server:
        server.client.create_bucket(Bucket=BUCKET)
        yield server
