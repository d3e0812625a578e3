"""What the outside sees: heartbeats that account for every second, metrics that can be rewound."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from model.machine import telemetry
from model.machine.telemetry import (
    Clock,
    Metrics,
    Pulse,
    end_for_another,
    ended_by_another,
    process_age_s,
    process_started,
)
from trmcloud.core.contract.trainer_contract import PhaseJob, load_heartbeat


class HandClock:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.at = 100.0

    def clock(self) -> Clock:
        return Clock(epoch=lambda: 1e9 + self.at, monotonic=lambda: self.at)


@pytest.fixture
def job(tmp_path: Path) -> PhaseJob:
    return PhaseJob("r1", "fast", {}, "data", str(tmp_path), 2)


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    monkeypatch.setattr(telemetry, "process_age_s", lambda: 2.5)
    return HandClock()


def test_seconds_by_state_sum_to_the_attempts_wall_time(job: PhaseJob, hand: HandClock) -> None:
    pulse = Pulse(job, 1, 100, hand.clock())
    pulse.enter("starting")
    hand.at += 3
    pulse.enter("compiling")
    hand.at += 4
    pulse.enter("training")
    hand.at += 5
    with pulse.during("evaluating"):
        hand.at += 6
    hand.at += 7
    with pulse.during("saving"):
        hand.at += 8
    pulse.enter("landing")
    with pulse.during("evaluating"):
        assert pulse.now.state == "landing"
        hand.at += 9
    pulse.end("landed_deadline")
    beat = load_heartbeat((Path(job.out_dir) / "heartbeat.json").read_bytes())
    assert beat.seconds == {
        "startup": 5.5,
        "data": 0,
        "compile": 4,
        "training": 12,
        "evaluating": 6,
        "saving": 8,
        "landing": 9,
    }
    assert sum(beat.seconds.values()) == hand.at - 100 + 2.5
    assert (beat.state, beat.outcome, beat.at) == ("ended", "landed_deadline", 1e9 + hand.at)


def test_beats_are_at_most_one_a_second_and_lose_no_news(job: PhaseJob, hand: HandClock) -> None:
    pulse = Pulse(job, 1, 100, hand.clock())
    pulse.enter("training")
    path = Path(job.out_dir) / "heartbeat.json"
    for step in range(1, 20):
        hand.at += 0.125  # exact in binary
        pulse.beat(step=step)
        assert load_heartbeat(path.read_bytes()).step == step // 8 * 8
    pulse.enter("landing")
    assert load_heartbeat(path.read_bytes()).step == 19


def test_a_heartbeat_names_its_process(job: PhaseJob, hand: HandClock) -> None:
    pulse = Pulse(job, 3, 100, hand.clock())
    assert (pulse.now.pid, pulse.now.attempt) == (os.getpid(), 3)
    stat = Path(f"/proc/{os.getpid()}/stat").read_text()
    assert pulse.now.pid_started == process_started() == stat.split(")")[-1].split()[19]


def test_a_process_knows_about_how_old_it_is() -> None:
    assert 0 <= process_age_s() < 600


def test_a_silent_rank_writes_nothing(job: PhaseJob, hand: HandClock, tmp_path: Path) -> None:
    pulse = Pulse(job, 1, 100, hand.clock(), silent=True)
    pulse.enter("training")
    pulse.end("finished")
    assert list(tmp_path.iterdir()) == []


def test_another_rank_can_tell_how_it_ended(job: PhaseJob, hand: HandClock) -> None:
    pulse = Pulse(job, 2, 100, hand.clock())
    pulse.enter("training")
    end_for_another(job, 1, "out_of_memory", "an earlier attempt's rank", now=7.0)
    assert not ended_by_another(job, 2)
    end_for_another(job, 2, "out_of_memory", "rank 1 ran out", now=8.0)
    assert ended_by_another(job, 2)
    beat = load_heartbeat((Path(job.out_dir) / "heartbeat.json").read_bytes())
    assert (beat.outcome, beat.message, beat.at) == ("out_of_memory", "rank 1 ran out", 8.0)
    end_for_another(job, 2, "crashed", "an echo", now=9.0)
    assert load_heartbeat((Path(job.out_dir) / "heartbeat.json").read_bytes()).at == 8.0


def test_metrics_are_json_lines_and_infinities_null(tmp_path: Path, hand: HandClock) -> None:
    metrics = Metrics(tmp_path, hand.clock())
    metrics.write("train", 1, loss=float("inf"), step_losses=[1.0, float("nan")])
    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line) == {
        "kind": "train",
        "step": 1,
        "at": 1e9 + 100,
        "loss": None,
        "step_losses": [1.0, None],
    }


def test_rewinding_drops_later_and_cut_lines(tmp_path: Path, hand: HandClock) -> None:
    metrics = Metrics(tmp_path, hand.clock())
    for step in range(6):
        metrics.write("train", step, loss=1.0)
    metrics.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "st')
    Metrics(tmp_path, hand.clock()).rewind(3)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2, 3]
    Metrics(tmp_path, hand.clock()).rewind(None)
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_tensorboard_gets_the_scalars(tmp_path: Path, hand: HandClock) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = Metrics(tmp_path, hand.clock())
    metrics.open_board(0)
    metrics.write("train", 5, loss=1.5, step_losses=[3.0, 2.0])
    metrics.close()
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert read.Scalars("train/loss")[0].value == 1.5
    assert read.Scalars("train/step_losses/1")[0].step == 5
