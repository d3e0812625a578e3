"""SkyPilot's adapter against a stand-in of the ``sky`` command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.skypilot.rig import NAME, NOW, Rig, request
from trmcloud.core.control.observation import Bill
from trmcloud.core.errors import (
    AuthError,
    ConnectionDropped,
    NoCapacity,
    NotSupported,
    ProviderRefused,
)
from trmcloud.core.money import Usd, cost
from trmcloud.ports.compute import ProviderLimit
from trmcloud.providers.skypilot.command import find_sky
from trmcloud.providers.skypilot.compute import EXITED_FOR_S
from trmcloud.providers.skypilot.traits import RUNPOD_BY_SKYPILOT


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_a_launch_carries_rate_limit_and_agent_and_is_not_waited_for(rig: Rig) -> None:
    compute = rig.compute()
    assert compute.create(request()) == NAME
    task = rig.told()["tasks"][NAME]
    assert task["resources"] == {
        "infra": "aws/us-east-1",
        "accelerators": {"H100": 8},
        "max_hourly_cost": 55.04,
        "labels": {"trmcloud-pod": NAME},
        "disk_size": 120,
        "autostop": {"idle_minutes": 63, "down": True, "wait_for": "none"},
    }
    assert task["secrets"]["TRMCLOUD_PROVIDER"] == "skypilot+shutdown"
    assert "PRIVATE" not in json.dumps(task), "only packed, in a secret"
    assert Path(task["file_mounts"]["~/.trmcloud/boot.tar.gz"]).read_bytes() == b"payload"
    (pod,) = compute.list_pods()
    assert (pod.name, pod.status, pod.rate) == (NAME, "creating", Usd("55.04"))
    assert compute.create(request()) == NAME
    assert len(rig.told()["requests"]) == 1


def test_a_spot_machine_is_asked_for_as_one(rig: Rig) -> None:
    rig.compute().create(request(spot=True))
    assert rig.told()["tasks"][NAME]["resources"]["use_spot"] is True


def test_several_machines_are_one_cluster_whose_limit_is_held_against_one(rig: Rig) -> None:
    with pytest.raises(NotSupported, match="one machine"):
        rig.compute(RUNPOD_BY_SKYPILOT).create(request(nodes=2, region="any"))
    compute = rig.compute("digitalocean")
    compute.create(request(nodes=2, region="any"))
    task = rig.told()["tasks"][NAME]
    assert (task["num_nodes"], task["resources"]["max_hourly_cost"]) == (2, 55.04 / 2)
    assert [pod.rate for pod in compute.list_pods()] == [Usd("55.04")]
    config = rig.folder / ".sky" / "generated" / "ssh" / NAME
    config.parent.mkdir(parents=True)
    config.write_text(f"Host {NAME}\n  HostName 10.0.0.1\n")
    with pytest.raises(ConnectionDropped, match="1 of 2 machines"):
        compute.ways_to_others(NAME)
    config.write_text(f"Host {NAME}\n  Port 22\n\nHost {NAME}-worker1\n  Port 22\n")
    (way,) = rig.compute("digitalocean").ways_to_others(NAME)
    assert way.endswith(f" {NAME}-worker1")


@pytest.mark.parametrize(
    ("row", "status"),
    [
        ({"status": "UP"}, "running"),
        ({"status": "INIT", "init_kind": "unhealthy"}, "unknown"),
        ({"status": "STOPPED"}, "unknown"),
    ],
)
def test_what_is_not_plainly_there_may_spend(rig: Rig, row: dict[str, str], status: str) -> None:
    rig.compute().create(request())
    rig.row(**row)
    assert [pod.status for pod in rig.compute().list_pods()] == [status]


def test_a_pod_that_has_exited_is_unknown_at_once_and_ended_when_it_stays_so(rig: Rig) -> None:
    """SkyPilot 0.14.1 shows its row as it was, and only warns."""
    rig.compute().create(request())
    rig.on(60.0)
    assert [pod.status for pod in rig.compute().list_pods()] == ["running"]
    rig.set(exited=[NAME])
    assert [pod.status for pod in rig.compute().list_pods()] == ["unknown"]
    rig.on(10.0)
    assert [pod.status for pod in rig.compute().list_pods()] == ["unknown"], "it may be restarting"
    rig.set(exited=[])
    assert [pod.status for pod in rig.compute().list_pods()] == ["running"], "it was"
    rig.set(exited=[NAME])
    rig.on(30.0)
    rig.compute().list_pods()
    rig.on(EXITED_FOR_S)
    assert NAME in rig.told()["clusters"]
    rig.compute().list_pods()
    assert NAME not in rig.told()["clusters"]
    rig.set(exited=[])
    assert rig.compute().list_pods() == ()


def test_another_clouds_silence_ends_nothing(rig: Rig) -> None:
    rig.compute().create(request())
    rig.on(60.0)
    rig.compute().list_pods()
    warning = "  {}: Failed to query AWS cluster '{}' status: [ClientError] RequestLimitExceeded"
    row = json.dumps([rig.told()["clusters"][NAME]])
    rig.set(said=warning.format(NAME, NAME) + "\n" + row)
    for _ in range(3):
        rig.on(60.0)
        assert [pod.status for pod in rig.compute().list_pods()] == ["unknown"]
    assert not any(words[0] == "down" for words in rig.told()["asked"])


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            "sky.exceptions.ResourcesUnavailableError: Catalog does not contain any instances"
            " satisfying the request: 1x RunPod({'H100': 8}).\nTo fix: relax or change the resource"
            " requirements.\n\nHint: sky gpus list to list available accelerators.\n"
            "      sky check to check the enabled clouds.\n",
            "Catalog does not contain any instances satisfying the request:"
            " 1x RunPod({'H100': 8}).",
        ),
        (
            "sky.exceptions.ResourcesUnavailableError: No launchable resource found for task x. To"
            " fix: relax its resource requirements.\nHint: 'sky gpus list --all' to list available"
            " accelerators.\n      'sky check' to check the enabled clouds.",
            "No launchable resource found for task x. To fix: relax its resource requirements.",
        ),
    ],
)
def test_what_skypilot_advises_is_no_reason(rig: Rig, said: str, why: str) -> None:
    """Texts of its optimizer.py, 0.14.1."""
    rig.set(fail={"launch": said})
    with pytest.raises(NoCapacity) as refused:
        rig.compute().create(request())
    assert refused.value.what == (
        f"sky launch failed: sky.exceptions.ResourcesUnavailableError: {why}"
    )


def test_clusters_of_other_clouds_are_left_alone(rig: Rig) -> None:
    rig.compute().create(request())
    rig.row(cloud="GCP")
    assert rig.compute().list_pods() == ()


def test_an_end_calls_off_a_launch_that_goes_on_for_ever(rig: Rig) -> None:
    compute = rig.compute()
    compute.create(request())
    assert compute.terminate(NAME) is True
    assert [row["status"] for row in rig.told()["requests"]] == ["CANCELLED"]
    assert compute.list_pods() == ()
    assert compute.terminate(NAME) is False
    assert not any("purge" in word for asked in rig.told()["asked"] for word in asked)


def test_a_limit_that_never_armed_is_set_again_and_told_as_absent_until_then(rig: Rig) -> None:
    compute = rig.compute()
    compute.create(request())
    rig.row(status="UP", autostop=-1, to_down=False)
    rig.set(fail={"autostop": "sky.exceptions.ClusterNotUpError: not yet"})
    compute.list_pods()
    (limit,) = compute.own_limits(NAME)
    assert (limit.layer, limit.armed) == ("autostop", False)
    rig.set(fail={})
    assert [one.armed for one in told_by(rig)] == [False], "what was listed before it was mended"
    assert [one.armed for one in told_by(rig)] == [True]
    assert rig.told()["clusters"][NAME]["autostop"] == 63


def told_by(rig: Rig) -> Sequence[ProviderLimit]:
    """What a command that comes anew says."""
    fresh = rig.compute()
    fresh.list_pods()
    return fresh.own_limits(NAME)


def test_a_machine_whose_launch_failed_has_no_agent_and_is_ended(rig: Rig) -> None:
    compute = rig.compute()
    compute.create(request())
    rig.row(status="UP", init_kind=None, launched_at=int(NOW), autostop=-1, to_down=False)
    (launch,) = rig.told()["requests"]
    rig.set(requests=[launch | {"status": "RUNNING"}])
    assert [pod.status for pod in rig.compute().list_pods()] == ["running"], "it goes on"
    assert not any("autostop" in asked for asked in rig.told()["asked"])
    rig.set(requests=[launch | {"status": "FAILED"}])
    rig.compute().list_pods()
    assert NAME not in rig.told()["clusters"]


def disks(seconds: float) -> Usd:
    """The price of its 120 GB, which SkyPilot does not report."""
    return cost(Usd("0.016439"), seconds)


def test_a_cluster_costs_no_less_than_its_rate_and_time_and_what_is_reported(rig: Rig) -> None:
    compute = rig.compute()
    compute.create(request())
    rig.row(status="UP", launched_at=int(NOW))
    rig.later(1800.0)
    billed = rig.compute().bill(NAME)
    assert billed == Bill(NAME, Usd("27.52") + disks(1800.0), final=False), "a new controller"
    rig.set(costs=[{"name": NAME, "total_cost": 30.5}, {"name": NAME, "total_cost": None}])
    assert rig.compute().bill(NAME) == Bill(NAME, Usd("30.5") + disks(1800.0), final=False)
    compute = rig.compute()
    compute.terminate(NAME)
    compute.list_pods()
    rig.later(1900.0)
    assert compute.bill(NAME) == Bill(NAME, Usd("30.5") + disks(1800.0), final=True)
    assert rig.compute().bill("trmc-0a1b2c3d-r9-g1-1795267600") is None


def test_the_bill_counts_from_the_launch_though_skypilot_counts_from_its_last_try(rig: Rig) -> None:
    """Where one place gives nothing it goes on to the next, and its clock starts anew."""
    compute = rig.compute()
    compute.create(request())
    for seconds in (60.0, 400.0, 900.0):
        rig.later(seconds)
        rig.row(launched_at=int(NOW + seconds))
        rig.compute().list_pods()
    rig.row(status="UP", launched_at=int(NOW + 900))
    rig.later(1800.0)
    (pod,) = rig.compute().list_pods()
    assert pod.made_at == NOW
    assert rig.compute().bill(NAME) == Bill(NAME, Usd("27.52") + disks(1800.0), final=False)


def test_a_clock_of_skypilots_that_is_behind_makes_no_bill_dearer(rig: Rig) -> None:
    compute = rig.compute()
    compute.create(request())
    rig.row(status="UP", launched_at=int(NOW - 1200))
    rig.later(1800.0)
    (pod,) = rig.compute().list_pods()
    assert pod.made_at == NOW
    assert rig.compute().bill(NAME) == Bill(NAME, Usd("27.52") + disks(1800.0), final=False)


def test_what_ended_while_nobody_looked_is_billed_until_its_hard_stop_was_kept(rig: Rig) -> None:
    """A laptop that was off for a week has not rented for a week."""
    compute = rig.compute()
    compute.create(request())
    rig.row(status="UP", launched_at=int(NOW))
    rig.later(600.0)
    compute.list_pods()
    rig.set(clusters={})
    for week in (1, 2):
        rig.later(week * 604_800.0)
        after = rig.compute()
        after.list_pods()
    # 3,600 s until its hard stop, and two minutes to keep it.
    assert after.bill(NAME) == Bill(NAME, cost(Usd("55.04"), 3720.0) + disks(3720.0), final=True)


def test_what_was_seen_after_its_hard_stop_is_billed_until_it_was_missed(rig: Rig) -> None:
    compute = rig.compute()
    compute.create(request())
    rig.row(status="UP", launched_at=int(NOW))
    rig.later(7200.0)
    compute.list_pods()
    rig.set(clusters={})
    rig.later(7260.0)
    compute.list_pods()
    rig.later(7300.0)
    assert compute.bill(NAME) == Bill(NAME, cost(Usd("55.04"), 7260.0) + disks(7260.0), final=True)


def test_the_pods_own_server_is_reached_through_the_first_hop_alone(rig: Rig) -> None:
    compute = rig.compute()
    compute.create(request())
    assert compute.address_of(NAME) is None
    way = rig.folder / ".sky" / "generated" / "ssh" / NAME
    way.parent.mkdir(parents=True)
    way.write_text(f"Host {NAME}\n")
    assert compute.address_of(NAME) == ("127.0.0.1", 10022)
    words = compute.way_to(NAME).split()
    assert words[:3] == ["ssh", "-F", str(way)]
    assert words[-3:] == ["-W", "%h:%p", NAME]
    assert "ForwardAgent=no" in words


def test_what_skypilot_cannot_rent_is_refused(rig: Rig) -> None:
    for provider, changes in (("aws", {"sku": "H100-NVL"}), ("aws", {"volume_gb": 50})):
        with pytest.raises(NotSupported):
            rig.compute(provider).create(request(**changes))
    assert "tasks" not in rig.told()
    rig.compute(RUNPOD_BY_SKYPILOT).create(request(sku="H100-PCIe", region="any"))
    resources = rig.told()["tasks"][NAME]["resources"]
    assert resources["accelerators"] == {"H100": 8}, "RunPod's H100 is the PCIe card"
    assert resources["infra"] == "runpod"


def test_an_account_that_cannot_rent_is_told_why(rig: Rig) -> None:
    with pytest.raises(AuthError, match="AWS credentials are not set") as refused:
        rig.compute().require_account(Usd(1))
    assert refused.value.next_step == "sky check aws"
    rig.set(enabled=["AWS"])
    rig.compute().require_account(Usd(1))
    rig.set(version="0.9.2")
    with pytest.raises(ProviderRefused, match="too old"):
        rig.compute().require_account(Usd(1))
    with pytest.raises(ProviderRefused, match="not installed"):
        find_sky({"PATH": str(rig.folder / "nowhere")})
