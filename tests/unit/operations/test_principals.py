"""What a principal may name: buckets of its grant, and plans of its own; no run is launched."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.test_judged_runs import AGENT, bound
from tests.typist import InProcess, typist
from trmcloud.api import Home
from trmcloud.core.errors import GrantRefused, NotFoundError
from trmcloud.operations.money import grants

__all__ = ["typist"]

SHORT = ("python3", "train.py", "40")
OWN: dict[str, Any] = {
    "hardware": "local", "rate": "3.60", "grace": 2.0, "checkpoints": "out",
    "checkpoint_gb": 0.001, "metric": "val_loss",
}  # fmt: skip


def test_a_principal_keeps_checkpoints_in_no_bucket_but_those_it_was_given(
    typist: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in typist.env().items():
        monkeypatch.setenv(name, value)
    (typist.folder / "train.py").touch()
    agent = Home(principal="agent")
    typist.run("grant", "give", "agent", "5", "--bucket", "s3://given/agent/")
    assert typist.json("grant", "list", "--json")["grants"][0]["buckets"] == ["s3://given/agent"]
    wish = {**OWN, "here": typist.folder, "budget": "0.10"}
    for bucket in ("s3://owners/models", "s3://given", "s3://given/agents"):
        for call in (agent.run_command, agent.plan_command):
            with pytest.raises(GrantRefused, match=f"does not allow {bucket}"):
                call(SHORT, bucket=bucket, **wish)
        with pytest.raises(GrantRefused, match="does not allow"):
            agent.sweep(["lr=1|2"], recipe="trm-tiny", bucket=bucket)
    assert agent.plan_command(SHORT, bucket="s3://given/agent/a", **wish).spec.bucket
    monkeypatch.setenv("TRMCLOUD_BUCKET", "s3://owners/models")
    made = Home(principal="agent").plan_command(SHORT, bucket="s3://owners/models", **wish)
    assert made.spec.bucket == "s3://owners/models"
    plan = Home().plan_command(SHORT, bucket="s3://owners/others", **wish)
    with pytest.raises(GrantRefused, match="does not allow s3://owners/others") as caught:
        grants.require_allowed(agent.context, plan)  # as a bound shell's command does
    assert "s3://given/agent" in caught.value.next_step


def test_a_principal_launches_no_plan_but_its_own(
    typist: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    typist.run("grant", "give", AGENT, "5", "--runs-at-once", "0")
    typist.run("grant", "give", "other", "5")
    options = ("--recipe", "trm-tiny", "--phase", "fast", "--rate", "3.60", "--budget", "0.05")
    words = ("plan", "--hardware", "local", *options, "--json")
    owners = _plan_id(typist.json(*words))
    with bound(typist, "other"):
        others = _plan_id(typist.json(*words))
    with bound(typist):
        mine = _plan_id(typist.json(*words))
        for plan in (owners, others):
            for line in (("launch", plan, "-y"), ("rehearse", plan)):
                assert f"no plan {plan}" in typist.fails(*line, code=NotFoundError.exit_code)
    for name, value in typist.env().items():
        monkeypatch.setenv(name, value)
    home = Home(principal=AGENT)
    for plan in (owners, others):
        for call in (home.launch, home.check_launch):
            with pytest.raises(NotFoundError, match=f"no plan {plan}"):
                call(plan)
    assert home.check_launch(mine).id == mine
    assert Home().check_launch(owners).id == owners
    with pytest.raises(NotFoundError):
        Home().check_launch(mine)
    assert typist.ledger().runs == {}


def _plan_id(document: Any) -> str:
    return str(document["id"])
