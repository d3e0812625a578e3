"""The main job on vast.ai's stand-in, whose instances are machines of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.runpod_user import ACCEPT
from tests.e2e.user import until
from tests.e2e.vast_user import VAST_LAUNCH, VastUser, renting_from_vast
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO


@pytest.fixture
def renter(tmp_path: Path) -> Iterator[VastUser]:
    with renting_from_vast(tmp_path) as made:
        yield made


def test_plan_launch_status_land_fetch_report(renter: VastUser) -> None:
    plan_id = renter.plan_to_bind(
        "--budget", "0.60", hard_stop_s=40.0, landing_s=6.0, launch=VAST_LAUNCH
    )
    plan = json.loads((renter.home / "plans" / f"{plan_id}.json").read_text())
    chosen = next(c for c in plan["candidates"] if c["id"] == plan["recommended_id"])
    assert (chosen["provider"], chosen["region"]) == ("vast", "US")
    launch = renter.start("launch", plan_id, "-y", *ACCEPT)
    run = renter.run_in(State.RUNNING)
    until(lambda: renter.only_run().trains, what="training")
    (instance,) = renter.live()
    key = renter.vast.api_key
    files = "find /workspace /opt /root /tmp -xdev -type f"
    held = renter.vast.inside(
        instance, f"{files} -exec grep -l {key} {{}} +; grep -l {key} /proc/[0-9]*/environ; true"
    )
    assert held == "", "the account's key is in no file and no environment of the instance"
    own = renter.vast.inside(
        instance, f"for e in /proc/[0-9]*/environ; do grep -lc {instance.key} $e; done; true"
    )
    assert len(own.split()) <= 3, f"its own key is with what guards it, and no trainer: {own}"
    out, err = renter.see_out(launch, code=20)
    run = renter.only_run()
    assert run.outcome is Outcome.LANDED
    assert renter.live() == []
    assert ZERO < run.settled <= run.cap
    assert 0 < renter.billed() <= float(run.cap)
    best = renter.best()
    fetched = renter.json("fetch-best", "--into", str(renter.folder / "best"), "--json")
    assert fetched["sha256"] == best.sha256
    renter.close_books()
    report = renter.json("report", "--json")["runs"][0]
    assert float(report["billed_usd"]) == pytest.approx(renter.billed(), abs=2e-6)
    assert key not in out + err
