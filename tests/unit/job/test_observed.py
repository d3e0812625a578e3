"""The job reads the observer's notes: states of files, marks in the output, ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.e2e.user import until
from trmcloud.pod.job.artifacts import Artifact, artifact_at
from trmcloud.pod.job.metric_order import (
    OBSERVED,
    OF_HELD_OUT,
    OF_TRAINING,
    MetricOrder,
    SavedCheckpoint,
    Value,
)
from trmcloud.pod.job.observed import JsonLines, LowestRank, SavedStates, metrics_of
from trmcloud.pod.job.readings import LogPump, StateMark, mark_in
from trmcloud.pod.job.trmcloud_observer import MARK_BEGIN, MARK_END

HERE = (7, 100)


def mark(pid: int, since: int, state: int) -> bytes:
    return MARK_BEGIN + f"{pid} {since} {state}".encode() + MARK_END


def saved(path: Path, at: float, state: tuple[int, int] | None, *, ends: bool = True) -> dict:
    until_at = at + 0.1 if ends else None
    told = list(state) if state else None
    return {"saved": str(path), "since": at, "until": until_at, "state": told}


def file_of(folder: Path, name: str, at: float) -> Artifact:
    (folder / name).write_bytes(b"weights")
    os.utime(folder / name, (at, at))
    found = artifact_at(folder, name)
    assert found is not None
    return found


def test_a_file_has_the_state_of_the_write_that_made_it(tmp_path: Path) -> None:
    states = SavedStates()
    states.note(saved(tmp_path / "last.pt", 1000.0, (7, 10)))
    states.note(saved(tmp_path / "last.pt", 1010.0, (7, 20)))
    assert states.of(file_of(tmp_path, "last.pt", 1000.05)) == (7, 10)
    assert states.of(file_of(tmp_path, "last.pt", 1010.05)) == (7, 20)
    assert states.of(file_of(tmp_path, "last.pt", 1005.0)) is None, "another one wrote it"
    assert states.of(file_of(tmp_path, "other.pt", 1000.05)) is None


def test_renamed_and_copied_files_keep_their_state(tmp_path: Path) -> None:
    states = SavedStates()
    states.note(saved(tmp_path / "new.tmp", 1000.0, (7, 10)))
    states.note({"moved": [str(tmp_path / "new.tmp"), str(tmp_path / "a.pt")], "at": 1001.0})
    moved = [str(tmp_path / "a.pt"), str(tmp_path / "best.pt")]
    states.note({"moved": moved, "copied": True, "at": 1009.0})
    assert states.of(file_of(tmp_path, "a.pt", 1000.05)) == (7, 10)
    assert states.of(file_of(tmp_path, "best.pt", 1009.01)) == (7, 10)
    folder = tmp_path / "tmp-5"
    states.note(saved(folder / "model.bin", 1020.0, (7, 30)))
    states.note({"moved": [str(folder), str(tmp_path / "checkpoint-5")], "at": 1021.0})
    (tmp_path / "checkpoint-5").mkdir()
    file_of(tmp_path / "checkpoint-5", "model.bin", 1020.05)
    found = artifact_at(tmp_path, "checkpoint-5")
    assert found is not None
    assert states.of(found) == (7, 30)


def test_files_of_two_states_have_none(tmp_path: Path) -> None:
    states = SavedStates()
    folder = tmp_path / "step-5"
    folder.mkdir()
    for number, name in enumerate(("a.safetensors", "b.safetensors")):
        file_of(folder, name, 1000.05)
        states.note(saved(folder / name, 1000.0, (7, number)))
    found = artifact_at(tmp_path, "step-5")
    assert found is not None
    assert states.of(found) is None


def test_lines_that_nobody_of_ours_wrote_are_passed_over(tmp_path: Path) -> None:
    states = SavedStates()
    for said in (
        {"saved": 7, "since": 1.0},
        {"saved": "x", "since": "now"},
        {"moved": ["a"]},
        {"moved": [1, 2]},
        {"saved": "x", "since": 1.0, "until": 2.0, "state": [1, "2"]},
    ):
        states.note(said)
    assert states.of(file_of(tmp_path, "x", 1.5)) is None
    assert metrics_of({"metrics": 5}) is None
    path = tmp_path / "lines"
    path.write_bytes(b'\xff\n[1]\n{"a": 1}\n{"half')
    lines = JsonLines(path)
    assert lines.take() == [{"a": 1}]
    with open(path, "ab") as file:
        file.write(b'": 2}\n')
    assert lines.take() == [{"half": 2}]


def test_the_lowest_rank_that_tells_counts() -> None:
    ranks = LowestRank()
    assert ranks.counts({"rank": 2})
    assert not ranks.counts({"rank": 3})
    assert ranks.counts({})
    assert not ranks.counts({"rank": 2})


def test_metrics_keep_their_state_and_source() -> None:
    said = {"metrics": {"val_loss": 0.5, "epoch": 2}, "step": 10, "state": [7, 9], "at": 5.0}
    reading = metrics_of(json.loads(json.dumps(said)))
    assert reading is not None
    assert (reading.step, reading.epoch, reading.at) == (10, 2, 5.0)
    assert (reading.state, reading.source) == ((7, 9), OBSERVED)


def test_marks_stand_between_lines_and_in_no_log(tmp_path: Path) -> None:
    read, write = os.pipe()
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    pump = LogPump(read, log)
    whole = (
        b"loss 2\n"
        + mark(7, 10, 10)
        + b"loss 1\n\x1e odd \x1e\x1e\n"
        + mark(7, 11, 20)
        + b"end\x1e"
    )
    for at in range(len(whole)):  # however it is cut
        os.write(write, whole[at : at + 1])
    os.close(write)
    until(lambda: not pump._thread.is_alive())
    pump.close(1.0)
    lines = [line for _, line in pump.take()]
    marks = [found for line in lines if (found := mark_in(line)) is not None]
    assert marks == [StateMark((7, 10), True), StateMark((7, 20), False)]
    assert lines[0] == b"loss 2"
    assert lines[2] == b"loss 1"
    assert pump.lines_seen == 4
    assert (tmp_path / "log").read_bytes() == b"loss 2\nloss 1\n\x1e odd \x1e\x1e\nend\x1e"


def test_a_value_is_that_of_the_file_with_the_same_state() -> None:
    order = MetricOrder()
    order.saw(Value(1.0, 2.5))
    order.mark((7, 100))
    order.saw(Value(1.1, 1.5))
    order.mark((7, 200))
    # By time alone either value may be its own.
    first = order.value_of(SavedCheckpoint(1.05, state=(7, 100)))
    assert (first.value, first.by) == (Value(1.0, 2.5), "state")
    assert order.value_of(SavedCheckpoint(1.05, state=(7, 200))).value == Value(1.1, 1.5)


def test_a_value_of_other_weights_is_a_guess() -> None:
    order = MetricOrder()
    order.saw(Value(1.0, 2.5, 90))
    order.mark((7, 90))
    order.reach((7, 100))
    saved = SavedCheckpoint(1.05, state=(7, 100))
    assert order.value_of(saved).pending, "its own may still come"
    order.reach((7, 101))
    found = order.value_of(saved)
    assert (found.value, found.by) == (Value(1.0, 2.5, 90), "order")


def test_a_mark_that_spans_several_states_ties_nothing() -> None:
    order = MetricOrder()
    order.saw(Value(1.0, 2.5))
    order.mark((7, 100), is_exact=False)
    order.has_ended = True
    assert order.value_of(SavedCheckpoint(1.0, state=(7, 100))).by == "time"


def test_two_values_of_one_state_decide_nothing() -> None:
    order = MetricOrder()
    order.saw(Value(1.0, 2.5))
    order.saw(Value(1.1, 0.5))
    order.mark((7, 100))
    order.has_ended = True
    assert order.value_of(SavedCheckpoint(1.2, state=(7, 100))).by != "state"


def test_of_a_progress_bar_the_last_mean_is_the_value_of_the_state() -> None:
    order = MetricOrder()
    order.saw(Value(0.2, 9.0, is_redrawn=True))
    order.saw(Value(0.3, 9.1, is_redrawn=True))
    assert len(order.values) == 2, "without marks it is not known what trains between them"
    order.mark((7, 50))
    for at, mean in ((1.0, 20.5), (1.1, 22.0), (1.2, 21.5)):
        order.saw(Value(at, mean, is_redrawn=True))
    order.mark((7, 100))
    order.saw(Value(2.0, 25.0, is_redrawn=True))
    order.mark((7, 200))
    assert [value.value for value in order.values] == [9.0, 9.1, 21.5, 25.0]
    found = order.value_of(SavedCheckpoint(1.3, state=(7, 100)))
    assert (found.value and found.value.value, found.by) == (21.5, "state")


def test_trackers_count_more_than_lines_and_held_out_lines_more_than_others() -> None:
    order = MetricOrder()
    order.saw(Value(1.0, 0.1), OF_TRAINING)
    order.saw(Value(2.0, 0.7), OF_HELD_OUT)
    assert [value.value for value in order.values] == [0.1], "one line may be of anything"
    order.mark((7, 5))
    order.saw(Value(3.0, 0.2), OF_TRAINING)
    order.saw(Value(4.0, 0.6), OF_HELD_OUT)
    assert [value.value for value in order.values] == [0.7, 0.6]
    assert order.value_of(SavedCheckpoint(9.0, state=(7, 5))).value == Value(2.0, 0.7)
    order.saw(Value(5.0, 0.65), OBSERVED, (7, 9))
    order.saw(Value(6.0, 0.01), OF_HELD_OUT)
    assert [value.value for value in order.values] == [0.65]


def test_a_line_that_was_set_aside_is_of_no_later_mark() -> None:
    order = MetricOrder()
    order.saw(Value(1.0, 0.1), OF_TRAINING)
    order.saw(Value(2.0, 0.7), OF_HELD_OUT)
    order.mark((7, 5), is_exact=False)
    order.saw(Value(3.0, 0.6), OF_HELD_OUT)
    order.mark((7, 9))
    assert order.value_of(SavedCheckpoint(9.0, state=(7, 9))).value == Value(3.0, 0.6)


def test_another_counters_number_is_not_the_step() -> None:
    order = MetricOrder()
    order.counters |= {"iter", "step"}
    order.saw(Value(1.0, 2.5, 25, counter="iter"))
    marks = SavedCheckpoint(5.0).marks._replace(step=25, counter="step")
    order.saw(Value(5.0, 1.0, 50, counter="iter"))
    found = order.value_of(SavedCheckpoint(5.1, marks))
    assert (found.value and found.value.value, found.by) == (1.0, "time")
