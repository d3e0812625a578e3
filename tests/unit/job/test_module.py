"""``trmcloud_job.py`` as a script has it, and the page that says what it may do."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from scripts.pages import CONTRACT, contract_page
from trmcloud.core.contract import command_terms as contract

MODULE = Path(__file__).parents[3] / "trmcloud" / "pod" / "job" / "trmcloud_job.py"


def loaded(monkeypatch: pytest.MonkeyPatch, **environment: str) -> ModuleType:
    for name in (*contract.ENVIRONMENT, "RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = importlib.util.spec_from_file_location("trmcloud_job", MODULE)
    assert found is not None
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
    assert not job.should_stop()
    stop.touch()
    assert job.should_stop()
    monkeypatch.chdir(tmp_path)
    job.report(120, val_loss=1.87)
    job.checkpoint("out/step-120", metric=1.87)
    hello, report, saved = map(json.loads, reports.read_text().splitlines())
    assert hello == {"listens": True}
    assert report == json.loads(next(iter(contract.REPORT_LINES)))
    assert saved == {"checkpoint": str(tmp_path / "out/step-120"), "metric": 1.87, "step": 120}


def test_of_several_ranks_the_first_speaks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reports = tmp_path / "reports.jsonl"
    job = loaded(monkeypatch, TRMCLOUD_REPORTS=str(reports), RANK="1")
    job.report(1, loss=1.0)
    assert not reports.exists()


def test_it_needs_the_standard_library_alone() -> None:
    code = f"import sys; sys.path[:] = [{str(MODULE.parent)!r}, *sys.path]; import trmcloud_job"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_page_is_what_core_says() -> None:
    assert CONTRACT.read_text(encoding="utf-8") == contract_page(), "python scripts/pages.py"
