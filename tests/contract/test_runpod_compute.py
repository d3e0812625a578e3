"""RunPod's adapter makes, lists, ends and bills pods, against the stand-in on a clock that the
test moves."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.pod_requests import HOST_KEY, request
from tests.contract.runpod_rig import A100, Clocked, Rig, build
from tests.present import present
from tests.standins.runpod import oracle
from tests.standins.runpod.client import Client
from tests.standins.runpod.standin import StandIn
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.clock import Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.trainer_contract import load_job
from trmcloud.core.control.balance import Billing
from trmcloud.core.errors import (
    NotSupported,
    PaymentRequired,
    ProviderError,
    ProviderRefused,
    UsageError,
)
from trmcloud.core.money import ZERO, Usd
from trmcloud.operations.checks.doctor import Finding
from trmcloud.operations.context import Context
from trmcloud.operations.driving import reap
from trmcloud.operations.machines import Machines
from trmcloud.ports.compute import PodRequest, VolumeSeen
from trmcloud.providers.runpod import offers
from trmcloud.providers.runpod.checkup import check_account
from trmcloud.providers.runpod.compute import RunPodVolumes

# -- creating -------------------------------------------------------------------------------------


def test_what_a_pod_is_asked_for_is_what_the_contract_takes(rig: Rig) -> None:
    judge = oracle.required()
    for wanted in (
        request(rig),
        request(rig, A100, region="EU-RO-1", volume="vol1", gpus=8, min_cuda="12.8"),
        request(rig, community=True, region="any", disk_gb=1, min_cuda=""),
    ):
        assert judge.valid("CreatePodRequest", rig.compute.body(wanted)) == []


def test_what_a_pod_is_told(rig: Rig) -> None:
    wanted = request(rig, A100, gpus=8, region="EU-RO-1", check={"gpu": "A100", "count": 8})
    body = rig.compute.body(wanted)
    assert body["gpu"] == {"id": "NVIDIA A100-SXM4-80GB", "count": 8, "minCudaVersion": "12.8"}
    assert (body["cloud"], body["dataCenterIds"]) == ("SECURE", ["EU-RO-1"])
    assert (body["ports"], body["startSsh"]) == (["22/tcp"], False)
    assert body["mounts"] == {"persistent": {"size": 50, "path": "/workspace"}}
    told = body["env"]
    assert told[contract.ENV_POD] == wanted.name
    unpacked = {name: base64.b64decode(told[name]).decode() for name in (
        contract.ENV_LEASE, contract.ENV_JOBS, contract.ENV_CHECK, contract.ENV_HOST_KEY,
    )}  # fmt: skip
    assert contract.load_lease(unpacked[contract.ENV_LEASE]) == wanted.lease
    (job,) = json.loads(unpacked[contract.ENV_JOBS])
    assert load_job(json.dumps(job)) == wanted.jobs[0]
    assert json.loads(unpacked[contract.ENV_CHECK]) == {
        "gpu": "A100", "count": 8, "torch": "2.9.1+cu128",
    }  # fmt: skip
    assert unpacked[contract.ENV_HOST_KEY] == HOST_KEY
    assert told[contract.ENV_AUTHORIZED_KEY] == "ssh-ed25519 AAAAuser me"
    assert rig.standin.api_key not in json.dumps(body)
    assert len(told) <= 50
    assert max(len(f"{name}={value}") for name, value in told.items()) < 1 << 17

    volume = rig.compute.body(request(rig, volume="vol1", community=True))
    assert volume["mounts"] == {"network": [{"volumeId": "vol1", "path": "/workspace"}]}
    assert volume["cloud"] == "COMMUNITY"


def test_money_that_is_not_there(rig: Rig) -> None:
    rig.standin.control.set_balance(1000)
    rig.compute.create(request(rig, "B200", gpus=8))
    with pytest.raises(PaymentRequired):
        rig.compute.create(request(rig, "B200", generation=2, gpus=8))


def test_a_request_that_is_wrong(rig: Rig) -> None:
    with pytest.raises(ProviderRefused):
        rig.compute.create(request(rig, volume="no-such-volume"))
    with pytest.raises(NotSupported, match="A10G"):
        rig.compute.create(request(rig, "A10G"))
    assert rig.standin.control.live() == []


# -- What RunPod's adapter says of its pods, whatever the stand-in's lists say ------------------


def test_many_pods_take_one_look(runpod_and_clock: Clocked) -> None:
    rig = build(runpod_and_clock)
    rig.standin.control.set_balance(10_000)
    wanted = [request(rig, generation=number) for number in range(1, 21)]
    for one in wanted:
        rig.compute.create(one)
    rig.on(30)
    rig.standin.requests.clear()
    assert len(rig.compute.list_pods()) == 20
    for one in wanted:
        rig.on(0.15)
        assert rig.compute.address_of(one.name) is not None
    assert len(rig.compute.list_pods()) == 20
    assert rig.asked() == ["GET /v2/pods"] * 2, "the second after two seconds, for the list's sake"


def test_a_stopped_pod_is_no_free_pod(rig: Rig) -> None:
    pod_id = rig.compute.create(request(rig))
    rig.on(30)
    rig.compute.list_pods()
    rig.api.http.send("POST", f"{rig.standin.url}/v2/pods/{pod_id}/action", body={"action": "stop"})
    rig.on(5)
    (seen,) = rig.compute.list_pods()
    assert (seen.status, seen.rate) == ("unknown", Usd("0.49"))


def test_an_address_comes_when_the_port_does(rig: Rig) -> None:
    rig.standin.control.set(ssh_after_s=20.0)
    wanted = request(rig)
    rig.compute.create(wanted)
    rig.on(5)
    assert rig.compute.address_of(wanted.name) is None
    rig.on(30)
    address = present(rig.compute.address_of(wanted.name))
    (seen,) = rig.compute.list_pods()
    assert (seen.host, seen.port) == address
    assert rig.compute.address_of("trmc-0a1b2c3d-r2-g1-1800003600") is None
    rig.standin.control.set(down=True)
    rig.on(300)
    assert rig.compute.address_of(wanted.name) == address, (
        "the last one known, while RunPod is down"
    )


# -- What RunPod's adapter says that a pod has cost, against what the stand-in billed -----------


DISK_USD_H = 70 * 0.10 / 730
"""20 GB of the container's and 50 GB at /workspace."""


def truth(rig: Rig, pod_id: str) -> float:
    return rig.standin.control.billed(pod_id)


def test_the_bill_is_what_the_records_say(rig: Rig) -> None:
    pod_id = rig.compute.create(request(rig))
    for _ in range(12):
        rig.on(150)
        rig.compute.list_pods()
    live = present(rig.compute.bill(pod_id))
    assert not live.final
    assert float(live.amount) == pytest.approx((0.49 + DISK_USD_H) * 0.5, rel=0.01)
    rig.compute.terminate(pod_id)
    rig.on(3)
    assert rig.compute.list_pods() == ()
    early = present(rig.compute.bill(pod_id))
    assert not early.final, "a list may omit a pod for a moment"
    rig.on(300)
    final = present(rig.compute.bill(pod_id))
    assert final.final
    assert float(final.amount) == pytest.approx(truth(rig, pod_id), abs=2e-6)


def test_records_that_come_late_are_waited_for(rig: Rig, tmp_path: Path) -> None:
    rig.standin.control.set(billing_lag_s=900.0)
    pod_id = rig.compute.create(request(rig))
    for _ in range(24):
        rig.on(300)
        rig.compute.list_pods()
    rig.compute.terminate(pod_id)
    ended, paid = rig.clock(), truth(rig, pod_id)
    for _ in range(200):
        rig.on(30)
        bill = present(rig.compute.bill(pod_id))
        assert float(bill.amount) >= paid - 1e-6, "never less than it cost"
        if bill.final:
            break
    assert rig.clock() - ended >= 870
    assert float(bill.amount) == pytest.approx(paid, abs=2e-6)


def test_a_later_controller_knows_the_pod(runpod_and_clock: Clocked, tmp_path: Path) -> None:
    first = build(runpod_and_clock, notes=tmp_path / "notes")
    pod_id = first.compute.create(request(first))
    first.on(600)
    first.compute.list_pods()
    second = build(runpod_and_clock, notes=tmp_path / "notes")
    second.api.delete_pod(pod_id)
    paid = truth(second, pod_id)
    second.on(7200)
    bill = present(second.compute.bill(pod_id))
    assert not bill.final, "when it ended within two hours nobody knows: its records may yet grow"
    third = build(runpod_and_clock, notes=tmp_path / "notes")
    third.on(1900)
    bill = present(third.compute.bill(pod_id))
    assert bill.final
    assert bill is not None
    assert float(bill.amount) == pytest.approx(paid, abs=2e-6)


def test_the_account(rig: Rig) -> None:
    account = rig.compute.balance()
    assert account.balance == Usd(100)
    assert account.spend_limit == Usd(80)
    assert account.billing is Billing.PREPAID
    rig.standin.control.set(down=True)
    assert rig.compute.balance() == account, "one answer serves for some seconds"
    rig.on(11)
    with pytest.raises(ProviderError):
        rig.compute.balance()


def test_the_balance_counts_other_pods_of_the_account_too(rig: Rig) -> None:
    assert present(rig.compute.balance()).spending == ZERO
    Client(rig.standin).rent("somebody-elses")
    rig.compute.create(request(rig))
    rig.on(60)
    told = present(rig.compute.balance())
    assert told.spending is not None
    assert told.spending > Usd("0.49"), "ours is a part of it"


# -- Volumes, prices, orphans and the check of the account, against the stand-in ----------------


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
    assert set(volumes.ours()) == {grown, elsewhere}
    assert RunPodVolumes(rig.api, "ffffffff").ours() == []
    rig.compute.create(request(rig, "A100-80GB-SXM", region="EU-RO-1", volume=made.volume_id))
    with pytest.raises(ProviderRefused, match="in use"):
        volumes.delete(made.volume_id)
    volumes.delete(elsewhere.volume_id)
    assert volumes.ours() == [grown]


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


def test_a_volume_on_a_later_page_is_seen_and_not_made_again(rig: Rig) -> None:
    for number in range(5):
        rig.api.create_volume(f"my-data-{number}", 10, "EU-RO-1")
    mine = RunPodVolumes(rig.api, LEDGER)
    made = [mine.ensure(place, 31).volume_id for place in ("EU-RO-1", "US-KS-2")]
    rig.standin.control.set(volume_page=2)
    assert sorted(row.volume_id for row in mine.ours()) == sorted(made)
    assert mine.ensure("US-KS-2", 31).volume_id == made[1]
    assert len(rig.api.volumes()) == 7


def test_a_list_of_volumes_that_breaks_off_is_none(rig: Rig) -> None:
    mine = RunPodVolumes(rig.api, LEDGER)
    mine.ensure("EU-RO-1", 31)
    mine.ensure("US-KS-2", 31)
    rig.standin.control.set(volume_page=1)
    pages, get = iter(range(9)), rig.api._get

    def breaks_off(*about: Any) -> Any:
        if next(pages):
            raise ProviderError("cut")
        return get(*about)

    rig.api._get = breaks_off  # type: ignore[method-assign,assignment]
    with pytest.raises(ProviderError):
        mine.ours()


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
        intents=unused, files=unused, notes=unused, workers=unused, buckets=unused, caller=unused,
        machines=Machines({"runpod": rig.compute}, {}), pods=unused,
    )  # fmt: skip
    wanted: PodRequest = request(rig)
    rig.compute.create(wanted)
    rig.on(4000)
    rig.standin.control.set(list_empty=1)
    found = reap.look(world)
    assert [orphan.pod.name for _, orphan in found.orphans] == [wanted.name], "past its hard stop"
    assert reap.end(world, found)[0] == reap.EndedOrphan("runpod", found.orphans[0][1])
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
    rig.standin.control.set(money_denied=True, graphql_errors=1)
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
