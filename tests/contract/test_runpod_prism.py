"""Every request that we can send to RunPod's REST v2, before a judge that is not ours: Prism, which
serves the published contract, refuses what that does not allow."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.contract.pod_requests import keys, request_at
from tests.contract.runpod_rig import A100
from tests.standins import prism
from tests.standins.runpod.oracle import ENV_OPENAPI
from trmcloud.core.errors import FinalRefusal, ProviderError
from trmcloud.pod.agent.terminate import ways_of
from trmcloud.ports.compute import PodRequest
from trmcloud.providers.runpod import offers, secrets
from trmcloud.providers.runpod.account import RunPodGraphql
from trmcloud.providers.runpod.api import RunPodApi
from trmcloud.providers.runpod.compute import RunPodCompute, RunPodVolumes
from trmcloud.providers.runpod.create import boot_payload
from trmcloud.providers.runpod.http import Http

KEY = "rpa_JUDGED0BY0PRISM"
AT = 1_795_000_000.0
POD = "7h9k2m4n6p"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with prism.running(tmp_path_factory.mktemp("prism")) as url:
        yield url


class Noting(httpx.BaseTransport):
    """Sends on what it is given, and notes what was wrong with it by the judge's word."""

    def __init__(self) -> None:
        self._inner = httpx.HTTPTransport()
        self.asked: list[str] = []
        self.wrong: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._inner.handle_request(request)
        query = request.url.query.decode()
        said = f"{request.method} {request.url.path}" + (f"?{query}" if query else "")
        self.asked.append(said)
        found = json.loads(response.headers.get("sl-violations", "[]"))
        bad = [one["message"] for one in found if one["location"][0] == "request"]
        # Of the answers nothing is held against us: they are the contract's own examples.
        if bad or not 200 <= response.status_code < 300:
            self.wrong.append(f"{said} → {response.status_code}: {bad}")
        return response

    def close(self) -> None:
        self._inner.close()


class Side:
    """The adapter with everything that it has, speaking to the judge."""

    def __init__(self, url: str) -> None:
        self.noted = Noting()
        self.url = url
        self.http = Http(KEY, transport=self.noted, bound_s=30.0)
        self.api = RunPodApi(self.http, url)
        self.compute = RunPodCompute(
            self.api,
            RunPodGraphql(self.http, f"{url}/graphql"),
            keys,
            boot_payload,
            environment={secrets.ENV_API: f"{url}/v2", secrets.ENV_GRAPHQL: url},
            volumes=RunPodVolumes(self.api, "0a1b2c3d"),
        )

    def close(self) -> None:
        self.http.close()


@pytest.fixture
def side(judge: str) -> Iterator[Side]:
    made = Side(judge)
    yield made
    made.close()


def wanted(**more: Any) -> PodRequest:
    return request_at(AT, **more)


CREATES = {
    "plain": wanted(),
    "in a region, on a volume, eight GPUs": wanted(
        sku=A100, gpus=8, region="EU-RO-1", volume="vol_123", min_cuda="12.8", disk_gb=500
    ),
    "on a volume to be made": wanted(region="EU-RO-1", volume_gb=100),
    "at a private seller's": wanted(community=True, region="any", disk_gb=1, min_cuda=""),
    "with a check": wanted(check={"gpu": "L4", "count": 1, "memory_gb": 24}),
}


@pytest.mark.parametrize("name", CREATES)
def test_every_create_is_as_published(side: Side, name: str) -> None:
    pod_id = side.compute.create(CREATES[name])
    assert pod_id, "the example's"
    assert side.noted.wrong == []
    assert side.noted.asked[-1] == "POST /v2/pods"


def test_every_other_request_is_as_published(side: Side) -> None:
    api, calls = side.api, _Calls(side.api)
    calls.pods()
    calls.pods(cluster_members=True)
    calls.pod(POD)
    calls.delete_pod(POD)
    calls.delete_pod(POD)  # the second time by the other way
    calls.volumes()
    calls.create_volume("trmc-0a1b2c3d-EU-RO-1", 10, "EU-RO-1")
    calls.grow_volume("vol_123", 4096)
    calls.delete_volume("vol_123")
    calls.billing(starts_at=AT - 7200, ends_at=AT)
    calls.billing(starts_at=AT - 7200, ends_at=AT, pod_id=POD)
    calls.billed_lately()
    for counts, community in (((), False), ((1, 8), False), ((2,), True)):
        offers.read_catalogue(calls.catalogue, counts, community=community)
    calls.log_text(POD, 200)
    api._get("/pods", {"limit": "1000", "cursor": "Y3JlYXRlZEF0PTE3NDg3ODA0MDA"})
    assert side.noted.wrong == []

    methods = {name for name, _ in inspect.getmembers(RunPodApi, inspect.isfunction)}
    public = {name for name in methods if not name.startswith("_")}
    # The two are younger than the published file: its reference shows them, and no path of theirs.
    younger = {"account_money", "spend_rate"}
    assert public - calls.made == {"create_pod"} | younger, "whatever is added is judged, too"
    assert {line.partition("?")[0] for line in side.noted.asked} == {
        "GET /v2/pods",
        f"GET /v2/pods/{POD}",
        f"DELETE /v2/pods/{POD}",
        f"POST /v2/pods/{POD}/action",
        f"GET /v2/pods/{POD}/logs",
        "GET /v2/network-volumes",
        "POST /v2/network-volumes",
        "PATCH /v2/network-volumes/vol_123",
        "DELETE /v2/network-volumes/vol_123",
        "GET /v2/billing/pods",
        "GET /v2/catalog/gpus",
    }
    asked = set(side.noted.asked)
    assert "GET /v2/pods?limit=1000&includeClusterPods=true" in asked
    assert f"GET /v2/pods/{POD}/logs?tail=200" in asked
    assert "GET /v2/billing/pods?bucketSize=hour&lastN=2" in asked


class _Calls:
    """Calls methods and remembers which."""

    def __init__(self, api: RunPodApi) -> None:
        self._api = api
        self.made: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.made.add(name)
        return getattr(self._api, name)


def test_no_parameter_is_asked_that_the_contract_does_not_know(side: Side) -> None:
    """Prism lets those pass: a server may, too, and give a list that is not the one meant."""
    document = json.loads(Path(os.environ[ENV_OPENAPI]).read_text(encoding="utf-8"))
    side.compute.create(CREATES["plain"])
    side.api.pods(cluster_members=True)
    side.api.billing(starts_at=AT - 7200, ends_at=AT, pod_id=POD)
    side.api.billed_lately()
    offers.read_catalogue(side.api.catalogue, (1, 8))
    for line in side.noted.asked:
        method, _, url = line.partition(" ")
        path, _, query = url.partition("?")
        names = set(re.findall(r"(?:^|&)([^=&]+)=", query))
        if names:
            assert names <= _declared(document, document["paths"][path][method.lower()])


def _declared(document: dict[str, Any], operation: dict[str, Any]) -> set[str]:
    found = set()
    for parameter in operation["parameters"]:
        reference = parameter.get("$ref", "")
        told = document["components"]["parameters"].get(reference.rpartition("/")[2], parameter)
        found.add(told["name"])
    return found


def test_a_pod_ends_itself_as_published(judge: str) -> None:
    environment = {
        "RUNPOD_POD_ID": POD,
        "RUNPOD_API_KEY": KEY,
        "TRMCLOUD_RUNPOD_API": f"{judge}/v2",
    }
    by_v2 = [way for way in ways_of(environment) if way.name.startswith("v2 ")]
    answers = {way.name: way.try_it() for way in by_v2}
    assert {name: answer.ok for name, answer in answers.items()} == {
        "v2 action terminate": True,
        "v2 delete": True,
    }, answers


def test_prices_are_looked_up_as_published(judge: str) -> None:
    environ = {secrets.ENV_API: judge, secrets.ENV_KEY: KEY}
    _, notes = offers.price_rows(environ, AT)
    assert re.fullmatch(r"runpod: \d+ offers of [0-9-]+ \(v2\)", notes[0]), notes


# -- that the judge can say no -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "params", "body"),
    [
        ("GET", "/v2/pods", {"limit": "2000"}, None),
        ("GET", "/v2/billing/pods", {"startTime": "yesterday"}, None),
        ("GET", "/v2/catalog/gpus", {"cloud": "secure"}, None),
        ("POST", "/v2/pods/abc/action", {}, {"action": "kill"}),
        ("POST", "/v2/network-volumes", {}, {"name": "n", "size": 10, "dc": "EU-RO-1"}),
        ("PATCH", "/v2/network-volumes/abc", {}, {}),
    ],
)
def test_the_judge_refuses_what_is_not_published(
    side: Side, method: str, path: str, params: dict[str, str], body: Any
) -> None:
    response = side.http.send(method, side.url + path, params=params, body=body)
    assert response.status_code == 422
    assert len(side.noted.wrong) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"frobnicate": 1},
        {"disk": "20"},
        {"gpu": {"id": "NVIDIA L4", "minCudaVersion": "12"}},
        {"mounts": {"network": [{"volumeId": "v"}]}},
    ],
)
def test_a_create_that_is_not_as_published_is_refused(side: Side, change: dict[str, Any]) -> None:
    body = {**side.compute.body(CREATES["plain"]), **change}
    with pytest.raises(FinalRefusal, match="contract was broken"):
        side.api.create_pod(body)
    assert len(side.noted.wrong) == 1


def test_a_request_without_a_key_is_refused(judge: str) -> None:
    assert httpx.get(f"{judge}/v2/pods").status_code == 401
    with pytest.raises(ProviderError):
        RunPodApi(Http(KEY, bound_s=1.0), f"{judge}/nowhere").pods()
