"""Fixtures of the contract tests."""

from pathlib import Path

import pytest

from tests.contract.runpod_rig import Clocked, Rig, build
from tests.contract.s3_bucket import bucket, connected, credentials, prefix
from tests.standins.runpod.fixture import runpod_and_clock, runpod_on_paper
from tests.standins.s3 import s3

__all__ = [
    "bucket",
    "connected",
    "credentials",
    "prefix",
    "runpod_and_clock",
    "runpod_on_paper",
    "s3",
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a ledger's file will be."""
    return tmp_path / "home" / "ledger.db"


@pytest.fixture
def rig(runpod_and_clock: Clocked) -> Rig:
    """RunPod's adapter on the stand-in."""
    return build(runpod_and_clock)
