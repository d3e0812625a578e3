"""A command's processes: probed, read, told, signalled and killed."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from scripts.pages import CONTRACT, contract_page
from tests.present import present
from trmcloud.core.catalog.hardware import GPUS
from trmcloud.core.contract import command_terms as contract
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.command_terms import PATTERN_STRIKES, Act, CommandStopper, MeasuredSteps
from trmcloud.core.contract.pod_contract import DEADLINE_NAME
from trmcloud.core.contract.trainer_contract import ENV_DEADLINE_AT, PhaseJob
from trmcloud.core.planner.command_outlook import transfer_speed
from trmcloud.pod.job import process
from trmcloud.pod.job.metric_order import SavedCheckpoint, Value
from trmcloud.pod.job.process import Job
from trmcloud.pod.job.readings import Reading, Readings, whole_step
from trmcloud.pod.job.reporting import CommandReporter, StepProbe

# -- When a command is told, signalled and killed -----------------------------------------------


PLAIN = Command(("x",), grace_s=10.0)
BY_FILE = Command(("x",), grace_s=10.0, stop_file="stop")


def story(command: Command, *, listens: bool, asked_at: float = math.inf) -> list[tuple[int, str]]:
    """Second by second, for half a minute; the deadline is at second 20."""
    stopping, told = CommandStopper(command, 1000.0 + 20.0), list[tuple[int, str]]()
    for second in range(40):
        acts = stopping.acts(1000.0 + second, second, asked=second >= asked_at, listens=listens)
        told += [(second, act.name) for act in acts]
        if Act.KILL in acts:
            break
    assert stopping.killed
    assert stopping.told == ("signal" if asked_at < 20 else "deadline")
    return told


def test_a_signal_goes_at_once_to_one_that_looks_for_no_file() -> None:
    assert story(PLAIN, listens=False) == [(20, "FILES"), (20, "SIGNAL"), (30, "KILL")]


def test_a_deadline_that_was_moved_is_the_one_that_tells(tmp_path: Path) -> None:
    phase = PhaseJob("r-1", "train", {}, "", str(tmp_path), 1, command=PLAIN)
    job = Job(phase, PLAIN, {ENV_DEADLINE_AT: "1000.0"})
    assert job._moved_deadline() == 1000.0
    (tmp_path / DEADLINE_NAME).write_text("1020.0")
    job._stopping.deadline_at = job._moved_deadline()
    due = [job._stopping.acts(at, at, asked=False, listens=True) for at in (1019.0, 1020.0)]
    assert due == [(), (Act.FILES,)]


@pytest.mark.parametrize(("command", "listens"), [(PLAIN, True), (BY_FILE, False)])
def test_one_that_looks_for_a_file_has_half_its_grace(command: Command, listens: bool) -> None:
    expected = [(20, "FILES"), (25, "SIGNAL"), (30, "KILL")]
    assert story(command, listens=listens) == expected


def test_one_that_is_asked_need_not_wait_for_the_deadline() -> None:
    expected = [(3, "FILES"), (3, "SIGNAL"), (13, "KILL")]
    assert story(PLAIN, listens=False, asked_at=3) == expected


def test_a_clock_that_is_set_back_gives_no_longer_grace() -> None:
    stopping = CommandStopper(PLAIN, 1000.0)
    stopping.acts(1000.0, 50.0, asked=False, listens=False)
    assert stopping.acts(10.0, 59.9, asked=False, listens=False) == ()
    assert stopping.acts(10.0, 60.0, asked=False, listens=False) == (Act.KILL,)
    assert stopping.waited_s(60.0) == 10.0


# -- offspring ----------------------------------------------------------------------------------
# A command's processes are found wherever they went, and not looked for where none was started.


def test_a_child_of_a_child_in_a_session_of_its_own_is_found() -> None:
    script = (
        "import subprocess; p = subprocess.Popen(['sleep', '60'], start_new_session=True);"
        "print(p.pid, flush=True); p.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert {child.pid, grandchild} <= set(process.offspring(os.getpid()))
        assert process.kill_all(child.pid, 10.0)
    assert grandchild not in process.offspring(os.getpid())


def test_a_new_process_is_the_newest() -> None:
    before = present(process.newest_pid())
    subprocess.run(["true"], check=True)
    assert process.newest_pid() != before


@pytest.mark.parametrize("text", ["", "\n", "0.0 0.0 0.0 0/0 0\n", "0.1 0.1 0.1 1/2 x\n"])
def test_a_kernel_that_does_not_tell(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "open", lambda *a, **k: io.StringIO(text), raising=False)
    assert process.newest_pid() is None


@pytest.mark.parametrize(
    ("newest", "probing", "looks"),
    [(["7", "7", "7"], None, 1), (["7", "8", "8"], None, 2), ([None] * 3, None, 3),
     (["7", "7", "7"], SimpleNamespace(look=len), 3)],
)  # fmt: skip
def test_all_processes_are_looked_through_only_where_one_was_started(
    newest: list[Any], probing: Any, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = iter(newest)
    found: list[int] = []

    def look(root: int) -> dict[int, str]:
        found.append(root)
        return {}

    monkeypatch.setattr(process, "newest_pid", lambda: next(told))
    monkeypatch.setattr(process, "offspring", look)
    job = SimpleNamespace(_newest=None, _looked_at=0.0, _probing=probing, _offspring={})
    began = time.monotonic()
    for second in range(3):
        Job._note_offspring(job, began + second)  # type: ignore[arg-type]
    assert len(found) == looks
    monkeypatch.setattr(process, "newest_pid", lambda: newest[-1])
    Job._note_offspring(job, began + 60)  # type: ignore[arg-type]
    assert len(found) == looks + 1, "now and then in any case"


# -- A command's first steps, measured, and what they may take elsewhere ------------------------


MEASURED = MeasuredSteps(
    steps=50, fast_s=0.9, step_s=1.0, slow_s=1.2, memory_bytes=10**9, cores=1.0
)


def test_the_warm_up_is_left_out() -> None:
    probing, now = StepProbe(40), 100.0
    for step in range(1, 200):
        now += 10.0 if step == 1 else 0.25
        probing.look([os.getpid()])
        probing.stepped(step, now)
        if probing.done:
            break
    measured = present(probing.measured())
    assert measured.steps == pytest.approx(40, abs=4)
    assert measured.fast_s == measured.step_s == measured.slow_s == pytest.approx(0.25)
    assert measured.memory_bytes > 1_000_000


@pytest.mark.parametrize("steps", [[], [0] * 50, [1], [5] * 50])
def test_without_steps_there_is_nothing_to_say(steps: list[int]) -> None:
    probing = StepProbe(10)
    for second, step in enumerate(steps):
        probing.stepped(step, float(second))
    assert not probing.done
    assert probing.measured() is None


def test_a_step_elsewhere_lies_between_peaks_and_bandwidths() -> None:
    here, there = GPUS["A100-80GB-SXM"], GPUS["H100-SXM"]
    [found] = transfer_speed(MEASURED, here, [there], 1.0, 70.0)
    assert found.step_s.p10 == pytest.approx(0.9 * 312 / 989)
    assert found.step_s.p90 == pytest.approx(1.2 * 2039 / 3350)
    assert found.step_s.p10 < found.step_s.p50 < found.step_s.p90
    assert found.fits


def test_what_no_gpu_does_becomes_no_faster_by_one() -> None:
    here, there = GPUS["A100-80GB-SXM"], GPUS["H100-SXM"]
    [found] = transfer_speed(MEASURED, here, [there], 0.0, None)
    assert found.step_s.p10 == pytest.approx(0.45)
    assert found.step_s.p90 == pytest.approx(2.4)
    assert found.fits is None
    [unknown] = transfer_speed(MEASURED, here, [there], None, None)
    assert unknown.step_s.p10 <= 0.9 * 312 / 989
    assert unknown.step_s.p90 >= 2.4


def test_less_memory_than_is_in_use_does_not_fit() -> None:
    [found] = transfer_speed(MEASURED, GPUS["H100-SXM"], [GPUS["L4"]], 0.9, 30.0)
    assert found.fits is False


# -- Numbers in a command's log: whatever a stranger's line holds -------------------------------


def reader(metric: str = "") -> Readings:
    return Readings(Command(("x",), metric=metric))


def steps_of(lines: list[str]) -> list[int]:
    read = reader("eval_loss")
    made = [read.read(line.encode()) for line in lines]
    return [reading.step for reading in made if reading is not None and reading.step is not None]


def test_steps_are_those_of_the_trainings_progress_bar() -> None:
    assert steps_of(
        [
            "Map: 100%|██████████| 500/500 [00:00<00:00, 9000 examples/s]",
            "  0%|          | 0/120 [00:00<?, ?it/s]",
            " 17%|█▋        | 20/120 [00:02<00:10,  9.6it/s]",
            "{'loss': '4.1', 'grad_norm': '1.2', 'epoch': '0.5'}",
            "100%|██████████| 8/8 [00:00<00:00, 60.1it/s]\x1b[A",
            "{'eval_loss': 6.2, 'epoch': 1.0}",
            " 68%|██████▊   | 81/120 [00:10<00:05,  7.7it/s, loss=3.1]",
        ]
    ) == [20, 81]
    assert steps_of(["2/4 [00:01<00:01]", "4/4 [00:02<00:00]", "1/4 [00:00<00:01]"]) == [2, 4, 5]
    assert steps_of(["3/3 [00:01<00:00]", "5/90 [00:01<00:30]"]) == [3, 5], "one before it"
    assert steps_of(["step 7: loss 2.5", "3/9 [00:01<00:01]"]) == [7], "its log names them"


def test_a_bars_step_is_shown_and_says_nothing_of_what_was_trained_when(tmp_path: Path) -> None:
    job = SimpleNamespace(run_id="r-1", phase="train", settings={})
    command = Command(("x",), metric="eval_loss")
    tell = CommandReporter(tmp_path, job, command, 1, 100.0)  # type: ignore[arg-type]
    tell.read(Reading(20, {}, at=101.0, by_bar=True), 101.0)
    tell.read(Reading(None, {"eval_loss": 2.0}, at=102.0), 102.0)
    tell.read(Reading(21, {}, at=102.5, by_bar=True), 102.5)
    assert (tell.beat.step, tell.metric) == (21, 2.0)
    assert tell.order.value_of(SavedCheckpoint(103.0)).value == Value(102.0, 2.0)
    assert tell.step_at(102.1) == 20


@pytest.mark.parametrize(
    ("line", "step", "metrics"),
    [
        (b'{"step": 12, "val_loss": 1.5}', 12, {"val_loss": 1.5}),
        (
            b'{"global_step": 12.0, "metrics": {"val_loss": 1.5}, "name": "x"}',
            12,
            {"val_loss": 1.5},
        ),
        (b"step 250: train loss 2.4, val_loss=1.97", 250, {"val_loss": 1.97}),
        (b"iter 7: val_loss=3.", 7, {"val_loss": 3.0}),
        (b"[Step: 30/100] nothing", 30, {}),
        (b"epoch done val_loss=0.25", None, {"val_loss": 0.25}),
    ],
)
def test_a_line_says_its_step_and_its_metric(
    line: bytes, step: int | None, metrics: dict[str, float]
) -> None:
    read = reader("val_loss=([0-9.]+)").read(line)
    assert read is not None
    assert (read.step, read.metrics) == (step, metrics)


@pytest.mark.parametrize(
    "line",
    [b"", b"\xff\xfe\x00", b"{", b"[1]", b"hello", b"steps ahead", b"val_loss=...", b"nostep 5x"],
)
def test_a_line_that_says_nothing_is_passed_over(line: bytes) -> None:
    assert reader("val_loss=([0-9.]+)").read(line) is None


@pytest.mark.parametrize("metric", ["loss[= ]([0-9.naif]+)", "loss"])
def test_nan_is_read_as_what_it_is(metric: str) -> None:
    for line in (b"step 3 loss=nan", b"step 3 loss=inf"):
        assert not math.isfinite(present(reader(metric).read(line)).metrics["loss"])


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("val_loss=([0-9.]+)", "val_loss"),
        ("'eval_loss': ([0-9.]+)", "eval_loss"),
        (r"val\s+loss:? ([0-9.]+)", "val_loss"),
        ("([0-9.]+)", "metric"),
        ("val/acc", "val/acc"),
    ],
)
def test_a_pattern_has_the_name_it_begins_with(metric: str, name: str) -> None:
    assert Command(("x",), metric=metric).metric_name == name


def test_a_pattern_that_goes_back_for_ever_is_given_up() -> None:
    reads = reader("((?:a+)+)$")
    began = time.monotonic()
    for _ in range(10):
        assert reads.read(b"a" * 60 + b"b") is None
    assert reads.gave_up
    assert time.monotonic() - began < PATTERN_STRIKES * 5


@pytest.mark.parametrize("value", [True, "5", -1, 1.5, 10**9, None, float("nan"), float("inf")])
def test_what_is_no_step_is_none(value: object) -> None:
    assert whole_step(value) is None


# -- ``trmcloud_job.py`` as a script has it, and the page that says what it may do --------------


MODULE = Path(__file__).parents[3] / "trmcloud" / "pod" / "job" / "trmcloud_job.py"


def loaded(monkeypatch: pytest.MonkeyPatch, **environment: str) -> ModuleType:
    for name in (*contract.ENVIRONMENT, "RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = present(importlib.util.spec_from_file_location("trmcloud_job", MODULE))
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_a_script_alone_hears_nothing_and_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    job = loaded(monkeypatch)
    job.report(1, loss=2.0)
    job.checkpoint("somewhere", metric=1.0)
    assert not job.should_stop()
    assert job.deadline() is None
    assert job.seconds_left() == math.inf


def test_it_says_what_the_contract_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reports, stop = tmp_path / "reports.jsonl", tmp_path / "stop"
    job = loaded(
        monkeypatch,
        TRMCLOUD_REPORTS=str(reports),
        TRMCLOUD_STOP_FILE=str(stop),
        TRMCLOUD_DEADLINE_AT="1800000000.5",
    )
    assert job.deadline() == 1_800_000_000.5
    (tmp_path / DEADLINE_NAME).write_text("1800003600.5")
    assert job.deadline() == 1_800_003_600.5, "it was moved"
    assert not job.should_stop()
    stop.touch()
    assert job.should_stop()
    monkeypatch.chdir(tmp_path)
    job.report(120, val_loss=1.87)
    job.checkpoint("out/step-120", metric=1.87)
    lines = [json.loads(line) for line in reports.read_text().splitlines()]
    assert all(line.pop("at") <= time.time() for line in lines)
    hello, report, saved = lines
    assert hello == {"listens": True}
    assert report == json.loads(next(iter(contract.REPORT_LINES)))
    assert saved == {"checkpoint": str(tmp_path / "out/step-120"), "metric": 1.87, "step": 120}


def test_of_several_ranks_the_first_speaks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reports = tmp_path / "reports.jsonl"
    job = loaded(monkeypatch, TRMCLOUD_REPORTS=str(reports), RANK="1")
    job.report(1, loss=1.0)
    lines = [json.loads(line) for line in reports.read_text().splitlines()]
    assert {line["rank"] for line in lines} == {1}, "the reader lets the lowest rank count"


def test_it_needs_the_standard_library_alone() -> None:
    code = f"import sys; sys.path[:] = [{str(MODULE.parent)!r}, *sys.path]; import trmcloud_job"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_page_is_what_core_says() -> None:
    assert CONTRACT.read_text(encoding="utf-8") == contract_page(), "python scripts/pages.py"
