"""Steps timed on a processor: what ``python -m model.check`` prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from model.check import count_memory_anew, main
from tests import settings as made

SMALL = {"depth": 1, "width": 32, "head_dim": 16, "vocab_size": 64, "sequence": 16, "batch": 2}


@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.more)])
def test_its_steps_are_timed_and_learn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], compiles: bool
) -> None:
    more = {**SMALL, "accumulation": 3, "compile": compiles}
    settings = made.settings_of("nanochat", "train", dtype="float32", **more)
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(settings.to_json()))
    assert main([str(path), "--device", "cpu", "--steps", "3"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["device"] == "this processor"
    assert told["dtype"] == "float32"
    assert told["micro_s"] > 0
    whole_s = 3 * told["micro_s"] + told["once_s"]
    assert told["tokens_per_s"] == pytest.approx(3 * 2 * 16 / whole_s)
    assert told["last_loss"] < told["first_loss"]
    assert told["peak_gb"] is None, "a processor does not count it"


@pytest.mark.parametrize("content", ["", "[]", '{"family": "none"}'])
def test_what_is_no_settings_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    path = tmp_path / "settings.json"
    path.write_text(content)
    assert main([str(path), "--device", "cpu"]) == 2
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ")
    assert len(rest) == 1, "and one line of JSON"


def test_cuda_has_begun_before_its_peaks_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch's own: without a device that has begun, "RuntimeError: Invalid device argument".
    begun: list[str] = []

    def forget(device: object) -> None:
        if not begun:
            raise RuntimeError("Invalid device argument")

    monkeypatch.setattr(torch.cuda, "init", lambda: begun.append("init"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", forget)
    count_memory_anew(torch.device("cuda", 0))
    assert begun == ["init"]
