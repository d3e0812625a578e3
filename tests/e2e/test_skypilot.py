"""The main job on machines that SkyPilot makes; here a stand-in of its command makes them."""

from __future__ import annotations

import json

import pytest

from tests.e2e.runpod_user import ACCEPT, RentedUser
from tests.e2e.user import until
from tests.unit.skypilot.rig import stand_in
from trmcloud.core import manifest as mf
from trmcloud.core.money import ZERO
from trmcloud.core.run_state import Outcome, State

VIA = ("--via", "skypilot", "--provider", "runpod")
KEY = "--allow-account-key-on-pod"


@pytest.fixture
def skyfarer(rented: RentedUser) -> RentedUser:
    """A user whose only way to rent is SkyPilot: RunPod's key is SkyPilot's, not theirs."""
    state = rented.folder / "sky.json"
    account = {"url": rented.standin.url, "key": rented.standin.api_key}
    state.write_text(json.dumps({"runpod": account, "enabled": ["RunPod"]}))
    rented.environment["TRMCLOUD_SKY"] = str(stand_in(rented.folder / "sky", state))
    del rented.environment["RUNPOD_API_KEY"]
    return rented


@pytest.mark.slow
def test_plan_launch_land_at_the_budget_fetch_report(skyfarer: RentedUser) -> None:
    plan_id = skyfarer.plan_to_bind("--budget", "0.30", *VIA, hard_stop_s=40.0, landing_s=6.0)
    refused = skyfarer.fails("launch", plan_id, "-y", *ACCEPT, code=2)
    assert "account's own key" in refused
    launch = skyfarer.start("launch", plan_id, "-y", *ACCEPT, KEY)
    skyfarer.run_in(State.RUNNING)
    until(lambda: skyfarer.only_run().trains, what="training")
    shown = skyfarer.run("status", skyfarer.only_run().run_id)
    assert "first hop's, SkyPilot's own, is not" in shown
    (limit,) = (line for line in shown.splitlines() if line.startswith("guard: autostop"))
    assert "armed · SkyPilot's autodown, 4 min from when it was set" in limit
    assert len(skyfarer.live()) == 1
    skyfarer.see_out(launch, code=20)
    run = skyfarer.only_run()
    assert run.outcome is Outcome.LANDED
    assert skyfarer.live() == []
    assert ZERO < run.settled <= run.cap
    best = mf.pick_best(skyfarer.checkpoints().values())
    assert best is not None
    assert best.step == run.phases["fast"].step
    fetched = skyfarer.json("fetch-best", "--into", str(skyfarer.folder / "best"), "--json")
    assert fetched["sha256"] == best.sha256
    (report,) = skyfarer.json("report", "--json")
    assert 0 < report["billed_usd"] <= float(run.cap)
