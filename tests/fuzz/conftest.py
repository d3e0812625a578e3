"""What readers of a provider's answers are given."""

from __future__ import annotations

from tests.standins.s3 import s3
from tests.unit.runpod.conftest import runpod

__all__ = ["runpod", "s3"]
