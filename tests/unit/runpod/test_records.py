"""RunPod's records: what identifies a thing is right or refused, and all the rest is itself or
nothing."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.runpod.conftest import pod_record
from trmcloud.core.errors import ProviderError
from trmcloud.core.money import Usd
from trmcloud.providers.runpod import models

HERE = "GET /pods"
VOLUME = {"id": "v-1", "name": "trmc-0a1b2c3d-EU-RO-1", "size": 50, "dataCenter": "EU-RO-1"}
COST = {
    "startTime": "2027-01-15T08:00:00Z", "endTime": "2027-01-15T09:00:00Z",
    "podId": "abc123", "totalAmount": 1.5,
}  # fmt: skip


def endpoint(port: Any = 22, host: Any = "1.2.3.4") -> dict[str, Any]:
    return {"proxy": None, "direct": {"host": host, "port": port}}


def read(**more: Any) -> models.Pod:
    return models.read_pod(pod_record(**more), HERE)


def test_a_pod_is_read_whole() -> None:
    pod = read(
        startedAt="2027-01-15T08:00:30Z",
        dataCenterId="EU-RO-1",
        gpu={"id": "NVIDIA L4", "count": 8, "new": True},
        ssh=endpoint(),
        mounts={"persistent": {"size": 70, "path": "/workspace"}},
        unheard_of=[1],
    )
    assert (pod.id, pod.name) == ("abc123", "trmc-0a1b2c3d-run1-g1-1800003600")
    assert (pod.status, pod.rate, pod.dataCenterId) == ("RUNNING", Usd("1.79"), "EU-RO-1")
    assert (pod.made_at, pod.started_at) == (1_800_000_000.0, 1_800_000_030.0)
    assert pod.gpu == models.Gpu(id="NVIDIA L4", count=8)
    assert pod.ssh is not None
    assert pod.ssh.direct == models.Endpoint(host="1.2.3.4", port=22)
    assert pod.disk_gb == 20 + 70


def test_a_record_stays_as_it_was_read() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        read().status = "EXITED"


def test_of_several_faults_the_first_is_told() -> None:
    with pytest.raises(ProviderError, match="contract says: id: "):
        read(id=7, name=7)


def test_what_is_not_said_is_nothing() -> None:
    pod = models.read_pod({"id": "a", "name": ""}, HERE)
    said = pod.model_dump(exclude={"id", "name"})
    assert set(said.values()) == {None}
    assert (pod.disk_gb, pod.rate, pod.made_at, pod.started_at) == (0, None, None, None)
    assert read(gpu={"id": "NVIDIA L4"}).gpu == models.Gpu(id="NVIDIA L4", count=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("status", 7), ("cost", "1.79"), ("cost", float("nan")), ("createdAt", 5),
        ("startedAt", []), ("dataCenterId", {}), ("gpu", "L4"), ("gpu", {"count": 1}),
        ("ssh", "1.2.3.4"), ("disk", 1.5), ("disk", True), ("mounts", []),
    ],
)  # fmt: skip
def test_what_is_not_what_the_contract_says_is_nothing_and_leaves_the_rest(
    name: str, value: Any
) -> None:
    pod = read(**{name: value})
    assert getattr(pod, name) is None
    assert pod.id == "abc123"


@pytest.mark.parametrize(
    ("where", "fits"),
    [
        (endpoint(1), True), (endpoint(65535), True), (endpoint(0), False),
        (endpoint(65536), False), (endpoint("22"), False), (endpoint(host=""), False),
        (endpoint(host="h"), True), (endpoint(host="h" * 253), True),
        (endpoint(host="h" * 254), False),
    ],
)  # fmt: skip
def test_an_address_is_one_or_none(where: dict[str, Any], fits: bool) -> None:
    ssh = read(ssh=where).ssh
    assert ssh is not None
    assert (ssh.direct is not None) is fits


@pytest.mark.parametrize(
    ("size", "counts"),
    [(0, 0), (1, 1), (1 << 20, 1 << 20), ((1 << 20) + 1, 0), (-1, 0), ("70", 0)],
)
def test_a_disk_that_none_can_be_costs_nothing(size: Any, counts: int) -> None:
    assert read(mounts={"persistent": {"size": size}}, disk=0).disk_gb == counts
    assert read(mounts={"persistent": None}, disk=7).disk_gb == 7
    assert read(mounts=None, disk=-3).disk_gb == 0


@pytest.mark.parametrize(("cost", "rate"), [(0, Usd(0)), (0.0, Usd(0)), (-0.01, None)])
def test_a_pod_that_was_stopped_costs_nothing_and_none_earns(cost: float, rate: Usd | None) -> None:
    assert read(cost=cost).rate == rate


@pytest.mark.parametrize("pod_id", ["", "a/b", "../a", "a b", "a\n", None, 7])
def test_what_identifies_a_thing_is_right_or_refused(pod_id: Any) -> None:
    with pytest.raises(ProviderError, match=r"is not what its contract says: id: ") as refused:
        read(id=pod_id)
    assert refused.value.where == HERE
    with pytest.raises(ProviderError, match=r"networkVolumes\.0\.id"):
        models.read_volumes({"networkVolumes": [VOLUME | {"id": pod_id}]}, HERE)
    with pytest.raises(ProviderError, match="the whole"):
        models.read_pod([], HERE)
    for odd in (None, 7):
        with pytest.raises(ProviderError, match="name"):
            read(name=odd)


def page(more: Any = False, cursor: Any = None, **rest: Any) -> dict[str, Any]:
    told = {"hasNextPage": more, "nextCursor": cursor}
    return {"pods": [pod_record()], "pagination": told} | rest


def test_a_page_and_where_the_next_one_is() -> None:
    for last in (page(), page(cursor="c"), page(pagination=None), {"pods": [pod_record()]}):
        pods, following = models.read_pods(last, HERE)
        assert [pod.id for pod in pods] == ["abc123"]
        assert following is None
    assert models.read_pods(page(True, "c"), HERE)[1] == "c"
    for unsaid in (None, ""):
        with pytest.raises(ProviderError, match="goes on, and does not say where") as refused:
            models.read_pods(page(True, unsaid), HERE)
        assert refused.value.where == HERE
        assert "try again" in refused.value.next_step
    for odd in (page(pods=[pod_record(), {}]), page(pagination={}), page("yes"), {}):
        with pytest.raises(ProviderError, match="is not what its contract says") as refused:
            models.read_pods(odd, HERE)
        assert "try again" in refused.value.next_step


def test_volumes_and_bills() -> None:
    assert models.read_volume(VOLUME, HERE).model_dump() == VOLUME
    assert models.read_volumes({"networkVolumes": [VOLUME]}, HERE)[0].size == 50
    [record] = models.read_billing({"records": [COST]}, HERE)
    assert (record.starts_at, record.ends_at) == (1_800_000_000.0, 1_800_003_600.0)
    assert (record.podId, record.totalAmount) == ("abc123", 1.5)
    for odd in (COST | {"totalAmount": float("inf")}, COST | {"podId": None}):
        with pytest.raises(ProviderError, match=r"records\.0"):
            models.read_billing({"records": [odd]}, HERE)
    for name in COST:
        with pytest.raises(ProviderError, match=name):
            models.read_billing({"records": [{k: v for k, v in COST.items() if k != name}]}, HERE)


def test_amounts_at_their_bounds() -> None:
    for read_amount in (models.usd, models.usd_exact):
        assert read_amount(1e9) == Usd(10**9)
        assert read_amount(-1e9) == Usd(-(10**9))
        for beyond in (1e9 + 1, -1e9 - 1):
            with pytest.raises(ProviderError, match="an amount that none can be"):
                read_amount(beyond)
    assert models.usd(1000.00006103515625) == Usd("1000.00006"), "nine digits, where eight say less"
    assert models.usd_exact(1.79) == Usd("1.79")
    assert models.usd_exact(0.0000001) == Usd("0.000001")
