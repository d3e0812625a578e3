"""Our side of a bucket on a real S3 server, and checkpoints to put there."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import checkpoint
from tests.standins.s3 import BUCKET, S3
from trmcloud.adapters.s3.bucket import S3Bucket
from trmcloud.adapters.s3.client import Client
from trmcloud.core.contract.bucket_layout import Place, slot_name
from trmcloud.ports.bucket import GrantRequest

SMALL_BYTES = 1 << 14


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """Below which a test has the bucket to itself."""
    return f"of-{tmp_path.name}".replace("_", "-")[:60]


@pytest.fixture
def credentials(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is this process's own."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def connected(s3: S3) -> Client:
    """Connecting takes a while, and is the same each time."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        return S3Bucket(Place(BUCKET)).client


def at(connected: Client, prefix: str) -> S3Bucket:
    made = S3Bucket(Place(BUCKET, prefix))
    made.__dict__["client"] = replace(connected, place=Place(BUCKET, prefix))
    return made


@pytest.fixture
def bucket(connected: Client, prefix: str) -> S3Bucket:
    return at(connected, prefix)


def silent(done: int, whole: int) -> None:
    pass


def stored(
    bucket: S3Bucket, folder: Path, step: int, bpb: float, slot: int = 0, **more: Any
) -> Any:
    made = checkpoint(folder / str(step), step, bpb, **more)
    bucket.store(folder / str(step), made, slot_name(1, slot), silent)
    return made


def request(**changes: Any) -> GrantRequest:
    made = GrantRequest("r1", "pod", 1, {"fast": 2}, time.time() + 600)
    return replace(made, **{"file_bytes": {"fast": SMALL_BYTES}, **changes})
