"""``trmcloud rehearse``: the plan that a launch would make, played many times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trmcloud.core.errors import UsageError
from trmcloud.sim.faults.table import NAMES
from trmcloud.sim.rehearsal import fault_names, spread

ROOT = Path(__file__).resolve().parents[2]


def rehearse(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TRMCLOUD_HOME": str(home / "trmcloud"),
        "PYTHONPATH": str(ROOT),
        "LANG": "C.UTF-8",
    }
    return subprocess.run(
        [sys.executable, "-m", "trmcloud", "rehearse", *arguments],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_tells_what_a_run_would_spend(tmp_path: Path) -> None:
    done = rehearse(tmp_path, "8xH100", "--budget", "400", "--runs", "20")
    assert done.returncode == 0, done.stderr
    for word in ("20 plays, budget $400", "spent", "ended", "stopped by", "saved"):
        assert word in done.stdout
    assert not (tmp_path / "trmcloud" / "runs").exists()


def test_the_same_seed_plays_the_same_and_json_holds_all(tmp_path: Path) -> None:
    arguments = ("8xA100", "--budget", "300", "--runs", "12", "--seed", "7", "--json")
    first, second = (rehearse(tmp_path, *arguments) for _ in range(2))
    assert first.returncode == 0, first.stderr
    made: dict[str, Any] = json.loads(first.stdout)
    again = json.loads(second.stdout)
    assert {**made, "plan": ""} == {**again, "plan": ""}
    assert made["runs"] == 12
    assert made["spent_usd"]["max"] <= made["budget_usd"] + made["over_budget_exposed_usd"]
    assert made["violations"] == []
    assert made["timeline"]


def test_without_faults_every_play_of_a_fitting_plan_finishes(tmp_path: Path) -> None:
    done = rehearse(
        tmp_path, "8xH100", "--budget", "2000", "--runs", "8", "--faults", "none", "--json"
    )
    made = json.loads(done.stdout)
    assert made["outcomes"] == {"finished": 8}
    assert made["faults_felt"] == {}
    assert made["exposed_seconds"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--runs", "0"), "--runs is from 1"),
        (("--faults", "gremlins"), "'gremlins' is no fault"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_line(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = rehearse(tmp_path, "8xH100", "--budget", "400", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_faults_by_number_and_by_word() -> None:
    assert fault_names("all") == NAMES
    assert fault_names("none") == ()
    assert fault_names("34,12") == ("34", "12")
    assert fault_names("preempted") == ("34",)
    assert "7" in fault_names("asleep")
    with pytest.raises(UsageError):
        fault_names("34,,12")


def test_spread() -> None:
    assert spread([1, 2, 3, 4, 5]) == {"min": 1, "p50": 3, "p90": 5, "max": 5}
    assert spread([7]) == {"min": 7, "p50": 7, "p90": 7, "max": 7}
