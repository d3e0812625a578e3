"""Whatever a provider or ``sky`` answers: a checked type, or an error of ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.fuzz.mutate import NASTY, briefly, variants
from tests.unit.runpod.conftest import KEY, Scripted, pod_record
from tests.unit.skypilot.rig import KEYS, NAME, NOW
from trmcloud.core.control.observation import Bill, PodSeen
from trmcloud.core.errors import TrmcloudError
from trmcloud.core.money import Usd
from trmcloud.core.text import strip_control
from trmcloud.providers.runpod.account import RunPodGraphql
from trmcloud.providers.runpod.compute import RunPodCompute, RunPodVolumes
from trmcloud.providers.runpod.models import instant
from trmcloud.providers.runpod.offers import live_offers, read_catalogue
from trmcloud.providers.skypilot.clusters import Launches
from trmcloud.providers.skypilot.command import Sky
from trmcloud.providers.skypilot.compute import SkyPilotCompute

POD = pod_record(ssh={"proxy": None, "direct": {"host": "1.2.3.4", "port": 22}})
MYSELF = {
    "id": "u", "clientBalance": 12.5, "currentSpendPerHr": 0.5, "spendLimit": 80,
    "pods": [{"id": "abc", "name": POD["name"], "desiredStatus": "RUNNING", "costPerHr": 1.79}],
}  # fmt: skip
GPU = {
    "id": "NVIDIA L4", "secure": True, "community": True, "availability": "HIGH",
    "price": {"secure": 0.44, "community": 0.3}, "maxCount": {"secure": 8, "community": 4},
    "dataCenters": [{"id": "EU-RO-1", "availability": "LOW"}],
}  # fmt: skip
VOLUME = {"id": "v1", "name": "trmc-0a1b2c3d-EU-RO-1", "size": 50, "dataCenter": "EU-RO-1"}
RECORD = {
    "startTime": "2027-01-15T08:00:00Z", "endTime": "2027-01-15T09:00:00Z",
    "podId": "abc123", "totalAmount": 1.5,
}  # fmt: skip


def _graphql(runpod: Scripted) -> RunPodGraphql:
    return RunPodGraphql(runpod.http(), "https://api.runpod.test/graphql")


def _pods(runpod: Scripted) -> None:
    compute = RunPodCompute(
        runpod.api(), _graphql(runpod), lambda name: KEYS, lambda: b"x", now=lambda: runpod.now
    )
    for pod in compute.list_pods():
        _is_pod(pod)
    compute.address_of(POD["name"])


def _is_pod(pod: PodSeen) -> None:
    assert pod.pod_id
    assert pod.status in ("creating", "running", "gone", "unknown")
    assert Usd(0) <= pod.rate < Usd(10**10)
    assert pod.made_at is None or 0 <= abs(pod.made_at) < 1e12
    assert 0 <= pod.port < 65536


def _create(runpod: Scripted) -> None:
    assert runpod.api().create_pod({"name": "x"}).id


def _bills(runpod: Scripted) -> None:
    for row in runpod.api().billing(starts_at=1.0, ends_at=2.0):
        assert row.starts_at is None or row.starts_at < 1e12
        assert row.ends_at is None or row.ends_at < 1e12


def _volumes(runpod: Scripted) -> None:
    for volume in RunPodVolumes(runpod.api(), "0a1b2c3d").ours():
        assert volume.size_gb >= 0


def _account(runpod: Scripted) -> None:
    account = _graphql(runpod).account()
    for amount in (account.balance, account.spending, account.spend_limit):
        assert amount is None or isinstance(amount, Usd)


def _cross_listed(runpod: Scripted) -> None:
    for pod in _graphql(runpod).pods():
        _is_pod(pod)


def _catalogue(runpod: Scripted) -> None:
    rows = read_catalogue(runpod.api().catalogue)
    assert all(row.rate > Usd(0) for row in rows)
    live_offers(runpod.api().catalogue, runpod.now, (1, 2))


READERS: list[tuple[str, Any, Callable[[Scripted], None]]] = [
    ("pods", {"pods": [POD, POD]}, _pods),
    ("create", POD, _create),
    ("billing", {"records": [RECORD, RECORD]}, _bills),
    ("volumes", {"networkVolumes": [VOLUME]}, _volumes),
    ("account", {"data": {"myself": MYSELF}}, _account),
    ("cross-listed", {"data": {"myself": MYSELF}}, _cross_listed),
    ("catalogue", {"gpus": [GPU, GPU]}, _catalogue),
]


@pytest.mark.parametrize(("name", "answer", "read"), READERS, ids=[row[0] for row in READERS])
def test_any_answer_of_runpods(
    runpod: Scripted, name: str, answer: Any, read: Callable[[Scripted], None]
) -> None:
    text = json.dumps(answer).encode()
    runpod.answers = [httpx.Response(200, content=text)]
    read(runpod)
    for variant in variants(text, 500):
        runpod.answers = [httpx.Response(200, content=variant)]
        with briefly(), suppress(TrmcloudError):
            read(runpod)


@pytest.mark.parametrize("code", [400, 401, 402, 404, 409, 422, 429, 500, 503, 301, 204])
def test_any_refusal_of_runpods(runpod: Scripted, code: int) -> None:
    text = json.dumps({"title": "x", "detail": f"no {KEY}\x1b[2J", "errors": ["a"]}).encode()
    headers = [{"Retry-After": n.strip('"')[:60_000]} for n in NASTY if n.isascii()]
    headers += [{"Date": "Mon, 99 Foo 99999 99:99:99 GMT"}, {"Date": "9" * 5000}, {}]
    for number, variant in enumerate(variants(text, 60)):
        header = headers[number % len(headers)]
        with suppress(UnicodeEncodeError, ValueError):
            runpod.answers = [httpx.Response(code, content=variant, headers=header)]
        with pytest.raises(TrmcloudError) as caught:
            runpod.api(5.0).pods()
        assert KEY not in str(caught.value)
        assert strip_control(str(caught.value)) == str(caught.value)


@pytest.mark.parametrize("text", [*NASTY, "0000-00-00", "2026-02-30T00:00:00Z", "é", "1" * 5000])
def test_any_instant(text: str) -> None:
    at = instant(text.strip('"'))
    assert at is None or abs(at) < 1e12


# -- sky -------------------------------------------------------------------------------------------
CLUSTER = {
    "name": NAME, "status": "UP", "launched_at": int(NOW) - 60, "autostop": 63, "to_down": True,
    "region": "us-east-1", "init_kind": None, "resources_str": "1x(gpus=H100:8)",
}  # fmt: skip
REQUEST = {"request_id": "0a1b2c3d-0000", "name": "sky.launch", "status": "FAILED"}
COST = {"name": NAME, "total_cost": 12.5, "duration": 600}
ENABLED = {"default": {"AWS": ["compute", "storage"], "RunPod": ["compute"]}}


class ScriptedSky(Sky):
    """Prints ``out`` whatever it is asked."""

    def __init__(self, folder: Path) -> None:
        super().__init__("sky", {"PATH": "/usr/bin:/bin", "HOME": str(folder)}, None)
        self.code, self.out, self.said = 0, "", ""

    def _done(self, words: Sequence[str], timeout_s: float) -> tuple[int, str, str]:
        return self.code, strip_control(self.out), strip_control(self.said)


def _clusters(sky: ScriptedSky, folder: Path) -> None:
    compute = SkyPilotCompute("aws", sky, lambda name: KEYS, lambda: b"x", folder, now=lambda: NOW)
    for pod in compute.list_pods():
        _is_pod(pod)
        compute.own_limits(pod.name)
        bill = compute.bill(pod.pod_id)
        assert bill is None or isinstance(bill, Bill)


def _launches(sky: ScriptedSky, folder: Path) -> None:
    launches = Launches(sky)
    launches.active(NAME)
    launches.ended(NAME)
    assert isinstance(launches.why_none(NAME), str | None)


def _enabled(sky: ScriptedSky, folder: Path) -> None:
    assert all(isinstance(name, str) for name in sky.enabled())


def _version(sky: ScriptedSky, folder: Path) -> None:
    assert sky.version()


SAYINGS: list[tuple[str, str, Callable[[ScriptedSky, Path], None]]] = [
    ("clusters", "Refreshing …\n" + json.dumps([CLUSTER]), _clusters),
    ("costs", json.dumps([COST, {**CLUSTER, **COST}]), _clusters),
    ("requests", json.dumps([REQUEST, REQUEST]), _launches),
    ("check", json.dumps(ENABLED), _enabled),
    ("version", "skypilot, version 0.14.1", _version),
]


@pytest.mark.parametrize(("name", "text", "read"), SAYINGS, ids=[row[0] for row in SAYINGS])
def test_anything_that_sky_prints(
    tmp_path: Path, name: str, text: str, read: Callable[[ScriptedSky, Path], None]
) -> None:
    sky = ScriptedSky(tmp_path)
    sky.out = text
    read(sky, tmp_path / "first")
    for number, variant in enumerate(variants(text.encode(), 500)):
        sky.out = sky.said = variant.decode("utf-8", "replace")
        sky.code = 0 if number % 5 else 1
        with briefly(), suppress(TrmcloudError):
            read(sky, tmp_path / str(number % 10))
