"""The stand-in on a loopback port: whoami, and the Jobs API."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from tests.standins.huggingface.hub import TOKEN, USER, Hub, Refused, iso
from tests.standins.loopback import Handler, serving_at

SETTLE_S = 0.02


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

    def __init__(self, hub: Hub, url: str, requests: list[Logged]) -> None:
        self.hub, self.url, self.requests = hub, url, requests
        self.token = TOKEN

    @property
    def environment(self) -> dict[str, str]:
        """All that a user of this account sets."""
        return {"HF_ENDPOINT": self.url, "HF_TOKEN": TOKEN}


@contextlib.contextmanager
def serving(hub: Hub, port: int = 0) -> Iterator[StandIn]:
    """Answers until the block ends; what is due happens without a request too."""
    requests: list[Logged] = []

    class Served(_Handler):
        pass

    Served.hub, Served.requests = hub, requests
    over = threading.Event()

    def settle() -> None:
        while not over.wait(SETTLE_S):
            with hub.lock:
                hub.settle()

    with serving_at(Served, port) as at:
        Served.url = f"http://127.0.0.1:{at}"
        settler = threading.Thread(target=settle, daemon=True)
        settler.start()
        try:
            yield StandIn(hub, Served.url, requests)
        finally:
            over.set()
            settler.join()
            hub.machines.close()


class _Handler(Handler):
    hub: Hub
    requests: list[Logged]
    url: str

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        query = tuple(parse_qsl(parts.query, keep_blank_values=True))
        text = self.read_body()
        try:
            body = json.loads(text) if text else None
        except ValueError:
            self._tell(400, {"error": "Invalid JSON"})
            return
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        self.requests.append(Logged(self.command, parts.path, query, body, token))
        words = [word for word in parts.path.split("/") if word]
        if words[-1:] == ["logs"]:
            self._logs(words)
            return
        headers: dict[str, str] = {}
        try:
            with self.hub.lock:
                self.hub.settle()
                answer = self._answer(words, query, body, token, headers)
        except Refused as refused:
            self._tell(refused.status, {"error": refused.error}, refused.headers)
        else:
            self._tell(200, answer, headers)

    do_GET = do_POST = do_PUT = do_DELETE = _serve

    def _answer(
        self, words: list[str], query: Any, body: Any, token: str, headers: dict[str, str]
    ) -> Any:
        hub = self.hub
        if hub.now() < hub.knobs.throttled_until:
            raise Refused(429, "We had to rate limit you", hub.knobs.throttle_headers)
        asked = (self.command, *words)
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

    def _logs(self, words: list[str]) -> None:
        with self.hub.lock:
            job = self.hub.jobs.get(words[3]) if len(words) == 5 else None
            lines = list(job.log) if job is not None else []
        if job is None:
            self._tell(404, {"error": "Job not found"})
            return
        lines = [(job.made_at, f"===== Job started at {job.made_at:.0f} ====="), *lines]
        events = "".join(
            f"data: {json.dumps({'timestamp': iso(at), 'data': text})}\n\n" for at, text in lines
        )
        self.answer(200, events.encode(), "text/event-stream")

    def _tell(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        told = dict(headers or {})
        if status >= 400 and isinstance(answer, dict):
            told["X-Error-Message"] = str(answer.get("error", ""))
        self.answer(status, json.dumps(answer).encode(), "application/json", told)
