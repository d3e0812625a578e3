"""Curves of files that are long, hostile, being written, or begun anew."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.core.runs import AT, running
from trmcloud.app import metrics_lines
from trmcloud.app.curves import MetricsFile, Phase, drawn, sampled, since, starts, step_at


def line(kind: str, step: int, **told: Any) -> str:
    return json.dumps({"kind": kind, "step": step, "at": AT + step, **told}) + "\n"


def a_file(folder: Path, steps: int, spike_at: int = -1) -> Path:
    path = folder / "metrics.jsonl"
    with open(path, "w") as file:
        for step in range(1, steps + 1):
            loss = 99.0 if step == spike_at else 4.0 / math.log(step + 2)
            file.write(line("train", step, loss=loss, step_losses=[loss + 0.1, loss]))
            if step % 100 == 0:
                file.write(line("eval", step, val_bpb=loss / 3, val_step_losses=[loss]))
            if step % 1000 == 0:
                file.write(line("save", step))
    return path


def read(path: Path, file: MetricsFile | None = None) -> MetricsFile:
    file = file or MetricsFile(path, "fast")
    for _ in file.read_on():
        pass
    return file


def test_what_is_thinned_out_keeps_every_spike(tmp_path: Path) -> None:
    file = read(a_file(tmp_path, 5000, spike_at=3333))
    made = drawn(running(), [file.phase], points=100)
    assert made.whole
    assert len(made.train.step) <= 102
    assert (made.train.step[0], made.train.step[-1]) == (1, 5000)
    assert made.train.value[made.train.step.index(3333)] == 99.0
    assert [step for _, step, _ in made.saves] == [1000, 2000, 3000, 4000, 5000]


def test_a_sample_has_every_evaluation_and_save(tmp_path: Path) -> None:
    path = a_file(tmp_path, 5000)
    phase, whole = sampled(path, "fast", windows=50), read(path).phase
    assert not phase.whole
    assert phase.evals.step == whole.evals.step
    assert phase.evals.value == whole.evals.value
    assert phase.saves == whole.saves
    assert 45 <= len(phase.train) <= 52
    assert set(phase.train.step) <= set(whole.train.step)


def test_of_a_long_file_a_part_is_looked_at(tmp_path: Path) -> None:
    path = a_file(tmp_path, 5000)
    phase, whole = sampled(path, "fast", windows=5), read(path).phase
    assert phase.train.step[0] == 1
    assert 5 <= len(phase.train) <= 10
    assert 3 <= len(phase.evals) < len(whole.evals) / 2
    assert list(phase.evals.step) == sorted(phase.evals.step)
    told = dict(zip(whole.evals.step, whole.evals.value, strict=True))
    assert told | dict(zip(phase.evals.step, phase.evals.value, strict=True)) == told
    assert set(phase.saves) < set(whole.saves)


def test_a_sample_of_what_is_no_file_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    (tmp_path / "one-line").write_bytes(b"x" * (1 << 20))
    for name in ("fifo", "empty", "one-line", "absent"):
        phase = sampled(tmp_path / name, "fast")
        assert (len(phase.train), len(phase.evals), phase.saves) == (0, 0, [])


def test_it_is_read_on_as_it_grows_and_half_a_line_waits(tmp_path: Path) -> None:
    path = a_file(tmp_path, 10)
    file = read(path)
    known = {"fast": (len(file.phase.train), len(file.phase.evals))}
    with open(path, "a") as more:
        more.write(line("train", 11, loss=1.5) + line("train", 12, loss=1.25)[:20])
    read(path, file)
    news = since(running(), [file.phase], known)
    assert (news.train.step, news.train.value) == ([11], [1.5])
    with open(path, "a") as more:
        more.write(line("train", 12, loss=1.25)[20:])
    read(path, file)
    assert list(file.phase.train.step)[-2:] == [11, 12]
    assert file.unread_bytes == 0


def test_one_that_goes_back_to_a_checkpoint_is_read_anew(tmp_path: Path) -> None:
    path = a_file(tmp_path, 10)
    file = read(path)
    before = file.phase
    (tmp_path / "new").mkdir()
    shorter = a_file(tmp_path / "new", 6)
    shorter.replace(path)
    assert file.is_another
    read(path, file)
    assert file.phase is not before
    assert list(file.phase.train.step) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "hostile",
    [
        '{"kind": "train", "step": "1", "at": 1, "loss": 1}',
        '{"kind": "train", "step": true, "at": 1, "loss": 1}',
        '{"kind": "train", "step": -1, "at": 1, "loss": 1}',
        '{"kind": "train", "step": 1e3, "at": 1, "loss": 1}',
        '{"kind": "train", "step": 9999999999999999999, "at": 1}',
        '{"kind": "train", "step": 1, "at": null, "loss": 1}',
        '{"kind": ["train"], "step": 1, "at": 1}',
        "[" * 5000,
        "null",
        "\x00\xff",
        '{"kind": "train", "step": 1, "at": 1, "loss": 1' + "0" * 70_000 + "}",
    ],
)
def test_what_is_no_point_is_passed_over(tmp_path: Path, hostile: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line("train", 5, loss=2.0) + hostile + "\n" + line("train", 6, loss=1.0))
    for phase in (read(path).phase, sampled(path, "fast")):
        assert list(phase.train.step) == [5, 6]


def test_values_that_are_none_are_gaps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        line("train", 1, loss=None, step_losses=[1.0, None, "x", True, 1e305])
        + line("train", 2, loss="low")
    )
    made = drawn(running(), [read(path).phase])
    assert made.train.value == [None, None]
    assert made.train.passes[0] == [1.0, None]
    assert [column[0] for column in made.train.passes[1:]] == [None] * 4
    json.dumps(made.train.to_json(), allow_nan=False)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = a_file(tmp_path, 5)
    link = tmp_path / "link.jsonl"
    link.symlink_to(target)
    assert len(read(link).phase.train) == len(sampled(link, "fast").train) == 0


def test_phases_stand_one_behind_the_other(tmp_path: Path) -> None:
    fast, extreme = Phase("fast"), Phase("extreme")
    for step in (10, 20):
        fast.take({"kind": "train", "step": step, "at": AT + step, "loss": 2.0})
    extreme.take({"kind": "train", "step": 5, "at": AT + 100, "loss": 1.0})
    phases = [fast, extreme]
    assert starts(phases) == [("fast", 0), ("extreme", 20)]
    assert drawn(running(), phases).train.step == [10, 20, 25]
    assert [step_at(phases, AT + at) for at in (0, 10, 15, 99, 100, 999)] == [0, 10, 10, 20, 25, 25]
    assert step_at([], AT) is None


def test_dollars_and_hours_are_those_that_are_paid(tmp_path: Path) -> None:
    run = running()
    phase = Phase("fast")
    assert run.generation is not None
    for after_s in (-50, 0, 1800, 3600):
        at = run.generation.intended_at + after_s
        phase.take({"kind": "train", "step": 1, "at": at, "loss": 2.0})
    made = drawn(run, [phase])
    rate = float(run.generation.billed_rate or run.generation.rate)
    assert made.train.hours == pytest.approx([0, 0, 0.5, 1])
    assert made.train.usd == pytest.approx([0, 0, rate / 2, rate])


def test_no_more_than_so_many_lines_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_lines, "_MOST_LINES", 1000)
    file = read(a_file(tmp_path, 3000))
    assert 990 <= len(file.phase.train) <= 1000
