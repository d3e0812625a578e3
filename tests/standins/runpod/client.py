"""A few lines of HTTP for tests that speak to the stand-in themselves."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.standins.runpod.standin import StandIn


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def data(self) -> Any:
        return json.loads(self.text)


class Client:
    """Asks as the account, or with another key."""

    def __init__(self, standin: StandIn, key: str | None = None) -> None:
        self._url, self._key = standin.url, standin.api_key if key is None else key

    def __call__(self, method: str, path: str, body: Any = None) -> Reply:
        headers = {"Content-Type": "application/json", "User-Agent": "a-test"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers=headers,
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return Reply(answer.status, dict(answer.headers), answer.read().decode())
        except urllib.error.HTTPError as error:
            return Reply(error.code, dict(error.headers), error.read().decode())

    def graphql(self, query: str) -> Any:
        return self("POST", "/graphql", {"query": query}).data

    def rent(self, name: str = "a-pod", gpu: str = "NVIDIA L4", **more: Any) -> dict[str, Any]:
        body = {"name": name, "image": "an/image:1", "gpu": {"id": gpu}, "ports": ["22/tcp"]}
        answer = self("POST", "/v2/pods", body | more)
        assert answer.status == 201, answer.text
        pod: dict[str, Any] = answer.data
        return pod

    def pod(self, pod_id: str) -> dict[str, Any]:
        data: dict[str, Any] = self("GET", f"/v2/pods/{pod_id}").data
        return data


def eventually(what: Callable[[], Any], within_s: float = 20.0) -> Any:
    """The first true answer; the test fails where none comes."""
    deadline = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)
    return found
