"""What a launch through SkyPilot says of the account's key, and which verified layers it counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.skypilot.rig import Rig
from tests.unit.skypilot.test_homes import in_home
from trmcloud.app import kill_layers, preparing
from trmcloud.app.context import Context
from trmcloud.app.launch_checks import check_account_key, check_exposure
from trmcloud.app.launch_request import LaunchRequest
from trmcloud.app.planning import Planner
from trmcloud.core.contract.pod_contract import PodName
from trmcloud.core.control import events as ev
from trmcloud.core.errors import BudgetRefused, UsageError
from trmcloud.core.money import ZERO
from trmcloud.core.spec.plan import Plan
from trmcloud.providers.skypilot.compute import SkyPilotCompute
from trmcloud.providers.skypilot.homes import SkyHome
from trmcloud.wiring import build_context
from trmcloud.wiring_plans import Inputs

IAM_TOKEN, SERVICE_KEY = ".nebius/NEBIUS_IAM_TOKEN.txt", ".nebius/credentials.json"


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A home whose Nebius credential is a token of 12 hours at most."""
    home = tmp_path / "user"
    (home / ".nebius").mkdir(parents=True)
    (home / IAM_TOKEN).write_text("token")
    return home


@pytest.fixture
def context(tmp_path: Path, user: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "trm"))
    (tmp_path / "rig").mkdir()
    compute = in_home(Rig(tmp_path / "rig"), SkyHome(tmp_path / "trm", "nebius", user, {}))
    return replace(build_context(), computes={"nebius": compute, "vast-ai": compute})


def planned(context: Context, hardware: str, provider: str) -> Plan:
    wish = LaunchRequest(
        hardware, "trm", "fast", budget="400", provider=[provider],
        typed=("hardware", "recipe", "phase", "budget", "provider"),
    )  # fmt: skip
    return preparing.dry_run(
        context, Planner(Inputs(context.home), context.home, context.wall), wish
    )


def refused(context: Context, plan: Plan) -> str:
    with pytest.raises(BudgetRefused) as caught:
        check_exposure(context, plan, None)
    return str(caught.value)


def verify(context: Context, *layers: str) -> None:
    for layer in layers:
        event = ev.LayerVerified("nebius", layer, "smoke run r1")
        context.ledger.verify_layer(event, context.wall())


def test_a_verified_layer_does_not_count_where_its_credential_may_lapse_before_the_hard_stop(
    context: Context, user: Path
) -> None:
    """The layers were verified with a key without an end; today there is a token."""
    plan = planned(context, "8xB200", "nebius")
    verify(context, "agent", "autostop")
    told = refused(context, plan)
    assert "that work without this machine and are verified: none; 2 are needed" in told
    assert "agent and autostop counted before, and not until this run's hard stop" in told
    assert "an IAM token, of 12 hours at most" in told
    (user / SERVICE_KEY).write_text("{}")
    SkyHome(context.home, "nebius", user, {}).lay()
    told = refused(context, plan)
    assert "kill layers" not in told, "two that count are enough; what is left is the uncapped rent"
    assert "counted before" not in told


def test_a_layer_that_was_never_verified_is_not_said_to_have_counted(context: Context) -> None:
    plan = planned(context, "8xB200", "nebius")
    verify(context, "agent")
    told = refused(context, plan)
    assert "verified: none; 2 are needed" in told
    assert "; agent counted before, and not until" in told
    assert "autostop" not in told


def test_a_live_run_shows_no_layer_as_verified_whose_credential_may_lapse(
    context: Context, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify(context, "agent", "autostop")
    monkeypatch.setattr(kill_layers, "_overshoot", lambda *_: kill_layers.MaxOverspend(ZERO, "$0"))
    until = context.wall() + 3 * 86_400
    pod = str(PodName("0a1b2c3d", "r1", 1, int(until)))
    compute = context.computes["nebius"]
    assert isinstance(compute, SkyPilotCompute)
    generation = SimpleNamespace(
        open=True, provider="nebius", pod_name=pod, pod_id=pod, agent_at=None, hard_stop_at=until
    )
    run: Any = SimpleNamespace(run_id="r-000001", live=True, generation=generation)

    def shown() -> dict[str, str]:
        return {layer.name: layer.state for layer in kill_layers.guards_of(context, run).layers}

    SkyHome(context.home, "nebius", user, {}).seen.mkdir(parents=True)
    compute._note_credential(pod)
    assert kill_layers.VERIFIED not in shown().values()
    (user / SERVICE_KEY).write_text("{}")
    SkyHome(context.home, "nebius", user, {}).lay()
    compute._note_credential(pod)
    assert shown()["autostop"] == kill_layers.VERIFIED


def test_machines_of_private_people_need_a_word_for_the_accounts_key(context: Context) -> None:
    plan = planned(context, "1xRTX4090", "vast-ai")
    with pytest.raises(UsageError) as caught:
        check_account_key(plan, allowed=False)
    assert str(caught.value) == (
        "SkyPilot copies the vast-ai account's own key to every machine it rents there, and they "
        "are private people's computers"
    )
    assert caught.value.next_step == (
        "another cloud by --provider (runpod needs no key there), or --allow-account-key-on-pod"
    )
    assert caught.value.exit_code == 2
    check_account_key(plan, allowed=True)


def test_no_other_cloud_asks_for_that_word(context: Context) -> None:
    check_account_key(planned(context, "8xB200", "nebius"), allowed=False)
