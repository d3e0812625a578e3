"""REST v2: paths, bodies and answers of pods and volumes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.standins.runpod import bodies, catalog, commands, pages, rest_billing, rest_catalog
from tests.standins.runpod.http_types import nothing, problem, reply
from tests.standins.runpod.pods import ACTIONS, HTTP_IP, HTTP_PORT, Pod, Volume
from tests.standins.runpod.world import Context, Refused
from tests.standins.web import Answer, Asked

LOG_POLL_S = 0.1
Route = Callable[..., Answer]


def stamp(at: float) -> str:
    """RFC 3339 in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


class Rest:
    def __init__(self, world: Context) -> None:
        self._world = world
        billed, listed = rest_billing.Billing(world), rest_catalog.Catalog(world)
        self._routes: list[tuple[re.Pattern[str], dict[str, Route]]] = [
            (re.compile(f"^{path}$"), verbs)
            for path, verbs in (
                ("/v2/pods", {"GET": self._list, "POST": self._create}),
                ("/v2/pods/([^/]+)", {"GET": self._get, "DELETE": self._delete}),
                ("/v2/pods/([^/]+)/action", {"POST": self._action}),
                ("/v2/pods/([^/]+)/logs", {"GET": self._logs}),
                ("/v2/network-volumes", {"GET": self._volumes, "POST": self._create_volume}),
                (
                    "/v2/network-volumes/([^/]+)",
                    {
                        "GET": self._volume,
                        "PATCH": self._patch_volume,
                        "DELETE": self._delete_volume,
                    },
                ),
                ("/v2/catalog/gpus", {"GET": listed.gpus}),
                ("/v2/billing/pods", {"GET": billed.pods}),
                ("/v2/billing/balance", {"GET": self._balance}),
                ("/v2/account/limits", {"GET": self._limits}),
            )
        ]

    def answer(self, asked: Asked) -> Answer:
        for pattern, verbs in self._routes:
            match = pattern.match(asked.path)
            if match is None:
                continue
            route = verbs.get(asked.method)
            if route is None:
                return problem(405, "method not allowed")
            refusal = self._refusal(asked, match.groups())
            if refusal is not None:
                return refusal
            try:
                return route(asked, *match.groups())
            except Refused as refused:
                return problem(refused.status, refused.detail)
        return problem(404, "resource not found")

    def _refusal(self, asked: Asked, parts: tuple[str, ...]) -> Answer | None:
        """What this key may not do."""
        knobs = self._world.knobs
        if asked.who == "account":
            if knobs.read_only and asked.method != "GET":
                return problem(403, "this key may only read")
            return None
        mine = asked.path.startswith("/v2/pods/") and parts[:1] == (asked.who,)
        allowed = {
            "GET": True,
            "DELETE": knobs.self_delete,
            "POST": knobs.self_action,
        }.get(asked.method, False)
        return None if mine and allowed else problem(403, "access denied")

    # -- pods ------------------------------------------------------------------------------

    def _list(self, asked: Asked) -> Answer:
        knobs = self._world.knobs
        pods = [pod for pod in self._world.listed() if pod.name not in knobs.list_omits]
        if knobs.use("list_empty"):
            pods = []
        return pages.page(asked, pods, knobs, self.shown)

    def _create(self, asked: Asked) -> Answer:
        body = asked.json()
        wrong = bodies.wrong_with("create pod", body)
        if wrong:
            return problem(422, "Request validation failed.", wrong)
        knobs = self._world.knobs
        if "templateId" in body:
            return problem(404, "template not found")
        try:
            body = {**body, "args": commands.stored(body)}
        except ValueError as error:
            return problem(400, str(error))
        if commands.deployment_bytes(body) > commands.LIMIT_BYTES:
            return problem(413, f"the expanded request exceeds {commands.LIMIT_BYTES} bytes")
        if knobs.create_refused:
            answer = problem(knobs.create_refused, "refused by a knob")
            answer.forced = True
            return answer
        return reply(self.shown(self._world.create(body)), 201)

    def _get(self, asked: Asked, pod_id: str) -> Answer:
        return reply(self.shown(self._world.find(pod_id)))

    def _delete(self, asked: Asked, pod_id: str) -> Answer:
        return self._spoilt_delete() or self._deleted(asked, pod_id)

    def _deleted(self, asked: Asked, pod_id: str) -> Answer:
        self._world.delete(pod_id, by=by_whom(asked))
        return nothing()

    def _spoilt_delete(self) -> Answer | None:
        return nothing() if self._world.knobs.use("delete_noop") else None

    def _action(self, asked: Asked, pod_id: str) -> Answer:
        body = asked.json()
        wrong = bodies.wrong_with("pod action", body)
        if wrong:
            return problem(422, "Request validation failed.", wrong)
        if body["action"] == "terminate":
            self._world.find(pod_id)
            return self._spoilt_delete() or self._deleted(asked, pod_id)
        pod = self._world.act(pod_id, body["action"], by=by_whom(asked))
        return reply(self.shown(pod)) if pod is not None else nothing()

    def _logs(self, asked: Asked, pod_id: str) -> Answer:
        pod = self._world.find(pod_id)
        if self._world.knobs.logs_status:
            answer = problem(self._world.knobs.logs_status, "refused by a knob")
            answer.forced = True
            return answer
        tail = asked.query.get("tail", "100")
        if not tail.isdigit() or int(tail) > 5000:
            return problem(422, "Request validation failed.", ["tail: 0 to 5000"])
        return Answer(
            200, content_type="text/event-stream", stream=lambda: self._lines(pod, int(tail))
        )

    def _lines(self, pod: Pod, tail: int) -> Iterator[bytes]:
        with self._world.lock:
            shown = pod.lines
            first = list(pod.log)[-tail:] if tail else []
        while True:
            for at, number, source, line in first:
                data = json.dumps({"ts": stamp(at), "source": source, "line": line})
                yield f"id: {stamp(at)}/{number:012d}\ndata: {data}\n\n".encode()
                shown = max(shown, number)
            if not pod.alive:
                return
            time.sleep(LOG_POLL_S)
            with self._world.lock:
                first = [line for line in pod.log if line[1] > shown]
            if not first:
                yield b": keep-alive\n\n"

    def shown(self, pod: Pod) -> dict[str, Any]:
        """The pod as v2 shows it."""
        body, at = pod.body, self._world.now()
        up = pod.status == "RUNNING" and pod.started_at is not None and not pod.host_lost
        since = at - (pod.started_at or at)
        mapped = []
        known = up and since >= pod.ssh_after_s
        if known:
            found = ((port, self._world.machines.address(pod, port)) for port in pod.tcp_ports)
            mapped = [(port, *address) for port, address in found if address is not None]
        command = commands.read(body.get("args", ""))
        early = self._world.knobs.says_running and pod.status in ("PROVISIONING", "STARTING")
        status = "RUNNING" if early else pod.status
        ssh = next(((host, public) for private, host, public in mapped if private == 22), None)
        if pod.stuck:
            ssh = None
        shown: dict[str, Any] = {
            "id": pod.id,
            "name": pod.name,
            "status": status,
            "actions": list(ACTIONS[status]),
            "image": body.get("image", ""),
            "args": body.get("args", ""),
            "entrypoint": command.entrypoint,
            "cmd": command.cmd,
            "disk": int(body.get("disk", 50)),
            "env": body.get("env", {}),
            "ports": body.get("ports", []),
            "registry": body.get("registry"),
            "mounts": body["mounts"],
            "cloud": pod.cloud,
            "dataCenterId": pod.data_center,
            "cudaVersion": pod.cuda,
            "ssh": {
                "proxy": endpoint("ssh.runpod.io", 22, f"{pod.id}-{pod.host}", proxy=True),
                "direct": endpoint(ssh[0], ssh[1], "root") if ssh is not None else None,
            },
            "template": None,
            "cost": 0.0 if pod.status in ("EXITED", "TERMINATED") else pod.rate,
            "locked": False,
            "globalNetworking": {"enabled": False},
            "runtime": None,
            "createdAt": stamp(pod.created_at),
            "startedAt": stamp(pod.started_at) if pod.started_at is not None else None,
        }
        vcpus, memory_gb = catalog.host(pod.gpu_id)
        shown["gpu"] = {
            "id": pod.gpu_id,
            "count": pod.gpu_count,
            "vcpuCount": vcpus * pod.gpu_count,
            "memory": memory_gb * pod.gpu_count,
        }
        if known:
            shown["runtime"] = {
                "uptime": max(0, int(since)),
                "gpus": [{"util": 0, "memoryUtil": 0}] * pod.gpu_count,
                "cpu": {"util": 1},
                "memory": {"util": 1},
                "ports": [
                    {"private": private, "public": public, "type": "tcp", "ip": host}
                    for private, host, public in mapped
                ]
                + [
                    {"private": port, "public": HTTP_PORT, "type": "http", "ip": HTTP_IP}
                    for port in pod.http_ports
                ],
            }
        return shown

    # -- money: by the reference of 2026-11-18, which shows neither path nor the limits' fields ----

    def _balance(self, asked: Asked) -> Answer:
        body = {
            "balanceAmount": round(self._world.balance, 6),
            "billingMode": self._world.knobs.billing_mode,
        }
        return self._money(body)

    def _limits(self, asked: Asked) -> Answer:
        spending = {"limit": self._world.spend_limit, "current": round(self._world.rate(), 6)}
        return self._money({"spendRate": spending, "serverlessWorkers": {}})

    def _money(self, body: dict[str, Any]) -> Answer:
        if self._world.knobs.money_absent:
            return problem(404, "resource not found")
        if self._world.knobs.money_denied:
            return problem(403, "insufficient access")
        return reply(body)

    # -- volumes -----------------------------------------------------------------------------

    def _volumes(self, asked: Asked) -> Answer:
        self._world.settle()
        volumes = [shown_volume(volume) for volume in self._world.volumes.values()]
        return pages.volume_page(asked, volumes, self._world.knobs.volume_page)

    def _create_volume(self, asked: Asked) -> Answer:
        body = asked.json()
        wrong = bodies.wrong_with("create volume", body)
        if wrong:
            return problem(422, "Request validation failed.", wrong)
        return reply(shown_volume(self._world.create_volume(body)), 201)

    def _volume(self, asked: Asked, volume_id: str) -> Answer:
        return reply(shown_volume(self._world.find_volume(volume_id)))

    def _patch_volume(self, asked: Asked, volume_id: str) -> Answer:
        changes = asked.json()
        wrong = bodies.wrong_with("update volume", changes)
        if wrong:
            return problem(422, "Request validation failed.", wrong)
        return reply(shown_volume(self._world.update_volume(volume_id, changes)))

    def _delete_volume(self, asked: Asked, volume_id: str) -> Answer:
        self._world.delete_volume(volume_id)
        return nothing()


def by_whom(asked: Asked) -> str:
    return "api" if asked.who == "account" else "self"


def endpoint(host: str, port: int, user: str, proxy: bool = False) -> dict[str, Any]:
    command = f"ssh {user}@{host}" + ("" if proxy else f" -p {port}")
    return {"host": host, "port": port, "username": user, "command": command}


def shown_volume(volume: Volume) -> dict[str, Any]:
    return {
        "id": volume.id,
        "name": volume.name,
        "size": volume.size,
        "dataCenter": volume.data_center,
        "type": volume.kind,
    }
