"""What RunPod's adapter says that a pod has cost, against what the stand-in billed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.runpod_rig import Clocked, Rig, build, request
from trmcloud.core.errors import ProviderError
from trmcloud.core.money import Usd

DISK_USD_H = 70 * 0.10 / 730
"""20 GB of the container's and 50 GB at /workspace."""


def truth(rig: Rig, pod_id: str) -> float:
    return rig.standin.control.billed(pod_id)


def test_the_bill_is_what_the_records_say(rig: Rig) -> None:
    pod_id = rig.compute.create(request(rig))
    for _ in range(60):
        rig.on(30)
        rig.compute.list_pods()
    live = rig.compute.bill(pod_id)
    assert live is not None
    assert not live.final
    assert float(live.amount) == pytest.approx((0.49 + DISK_USD_H) * 0.5, rel=0.01)
    rig.compute.terminate(pod_id)
    rig.on(3)
    assert rig.compute.list_pods() == ()
    early = rig.compute.bill(pod_id)
    assert early is not None
    assert not early.final, "a list may omit a pod for a moment"
    rig.on(300)
    final = rig.compute.bill(pod_id)
    assert final is not None
    assert final.final
    assert float(final.amount) == pytest.approx(truth(rig, pod_id), abs=2e-6)


def test_a_pod_that_is_back_has_no_final_bill(rig: Rig) -> None:
    pod_id = rig.compute.create(request(rig))
    rig.on(600)
    rig.compute.list_pods()
    rig.on(5)
    rig.standin.control.set(list_empty=1)
    assert rig.compute.list_pods() == ()
    for _ in range(40):
        rig.on(60)
        bill = rig.compute.bill(pod_id)
        assert bill is not None
        assert not bill.final
        assert float(bill.amount) >= truth(rig, pod_id) - 1e-6


def test_records_that_come_late_are_waited_for(rig: Rig, tmp_path: Path) -> None:
    rig.standin.control.set(billing_lag_s=900.0)
    pod_id = rig.compute.create(request(rig))
    for _ in range(120):
        rig.on(60)
        rig.compute.list_pods()
    rig.compute.terminate(pod_id)
    ended, paid = rig.clock(), truth(rig, pod_id)
    waited = 0
    while waited < 200:
        rig.on(30)
        waited += 1
        bill = rig.compute.bill(pod_id)
        assert bill is not None
        assert float(bill.amount) >= paid - 1e-6, "never less than it cost"
        if bill.final:
            break
    assert rig.clock() - ended >= 870
    assert bill is not None
    assert float(bill.amount) == pytest.approx(paid, abs=2e-6)


def test_a_controller_that_comes_later_knows_the_pod(
    runpod_and_clock: Clocked, tmp_path: Path
) -> None:
    first = build(runpod_and_clock, notes=tmp_path / "notes")
    pod_id = first.compute.create(request(first))
    first.on(600)
    first.compute.list_pods()
    second = build(runpod_and_clock, notes=tmp_path / "notes")
    second.api.delete_pod(pod_id)
    paid = truth(second, pod_id)
    second.on(7200)
    bill = second.compute.bill(pod_id)
    assert bill is not None
    assert not bill.final, "when it ended within two hours nobody knows: its records may yet grow"
    third = build(runpod_and_clock, notes=tmp_path / "notes")
    third.on(1900)
    bill = third.compute.bill(pod_id)
    assert bill is not None
    assert bill.final
    assert bill is not None
    assert float(bill.amount) == pytest.approx(paid, abs=2e-6)


def test_a_bill_by_name(rig: Rig) -> None:
    wanted = request(rig)
    assert rig.compute.bill(wanted.name) is None
    pod_id = rig.compute.create(wanted)
    rig.on(600)
    by_name, by_id = rig.compute.bill(wanted.name), rig.compute.bill(pod_id)
    assert by_name is not None
    assert by_id is not None
    assert by_name == by_id
    assert not by_id.final


def test_no_records_are_never_nothing(rig: Rig) -> None:
    rig.standin.control.set(billing_lag_s=1e9)
    pod_id = rig.compute.create(request(rig))
    rig.on(1800)
    rig.compute.list_pods()
    rig.compute.terminate(pod_id)
    for after in (60, 3600):
        rig.on(after)
        bill = rig.compute.bill(pod_id)
        assert bill is not None
        assert not bill.final
    rig.on(6 * 3600)
    bill = rig.compute.bill(pod_id)
    assert bill is not None
    assert bill.final
    assert float(bill.amount) >= 0.49 / 2


def test_the_price_that_is_billed_is_seen(rig: Rig) -> None:
    rig.standin.control.set(price_factor=1.25)
    rig.compute.create(request(rig))
    (seen,) = rig.compute.list_pods()
    assert seen.rate == Usd("0.6125")


def test_the_account(rig: Rig) -> None:
    account = rig.compute.account()
    assert account.balance == Usd(100)
    assert account.spend_limit == Usd(80)
    rig.standin.control.set(graphql_errors=1)
    with pytest.raises(ProviderError):
        rig.compute.account()
