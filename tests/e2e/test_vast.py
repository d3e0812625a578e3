"""The main job on vast.ai's stand-in, whose instances are machines of their own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.runpod_user import ACCEPT
from tests.e2e.user import User, until
from tests.e2e.vast_user import VAST_LAUNCH, VastUser, renting_from_vast
from tests.standins.vast.standin import running
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.pod_contract import PodName
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO


@pytest.fixture
def renter(tmp_path: Path) -> Iterator[VastUser]:
    with renting_from_vast(tmp_path) as made:
        yield made


def test_plan_launch_status_land_fetch_report(renter: VastUser) -> None:
    plan_id = renter.plan_to_bind(
        "--budget", "0.60", hard_stop_s=30.0, landing_s=6.0, launch=VAST_LAUNCH
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
    best = mf.pick_best(renter.checkpoints().values())
    assert best is not None
    fetched = renter.json("fetch-best", "--into", str(renter.folder / "best"), "--json")
    assert fetched["sha256"] == best.sha256
    renter.close_books()
    report = renter.json("report", "--json")["runs"][0]
    assert float(report["billed_usd"]) == pytest.approx(renter.billed(), abs=2e-6)
    assert key not in out + err


def test_a_smoke_run_sees_an_instance_end_itself_by_its_own_key(renter: VastUser) -> None:
    out = renter.run("smoke", "--provider", "vast", "--max-usd", "0.25", "--minutes", "0.5", "-y")
    print(out)
    first, second = renter.ledger().runs.values()
    assert first.generation is not None
    assert second.generation is not None
    ended = {row["label"]: row["ended_by"] for row in renter.truth()}
    assert ended[first.generation.pod_name] == "self"
    assert ended[second.generation.pod_name] == "account"
    verified = {layer for provider, layer in renter.ledger().verified if provider == "vast"}
    assert verified == {"agent"}, "its credit may go below zero: it proves no end"
    assert renter.live() == []
    assert renter.billed() <= 0.25


def test_reap_ends_an_instance_that_no_run_owns_and_no_other(tmp_path: Path) -> None:
    with running(tmp_path / "vast", real_pods=False) as standin:
        user = User(tmp_path)
        user.environment |= standin.environment
        user.run("budget", "show")
        ledger_id = SqliteLedger(user.ledger_path).ledger_id
        stray = str(PodName(ledger_id, "r-0dd0dd", 1, int(time.time()) + 3600))
        for host, label in zip(standin.world.hosts, (stray, "somebody's own"), strict=False):
            with standin.world.lock:
                standin.world.create(host, {"label": label, "disk": 50})
        assert f"{stray} on vast: no live run of this ledger owns it" in user.run("admin", "reap")
        assert len(standin.live()) == 2, "without --yes it only lists"
        assert stray in user.run("admin", "reap", "-y")
        assert [each.label for each in standin.live()] == ["somebody's own"]
