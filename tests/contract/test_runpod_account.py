"""Volumes, prices, orphans and the check of the account, against the stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contract.runpod_rig import Rig, request
from tests.standins.runpod.standin import StandIn
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.app import reap
from trmcloud.app.context import Context
from trmcloud.app.doctor import Finding
from trmcloud.core.clock import Instant
from trmcloud.core.errors import (
    NotFoundError,
    ProviderError,
    ProviderRefused,
    UsageError,
)
from trmcloud.core.money import Usd
from trmcloud.ports.compute import PodRequest, VolumeSeen
from trmcloud.providers.runpod import offers
from trmcloud.providers.runpod.checkup import check_account
from trmcloud.providers.runpod.compute import RunPodVolumes

LEDGER = "0a1b2c3d"


# -- network volumes ------------------------------------------------------------------------------


def test_a_volume_is_made_once_and_used_again(rig: Rig) -> None:
    volumes = RunPodVolumes(rig.api, LEDGER)
    made = volumes.ensure("EU-RO-1", 100)
    assert (made.name, made.size_gb) == ("trmc-0a1b2c3d-EU-RO-1", 100)
    assert volumes.ensure("EU-RO-1", 50) == made
    grown = volumes.ensure("EU-RO-1", 200)
    assert (grown.volume_id, grown.size_gb) == (made.volume_id, 200)
    elsewhere = volumes.ensure("US-KS-2", 1)
    assert elsewhere.size_gb == 10, "RunPod's least"
    assert volumes.ours() == [grown, elsewhere]
    assert RunPodVolumes(rig.api, "ffffffff").ours() == []
    rig.compute.create(request(rig, "A100-80GB-SXM", region="EU-RO-1", volume=made.volume_id))
    with pytest.raises(ProviderRefused, match="in use"):
        volumes.delete(made.volume_id)
    volumes.delete(elsewhere.volume_id)
    assert volumes.ours() == [grown]


def test_a_volume_of_somebody_elses_is_left_alone(rig: Rig) -> None:
    foreign = rig.api.create_volume("my-data", 10, "EU-RO-1")
    volumes = RunPodVolumes(rig.api, LEDGER)
    assert volumes.ensure("EU-RO-1", 10).volume_id != foreign.id
    with pytest.raises(NotFoundError):
        volumes.delete(foreign.id)
    assert {row.id for row in rig.api.volumes()} >= {foreign.id}


def test_the_reaper_sees_and_ends_only_volumes_of_this_ledger(rig: Rig) -> None:
    rig.api.create_volume("my-data", 10, "EU-RO-1")
    mine = RunPodVolumes(rig.api, LEDGER).ensure("EU-RO-1", 31)
    RunPodVolumes(rig.api, "ffffffff").ensure("EU-RO-1", 31)
    rig.compute._volumes = RunPodVolumes(rig.api, LEDGER)
    assert rig.compute.kept_volumes() == [
        VolumeSeen(mine.volume_id, "EU-RO-1", 31, "trmc-0a1b2c3d-EU-RO-1")
    ]
    for _ in range(2):  # somebody may have been quicker
        rig.compute.delete_volume(mine.volume_id)
    assert rig.compute.kept_volumes() == []
    assert {row.name for row in rig.api.volumes()} == {"my-data", "trmc-ffffffff-EU-RO-1"}


def test_a_volume_that_may_have_been_made_is_looked_for(rig: Rig) -> None:
    volumes = RunPodVolumes(rig.api, LEDGER)
    rig.api.volumes()

    def made_but_garbled(*arguments: Any) -> Any:
        rig.standin.control.set(malformed=1)
        return create(*arguments)

    create = rig.api.create_volume
    rig.api.create_volume = made_but_garbled  # type: ignore[method-assign,assignment]
    made = volumes.ensure("EU-RO-1", 10)
    assert [row.id for row in rig.api.volumes()] == [made.volume_id]


def test_what_cannot_be_a_volume(rig: Rig) -> None:
    volumes = RunPodVolumes(rig.api, LEDGER)
    with pytest.raises(UsageError, match="4096"):
        volumes.ensure("EU-RO-1", 5000)
    with pytest.raises(ProviderRefused, match="US-TX-3"):
        volumes.ensure("US-TX-3", 10)
    rig.standin.control.set(read_only=True)
    with pytest.raises(ProviderRefused):
        volumes.ensure("EU-RO-1", 10)
    assert volumes.ours() == []


# -- prices ---------------------------------------------------------------------------------------


def test_the_price_list_is_one_question(rig: Rig) -> None:
    environ = {"TRMCLOUD_RUNPOD_API": rig.standin.url, "RUNPOD_API_KEY": rig.standin.api_key}
    rows, notes = offers.price_rows(environ, rig.clock())
    assert rig.asked() == ["GET /v2/catalog/gpus"]
    (note,) = notes
    assert note.startswith(f"runpod: {len(rows)} offers of ")
    found = {(row["instance"], row["usd_per_hour"]) for row in rows}
    assert ("8x_H100-SXM_SECURE", "31.92") in found
    assert ("8x_H100-SXM_COMMUNITY", "21.52") in found
    assert ("2x_H200_COMMUNITY", "7.18") not in found, "no such machine"


def test_what_can_be_had_is_told_by_data_centre(rig: Rig) -> None:
    rig.standin.control.set(no_capacity=["NVIDIA B200", "NVIDIA H100 80GB HBM3@EU-RO-1"])
    found = offers.live_offers(rig.api.catalogue, rig.clock(), (8,))
    assert not [offer for offer in found if offer.sku == "B200"]
    h100 = {offer.region: offer for offer in found if offer.sku == "H100-SXM"}
    assert "EU-RO-1" not in h100
    assert h100["US-KS-2"].rate == Usd("31.92")
    assert not h100["US-KS-2"].is_community
    assert all(offer.gpus == 8 and offer.priced_at == rig.clock() for offer in found)
    community = offers.live_offers(rig.api.catalogue, rig.clock(), (1,), community=True)
    assert all(offer.is_community for offer in community)


def test_a_catalogue_that_is_none(rig: Rig) -> None:
    with pytest.raises(ProviderError):
        offers.read_catalogue(lambda params: {"gpus": "?"})
    odd = {"id": "NVIDIA L4", "secure": True, "price": {"secure": "?"}, "maxCount": {"secure": 1}}
    assert offers.read_catalogue(lambda params: {"gpus": [odd, 7, {"id": "new"}]}) == []


# -- orphans --------------------------------------------------------------------------------------


def test_reap_finds_what_the_first_list_omits(rig: Rig, tmp_path: Path) -> None:
    class Here:
        def now(self) -> Instant:
            return Instant(rig.clock(), rig.clock())

    unused: Any = None
    world = Context(
        home=tmp_path, clock=Here(), ledger=SqliteLedger(tmp_path / "ledger.db"),  # type: ignore[arg-type]
        computes={"runpod": rig.compute}, links={}, files=unused, who=unused, is_alive=unused,
        project="p", workers=unused, stage_items=unused, folder_on_pod=unused,
    )  # fmt: skip
    wanted: PodRequest = request(rig)
    rig.compute.create(wanted)
    rig.on(4000)
    rig.standin.control.set(list_empty=1)
    found = reap.look(world)
    assert [orphan.pod.name for _, orphan in found.orphans] == [wanted.name], "past its hard stop"
    assert reap.end(world, found)[0] == reap.Ended("runpod", found.orphans[0][1])
    assert rig.standin.control.live() == []
    rig.on(5)
    rig.standin.control.set(graphql_errors=1)
    broken = reap.look(world)
    assert broken.orphans == ()
    assert [provider for provider, _ in broken.unreachable] == ["runpod"]
    rig.standin.requests.clear()
    rig.on(5)
    reap.look(world, own_only=True)
    assert rig.asked() == ["GET /v2/pods"]


# -- the account ----------------------------------------------------------------------------------


def checked(standin: StandIn, rate: str = "", **more: str) -> dict[str, Finding]:
    environ = {"TRMCLOUD_RUNPOD_API": standin.url, "RUNPOD_API_KEY": standin.api_key, **more}
    found = check_account(environ, Usd(rate) if rate else None, now=standin.control.world.now)
    assert all(f.fix for f in found if f.state != "ok"), "each with its fix"
    assert all("\n" not in f.detail for f in found)
    assert standin.api_key not in str(found)
    return {finding.name: finding for finding in found}


def states(found: dict[str, Finding]) -> dict[str, str]:
    return {name: finding.state for name, finding in found.items()}


def test_an_account_that_is_well(rig: Rig) -> None:
    found = checked(rig.standin, "31.92")
    assert set(states(found).values()) == {"ok"}
    assert set(found) == {"runpod key", "scopes", "balance", "limit", "skew"}
    assert "$100" in found["balance"].detail


def test_no_key_and_a_wrong_one(rig: Rig, tmp_path: Path) -> None:
    assert states(checked(rig.standin, RUNPOD_API_KEY="", HOME=str(tmp_path))) == {
        "runpod key": "warn"
    }
    assert states(checked(rig.standin, RUNPOD_API_KEY="rpa_wrong")) == {"runpod key": "bad"}
    rig.standin.control.set(key_revoked=True)
    assert states(checked(rig.standin)) == {"runpod key": "bad"}
    assert states(checked(rig.standin, TRMCLOUD_RUNPOD_API="http://example.com")) == {
        "runpod key": "bad"
    }


def test_a_key_that_may_only_read(rig: Rig) -> None:
    rig.standin.control.set(read_only=True)
    found = checked(rig.standin)
    assert found["scopes"].state == "bad"
    assert "end pods" in found["scopes"].detail
    assert "read pods" not in found["scopes"].detail


def test_money_and_limits_of_the_account(rig: Rig) -> None:
    rig.standin.control.set_balance(5.0)
    assert states(checked(rig.standin, "31.92"))["balance"] == "bad"
    assert states(checked(rig.standin))["balance"] == "ok"
    rig.standin.control.set_balance(0.0)
    assert "empty" in checked(rig.standin)["balance"].detail
    rig.standin.control.set_balance(1000.0)
    rig.compute.create(request(rig, "B200", gpus=8))
    assert states(checked(rig.standin, "31.92"))["limit"] == "bad"
    rig.standin.control.set(graphql_errors=1)
    assert states(checked(rig.standin))["balance"] == "warn"


@pytest.mark.parametrize(("skew_s", "state"), [(0, "ok"), (20, "warn"), (-600, "bad")])
def test_clocks_that_disagree(rig: Rig, skew_s: float, state: str) -> None:
    rig.standin.control.set(clock_skew_s=skew_s)
    assert states(checked(rig.standin))["skew"] == state


def test_a_runpod_that_is_down(rig: Rig) -> None:
    environ = {"TRMCLOUD_RUNPOD_API": "http://127.0.0.1:9", "RUNPOD_API_KEY": "k"}
    (finding,) = check_account(environ, now=_hasty())
    assert finding.state == "bad"
    assert "cannot be reached" in finding.detail


def _hasty() -> Any:
    """A clock on which each look is a minute later: no waiting for what will not come."""
    at = [0.0]

    def now() -> float:
        at[0] += 60.0
        return at[0]

    return now
