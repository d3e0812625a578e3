"""The stand-in on a loopback port: whoami, and the Jobs API."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from tests.standins.huggingface.hub import TOKEN, USER, Hub, Refused, iso
from tests.standins.web import Answer, Asked, Faults, Server, settling


@dataclass(frozen=True)
class Logged:
    """One request; ``body`` is its JSON, None without one."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    body: Any
    token: str


class StandIn:
    """``url`` is what ``HF_ENDPOINT`` names."""

    def __init__(self, hub: Hub, server: Server, requests: list[Logged], faults: Faults) -> None:
        self.hub, self.url, self.requests = hub, server.url, requests
        self.faults, self.server = faults, server
        self.token = TOKEN

    @property
    def environment(self) -> dict[str, str]:
        """All that a user of this account sets."""
        return {"HF_ENDPOINT": self.url, "HF_TOKEN": TOKEN}


@contextlib.contextmanager
def serving(hub: Hub, port: int = 0) -> Iterator[StandIn]:
    """Answers until the block ends; what is due happens without a request too."""
    routes, faults = _Routes(hub), Faults()
    server = Server(lambda asked: faults.answer(asked, lambda: routes.answer(asked)), port)
    routes.url = server.url
    server.start()
    try:
        with settling(hub.settle, hub.lock):
            yield StandIn(hub, server, routes.requests, faults)
    finally:
        server.close()
        hub.machines.close()


class _Routes:
    def __init__(self, hub: Hub) -> None:
        self.hub, self.url = hub, ""
        self.requests: list[Logged] = []

    def answer(self, asked: Asked) -> Answer:
        body = asked.json()
        if asked.body and body is None:
            return _told(400, {"error": "Invalid JSON"})
        token = asked.headers.get("authorization", "").removeprefix("Bearer ")
        self.requests.append(Logged(asked.method, asked.path, asked.pairs, body, token))
        words = [word for word in asked.path.split("/") if word]
        headers: dict[str, str] = {}
        try:
            with self.hub.lock:
                self.hub.settle()
                if words[-1:] == ["logs"]:
                    return self._logs(words)
                found = self._answer(asked.method, words, asked.pairs, body, token, headers)
        except Refused as refused:
            return _told(refused.status, {"error": refused.error}, refused.headers)
        return _told(200, found, headers)

    def _answer(
        self,
        method: str,
        words: list[str],
        query: Any,
        body: Any,
        token: str,
        headers: dict[str, str],
    ) -> Any:
        hub = self.hub
        if hub.now() < hub.knobs.throttled_until:
            raise Refused(429, "We had to rate limit you", hub.knobs.throttle_headers)
        asked = (method, *words)
        if asked == ("GET", "api", "jobs", "hardware"):
            return list(hub.hardware.values())
        if token != TOKEN:
            raise Refused(401, "Invalid username or password.")
        if asked == ("GET", "api", "whoami-v2"):
            who = {"accessToken": {"displayName": "standin", "role": "write"}}
            return {"type": "user", "id": "5e9e", "name": USER, "orgs": [], "auth": who}
        if words[:2] != ["api", "jobs"] or len(words) < 3:
            raise Refused(404, "Sorry, we can't find the page you are looking for.")
        if words[2] != USER:
            raise Refused(403, f"You do not have access to jobs of {words[2]}")
        if asked[0] == "POST" and len(words) == 3:
            return hub.told(hub.start(body))
        if asked[0] == "GET" and len(words) == 3:
            return self._list(query, headers)
        if asked[0] == "GET" and len(words) == 4:
            return hub.told(hub.find(words[3]))
        if asked[0] == "POST" and words[4:] == ["cancel"]:
            return hub.told(hub.cancel(words[3]))
        raise Refused(404, "Sorry, we can't find the page you are looking for.")

    def _list(self, query: Any, headers: dict[str, str]) -> list[Any]:
        hub = self.hub
        stages = {value for key, value in query if key == "stage"}
        labels = [value.partition("=") for key, value in query if key == "label"]
        first = next((int(value) for key, value in query if key == "cursor"), 0)
        found = [
            job
            for job in reversed(list(hub.jobs.values()))
            if (not stages or job.stage in stages)
            and job.id not in hub.knobs.hidden
            and all(job.spec.get("labels", {}).get(key) == value for key, _, value in labels)
        ]
        upto = first + hub.knobs.page
        if upto < len(found):
            rest = [(key, value) for key, value in query if key != "cursor"]
            more = urlencode([*rest, ("cursor", str(upto))])
            headers["Link"] = f'<{self.url}/api/jobs/{USER}?{more}>; rel="next"'
        return [hub.told(job) for job in found[first:upto]]

    def _logs(self, words: list[str]) -> Answer:
        job = self.hub.jobs.get(words[3]) if len(words) == 5 else None
        if job is None:
            return _told(404, {"error": "Job not found"})
        began = (job.made_at, f"===== Job started at {job.made_at:.0f} =====")
        events = "".join(
            f"data: {json.dumps({'timestamp': iso(at), 'data': text})}\n\n"
            for at, text in (began, *job.log)
        )
        return Answer(200, events.encode(), "text/event-stream")


def _told(status: int, answer: Any, headers: dict[str, str] | None = None) -> Answer:
    told = dict(headers or {})
    if status >= 400 and isinstance(answer, dict):
        told["X-Error-Message"] = str(answer.get("error", ""))
    return Answer(status, json.dumps(answer).encode(), "application/json", told)
