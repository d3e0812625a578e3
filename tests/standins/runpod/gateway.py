"""What stands before every route: keys, quotas, outages, and the log of requests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.standins.runpod.commands import LIMIT_BYTES
from tests.standins.runpod.graphql import GraphQL
from tests.standins.runpod.http_types import problem
from tests.standins.runpod.rest import Rest
from tests.standins.runpod.world import Context
from tests.standins.web import Answer, Asked

WINDOWS = (("minute", 60), ("hour", 3600), ("day", 86400))
TURNED_AWAY = "Python-urllib"
"""What RunPod's edge takes for a robot, beside whoever gives no name."""
Judge = Callable[[Asked, Answer], None]


@dataclass(frozen=True)
class Logged:
    """One request, without its key or body, of which only the length is kept. ``operation`` is
    GraphQL's first field."""

    method: str
    path: str
    status: int
    at: float
    who: str
    operation: str = ""
    bytes: int = 0


class Gateway:
    """``quotas``: requests a minute, an hour and a day, for each key. ``judge`` sees each v2
    request with its answer, where the published contract is at hand."""

    def __init__(
        self,
        world: Context,
        quotas: tuple[int, int, int] = (6000, 300_000, 5_000_000),
        judge: Judge | None = None,
    ) -> None:
        self._world, self._quotas, self._judge = world, quotas, judge
        self._rest, self._graphql = Rest(world), GraphQL(world)
        self._used: dict[tuple[str, str, int], int] = {}
        self.requests: list[Logged] = []

    def answer(self, asked: Asked) -> Answer:
        with self._world.lock:
            asked = replace(asked, who=self._who(asked))
            answer = self._answer(asked)
            answer.headers.setdefault("Date", self._date())
            self.requests.append(
                Logged(
                    asked.method, asked.path, answer.status, self._world.now(), asked.who,
                    _operation(asked), len(asked.body),
                )
            )  # fmt: skip
        return answer

    def _answer(self, asked: Asked) -> Answer:
        knobs = self._world.knobs
        agent = asked.headers.get("user-agent", "")
        if not agent or agent.startswith(TURNED_AWAY):
            return Answer(403, b"error code: 1010", "text/plain")
        if knobs.down or self._world.now() < knobs.down_until:
            return problem(503, "service unavailable")
        if knobs.use("errors_502"):
            return Answer(502, b"<html><h1>502 Bad Gateway</h1></html>", "text/html")
        if asked.path == "/v2/pods" and len(asked.body) > LIMIT_BYTES:
            return problem(413, f"the request exceeds {LIMIT_BYTES} bytes")
        if asked.path == "/graphql":
            answer = self._graphql.answer(asked)
        elif not asked.who:
            return problem(401, "missing or invalid bearer token")
        else:
            answer = self._retired() or self._counted(asked) or self._rest.answer(asked)
            answer.headers |= self._quota_headers(asked.who)
            if self._judge is not None and not (answer.drop or answer.forced):
                self._judge(asked, answer)
        return self._spoilt(asked, answer)

    def _retired(self) -> Answer | None:
        return problem(410, "this API has been retired") if self._world.knobs.v2_gone else None

    def _who(self, asked: Asked) -> str:
        word, _, key = asked.headers.get("authorization", "").partition(" ")
        key = key.strip() if word.lower() == "bearer" else asked.query.get("api_key", "")
        if not key or self._world.knobs.key_revoked:
            return ""
        if key == self._world.api_key:
            return "account"
        self._world.settle()
        return next((pod.id for pod in self._world.pods.values() if pod.key == key), "")

    def _counted(self, asked: Asked) -> Answer | None:
        """Count it against the quotas; a 429 where one is used up."""
        now, knobs = self._world.now(), self._world.knobs
        if now < knobs.throttled_until or knobs.use("throttle"):
            answer = problem(429, "rate limit exceeded for the minute window")
            answer.headers["Retry-After"] = str(knobs.retry_after_s)
            return answer
        for (name, length), quota in zip(WINDOWS, self._quotas, strict=True):
            window = (asked.who, name, int(now // length))
            self._used[window] = self._used.get(window, 0) + 1
            if self._used[window] > quota:
                answer = problem(429, f"rate limit exceeded for the {name} window")
                answer.headers["Retry-After"] = str(int(length - now % length) + 1)
                return answer
        return None

    def _quota_headers(self, who: str) -> dict[str, str]:
        now, left, policy = self._world.now(), [], []
        for (name, length), quota in zip(WINDOWS, self._quotas, strict=True):
            used = self._used.get((who, name, int(now // length)), 0)
            left.append(f'"{name}";r={max(0, quota - used)};t={int(length - now % length)}')
            policy.append(f'"{name}";q={quota};w={length}')
        return {"RateLimit": ", ".join(left), "RateLimit-Policy": ", ".join(policy)}

    def _spoilt(self, asked: Asked, answer: Answer) -> Answer:
        """Answers that no contract allows: the judge does not see them."""
        knobs = self._world.knobs
        if answer.status // 100 != 2 or answer.stream is not None or not answer.body:
            return answer
        if (asked.method, asked.path) == ("GET", "/v2/pods"):
            answer = self._spoilt_list(answer)
        if knobs.use("malformed"):
            answer.body = answer.body[: len(answer.body) // 2]
        elif knobs.use("html"):
            answer.body, answer.content_type = b"<html>Just a moment...</html>", "text/html"
        return answer

    def _spoilt_list(self, answer: Answer) -> Answer:
        knobs, data = self._world.knobs, json.loads(answer.body)
        if knobs.list_unpaged:
            del data["pagination"]
        if knobs.use("list_lacks_pods"):
            del data["pods"]
        answer.body = json.dumps(data).encode()
        return answer

    def _date(self) -> str:
        at = self._world.now() + self._world.knobs.clock_skew_s
        return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(at))


def _operation(asked: Asked) -> str:
    if asked.path != "/graphql":
        return ""
    body: Any = asked.json()
    text = str(body.get("query", "")) if isinstance(body, dict) else ""
    words = text.partition("{")[2].replace("(", " ").replace("{", " ").split()
    return words[0] if words else ""


def as_json(logged: Logged) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(logged.__dict__))
    return data
