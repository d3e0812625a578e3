"""A RunPod whose answers are written down beforehand, and a clock that only sleeping moves."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest

from trmcloud.adapters.request_budget import RequestBudget
from trmcloud.core.catalog.providers import RequestLimit
from trmcloud.providers.runpod.api import RunPodApi
from trmcloud.providers.runpod.http import Http

BASE = "https://api.runpod.test"
KEY = "rpa_CANARY0123456789"

Answer = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


class Scripted:
    """Gives ``answers`` in turn, the last one again and again. ``now`` moves by sleeping, and by
    ``each_s`` with every request."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[httpx.Request] = []
        self.slept: list[float] = []
        self.now = 1_800_000_000.0
        self.each_s = 0.0
        self.budget: RequestBudget | None = None

    def share(self, requests: int, window_s: float) -> None:
        """Its clients take from one budget from now on; no limits hold where no answer says so."""
        self.budget = RequestBudget(
            None,
            (RequestLimit(requests, window_s),),
            seller="RunPod",
            unlimited_unless_told=True,
            now=lambda: self.now,
            sleep=self.sleep,
        )

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        self.now += self.each_s
        answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer

    def http(self, bound_s: float = 20.0) -> Http:
        return Http(
            KEY,
            now=lambda: self.now,
            sleep=self.sleep,
            transport=httpx.MockTransport(self.answer),
            bound_s=bound_s,
            budget=self.budget,
        )

    def api(self, bound_s: float = 20.0) -> RunPodApi:
        return RunPodApi(self.http(bound_s), BASE)


@pytest.fixture
def runpod() -> Scripted:
    return Scripted()


def said(code: int, body: Any = None, **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    content = body if isinstance(body, str) else json.dumps(body) if body is not None else ""
    return httpx.Response(code, content=content.encode(), headers=names)


def problem(code: int, detail: str, **headers: str) -> httpx.Response:
    return said(code, {"title": "x", "status": code, "detail": detail}, **headers)


def pod_record(**more: Any) -> dict[str, Any]:
    return {
        "id": "abc123",
        "name": "trmc-0a1b2c3d-run1-g1-1800003600",
        "status": "RUNNING",
        "cost": 1.79,
        "createdAt": "2027-01-15T08:00:00Z",
        "ssh": {"proxy": None, "direct": None},
        "disk": 20,
        "mounts": {"persistent": {"size": 50, "path": "/workspace"}},
        **more,
    }
