"""A user whose commands run in the test's own process."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.runpod_user import RentedUser, TestClock
from tests.e2e.user import User
from tests.standins.runpod.fixture import judged
from trmcloud.cli.main import main

_AT_START = ("PYTHON", "LC_", "LD_")
"""Variables that an interpreter or its loader reads once, as it starts."""

_STREAMS_GIVEN = (("sample",), ("ssh",))
"""Commands that give another program their own standard streams, or become it."""


class InProcess(User):
    """A user whose commands that end by themselves run in the test's own process: for refusals and
    looks, where a process for each would cost more than the command does."""

    def ended(self, *arguments: str, within_s: float = 400) -> tuple[int, str, str]:
        at_start = any(name.startswith(_AT_START) for name in self.environment)
        own = at_start or self.program != User.program or arguments[:1] in _STREAMS_GIVEN
        if self.wrapper or own:
            return super().ended(*arguments, within_s=within_s)
        streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
        with pytest.MonkeyPatch.context() as patch, open(os.devnull) as nothing:
            for name in os.environ.keys() - self.env().keys():
                patch.delenv(name)
            for name, value in self.env().items():
                patch.setenv(name, value)
            patch.chdir(self.here)
            patch.setattr(sys, "argv", ["trmcloud", *arguments])
            patch.setattr(sys, "stdin", nothing)
            patch.setattr(sys, "stdout", streams[0])
            patch.setattr(sys, "stderr", streams[1])
            with pytest.raises(SystemExit) as left:
                main(list(arguments))
        out, err = map(_written, streams)
        assert "Traceback" not in err, err
        return int(left.value.code or 0), out, err


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.seek(0)
    return stream.read()


@dataclass
class RenterInProcess(RentedUser, InProcess):
    """One whose commands run in the test's own process, by its clock."""


@pytest.fixture
def typist(tmp_path: Path) -> Iterator[InProcess]:
    made = InProcess(tmp_path)
    yield made
    made.end_everything()


@pytest.fixture
def quick_renter(tmp_path: Path) -> Iterator[RenterInProcess]:
    """One of pods on paper whose commands run in this process, by this machine's clock."""
    with judged(tmp_path / "runpod", real_pods=False) as standin:
        made = RenterInProcess(tmp_path, standin=standin, clock=TestClock(tmp_path / "clock"))
        yield made
        made.end_everything()
