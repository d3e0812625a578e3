"""RunPod's records, numbers and times: right, refused, or nothing."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.present import present
from tests.unit.runpod.conftest import pod_record
from trmcloud.adapters.pod_history import Sightings
from trmcloud.core.clock import rfc3339
from trmcloud.core.errors import ProviderError
from trmcloud.core.money import Usd
from trmcloud.providers.runpod import models

# -- records ------------------------------------------------------------------------------------
# RunPod's records: what identifies a thing is right or refused, and all the rest is itself or
# nothing.


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
    with pytest.raises(ProviderError, match="API contract: id: "):
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
def test_what_is_not_as_the_contract_says_is_nothing_alone(name: str, value: Any) -> None:
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
    assert (present(read(ssh=where).ssh).direct is not None) is fits


@pytest.mark.parametrize(
    ("size", "counts"), [(0, 0), (1, 1), (1 << 20, 1 << 20), ((1 << 20) + 1, 0), (-1, 0), ("70", 0)]
)
def test_a_disk_that_none_can_be_costs_nothing(size: Any, counts: int) -> None:
    assert read(mounts={"persistent": {"size": size}}, disk=0).disk_gb == counts
    assert read(mounts={"persistent": None}, disk=7).disk_gb == 7
    assert read(mounts=None, disk=-3).disk_gb == 0


@pytest.mark.parametrize(
    ("status", "rate"), [("RUNNING", "0.009590"), ("EXITED", "0.013699"), (None, "0.009590")]
)
def test_disks_cost_by_the_month_all_while_it_runs_and_the_volume_twice_after(
    status: str | None, rate: str
) -> None:
    """70 GB at $0.10 of 730 hours; 50 GB at $0.20."""
    volume = {"persistent": {"size": 50}}
    assert read(status=status, disk=20, mounts=volume).disk_rate == Usd(rate)


def test_where_its_server_is_is_known_once_runpod_says_so() -> None:
    named = read(ssh={"direct": {"host": "1.2.3.4", "port": 22, "user": "root"}})
    assert named.address == ("1.2.3.4", 22)
    assert read(ssh={"direct": None}).address is None
    assert read(ssh=None).address is None


@pytest.mark.parametrize(("cost", "rate"), [(0, Usd(0)), (0.0, Usd(0)), (-0.01, None)])
def test_a_pod_that_was_stopped_costs_nothing_and_none_earns(cost: float, rate: Usd | None) -> None:
    assert read(cost=cost).rate == rate


@pytest.mark.parametrize("pod_id", ["", "a/b", "../a", "a b", "a\n", None, 7])
def test_what_identifies_a_thing_is_right_or_refused(pod_id: Any) -> None:
    with pytest.raises(ProviderError, match=r"does not match its API contract: id: ") as refused:
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
        with pytest.raises(
            ProviderError, match="RunPod's list has more pages, but no address for the next one"
        ) as refused:
            models.read_pods(page(True, unsaid), HERE)
        assert refused.value.where == HERE
        assert "try again" in refused.value.next_step
    for odd in (page(pods=[pod_record(), {}]), page(pagination={}), page("yes"), {}):
        with pytest.raises(ProviderError, match="does not match its API contract") as refused:
            models.read_pods(odd, HERE)
        assert "try again" in refused.value.next_step


def test_volumes_and_bills() -> None:
    assert models.read_volume(VOLUME, HERE).model_dump() == VOLUME
    for last in ({}, {"pagination": None}, page()):
        [volume], following = models.read_volumes(last | {"networkVolumes": [VOLUME]}, HERE)
        assert (volume.size, following) == (50, None)
    assert models.read_volumes(page(True, "c") | {"networkVolumes": [VOLUME]}, HERE)[1] == "c"
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
            with pytest.raises(ProviderError, match="RunPod's answer has an impossible amount"):
                read_amount(beyond)
    assert models.usd(1000.00006103515625) == Usd("1000.00006"), "nine digits, where eight say less"
    assert models.usd_exact(1.79) == Usd("1.79")
    assert models.usd_exact(0.0000001) == Usd("0.000001")


# -- Numbers and times of RunPod's, and notes that outlive a controller -------------------------


NAME = "trmc-0a1b2c3d-run1-g1-1800003600"


def as_float32(number: float) -> float:
    found: float = struct.unpack("f", struct.pack("f", number))[0]
    return found


@given(cents=st.integers(0, 99_999))
def test_a_price_in_cents_survives_a_32_bit_float(cents: int) -> None:
    exact = Usd(f"{cents / 100:.2f}")
    assert models.usd(cents / 100) == exact
    assert models.usd(as_float32(cents / 100)) == exact


@given(number=st.floats(0, 1e6, allow_nan=False))
def test_a_rate_is_never_far_off(number: float) -> None:
    assert float(models.usd(number)) == pytest.approx(number, rel=1e-6, abs=1.1e-6)
    assert float(models.usd_exact(number)) >= number - 1e-9


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e12, -1e12])
def test_amounts_that_none_can_be(number: float) -> None:
    with pytest.raises(ProviderError):
        models.usd(number)
    with pytest.raises(ProviderError):
        models.usd_exact(number)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2027-01-15T08:00:00Z", 1_800_000_000.0),
        ("2027-01-15T09:00:00+01:00", 1_800_000_000.0),
        ("2027-01-15T08:00:00.250Z", 1_800_000_000.25),
        ("2027-01-15T08:00:00", 1_800_000_000.0),
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_instants(text: str | None, at: float | None) -> None:
    assert models.instant(text) == at


def test_times_are_written_as_they_are_read() -> None:
    assert models.instant(rfc3339(1_800_000_000.9)) == 1_800_000_000.0


def seen(notes: Sightings, at: float, rate: str = "1.79") -> None:
    notes.alive(
        "abc", NAME, rate=Usd(rate), disk_gb=70, made_at=100.0, started_at=None, at=at
    )  # fmt: skip


def test_notes_outlive_their_writer(tmp_path: Path) -> None:
    first = Sightings(tmp_path)
    seen(first, 130.0)
    seen(first, 200.0, rate="0")
    first.missed([], 210.0)
    first.billed("abc", Usd(2), 300.0)
    first.billed("abc", Usd(2), 400.0)
    (again,) = Sightings(tmp_path).named(NAME)
    assert again == first.get("abc")
    assert (again.rate, again.made_at, again.alive_at) == (Usd("1.79"), 100.0, 200.0)
    assert (again.gone_at, again.billed_since) == (210.0, 300.0)
    seen(first, 500.0)
    (back,) = Sightings(tmp_path).named(NAME)
    assert back.gone_at is None


def test_being_alive_is_not_written_at_each_look(tmp_path: Path) -> None:
    notes = Sightings(tmp_path)
    seen(notes, 200.0)
    path = tmp_path / "abc.json"
    written = path.stat().st_mtime_ns
    for at in range(201, 229):
        seen(notes, float(at))
    assert path.stat().st_mtime_ns == written
    seen(notes, 231.0)
    assert json.loads(path.read_text())["alive_at"] == 231.0


def test_foreign_pods_and_odd_ids_leave_no_file(tmp_path: Path) -> None:
    notes = Sightings(tmp_path)
    for pod_id, name in (("abc", "my-own-pod"), ("../abc", NAME)):
        notes.alive(
            pod_id, name, rate=None, disk_gb=0, made_at=None, started_at=None, at=1.0
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.parent.glob("abc*")) == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"pod_id": "x"}',
             '{"pod_id": "abc", "name": "n", "made_at": "soon"}', "\x00"],
)  # fmt: skip
def test_a_damaged_note_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "abc.json").write_text(text)
    assert Sightings(tmp_path).get("abc") is None
