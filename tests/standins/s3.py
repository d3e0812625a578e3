"""An S3 to test against: moto's server, a process of its own, on a port of its own choosing."""

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

import pytest

CANARY = "CANARY-secret-key"
BUCKET = "trmc-test"


@dataclass(frozen=True)
class S3:
    """``environment`` is all that a user of it sets."""

    port: int
    client: Any

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": CANARY,
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
    import boto3
    from botocore.config import Config

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
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            region_name="us-east-1",
            aws_access_key_id="id",
            aws_secret_access_key=CANARY,
            config=Config(signature_version="s3v4"),
        )
        yield S3(int(port), client)
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """One server for all that a process tests, each below a prefix of its own in one bucket."""
    for needed in ("boto3", "moto"):
        pytest.importorskip(needed)
    with running() as server:
        server.client.create_bucket(Bucket=BUCKET)
        yield server
