"""The mission's four commands, as they are written, from an empty home to a verified checkpoint."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.e2e.mission import world
from tests.e2e.test_terminal import Terminal
from tests.e2e.user import User
from trmcloud.core.errors import Outcome
from trmcloud.operations.checkpoints.fetching import read_manifest
from trmcloud.pod.machine.processes import of_pod

SMOKE = "smoke --provider runpod --max-usd 0.25 --minutes 0.5 -y"
EXTREME = "launch 8xA100 --phase extreme --budget 1000 -y"
MISSION = (SMOKE, EXTREME, EXTREME.removesuffix(" -y"))
"""As README and guides have them."""


def test_the_missions_four_commands(tmp_path: Path) -> None:
    with world(tmp_path) as (user, host):
        try:
            _mission(user)
        finally:
            user.end_everything()
        # What each machine fetched came from the corpus that its recipe names.
        shards = {asked.path for asked in host.requests if asked.path.endswith(".parquet")}
        assert all(any(name in path for path in shards) for name in ("fineweb-edu", "climbmix"))
        assert sum(asked.host == "cdn" for asked in host.requests) >= len(shards)


def _mission(user: User) -> None:
    user.run(*SMOKE.split())

    shown = user.run("plan", "--budget", "1000")
    assert "test settings: changed from the recipe by" in shown
    printed = re.search(r"^Launch it: trmcloud (launch p-\w+)$", shown, re.MULTILINE)
    assert printed is not None, shown
    terminal = Terminal(user, *printed[1].split())
    try:
        terminal.sees("Proceed?")
        terminal.types("y\n")
        assert terminal.ends(within_s=240) == 0, terminal.shown
    finally:
        terminal.abandon()

    user.run(*EXTREME.split())

    best = user.run("fetch-best")
    folder = next(line.split()[-1] for line in best.splitlines() if "  folder  " in line)
    manifest = read_manifest(Path(folder))
    runs = user.ledger().runs
    assert {run.outcome for run in runs.values() if run.spec.recipe == "trm"} <= {
        Outcome.FINISHED,
        None,  # its bill is still to come
    }
    rented = runs[manifest.run_id]
    assert rented.generation is not None
    assert rented.generation.provider == "runpod"
    assert manifest.world_size == 8
    assert (manifest.phase, manifest.step) == ("extreme", 12)
    report = user.run("report", "-v")
    (told,) = [
        line for line in report.splitlines() if line.startswith(f"{manifest.run_id}: waited")
    ]
    assert "for data ($" in told
    assert "· planned " in told
    assert "1 of 8 shards" in told
    for run in runs.values():
        for generation in run.generations:
            assert of_pod(generation.pod_name) == []
    # No text of the user's was sent: the machine fetched the corpus by itself.
    note = json.loads((user.home / "runs" / manifest.run_id / "launch.json").read_text())
    assert (note["data_dir"], note["data"]["source"]) == ("", "fineweb-edu")
