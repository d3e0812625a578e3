"""The agent's look at its GPUs, with a real process that answers as nvidia-smi does."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from trmcloud.core.contract.gpu_counters import GPU_NOTE, GpuCounters, window_from
from trmcloud.pod.machine.gpu_sampler import SAMPLE_EVERY_S, WINDOW_S, GpuSampler, parse

ROW = "97, 71000, 81559, 1980\n"


class Gpus:
    """An ``nvidia-smi`` on the PATH, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "nvidia-smi"
        self.now = 1000.0
        self.says(ROW)
        self.sampler = GpuSampler()

    def says(self, rows: str, before: str = "") -> None:
        made = self.script.with_suffix(".new")
        made.write_text(f"#!/bin/sh\n{before}\ncat <<'ROWS'\n{rows}ROWS\n")
        made.chmod(0o755)
        os.replace(made, self.script)

    def sample(self, *, trains: bool = True) -> None:
        """Let one look be taken and answered."""
        self.now += SAMPLE_EVERY_S
        self.sampler.tend(self.now, trains=trains)
        deadline = time.monotonic() + 30.0
        while self.sampler._asked is not None:
            assert time.monotonic() < deadline
            self.sampler.tend(self.now, trains=trains)


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Gpus(tmp_path)


def test_samples_become_a_note(gpus: Gpus) -> None:
    assert gpus.sampler.notes() == {}
    gpus.sample()
    gpus.says(ROW.replace("97", "47"))
    gpus.sample()
    window = window_from(gpus.sampler.notes()[GPU_NOTE])
    assert window is not None
    assert (window.samples, window.over_s) == (2, SAMPLE_EVERY_S)
    assert window.gpus == (GpuCounters(72.0, 71000.0, 81559.0, 1980.0),)


def test_no_oftener_than_it_should(gpus: Gpus) -> None:
    gpus.sample()
    gpus.now += SAMPLE_EVERY_S - 0.1
    gpus.sampler.tend(gpus.now, trains=True)
    assert gpus.sampler._asked is None


def test_what_does_not_train_does_not_count(gpus: Gpus) -> None:
    gpus.sample(trains=False)
    assert gpus.sampler.window() is None
    gpus.sampler.tend(gpus.now, trains=True)  # asked while it trained
    deadline = time.monotonic() + 30.0
    while gpus.sampler._asked is not None:
        assert time.monotonic() < deadline
        gpus.sampler.tend(gpus.now, trains=False)  # and answered while it saved
    assert gpus.sampler.window() is None


def test_an_old_sample_leaves_the_window(gpus: Gpus) -> None:
    gpus.sample()
    gpus.now += WINDOW_S
    gpus.sample()
    window = gpus.sampler.window()
    assert window is not None
    assert window.samples == 1


def test_another_attempt_begins_anew(gpus: Gpus) -> None:
    gpus.sample()
    gpus.sampler.forget()
    assert gpus.sampler.notes() == {}


def test_a_gpu_that_fell_off_its_bus(gpus: Gpus) -> None:
    gpus.says(ROW * 2)
    gpus.sample()
    gpus.says("Unable to determine the device handle for GPU1: Unknown Error\n" + ROW)
    gpus.sample()
    window = gpus.sampler.window()
    assert window is not None
    assert (window.samples, len(window.gpus)) == (1, 1)


def test_one_that_fails_hangs_or_is_not_there(gpus: Gpus, tmp_path: Path) -> None:
    gpus.says(ROW, before="exit 9")
    gpus.sample()
    assert gpus.sampler.window() is None
    gpus.says(ROW, before="sleep 600")
    gpus.now += SAMPLE_EVERY_S
    gpus.sampler.tend(gpus.now, trains=True)
    gpus.now += 11.0
    gpus.sampler.tend(gpus.now, trains=True)  # killed; the next look comes in its turn
    assert gpus.sampler.window() is None
    gpus.script.unlink()
    absent = GpuSampler()
    absent.tend(gpus.now, trains=True)
    assert absent._asked is None


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("[N/A], 71000, 81559, ERR!\n", [GpuCounters(None, 71000.0, 81559.0, None)]),
        ("97, 71000, 81559\n", []),
        ("No devices were found\n", []),
        ("9" * 400 + ", 1, 2, 3\n", [GpuCounters(None, 1.0, 2.0, 3.0)]),
        ("-5, nan, inf, 1e9\n", [GpuCounters(None, None, None, None)]),
    ],
)
def test_what_it_prints_is_read_with_suspicion(text: str, read: list[GpuCounters]) -> None:
    assert list(parse(text)) == read
