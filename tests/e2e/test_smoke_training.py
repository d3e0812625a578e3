"""``smoke --train``: on this machine, and on a rented pod with a real torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.documents import lines_in
from tests.e2e.mission import world
from tests.e2e.user import User
from trmcloud.app.measurements import load_probes
from trmcloud.core.contract.training_checks import NAMES

TRAIN = ("smoke", "--train", "--recipe", "gpt350m")


def test_what_the_checks_cost_is_listed_and_less_is_refused(user: User) -> None:
    listed = user.run(*TRAIN)
    assert "  8xH100 " in listed
    assert "free, on this machine: trmcloud smoke --train --hardware local" in listed
    start = next(line for line in listed.splitlines() if line.startswith("start: "))
    assert "--max-usd 0." in start
    told = user.fails(*TRAIN, "--hardware", "8xH100", "--max-usd", "0.50", "-y", code=4)
    assert "too little" in told
    assert "--max-usd " in user.fails(*TRAIN, "--hardware", "8xH100", code=2)
    assert not user.ledger_path.exists() or not user.ledger().runs


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


@pytest.mark.more
def test_on_a_rented_pod_without_a_gpu_it_says_so_and_costs_its_seconds(tmp_path: Path) -> None:
    """The stand-in rents pods of this machine's kind: they have a real torch, and no GPU."""
    with world(tmp_path) as (user, _):
        try:
            accepted = ("--hardware", "2xA100", "--max-usd", "1", "--accept-exposure", "4", "-y")
            process = user.start(*TRAIN, *accepted)
            out, err = process.communicate(timeout=300)
        finally:
            user.end_everything()
        print(out, err)
        assert process.returncode == 17
        assert "✘ machine       torch" in out
        assert "no GPU was found" in out
        assert "1 of 8 checks failed: machine" in err
        assert user.only_run().phases["train"].outcome == "finished"
