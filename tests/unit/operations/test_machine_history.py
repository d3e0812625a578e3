"""The history of a run's machine: what is kept of agents' reports, how often, and how much."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trmcloud.core.contract.pod_contract import (
    GPU_NOTE,
    MOST_GPUS,
    AgentReport,
    GpuCounters,
    GpuWindow,
    PhaseReport,
    PhaseState,
)
from trmcloud.core.control.run_state import RunState
from trmcloud.operations.runs.machine_history import (
    EVERY_S,
    MAX_BYTES,
    MachineSample,
    note_machine,
    read_samples,
    samples_path,
    thinned,
)
from trmcloud.pod.machine import processes

NOW = 1_795_000_000.0
WINDOW = GpuWindow(20, 285.0, (GpuCounters(91.5, 40_000.0, 81_559.0, 1980.0),))


def run(provider: str = "runpod", pod: str = "trmc-x") -> RunState:
    generation = SimpleNamespace(provider=provider, pod_name=pod)
    return cast(RunState, SimpleNamespace(run_id="r-1", generation=generation))


def report(
    at: float = NOW, note: str = WINDOW.to_text(), state: PhaseState = PhaseState.RUNNING,
    pod: str = "trmc-x",
) -> AgentReport:  # fmt: skip
    return AgentReport(
        run_id="r-1", pod_name=pod, epoch=1, pid=1, started_at=NOW - 60, at=at,
        phases=(PhaseReport("fast", state, attempts=1),), soft_stop_at=NOW + 900,
        hard_stop_at=NOW + 1000, notes={GPU_NOTE: note} if note else {},
    )  # fmt: skip


def test_a_window_is_kept_every_half_minute(tmp_path: Path) -> None:
    for late_s in (0.0, 1.0, EVERY_S - 1, EVERY_S, EVERY_S + 1, 2 * EVERY_S):
        note_machine(tmp_path, run(), report(NOW + late_s))
    found = read_samples(tmp_path, "r-1")
    assert [sample.at - NOW for sample in found] == [0.0, EVERY_S, 2 * EVERY_S]
    assert {sample.window for sample in found} == {WINDOW}
    assert {sample.memory_mib for sample in found} == {None}, "the processes are not here"


def test_the_first_window_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "of_pod", lambda name: [os.getpid()])
    for late_s, note in ((0.0, ""), (1.0, WINDOW.to_text()), (2.0, WINDOW.to_text())):
        note_machine(tmp_path, run("local"), report(NOW + late_s, note))
    assert [sample.window for sample in read_samples(tmp_path, "r-1")] == [None, WINDOW]


def test_a_clock_that_was_set_back_stops_nothing(tmp_path: Path) -> None:
    note_machine(tmp_path, run(), report(NOW))
    note_machine(tmp_path, run(), report(NOW - 3600))
    assert [sample.at for sample in read_samples(tmp_path, "r-1")] == [NOW - 3600, NOW]


@pytest.mark.parametrize(
    ("told", "of"),
    [
        (report(pod="trmc-y"), run()),
        (report(state=PhaseState.WAITING), run()),
        (report(note=""), run()),
        (report(note="{"), run()),
        (report(note='{"samples": 1, "over_s": 1, "gpus": [[1e99, 1, 1, 1]]}'), run()),
        (report(), cast(RunState, SimpleNamespace(run_id="r-1", generation=None))),
    ],
    ids=["another pod", "no training", "no GPUs", "no JSON", "no counters", "no machine"],
)
def test_what_is_no_sample_leaves_no_file(tmp_path: Path, told: AgentReport, of: RunState) -> None:
    note_machine(tmp_path, of, told)
    assert not samples_path(tmp_path, "r-1").exists()


def test_memory_is_that_of_the_pods_processes_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def of_pod(name: str) -> list[int]:
        asked.append(name)
        return [os.getpid(), 2**22 + 1]  # the second is none: Linux numbers up to 2^22

    monkeypatch.setattr(processes, "of_pod", of_pod)
    note_machine(tmp_path, run("local"), report(note=""))
    [sample] = read_samples(tmp_path, "r-1")
    rows = Path(f"/proc/{os.getpid()}/status").read_text().splitlines()
    resident_kib = next(int(row.split()[1]) for row in rows if row.startswith("VmRSS"))
    assert asked == ["trmc-x"]
    assert sample.window is None
    assert sample.memory_mib == pytest.approx(resident_kib / 1024, rel=0.2)


def test_the_file_stays_below_its_limit_and_keeps_both_ends(tmp_path: Path) -> None:
    gpus = tuple(GpuCounters(50.0, 1000.0 + number, 8e4, 1500.0) for number in range(MOST_GPUS))
    note, path = GpuWindow(20, 285.0, gpus).to_text(), samples_path(tmp_path, "r-1")
    line = len(MachineSample(NOW, GpuWindow(20, 285.0, gpus), None).to_line())
    count = 3 * MAX_BYTES // line
    for number in range(count):
        note_machine(tmp_path, run(), report(NOW + EVERY_S * number, note))
        assert path.stat().st_size <= MAX_BYTES
    found = [sample.at for sample in read_samples(tmp_path, "r-1")]
    assert found[0] == NOW
    assert found[-1] == NOW + EVERY_S * (count - 1)
    assert len(found) > MAX_BYTES // line // 3
    steps = {round((late - early) / EVERY_S) for early, late in itertools.pairwise(found)}
    assert 1 in steps, "the newest are whole"
    assert max(steps) > 1, "older ones are thinned out"


def test_lines_of_another_author_are_no_samples(tmp_path: Path) -> None:
    path = samples_path(tmp_path, "r-1")
    path.parent.mkdir(parents=True)
    rows: list[Any] = [
        1, "x", [], {}, {"at": "now"}, {"at": True, "memory_mib": 1}, {"at": -1}, {"at": 1e400},
        {"at": NOW, "memory_mib": 1e12}, {"at": NOW, "gpus": [1]},
        {"at": NOW, "gpus": {"gpus": "x"}}, {"at": NOW + 1, "memory_mib": 5},
    ]  # fmt: skip
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\xff{[\n" + "[" * 5000 + "\n")
    found = read_samples(tmp_path, "r-1")
    assert [sample for sample in found if sample.memory_mib or sample.window] == [
        MachineSample(NOW + 1, None, 5.0)
    ]
    note_machine(tmp_path, run(), report(NOW + 2))
    assert read_samples(tmp_path, "r-1")[-1].window == WINDOW


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    path, other = samples_path(tmp_path, "r-1"), tmp_path / "other"
    path.parent.mkdir(parents=True)
    other.write_text('{"at": 1, "memory_mib": 1}\n')
    path.symlink_to(other)
    note_machine(tmp_path, run(), report())
    assert other.read_text() == '{"at": 1, "memory_mib": 1}\n'
    assert read_samples(tmp_path, "r-1") == []


def test_few_of_many_are_drawn_the_ends_among_them() -> None:
    samples = [MachineSample(float(number), None, 1.0) for number in range(1000)]
    found = thinned(samples, 10)
    assert (len(found), found[0], found[-1]) == (10, samples[0], samples[-1])
    assert thinned(samples[:10], 10) == samples[:10]
