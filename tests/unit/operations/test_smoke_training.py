"""``smoke --train``: what is sent, what it needs at least, and what plans learn of it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from trmcloud.cli.views.training_checks import machine_lines, result_lines, wanted_lines
from trmcloud.core.contract.training_checks import NAMES, CheckResult, load_checks
from trmcloud.core.errors import BudgetRefused, UsageError
from trmcloud.core.money import Usd
from trmcloud.operations.checks.smoke_training import (
    CHECKS_NAME,
    WantedChecks,
    least_usd,
    machines,
    wanted_checks,
)
from trmcloud.wiring_plans import build_planner


@pytest.fixture
def rented() -> WantedChecks:
    return wanted_checks(build_planner(), "gpt350m", "8xH100")


def test_the_planned_shape_is_timed_and_the_small_one_trained(
    rented: WantedChecks, tmp_path: Path
) -> None:
    rented.write(tmp_path)
    checks = load_checks((tmp_path / CHECKS_NAME).read_bytes())
    assert (checks.processes, checks.device, checks.memory_gb) == (8, "cuda", 80.0)
    assert checks.planned["width"] > 1000 > checks.small["width"]
    assert checks.small["compile"], "as the planned shape is"
    assert "a miniature" not in "".join(wanted_lines(rented))


def test_what_is_sent_has_all_that_it_imports(rented: WantedChecks, tmp_path: Path) -> None:
    rented.write(tmp_path)
    there = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.py")}
    for name in there:
        for node in ast.walk(ast.parse((tmp_path / name).read_text())):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if module.partition(".")[0] in ("trmcloud", "model"):
                stem = module.replace(".", "/")
                assert {f"{stem}.py", f"{stem}/__init__.py"} & there, f"{name}: {module}"


def test_less_than_the_checks_need_is_refused_with_what_they_do(rented: WantedChecks) -> None:
    rented.check_sum(rented.least)
    with pytest.raises(BudgetRefused, match="is too little") as refused:
        rented.check_sum(rented.least - Usd("0.01"))
    assert f"--max-usd {rented.least.micros / 1e6:.2f}" in refused.value.next_step
    assert rented.least < rented.candidate.rate, "minutes, not an hour"


def test_machines_are_listed_by_what_the_checks_cost(rented: WantedChecks) -> None:
    found = machines(build_planner(), "gpt350m")
    sums = [least_usd(each) for each in found]
    assert sums == sorted(sums)
    assert all(each.nodes == 1 for each in found)
    lines = machine_lines(found, "gpt350m")
    assert any(line.split()[0] == "8xH100" for line in lines[1:-2])


def test_a_shape_that_is_too_slow_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trmcloud.operations.checks.smoke_training._SLOWEST_S", 1e-6)
    with pytest.raises(UsageError, match="too slow to check"):
        wanted_checks(build_planner(), "gpt350m", "local")


def test_each_result_is_a_line_and_what_was_not_reached_is_named() -> None:
    step = CheckResult("step", True, "0.1 s", 1.0)
    links = CheckResult("links", None, "one process has no links", 1.0)
    lines = result_lines([links, step], None)
    assert lines[0] == "· links         not checked: one process has no links"
    assert lines[1] == "✔ step          0.1 s"
    left = [name for name in NAMES if name not in ("links", "step")]
    assert lines[2] == f"· not reached: {', '.join(left)}"
