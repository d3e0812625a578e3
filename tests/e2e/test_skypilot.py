"""The main job on machines that SkyPilot makes; here a stand-in of its command makes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser
from tests.e2e.user import SMALL, User, until
from tests.unit.skypilot.rig import stand_in
from trmcloud.core import manifest as mf
from trmcloud.core.money import ZERO
from trmcloud.core.providers import traits_of
from trmcloud.core.run_state import Outcome, State

VIA = ("--via", "skypilot", "--provider", "runpod")
KEY = "--allow-account-key-on-pod"


def by_sky(user: RentedUser) -> RentedUser:
    """Whose only way to rent is SkyPilot: RunPod's key is SkyPilot's, not theirs."""
    state = user.folder / "sky.json"
    account = {"url": user.standin.url, "key": user.standin.api_key}
    state.write_text(json.dumps({"runpod": account, "enabled": ["RunPod"]}))
    user.environment["TRMCLOUD_SKY"] = str(stand_in(user.folder / "sky", state))
    del user.environment["RUNPOD_API_KEY"]
    return user


@pytest.mark.slow
def test_plan_launch_land_at_the_budget_fetch_report(rented: RentedUser) -> None:
    skyfarer = by_sky(rented)
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
    (pod,) = skyfarer.live()
    assert skyfarer.standin.control.inside(pod.id, "pgrep -x tail"), "the job shows the agent's log"
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


def test_what_is_sold_out_after_all_gives_way_to_the_next_candidate(renter: RentedUser) -> None:
    """The launch was taken, and fails later: long before its absence would prove anything."""
    skyfarer = by_sky(renter)
    skyfarer.standin.control.set(no_capacity=["*"])
    wish = ("launch", "1xA100", *LAUNCH[2:], "--steps", "60", "--budget", "2", *skyfarer.data)
    out = skyfarer.run(*wish, *ACCEPT, *VIA, KEY, code=Outcome.NOT_STARTED.exit_code)
    run = skyfarer.only_run()
    assert (run.outcome, run.settled, run.reserved) == (Outcome.NOT_STARTED, ZERO, ZERO)
    assert len(run.generations) > 1
    assert out.count("skypilot-runpod is sold out, or has none for us: Failed to acquire") > 1
    assert "  try: trmcloud " in out
    assert run.updated_at - run.created_at < traits_of("skypilot-runpod").absent_s


DOWN = "sky.exceptions.ApiServerConnectionError: Could not connect to SkyPilot API server"
REFUSALS = {
    "not installed": ({}, 11, "SkyPilot is not installed: there is no", "make sky"),
    "too old": ({"version": "0.9.2"}, 11, "version 0.9.2 is too old", "make sky"),
    "down": ({"fail": {"check": DOWN}}, 11, "SkyPilot's API server is down", "sky api start"),
    "not enabled": (
        {"enabled": ["GCP"]}, 15,
        "aws is not enabled in SkyPilot: AWS credentials are not set.", "sky check aws",
    ),
}  # fmt: skip


def test_a_skypilot_that_cannot_rent_is_told_in_one_line_and_nothing_is_reserved(
    user: User, tmp_path: Path
) -> None:
    """One home, one plan, one refusal after another."""
    state = tmp_path / "sky.json"
    arguments = [word for word in SMALL if word not in ("--rate", "3.60")]
    wish = ("launch", "8xH100", "--provider", "aws", "--phase", "fast", *arguments)
    plan = user.json(*wish, "--budget", "90", "--dry-run", "--json")
    for name, (told, code, says, fix) in REFUSALS.items():
        program = tmp_path / "sky"
        if name != "not installed":
            state.write_text(json.dumps(told))
            stand_in(program, state)
        user.environment["TRMCLOUD_SKY"] = str(program)
        err = user.refused("launch", plan["id"], "-y", "--accept-exposure", "90", code=code)
        assert says in err
        assert fix in err
        assert "Traceback" not in err
    assert user.ledger().runs == {}
    findings = json.loads(user.run("doctor", "--json", code=(0, 1)))
    (found,) = (one for one in findings if one["name"] == "skypilot")
    assert (found["state"], found["detail"]) == ("ok", "0.14.1; enabled: gcp")


def test_skypilot_is_left_alone_where_nothing_was_rented_through_it(
    user: User, tmp_path: Path
) -> None:
    """Asking it starts its server: neither a look around nor a reaper does."""
    state = tmp_path / "sky.json"
    (tmp_path / "bin").mkdir()
    stand_in(tmp_path / "bin" / "sky", state)
    user.environment["PATH"] = f"{tmp_path / 'bin'}:{user.env()['PATH']}"
    user.run("status", "--all")
    user.run("reap")
    assert not state.exists()
