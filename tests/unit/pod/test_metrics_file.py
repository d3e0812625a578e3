"""A trainer's lines with gaps, without numbers, and with steps that go back: what is read of them
from the disk, and what is said of the training by it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.unit.core.test_health import WELL, Line, recorded
from trmcloud.core.contract.gate import judge
from trmcloud.core.contract.records import MAX_LINE_BYTES, dump
from trmcloud.core.health import Rule, findings
from trmcloud.pod.machine.metrics_file import read_metrics


def written(path: Path, lines: list[Line]) -> Path:
    path.write_text("".join(f"{dump(line)}\n" for line in lines))
    return path


def test_a_whole_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = written(tmp_path / "metrics.jsonl", recorded("trm"))
    assert list(read_metrics(path)) == recorded("trm")
    assert read_metrics(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize(
    "stray",
    [
        b"\n",
        b"{",
        b"null\n[]\n",
        b"\xff\xfe\x00\n",
        b'{"kind": "train", "step": 10, "loss": NaN}\n',
        b'{"kind": "train", "step": 10, "loss": 1e999}\n',
        b'{"kind": "train", "step": 1, "step": 2}\n',
        b'{"kind": "train", "pad": "' + b"x" * MAX_LINE_BYTES + b'"}\n',
    ],
)
def test_what_is_no_line_takes_no_other_with_it(tmp_path: Path, stray: bytes) -> None:
    """Half a line at the end, too, as a killed trainer leaves it; the next one begins anew."""
    path = written(tmp_path / "metrics.jsonl", recorded("trm"))
    lines = path.read_bytes().splitlines(keepends=True)
    middle = stray if stray.endswith(b"\n") else stray + b"\n"
    path.write_bytes(b"".join([*lines[:50], middle, *lines[50:], stray]))
    assert list(read_metrics(path)) == recorded("trm")
    assert findings(read_metrics(path), WELL) == ()


def test_a_gap_of_a_hundred_lines_is_no_symptom_and_the_gate_still_judges(tmp_path: Path) -> None:
    whole = recorded("trm")
    lines = [*whole[:20], *whole[120:]]
    path = written(tmp_path / "metrics.jsonl", lines)
    assert findings(read_metrics(path), WELL) == ()
    judged = [judge("fast", each, strict=False) for each in (whole, read_metrics(path))]
    assert judged[0].passed
    assert judged[0].passed == judged[1].passed


def test_a_loss_that_is_none_is_told_by_its_step_until_it_is_trained_again(
    tmp_path: Path,
) -> None:
    """On disk a loss that is not finite is null. A phase that goes back to a checkpoint logs the
    same steps again, and what was lost with them counts no more."""
    lines = recorded("dense")
    at = next(n for n, line in enumerate(lines) if line["kind"] == "train" and line["step"] > 200)
    lost = [{**line} for line in lines[at : at + 10]]
    for line in lost:
        if line["kind"] == "train":
            line["loss"] = math.nan
    path = written(tmp_path / "metrics.jsonl", [*lines[:at], *lost])
    assert b'"loss": null' in path.read_bytes()
    [found] = findings(read_metrics(path), WELL)
    assert (found.rule, found.step) == (Rule.NOT_FINITE, lost[0]["step"])
    with path.open("a") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines[at:])
    assert findings(read_metrics(path), WELL) == ()
    steps = [line["step"] for line in read_metrics(path) if line["kind"] == "train"]
    assert steps != sorted(steps), "the file keeps both; the later word counts"
