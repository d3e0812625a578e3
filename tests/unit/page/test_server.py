"""What the page's server answers of a home with an ended run."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.e2e.conftest import ended_home
from tests.e2e.user import User
from tests.typist import InProcess, typist
from trmcloud.cli.page.server import Page as Pages
from trmcloud.cli.page.server import page_of
from trmcloud.core.contract.pod_contract import GpuCounters, GpuWindow
from trmcloud.core.errors import LedgerError, NotFoundError
from trmcloud.operations.runs.machine_history import EVERY_S, MachineSample, samples_path

__all__ = ["ended_home", "typist"]


@pytest.fixture
def owner(typist: InProcess, ended_home: Path) -> InProcess:
    shutil.copytree(ended_home, typist.home)
    return typist


@pytest.fixture
def pages(owner: User, monkeypatch: pytest.MonkeyPatch) -> Pages:
    """What the server's answers are made of, of a home with an ended run."""
    for name, value in owner.env().items():
        monkeypatch.setenv(name, value)
    return page_of(owner.home, owner.folder, live=False)


def test_the_history_of_many_gpus_outlives_the_run(owner: User, pages: Pages) -> None:
    run = owner.only_run()
    path = samples_path(owner.home, run.run_id)
    path.unlink(missing_ok=True)
    for number in range(500):
        gpus = tuple(GpuCounters(10.0 * gpu, 1000.0 * gpu, 8e4, 1500.0) for gpu in range(8))
        at = run.created_at + EVERY_S * number
        with path.open("a") as file:
            file.write(MachineSample(at, GpuWindow(20, 285.0, gpus), None).to_line())
    told = pages.run_machine(run.run_id)
    busy = {each["name"]: each["values"][-1] for each in told["busy"]}
    assert busy == {"lowest": 0.0, "mean": 35.0, "highest": 70.0}
    assert len(told["x"]["usd"]) == len(told["busy"][0]["values"]) < 500
    assert "Each has 84 GB." in told["told"]
    assert told["memory"] == []


def test_what_was_launched_is_told_beside_the_recipes_own(owner: User, pages: Pages) -> None:
    run = owner.only_run()
    made = pages.run_launched(run.run_id)
    rows = dict(made["rows"])
    assert made["recipe"] == "trm-tiny"
    assert any(run.plan.id in text for text in rows.values())
    assert any("trainer · agent · watchdog" in text for text in rows.values())
    changed = {each["key"]: each for each in made["differences"]}
    assert "seed" not in changed, "the recipe's own settings are left out"
    assert {"depth", "width", "steps"} <= changed.keys()


def test_only_the_ledger_is_left_of_a_run(owner: User, pages: Pages) -> None:
    run = owner.only_run()
    shutil.rmtree(owner.home / "runs" / run.run_id)
    told = json.dumps(pages.one_run(run.run_id))
    assert "from the ledger" in told + json.dumps(pages.run_curves(run.run_id))
    assert pages.run_log(run.run_id, "", "")["logs"] == []
    with pytest.raises(NotFoundError, match="no run 'r-nobody'"):
        pages.one_run("r-nobody")


def test_a_cap_is_raised_and_a_locked_ledger_is_told(owner: User, pages: Pages) -> None:
    owner.run("budget", "set", "month", "50")
    assert pages.raise_level("month", {"cap": "75"})["cap"]["text"] == "$75.00"
    assert "$75.00" in owner.run("budget", "history")
    holder = sqlite3.connect(owner.ledger_path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(LedgerError):
            pages.do(owner.only_run().run_id, {"verb": "land", "agreed": "1"})
    finally:
        holder.execute("ROLLBACK")
        holder.close()
