"""Fixtures of the contract tests."""

from tests.standins.runpod.fixture import runpod, runpod_and_clock, runpod_on_paper

__all__ = ["runpod", "runpod_and_clock", "runpod_on_paper"]
