"""What RunPod's adapter says of its pods, whatever the stand-in's lists say."""

from __future__ import annotations

import pytest

from tests.contract.runpod_rig import Clocked, Rig, build, request
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.errors import ProviderError
from trmcloud.core.money import Usd


def test_reads_outlast_trouble(rig: Rig) -> None:
    rig.compute.create(request(rig))
    for knobs in ({"errors_502": 3}, {"throttle": 2, "retry_after_s": 3}):
        rig.standin.control.set(**knobs)
        rig.on(5)
        assert len(rig.compute.list_pods()) == 1
    rig.standin.control.down(8)
    assert len(rig.compute.list_pods()) == 1


def test_an_outage_is_an_error_and_not_an_empty_list(rig: Rig) -> None:
    rig.compute.create(request(rig))
    rig.on(5)
    rig.standin.control.set(down=True)
    began = rig.clock()
    with pytest.raises(ProviderError, match="503"):
        rig.compute.list_pods()
    assert rig.clock() - began <= 20.0
    before = len(rig.standin.requests)
    with pytest.raises(ProviderError):
        rig.compute.list_pods()
    assert len(rig.standin.requests) == before, "nor is it asked again at once"
    rig.on(5)
    rig.standin.control.set(down=False)
    assert len(rig.compute.list_pods()) == 1


@pytest.mark.parametrize("knob", ["malformed", "html"])
def test_a_garbled_list_is_an_error(rig: Rig, knob: str) -> None:
    rig.compute.create(request(rig))
    rig.standin.control.set(**{knob: 1})
    with pytest.raises(ProviderError, match="not what its contract says"):
        rig.compute.list_pods()
    rig.on(5)
    assert len(rig.compute.list_pods()) == 1


def test_many_pods_take_one_look(runpod_and_clock: Clocked) -> None:
    rig = build(runpod_and_clock)
    rig.standin.control.set_balance(10_000)
    wanted = [request(rig, generation=number) for number in range(1, 51)]
    for one in wanted:
        rig.compute.create(one)
    rig.on(30)
    rig.standin.requests.clear()
    assert len(rig.compute.list_pods()) == 50
    for one in wanted:
        rig.on(0.15)
        assert rig.compute.address_of(one.name) is not None
    assert len(rig.compute.list_pods()) == 50
    assert rig.asked() == ["GET /v2/pods"] * 2, "the second after two seconds, for the list's sake"


def test_states_that_are_not_in_the_contract_spend(rig: Rig) -> None:
    rig.standin.control.set(boot_error=True)
    rig.compute.create(request(rig))
    rig.on(30)
    (seen,) = rig.compute.list_pods()
    assert seen.status == "unknown"


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
    address = rig.compute.address_of(wanted.name)
    assert address is not None
    (seen,) = rig.compute.list_pods()
    assert (seen.host, seen.port) == address
    assert rig.compute.address_of("trmc-0a1b2c3d-r2-g1-1800003600") is None
    rig.standin.control.set(down=True)
    rig.on(300)
    assert rig.compute.address_of(wanted.name) == address, (
        "the last one known, while RunPod is down"
    )


def test_the_second_list_shows_what_the_first_omits(rig: Rig) -> None:
    pod_id = rig.compute.create(request(rig))
    rig.on(5)
    assert rig.compute.cross_listed() == ()
    rig.on(5)
    rig.standin.control.set(list_empty=1)
    (shown,) = rig.compute.cross_listed()
    assert (shown.pod_id, shown.rate) == (pod_id, Usd("0.49"))
    assert contract.parse_pod_name(shown.name) is not None
