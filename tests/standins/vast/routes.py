"""vast.ai's endpoints: path and JSON in, status and JSON out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.standins.vast.world import Instance, World
from tests.standins.web import Answer, Asked

MOST_ARGS, MOST_ENV, MOST_VALUE, LEAST_DISK, MOST_LABEL = 4096, 32_768, 256, 8, 256
PAGE = 25


@dataclass(frozen=True)
class Logged:
    """One request. ``who`` is "account", an instance's id, or "" for a key that is not known."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    status: int
    who: str


def told(status: int, **data: Any) -> Answer:
    return Answer(status, json.dumps(data).encode())


def refused(status: int, error: str, msg: str, **more: Any) -> Answer:
    return told(status, success=False, error=error, msg=msg, **more)


def _json(asked: Asked) -> Any:
    """The body; an empty object where there is none."""
    return asked.json() if asked.body else {}


class Routes:
    def __init__(self, world: World) -> None:
        self._world = world
        self.requests: list[Logged] = []
        self.url = ""

    def answer(self, asked: Asked) -> Answer:
        with self._world.lock:
            self._world.settle()
            who = self._who(asked.key)
            answer = self._answer(asked, who)
            self.requests.append(
                Logged(
                    asked.method, asked.path, dict(asked.query), _json(asked), answer.status, who,
                )
            )  # fmt: skip
        return answer

    def _who(self, key: str) -> str:
        if key == self._world.account_key and not self._world.knobs.revoked:
            return "account"
        own = (str(e.id) for e in self._world.instances.values() if key and e.key == key)
        return next(own, "")

    def _answer(self, asked: Asked, who: str) -> Answer:
        knobs = self._world.knobs
        if asked.path.startswith("/_log/"):
            content = self._world.log_bytes.get(asked.path)
            return Answer(200, content, "text/plain") if content is not None else Answer(404)
        if knobs.down:
            return Answer(503, b"<html>upstream</html>", "text/html")
        if knobs.throttle > 0:
            knobs.throttle -= 1
            after = {"Retry-After": knobs.retry_after} if knobs.retry_after else {}
            text = b"API requests too frequent: endpoint threshold=4.5"
            return Answer(429, text, "text/plain", after)
        for method, pattern, act, own in self._table():
            found = re.fullmatch(pattern, asked.path)
            if found is None or asked.method != method:
                continue
            if who == "" or (who != "account" and not (own and found.group(1) == who)):
                return refused(401, "auth_error", "Invalid user key")
            if who != "account" and knobs.self_refused:
                return refused(403, "not_authorized", "this key may not")
            return act(asked, found, who)
        return refused(404, "not_found", f"no route {asked.method} {asked.path}")

    def _table(
        self,
    ) -> list[tuple[str, str, Callable[[Asked, re.Match[str], str], Answer], bool]]:
        """(method, path, what answers, whether an instance's own key may)."""
        one = r"/api/v0/instances/(\d+)/?"
        return [
            ("POST", r"/api/v0/bundles/?", self._search, False),
            ("PUT", r"/api/v0/asks/(\d+)/?", self._create, False),
            ("GET", r"/api/v1/instances/?", self._list, False),
            ("GET", one, self._show, True),
            ("DELETE", one, self._destroy, True),
            ("PUT", one, self._change, True),
            ("POST", r"/api/v0/instances/(\d+)/ssh/?", self._attach, False),
            ("GET", r"/api/v0/users/current/?", self._user, False),
            ("GET", r"/api/v0/charges/?", self._charges, False),
        ]

    # -- offers ----------------------------------------------------------------------------------

    def _search(self, asked: Asked, found: re.Match[str], who: str) -> Answer:
        query = _json(asked)
        if not isinstance(query, dict):
            return refused(400, "invalid_request", "Invalid json body")
        try:
            rows = self._world.offers(query)
        except (ValueError, KeyError, TypeError) as error:
            return refused(400, "invalid_args", f"error 400/1782: {error}")
        hidden = ("_datacenter",)
        return told(200, offers=[{k: v for k, v in r.items() if k not in hidden} for r in rows])

    # -- instances -------------------------------------------------------------------------------

    def _create(self, asked: Asked, found: re.Match[str], who: str) -> Answer:
        world, knobs, ask_id = self._world, self._world.knobs, int(found.group(1))
        body = _json(asked)
        if not isinstance(body, dict) or (wrong := _wrong(body)):
            what = wrong if isinstance(body, dict) else "invalid json"
            return refused(400, "invalid_args", f"error 400/3467: Invalid args: {what}")
        host = next((each for each in world.hosts if each.id == ask_id), None)
        if host is None or host.rented:
            text = f"error 404/3603: no_such_ask Instance type by id {ask_id} is not available."
            return refused(404, "invalid_args", text, ask_id=ask_id)
        if knobs.taken > 0:
            knobs.taken -= 1
            text = f"error 410/3907: no_such_ask Instance type {ask_id} is no longer available."
            return refused(410, "no_such_ask", text, ask_id=ask_id)
        if world.left() <= 0:
            text = "Your account lacks credit; see the billing page."
            return refused(400, "insufficient_credit", text)
        made = world.create(host, body)
        return told(200, success=True, new_contract=made.id, instance_api_key=made.key)

    def _list(self, asked: Asked, found: re.Match[str], who: str) -> Answer:
        knobs = self._world.knobs
        limit = min(PAGE, int(asked.query.get("limit", PAGE)))
        try:
            filters = json.loads(asked.query.get("select_filters", "{}"))
            json.loads(asked.query.get("order_by", "[]"))
            after = int(asked.query.get("after_token", "0"))
        except ValueError:
            return refused(400, "invalid_args", "error 400: invalid json")
        rows = [
            self._world.row(each)
            for each in self._world.living()
            if each.id > after and each.id not in knobs.vanish
        ]
        for name, asked_for in filters.items():
            rows = [row for row in rows if row.get(name) == asked_for.get("eq")]
        if knobs.list_omits > 0:
            knobs.list_omits -= 1
            rows = []
        page = rows[:limit]
        token = str(page[-1]["id"]) if len(rows) > limit else None
        return told(
            200, success=True, instances_found=len(page), total_instances=len(rows),
            label_counts={}, next_token=token, instances=page,
        )  # fmt: skip

    def _one(self, found: re.Match[str]) -> Instance | None:
        each = self._world.instances.get(int(found.group(1)))
        return each if each is not None and each.ended_at is None else None

    def _show(self, asked: Asked, found: re.Match[str], who: str) -> Answer:
        each = self._one(found)
        return told(200, instances=self._world.row(each) if each is not None else None)

    def _destroy(self, asked: Asked, found: re.Match[str], who: str) -> Answer:
        each = self._one(found)
        if each is None:
            return refused(404, "not_found", "Instance not found")
        self._world.destroy(each, "account" if who == "account" else "self")
        return told(200, success=True, msg="Instance destroyed successfully")

    def _change(self, asked: Asked, found: re.Match[str], who: str) -> Answer:
        each, body = self._one(found), _json(asked)
        if each is None or not isinstance(body, dict):
            return refused(404, "not_found", "Instance not found")
        if isinstance(body.get("label"), str):
            each.body["label"] = body["label"]
        if body.get("state") == "stopped":
            self._world.stop(each)
        return told(200, success=True)

    def _attach(self, asked: Asked, found: re.Match[str], who: str) -> Answer:
        each, body = self._one(found), _json(asked)
        if each is None:
            return refused(404, "not_found", "Instance not found")
        if not isinstance(body, dict) or not body.get("ssh_key"):
            return refused(400, "invalid_args", "ssh_key")
        each.keys.append(str(body["ssh_key"]))
        return told(200, success=True, msg="SSH key attached successfully")

    # -- money -----------------------------------------------------------------------------------

    def _user(self, asked: Asked, found: re.Match[str], who: str) -> Answer:
        left = round(self._world.left(), 6)
        return told(
            200, id=42, email="user@example.com", balance=0.0, credit=left, ssh_key="", sid="1"
        )

    def _charges(self, asked: Asked, found: re.Match[str], who: str) -> Answer:
        try:
            day = json.loads(asked.query["select_filters"])["day"]
            rows = self._world.charges(float(day["gte"]), float(day["lte"]))
        except (KeyError, ValueError, TypeError):
            text = "Must provide both 'day' gte and lte filters for instance charges"
            return told(400, success=False, msg=text)
        start, limit = int(asked.query.get("after_token", 0)), int(asked.query.get("limit", 100))
        page = rows[start : start + limit]
        token = str(start + limit) if len(rows) > start + limit else None
        return told(
            200, success=True, count=len(page), total=len(rows), next_token=token, results=page
        )


def _wrong(body: Mapping[str, Any]) -> str:
    """The published limit that a create breaks; empty where it breaks none."""
    env, args = body.get("env") or {}, body.get("args") or []
    if not body.get("image") or len(str(body["image"])) > 1024:
        return "image"
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        return "env"
    if sum(len(n) + len(v) for n, v in env.items()) > MOST_ENV:
        return "env is too long"
    if max((len(value) for value in env.values()), default=0) > MOST_VALUE:
        return "a value of env is too long"
    if not isinstance(args, list) or not all(isinstance(word, str) for word in args):
        return "args"
    if len(body.get("onstart") or "") + sum(map(len, args)) > MOST_ARGS:
        return "args is too long"
    if len(body.get("label") or "") > MOST_LABEL:
        return "label"
    if float(body.get("disk") or 10) < LEAST_DISK:
        return "disk"
    return ""
