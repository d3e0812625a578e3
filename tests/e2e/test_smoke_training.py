"""``smoke --train``: on this machine, and on a rented pod with a real torch."""

from __future__ import annotations

import json

import pytest

from tests.documents import lines_in
from tests.e2e.user import User
from tests.typist import InProcess
from trmcloud.core.contract.training_checks import NAMES
from trmcloud.operations.plans.measurements import load_probes

TRAIN = ("smoke", "--train", "--recipe", "gpt350m")


def test_what_the_checks_cost_is_listed_and_less_is_refused(typist: InProcess) -> None:
    listed = typist.run(*TRAIN)
    assert "  8xH100 " in listed
    assert "free, on this machine: trmcloud smoke --train --hardware local" in listed
    start = next(line for line in listed.splitlines() if line.startswith("start: "))
    assert "--max-usd 0." in start
    told = typist.fails(*TRAIN, "--hardware", "8xH100", "--max-usd", "0.50", "-y", code=4)
    assert "too little" in told
    assert "--max-usd " in typist.fails(*TRAIN, "--hardware", "8xH100", code=2)
    assert not typist.ledger_path.exists() or not typist.ledger().runs


@pytest.mark.more
def test_on_this_machine_all_are_made_and_the_planner_learns(user: User) -> None:
    out = user.run(*TRAIN, "--hardware", "local", "--json", "-y")
    *_, ended = lines_in(out)
    assert ended["schema"] == "smoke-train/1"
    assert [check["name"] for check in ended["checks"]] == list(NAMES)
    assert not [check for check in ended["checks"] if check["passed"] is False], out
    assert ended["taught"]
    assert ended["is_miniature"]
    (probe,) = load_probes(user.home)
    assert probe.run_id == ended["run_id"]
    best = user.folder / "best"
    user.run("fetch-best", "--into", str(best))
    (report,) = best.rglob("report.json")
    assert len(json.loads(report.read_text())) == len(NAMES)
