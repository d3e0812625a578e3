"""The trainer's checks: how each of them fails, and that all of them are made on a processor."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model.smoke import STEPS, Checks, Failed, NotHere, main
from tests import settings as made
from trmcloud.core.contract.records import dump
from trmcloud.core.contract.training_checks import (
    NAMES,
    CheckResult,
    TrainingChecks,
    line_of,
    load_checks,
    results_in,
)

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "depth": 1, "width": 32, "head_dim": 16, "vocab_size": 320, "sequence": 32, "batch": 2,
    "accumulation": 1, "dtype": "float32", "compile": False,
}  # fmt: skip
MACHINE: dict[str, Any] = {
    "torch": "2.13.0", "device": "cuda", "name": "NVIDIA H100", "count": 2, "memory_gb": 85.0,
    "lacks": [],
}  # fmt: skip
STEP: dict[str, Any] = {
    "dtype": "bfloat16", "batch": 2, "compile_s": 1.0, "micro_s": 1.0, "once_s": 0.1,
    "step_s": 1.1, "tokens_per_s": 100.0, "mfu": 0.4, "peak_gb": 10.0, "reserved_gb": 11.0,
    "first_loss": 5.0, "last_loss": 4.0, "graphs": 4, "ranks": 2,
}  # fmt: skip


def wanted(**changes: Any) -> TrainingChecks:
    settings = made.settings_of("gpt", "train", **SMALL).to_json()
    fields = {"planned": settings, "small": settings, "processes": 2, "memory_gb": 80.0}
    return TrainingChecks(**{**fields, **changes})


class Told(Checks):
    """Checks whose processes print what a test says."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        super().__init__(wanted(**changes), folder, {})
        self.machine: Mapping[str, Any] = MACHINE
        self.ranks: Mapping[str, Any] = {"seconds": [0.1, 0.1], "gb_s": 50.0}
        self.steps: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda settings: {}

    def _run(self, *words: str) -> str:
        if "--machine" in words:
            return json.dumps(self.machine)
        if "--rank" in words:
            return json.dumps(self.ranks)
        settings = json.loads(Path(words[words.index("model.check") + 1]).read_text())
        return json.dumps({**STEP, **self.steps(settings)})


def test_a_machine_as_it_was_planned_passes(tmp_path: Path) -> None:
    detail, measured = Told(tmp_path)._machine()
    assert "torch 2.13.0, 2 × NVIDIA H100, 85.0 GB each" in detail
    assert measured == {"memory_gb": 85.0}


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"device": "cpu"}, "no GPU was found"),
        ({"count": 1}, "2 were planned"),
        ({"memory_gb": 40.0}, "40.0 GB of memory, 80 planned"),
        (
            {"lacks": ["aten.scaled_dot_product_attention"]},
            "it lacks aten.scaled_dot_product_attent",
        ),
    ],
)
def test_another_machine_than_planned_fails(
    tmp_path: Path, found: dict[str, Any], says: str
) -> None:
    checks = Told(tmp_path)
    checks.machine = {**MACHINE, **found}
    with pytest.raises(Failed, match=says):
        checks._machine()


def test_a_rank_at_half_the_speed_is_named(tmp_path: Path) -> None:
    checks = Told(tmp_path)
    assert checks._links()[1] == {"gb_s": 50.0, "slowest": 1.0}
    checks.ranks = {"seconds": [0.1, 0.2], "gb_s": 50.0}
    with pytest.raises(Failed, match=r"rank 1 takes 2.0 × the others' time"):
        checks._links()
    with pytest.raises(NotHere, match="no links"):
        Told(tmp_path, processes=1)._links()


def test_compiled_code_with_another_loss_or_too_many_graphs_fails(tmp_path: Path) -> None:
    checks = Told(tmp_path)
    checks.steps = lambda settings: {"micro_s": 0.5 if settings["compile"] else 1.0}
    assert checks._compile()[1]["faster"] == 2.0
    for index, told in enumerate(({"first_loss": 5.1}, {"graphs": 65})):
        (tmp_path / str(index)).mkdir()
        checks = Told(tmp_path / str(index))
        checks.steps = lambda settings, told=told: told if settings["compile"] else {}  # type: ignore[misc]
        with pytest.raises(Failed):
            checks._compile()


def test_a_loss_that_does_not_fall_fails(tmp_path: Path) -> None:
    checks = Told(tmp_path)
    assert checks._step()[1]["step_s"] == 1.1
    checks = Told(tmp_path)
    checks.steps = lambda settings: {"last_loss": 5.0}
    with pytest.raises(Failed, match=r"loss 5.000 → 5.000"):
        checks._step()


@pytest.mark.parametrize(
    ("selective_s", "full_s", "verdict"),
    [(1.05, 1.4, None), (1.35, 1.4, Failed), (1.0, 1.01, NotHere)],
)
def test_selective_checkpointing_must_compute_less_again_than_full(
    tmp_path: Path, selective_s: float, full_s: float, verdict: type[Exception] | None
) -> None:
    checks = Told(tmp_path)

    def steps(settings: Mapping[str, Any]) -> Mapping[str, Any]:
        if settings["selective_checkpointing"]:
            return {"micro_s": selective_s}
        return {"micro_s": full_s if settings["activation_checkpointing"] else 1.0}

    checks.steps = steps
    if verdict is None:
        assert checks._checkpointing()[1]["selective_s"] == selective_s
        return
    with pytest.raises(verdict):
        checks._checkpointing()


def test_a_planned_shape_that_needs_several_gpus_is_not_judged_on_one(tmp_path: Path) -> None:
    checks = Told(tmp_path)

    def steps(settings: Mapping[str, Any]) -> Mapping[str, Any]:
        if not settings["activation_checkpointing"]:
            raise Failed("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB")
        return {"micro_s": 1.3}

    checks.steps = steps
    detail, measured = checks._checkpointing()
    assert detail == "selective fits, and none does not, on one GPU"
    assert measured == {"full_s": 1.3}
    with pytest.raises(NotHere, match="does not fit on one GPU"):
        checks._float8()


def test_float8_counts_where_it_is_faster(tmp_path: Path) -> None:
    checks = Told(tmp_path)
    checks.steps = lambda settings: {"micro_s": 0.7 if settings["dtype"] == "float8" else 1.0}
    assert checks._float8()[1]["float8"] == pytest.approx(1 / 0.7)
    checks = Told(tmp_path)
    checks.steps = lambda settings: {"micro_s": 1.1 if settings["dtype"] == "float8" else 1.0}
    with pytest.raises(Failed, match=r"0\.91 × bfloat16's speed"):
        checks._float8()


@pytest.mark.parametrize(
    ("family", "named"), [("hdp", "questions with answers"), ("trm_puzzle", "puzzles")]
)
def test_runs_of_data_that_none_can_make_up_are_not_judged(
    tmp_path: Path, family: str, named: str
) -> None:
    small = made.settings_of(family, "train", dtype="float32", compile=False).to_json()
    [*_, ddp, fsdp] = list(Told(tmp_path, small=small).make())
    assert (ddp.passed, ddp.detail) == (None, f"its data are {named}, and none are made up here")
    assert fsdp.passed is None


def test_a_process_that_never_ends_is_ended_in_time(tmp_path: Path) -> None:
    """As a rendezvous that never connects."""
    checks = Checks(wanted(), tmp_path, dict(os.environ))
    checks._until = time.monotonic() + 5.0
    noted = tmp_path / "pid"
    sleeps = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    with pytest.raises(Failed, match="not within 5 s"):
        checks._run(sys.executable, "-c", sleeps, str(noted))
    with pytest.raises(ProcessLookupError):
        os.kill(int(noted.read_text()), 0)


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    checks = Checks(wanted(), tmp_path, dict(os.environ))
    checks._until = time.monotonic() + 60.0
    with pytest.raises(Failed, match=r"^ValueError: the cause$"):
        checks._run(sys.executable, "-c", "raise ValueError('the cause')")


def test_checks_for_which_no_time_is_left_are_not_made(tmp_path: Path) -> None:
    checks = Checks(wanted(), tmp_path, {}, deadline_at=time.time() + 6.0)
    results = list(checks.make())
    assert [each.name for each in results] == list(NAMES)
    assert all(each.passed is None and "no time is left" in each.detail for each in results)


def test_lines_of_a_log_are_read_whatever_else_it_holds() -> None:
    made = CheckResult("step", True, "0.1 s", 2.5, {"step_s": 0.1})
    again = replace(made, passed=False, measured={})
    log = ["words", line_of(made), "trmcloud-check {", 'trmcloud-check {"name": 3}', line_of(again)]
    unknown = line_of(replace(made, name="else"))
    assert results_in([*log, f"[0]: {line_of(replace(made, name='links'))}", unknown]) == [
        replace(made, name="links"),
        again,
    ]
    assert load_checks(dump(wanted())) == wanted()


def test_two_real_ranks_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below they are killed and resumed, too."""
    monkeypatch.setattr("model.smoke.SLOWEST", 100.0)  # tests beside it may hold up either
    job = wanted(device="cpu", memory_gb=0.0)
    folders = f"{ROOT / 'tests' / 'standins' / 'ranks'}{os.pathsep}{ROOT}"
    checks = Checks(job, tmp_path, {**os.environ, "PYTHONPATH": folders})
    checks._until = time.monotonic() + 500.0
    assert "2 ranks met" in checks._links()[0]


@pytest.mark.more
def test_all_of_them_on_a_processor(tmp_path: Path) -> None:
    """By real ranks: two train, are killed, and go on at the loss of two that were not."""
    path = tmp_path / "checks.json"
    settings = made.settings_of("gpt", "train", **SMALL).to_json()
    path.write_text(dump(wanted(planned=settings, small=settings, memory_gb=0.0, device="cpu")))
    reports = tmp_path / "reports"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRMCLOUD_REPORTS": str(reports)}
    done = subprocess.run(
        [sys.executable, "-m", "model.smoke", str(path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    results = {each.name: each for each in results_in(done.stdout.splitlines())}
    print(done.stdout, done.stderr)
    assert list(results) == list(NAMES)
    for name in ("machine", "links", "compile", "step", "ddp", "fsdp"):
        assert results[name].passed, results[name].detail
    assert results["float8"].passed is None
    assert f"of {STEPS['cpu']} and resumed" in results["ddp"].detail
    assert math.isfinite(results["step"].measured["step_s"])
    told = [json.loads(line) for line in reports.read_text().splitlines()]
    assert told[-1] == {"checkpoint": "smoke-report", "step": len(NAMES), "metric": 0}
    assert len(json.loads((tmp_path / "smoke-report" / "report.json").read_text())) == len(NAMES)


def test_what_is_no_job_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "checks.json"
    path.write_text("[]")
    assert main([str(path)]) == 2
    assert capsys.readouterr().err.startswith("error: the checks cannot be read: ")
