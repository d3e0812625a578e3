"""Fixtures of the contract tests."""

from pathlib import Path

import pytest

from tests.standins.runpod.fixture import runpod, runpod_and_clock, runpod_on_paper

__all__ = ["runpod", "runpod_and_clock", "runpod_on_paper"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a ledger's file will be."""
    return tmp_path / "home" / "ledger.db"
