"""vast.ai's adapter on the stand-in: what is refused, lost, late, hidden and false."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.pod_requests import keys, request
from tests.contract.vast_rig import Rig, build, vast
from tests.present import present
from tests.standins.vast.world import Instance
from trmcloud.adapters.request_budget import RequestBudget
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.control.balance import AccountBalance, Billing
from trmcloud.core.control.observation import PodStatus
from trmcloud.core.errors import AuthError, NoCapacity, NotSupported, PaymentRequired, ProviderError
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.storage import pod_disks_gb, price_per_hour
from trmcloud.pod.agent.terminate import EndAnswer, Tools, _request
from trmcloud.ports.compute import PodRequest
from trmcloud.providers.vast import self_end
from trmcloud.providers.vast.api import VastApi
from trmcloud.providers.vast.create import ENV_PIECE, MOST_ARGUMENTS, create_body, script
from trmcloud.providers.vast.offers import asks_of, live_prices, market, name_of
from trmcloud.providers.vast.secrets import ENV_API, ENV_KEY, account_key, api_base


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with vast(tmp_path) as made:
        yield made


def only(rig: Rig) -> Instance:
    (instance,) = rig.standin.live()
    return instance


# -- offers --------------------------------------------------------------------------------------


def test_the_cheapest_data_centre_that_fits_is_rented(rig: Rig) -> None:
    rig.compute.create(request(rig))
    host = only(rig).host
    assert (host.gpu_name, host.num_gpus, host.datacenter) == ("L4", 1, True)
    assert host.dph_base == 0.49


def test_private_hosts_are_rented_where_they_are_allowed(rig: Rig) -> None:
    for host in rig.standin.world.hosts:
        host.rented = host.datacenter
    with pytest.raises(NoCapacity, match=r"none of vast\.ai's data"):
        rig.compute.create(request(rig))
    rig.compute.create(request(rig, community=True))
    assert only(rig).host.country == "CA"


def test_a_country_is_kept_to(rig: Rig) -> None:
    rig.compute.create(request(rig, region="SE", rate=Usd("0.60")))
    assert only(rig).host.country == "SE"
    assert rig.compute.list_pods()[0].region == "SE"


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("cuda_max_good", 12.4),
        ("reliability", 0.9),
        ("verification", "unverified"),
        ("storage_cost", 0.5),
        ("inet_up_cost", 0.09),
        ("disk_space", 20.0),
        ("lasts_s", 600.0),
        ("rented", True),
        ("dph_base", 0.50),
    ],
)
def test_a_host_that_does_not_fit_is_never_rented(rig: Rig, what: str, value: Any) -> None:
    for host in rig.standin.world.hosts:
        setattr(host, what, value)
    with pytest.raises(NoCapacity):
        rig.compute.create(request(rig))
    assert rig.asked("PUT", "/api/v0/asks/") == []


def test_boards_are_three_chips_and_a_false_name_is_left_out(rig: Rig) -> None:
    rows = rig.standin.world.offers({"gpu_name": {"in": ["H100 SXM", "H100 PCIE", "H100 NVL"]}})
    assert {ask.sku for ask in asks_of(rows)} == {"H100-SXM", "H100-PCIe", "H100-NVL"}
    for row in rows:
        row["gpu_name"] = "H100 SXM"
    assert {row["gpu_max_power"] for row in rows} == {350.0, 400.0, 700.0}
    kept = {ask.id for ask in asks_of(rows)}
    assert kept
    assert all(row["gpu_max_power"] == 700.0 for row in rows if row["id"] in kept)
    assert name_of("A100-40GB") == "A100 SXM4"


def test_an_a100_says_by_its_memory_which_one_it_is(rig: Rig) -> None:
    (row,) = rig.standin.world.offers({"gpu_name": {"eq": "A100 SXM4"}, "limit": 1})
    assert asks_of([row])[0].sku == "A100-80GB-SXM"
    assert asks_of([{**row, "gpu_ram": 40_960}])[0].sku == "A100-40GB"


@pytest.mark.parametrize("name", ["id", "dph_base", "storage_cost", "gpu_ram", "num_gpus"])
@pytest.mark.parametrize("odd", [None, "x", True, float("nan"), -1, {}])
def test_odd_rows_are_no_offers_and_no_errors(rig: Rig, name: str, odd: Any) -> None:
    (row,) = rig.standin.world.offers({"gpu_name": {"eq": "L4"}, "limit": 1})
    spoilt = {**row, name: odd}
    if name == "dph_base":
        spoilt["dph_total"] = odd
    left = asks_of([spoilt])
    assert left == [] or (name, odd) in (("storage_cost", -1), ("id", -1), ("num_gpus", -1))


def test_the_market_is_one_offer_for_each_gpu_count_and_country(rig: Rig) -> None:
    offers = market(rig.api, rig.clock(), community=False)
    l4 = [o for o in offers if (o.sku, o.gpus) == ("L4", 1)]
    assert {(o.region, o.rate) for o in l4} == {("US", Usd("0.49")), ("SE", Usd("0.539"))}
    assert "2 hosts" in next(o.note for o in l4 if o.region == "US")
    assert not any(o.is_community for o in offers)
    private = market(rig.api, rig.clock(), community=True)
    assert all(o.is_community for o in private)


def test_prices_are_read_as_a_plan_is_made_and_a_failure_is_a_note(rig: Rig) -> None:
    offers, failure = live_prices(rig.standin.environment, rig.clock())
    assert failure == ""
    assert {"vast"} == {o.provider for o in offers}
    rig.standin.set(revoked=True)
    offers, failure = live_prices(rig.standin.environment, rig.clock())
    assert offers == []
    assert "does not know this key" in failure
    assert live_prices({}, rig.clock()) == ([], "")


# -- creates -------------------------------------------------------------------------------------


def test_an_offer_that_was_taken_gives_way_to_the_next(rig: Rig) -> None:
    rig.standin.set(taken=1)
    rig.compute.create(request(rig))
    assert len(rig.asked("PUT", "/api/v0/asks/")) == 2
    assert len(rig.standin.live()) == 1


def test_pauses_after_429_double_until_a_request_succeeds(rig: Rig) -> None:
    budget = RequestBudget(None, (), now=rig.clock, sleep=rig.on)
    api = VastApi(rig.standin.api_key, rig.standin.url, now=rig.clock, sleep=rig.on, budget=budget)
    for refused, paused_s in ((3, 2.0 + 4.0 + 8.0), (1, 2.0)):
        rig.standin.set(throttle=refused)
        began_at = rig.clock()
        assert api.instances() == []
        assert rig.clock() - began_at == pytest.approx(paused_s, abs=0.1)


def test_a_create_that_the_credit_does_not_cover_says_so(rig: Rig) -> None:
    rig.standin.world.credit = 0.0
    with pytest.raises(PaymentRequired, match="credit does not cover this"):
        rig.compute.create(request(rig))


def test_an_account_without_credit_is_told_before_anything_is_reserved(rig: Rig) -> None:
    rig.standin.world.credit = 0.0
    with pytest.raises(PaymentRequired, match="less than one hour of"):
        rig.compute.require_account(Usd("0.49"))


def test_a_key_that_none_can_be_is_refused(rig: Rig) -> None:
    with pytest.raises(AuthError, match="characters"):
        VastApi("key with a space", rig.standin.url)


def test_volumes_and_unknown_gpus_are_refused(rig: Rig) -> None:
    with pytest.raises(NotSupported, match="--volume"):
        rig.compute.create(request(rig, volume_gb=50))
    with pytest.raises(NotSupported, match="not know A10G"):
        rig.compute.create(request(rig, sku="A10G"))


# -- arguments and variables that the host can read ----------------------------------------------


def told(body: dict[str, Any]) -> dict[str, Any]:
    names = (f"{ENV_PIECE}{n}" for n in range(1000))
    text = "".join(body["env"][name] for name in names if name in body["env"])
    data: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    return data


def test_a_create_is_within_the_published_limits(rig: Rig) -> None:
    body = rig.compute.body(request(rig))
    assert len(body["onstart"]) + sum(map(len, body["args"])) <= MOST_ARGUMENTS
    assert max(map(len, body["env"].values())) <= 256
    assert sum(len(n) + len(v) for n, v in body["env"].items()) <= 32_768
    assert "\n" not in body["args"][1]
    assert body["disk"] == pod_disks_gb("vast", request(rig).disk_gb)
    assert told(body)["env"]["TRMCLOUD_PROVIDER"] == "vast"


def test_an_instance_starts_as_root_whatever_its_image_says(rig: Rig) -> None:
    assert rig.compute.body(request(rig))["user"] == "root"


def test_a_create_with_the_accounts_key_in_it_is_refused(rig: Rig) -> None:
    with pytest.raises(NotSupported, match="account's key"):
        create_body(request(rig), keys, b"", "i", {"A": rig.standin.api_key}, rig.standin.api_key)


def test_more_than_vast_takes_is_refused_before_it_is_asked_for(rig: Rig) -> None:
    noise = "".join(f"{n:x}" for n in range(0, 10**12, 10**7 + 7))
    with pytest.raises(NotSupported, match="nothing was rented"):
        create_body(request(rig), keys, b"", "i", {"A": noise}, "key")


def test_the_first_program_is_one_line_that_a_shell_takes() -> None:
    line = script({ENV_API: "http://127.0.0.1:1"})
    assert "\n" not in line
    assert line.count("'") % 2 == 0
    assert "http://127.0.0.1:1/api/v0/instances/$CONTAINER_ID/" in line


# -- what lists say ------------------------------------------------------------------------------


def status(rig: Rig) -> PodStatus:
    rig.on(10)
    (pod,) = rig.compute.list_pods()
    return pod.status


def test_an_instance_that_loads_is_not_up(rig: Rig) -> None:
    rig.standin.set(load_s=300.0)
    rig.compute.create(request(rig))
    assert status(rig) is PodStatus.CREATING
    rig.on(300)
    assert status(rig) is PodStatus.RUNNING


def test_a_stuck_boot_says_why(rig: Rig) -> None:
    text = "Error response from daemon: manifest for an/image:2 not found: manifest unknown"
    rig.standin.set(stuck=text)
    made = rig.compute.create(request(rig))
    assert status(rig) is PodStatus.CREATING
    trouble = present(rig.compute.boot_trouble(made))
    assert trouble.fatal
    assert "manifest unknown" in trouble.text


def test_a_boot_without_trouble_says_nothing(rig: Rig) -> None:
    made = rig.compute.create(request(rig))
    assert status(rig) is PodStatus.RUNNING
    assert rig.compute.boot_trouble(made) is None
    assert rig.compute.boot_trouble("123") is None


def test_a_stopped_instance_counts_as_spending_and_is_destroyed(rig: Rig) -> None:
    made = rig.compute.create(request(rig))
    rig.standin.world.stop(only(rig))
    assert status(rig) is PodStatus.STOPPED
    (stopped,) = rig.compute.list_pods()
    assert not stopped.gone, "its disk is billed on"
    assert rig.compute.terminate(made)
    assert rig.standin.live() == []


def test_a_container_that_runs_though_it_is_to_stop_counts_as_spending(rig: Rig) -> None:
    rig.compute.create(request(rig))
    assert status(rig) is PodStatus.RUNNING
    only(rig).intended = "stopped"
    assert status(rig) is PodStatus.UNKNOWN


@pytest.mark.parametrize("answer", [{}, {"instances": []}, {"instances": {"id": 1}}])
def test_an_answer_about_one_instance_that_cannot_be_read_proves_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]
) -> None:
    monkeypatch.setattr(rig.api, "_read", lambda *args, **more: answer)
    with pytest.raises(ProviderError):
        rig.api.instance("20000001")


def test_its_rate_and_its_disks_are_told_apart(rig: Rig) -> None:
    rig.compute.create(request(rig))
    rig.on(10)
    (pod,) = rig.compute.list_pods()
    assert pod.rate == Usd("0.49")
    gb = pod_disks_gb("vast", request(rig).disk_gb)
    assert ZERO < pod.disk_rate <= price_per_hour("vast", "running", gb)


# -- its own end ---------------------------------------------------------------------------------


def attempts(environment: dict[str, str]) -> dict[str, EndAnswer]:
    """The status that each state of an instance is read as."""
    nothing = EndAnswer(None, "not installed", False)
    tools = Tools(lambda *_, **__: nothing, _request)
    return {name: act() for name, act in self_end.ways(environment, tools)}


def inside(instance: Instance, rig: Rig) -> dict[str, str]:
    return {
        "CONTAINER_ID": str(instance.id),
        "CONTAINER_API_KEY": instance.key,
        ENV_API: rig.standin.url,
    }


def test_an_instance_ends_itself_by_its_own_key(rig: Rig) -> None:
    rig.compute.create(request(rig))
    instance = only(rig)
    found = attempts(inside(instance, rig))
    assert found["destroy"].ok
    assert instance.ended_by == "self"
    assert rig.standin.live() == []


def test_its_key_opens_no_other_instance_and_rents_nothing(rig: Rig) -> None:
    rig.compute.create(request(rig))
    rig.compute.create(request(rig, generation=2))
    first, second = rig.standin.live()
    found = attempts({**inside(first, rig), "CONTAINER_ID": str(second.id)})
    assert not any(answer.ok for answer in found.values())
    assert len(rig.standin.live()) == 2
    with_its_key = VastApi(first.key, rig.standin.url, now=rig.clock, sleep=rig.on)
    for ask in (with_its_key.instances, with_its_key.credit):
        with pytest.raises(AuthError):
            ask()


def test_one_that_may_not_destroy_itself_says_so(rig: Rig) -> None:
    rig.compute.create(request(rig))
    rig.standin.set(self_refused=True)
    found = attempts(inside(only(rig), rig))
    assert {answer.code for name, answer in found.items() if name != "vastai destroy"} == {403}
    assert self_end.ways({"CONTAINER_ID": "1; rm", "CONTAINER_API_KEY": "k"}, None) == []
    assert self_end.ways({"CONTAINER_ID": "1"}, None) == []


# -- bills ---------------------------------------------------------------------------------------


def ended(rig: Rig, life_s: float) -> tuple[str, PodRequest]:
    wanted = request(rig)
    made = rig.compute.create(wanted)
    rig.on(10)
    rig.compute.list_pods()
    rig.on(life_s)
    rig.compute.list_pods()
    rig.compute.terminate(made)
    rig.on(10)
    rig.compute.list_pods()
    return made, wanted


def test_a_bill_is_what_was_charged_once_that_stands_still(rig: Rig) -> None:
    made, wanted = ended(rig, 3600)
    bill = present(rig.compute.bill(made))
    assert not bill.final
    rig.on(1900)
    bill = present(rig.compute.bill(wanted.name))
    assert bill.final
    assert float(bill.amount) == pytest.approx(rig.standin.billed(), abs=2e-6)


def test_a_bill_survives_a_restart_of_this_machine(rig: Rig, tmp_path: Path) -> None:
    first = build(rig.standin, rig.clock, tmp_path / "notes")
    made = first.compute.create(request(rig))
    rig.on(10)
    first.compute.list_pods()
    rig.on(600)
    first.compute.terminate(made)
    again = build(rig.standin, rig.clock, tmp_path / "notes")
    again.compute.list_pods()
    rig.on(2000)
    again.compute.bill(made)
    rig.on(2000)
    assert present(again.compute.bill(made)).final


# -- the account ---------------------------------------------------------------------------------


def test_the_credit_is_no_kill_layer_since_it_may_go_below_zero(rig: Rig) -> None:
    assert rig.compute.own_limits("any") == ()
    assert rig.compute.balance().billing is Billing.UNKNOWN
    assert "prepaid" not in traits_of("vast").layers.independent


def test_the_balance_is_the_credit_and_all_that_runs_in_the_account(rig: Rig) -> None:
    assert rig.compute.balance() == AccountBalance(Usd(100), ZERO)
    rig.compute.create(request(rig))
    rig.compute.create(request(rig, generation=2))
    rig.on(60)
    told = present(rig.compute.balance())
    assert told.balance is not None
    assert Usd(99) < told.balance < Usd(100)
    assert told.spending is not None
    assert told.spending > Usd("0.98"), "two hosts and their disks"


def test_a_credit_that_cannot_be_read_refuses_nothing(rig: Rig, monkeypatch: Any) -> None:
    def down(bound_s: float | None = None) -> Usd | None:
        raise ProviderError("500 from the provider")

    monkeypatch.setattr(rig.api, "credit", down)
    rig.compute.require_account(Usd("0.49"))
    with pytest.raises(ProviderError):
        rig.compute.balance()


def test_a_negative_credit_is_told_as_it_is(rig: Rig) -> None:
    rig.standin.world.credit = -2.5
    assert present(rig.compute.balance()).balance == Usd("-2.5")


def test_at_the_end_of_the_credit_everything_stops_and_is_still_listed(rig: Rig) -> None:
    rig.standin.world.credit = 0.10
    rig.compute.create(request(rig))
    rig.on(3600)
    assert status(rig) is PodStatus.STOPPED


def test_a_persons_own_words_to_see_and_end_it(rig: Rig) -> None:
    wanted = request(rig)
    made = rig.compute.create(wanted)
    assert f"vastai destroy instance {made} -y" in rig.compute.by_hand(wanted.name)


def test_the_key_is_where_vastais_own_client_keeps_it(tmp_path: Path) -> None:
    assert account_key({"HOME": str(tmp_path)}) is None
    file = tmp_path / ".config" / "vastai" / "vast_api_key"
    file.parent.mkdir(parents=True)
    file.write_text("abc123\n")
    assert account_key({"HOME": str(tmp_path)}) == "abc123"
    assert account_key({"HOME": str(tmp_path), ENV_KEY: "typed"}) == "typed"
    with pytest.raises(Exception, match="without encryption"):
        api_base({ENV_API: "http://example.com"})


def test_a_request_for_more_gpus_finds_a_host_with_as_many(rig: Rig) -> None:
    rig.compute.create(replace(request(rig, sku="H100-SXM"), gpus=8, rate=Usd("20")))
    assert (only(rig).host.gpu_name, only(rig).host.num_gpus) == ("H100 SXM", 8)
