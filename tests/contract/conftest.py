"""Fixtures of the contract tests."""

from pathlib import Path

import pytest

from tests.contract.runpod_rig import Clocked, Rig, build
from tests.standins.runpod.fixture import runpod, runpod_and_clock, runpod_on_paper

__all__ = ["runpod", "runpod_and_clock", "runpod_on_paper"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a ledger's file will be."""
    return tmp_path / "home" / "ledger.db"


@pytest.fixture
def rig(runpod_and_clock: Clocked) -> Rig:
    """RunPod's adapter on the stand-in."""
    return build(runpod_and_clock)
