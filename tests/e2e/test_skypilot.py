"""The main job on machines that SkyPilot makes; here a stand-in of its command makes them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.bare import bare_image, old_python
from tests.e2e.rented import renting
from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser
from tests.e2e.user import until
from tests.standins.downloads import Downloads, downloads
from tests.unit.skypilot.rig import stand_in
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO
from trmcloud.providers.skypilot.traits import RUNPOD_BY_SKYPILOT

VIA = ("--via", "skypilot", "--provider", "runpod")
KEY = "--allow-account-key-on-pod"


def by_sky(user: RentedUser) -> RentedUser:
    """Whose only way to rent is SkyPilot: RunPod's key is SkyPilot's, not theirs."""
    state = user.folder / "sky.json"
    account = {"url": user.standin.url, "key": user.standin.api_key}
    state.write_text(json.dumps({"runpod": account, "enabled": ["RunPod"]}))
    user.environment["TRMCLOUD_SKY"] = str(
        stand_in(user.folder / "sky", state, user.folder / "clock")
    )
    key = user.folder / ".runpod" / "config.toml"
    key.parent.mkdir()
    key.write_text(f'[default]\napi_key = "{user.standin.api_key}"\n')
    del user.environment["RUNPOD_API_KEY"]
    user.looks = ("status", "--live")
    return user


def test_plan_launch_land_at_the_budget_fetch_report(rented: RentedUser) -> None:
    skyfarer = by_sky(rented)
    plan_id = skyfarer.plan_to_bind("--budget", "0.30", *VIA, hard_stop_s=40.0, landing_s=6.0)
    refused = skyfarer.fails("launch", plan_id, "-y", *ACCEPT, code=2)
    assert "account to every pod" in refused
    launch = skyfarer.start("launch", plan_id, "-y", *ACCEPT, KEY)
    skyfarer.run_in(State.RUNNING)
    until(lambda: skyfarer.only_run().trains, what="training")
    shown = skyfarer.run("status", skyfarer.only_run().run_id, "--live")
    assert "SkyPilot's first hop is not" in shown
    (limit,) = (line for line in shown.splitlines() if line.startswith("guard: autostop"))
    assert "armed · SkyPilot's autodown, 4 min after it was set" in limit
    (pod,) = skyfarer.live()
    assert skyfarer.standin.control.inside(pod.id, "pgrep -x tail"), "the job shows the agent's log"
    saved = skyfarer.json("save", "--json")
    assert saved["safe"], "it is here, and whole"
    skyfarer.see_out(launch, code=20)
    run = skyfarer.only_run()
    assert run.outcome is Outcome.LANDED
    assert skyfarer.live() == []
    assert ZERO < run.settled <= run.cap
    best = skyfarer.best()
    assert best.step == run.phases["fast"].step
    fetched = skyfarer.json("fetch-best", "--into", str(skyfarer.folder / "best"), "--json")
    assert fetched["sha256"] == best.sha256
    (report,) = skyfarer.json("report", "--json")["runs"]
    assert 0 < float(report["billed_usd"]) <= float(run.cap)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Downloads]:
    if not Path(sys.executable).with_name("uv").exists():
        pytest.skip("uv is not installed: make install")
    with downloads(tmp_path / "downloads") as made:
        yield made


@pytest.fixture
def on_bare_machines(tmp_path: Path, served: Downloads) -> Iterator[RentedUser]:
    """Whose machines have no torch, and reach nothing but what the user says to install from."""
    inside, kept = bare_image(tmp_path / "image")
    with renting(tmp_path, inside, keep=kept, reach=[served.port]) as made:
        by_sky(made).environment |= served.settings()
        yield made


def test_a_machine_without_torch_gets_one_while_it_is_guarded(
    on_bare_machines: RentedUser,
    served: Downloads,
) -> None:
    user = on_bare_machines
    budget = ("--budget", "0.30", "--steps", "100000")
    plan_id = user.plan_to_bind(*budget, *VIA, hard_stop_s=150.0, landing_s=6.0)

    def commands(pattern: str) -> str:
        (pod,) = user.live()
        return user.standin.control.inside(pod.id, f"pgrep -fa {pattern} || true")

    with served.held():  # until the launch has heard that it is installed
        launch = user.start("launch", plan_id, "-y", *ACCEPT, KEY)
        user.run_in(State.RUNNING, within_s=60.0)
        until(lambda: "uv" in commands("'uv (venv|pip)'"), what="an installation")
        guards = commands("trmcloud.pod").splitlines()
    started = {word for line in guards for word in line.split()}
    assert {"trmcloud.pod.boot", "trmcloud.pod.agent.process"} <= started
    assert all(str(old_python()) in line for line in guards if "trmcloud.pod.boot" in line)
    until(lambda: user.only_run().trains, within_s=120.0, what="training")
    # Its ranks come a moment after its first word, and are not there while it begins anew.
    until(lambda: "/workspace/trmcloud/env/" in commands("model.train"), what="its own torch")
    user.run("stop", "-y", user.only_run().run_id)
    out, _ = user.see_out(launch, code=Outcome.STOPPED.exit_code)
    assert "✔ Installing" in out
    assert user.live() == []


def test_status_asks_skypilot_only_when_told_to(renter: RentedUser) -> None:
    """It takes seconds, and starts a server; a cron job need not even find the command."""
    skyfarer = by_sky(renter)
    wish = ("launch", "1xA100", *LAUNCH[2:], "--steps", "60", "--budget", "2", *skyfarer.data)
    launch = skyfarer.start(*wish, *ACCEPT, *VIA, KEY)
    run = skyfarer.run_in(State.BOOTING)
    launch.kill()
    launch.communicate()
    state, program = skyfarer.folder / "sky.json", Path(skyfarer.environment["TRMCLOUD_SKY"])
    asked = len(json.loads(state.read_text())["asked"])
    program.rename(program.with_name("elsewhere"))
    shown = skyfarer.run("status", run.run_id, "-v")
    assert "not asked  " in shown
    assert "SkyPilot and the pod; it has not reported yet: status --live" in shown
    assert "not checked whether it is set: trmcloud status --live" in shown
    table = skyfarer.run("status")
    assert f"not asked about {run.run_id}: SkyPilot (trmcloud status --live)" in table
    (told,) = skyfarer.json("status", "--json")["runs"]
    assert told["unasked"] is True
    assert len(json.loads(state.read_text())["asked"]) == asked
    assert skyfarer.only_run().state is State.BOOTING
    _, told = skyfarer.see_out(skyfarer.start("status", "--live"))
    assert "skypilot-runpod was not checked: SkyPilot is not installed" in told
    program.with_name("elsewhere").rename(program)
    assert "not asked" not in skyfarer.run("status", "--live")
    assert len(json.loads(state.read_text())["asked"]) > asked


def smoked(user: RentedUser, **state: object) -> tuple[subprocess.Popen[str], float]:
    """A smoke run whose line is cut, and its pod's hard stop (epoch s)."""
    path = user.folder / "sky.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **state}))
    words = ("--provider", RUNPOD_BY_SKYPILOT, "--max-usd", "0.40", "--minutes", "12", "-y")
    process = user.start("smoke", *words)

    def is_cut() -> bool:
        if process.poll() is not None:
            raise AssertionError("\n".join(process.communicate()))
        return ["api", "stop"] in json.loads(path.read_text()).get("asked", [])

    until(is_cut, within_s=120.0, what="the line is cut")
    generation = user.only_run().generation
    assert generation is not None
    return process, generation.hard_stop_at


def test_a_smoke_run_proves_autodown_with_the_line_to_this_machine_cut(
    rented: RentedUser,
) -> None:
    skyfarer = by_sky(rented)
    process, hard_stop_at = smoked(skyfarer)
    asked = len(json.loads((skyfarer.folder / "sky.json").read_text())["asked"])
    assert len(skyfarer.live()) == 1
    skyfarer.clock.advance(hard_stop_at - 150.0 - skyfarer.clock())
    until(lambda: not skyfarer.live(), within_s=30.0, what="autodown")
    told = json.loads((skyfarer.folder / "sky.json").read_text())["asked"][asked:]
    assert told == [], "nothing from here asked or ended anything meanwhile"
    skyfarer.clock.advance(hard_stop_at - 10.0 - skyfarer.clock())
    out, err = process.communicate(timeout=120)
    assert "was ended by its own limit: autodown" in out, out + err
    assert (RUNPOD_BY_SKYPILOT, "autostop") in skyfarer.ledger().verified
    down = [words for words in told if words[0] == "down"]
    assert down == []
