"""GraphQL at /graphql: the old API, of which the SDK and the account's balance still need parts.

Errors come in a 200, a wrong key is a 401, and a terminateAfter is taken and forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphql import GraphQLError

from tests.standins.runpod import catalog
from tests.standins.runpod.graphql_text import Field, parse
from tests.standins.runpod.http_types import problem, reply
from tests.standins.runpod.pods import HTTP_IP, HTTP_PORT, Pod
from tests.standins.runpod.rest import by_whom, stamp
from tests.standins.runpod.world import Context, Refused
from tests.standins.web import Answer, Asked

DESIRED = {
    "PROVISIONING": "RUNNING",
    "STARTING": "RUNNING",
    "RUNNING": "RUNNING",
    "EXITED": "EXITED",
    "ERROR": "RUNNING",
    "TERMINATED": "TERMINATED",
}
Resolver = Callable[[Mapping[str, Any], Asked], Any]


class Wrong(Exception):
    def __init__(self, message: str, code: str = "BAD_USER_INPUT") -> None:
        super().__init__(message)
        self.code = code


class GraphQL:
    def __init__(self, world: Context) -> None:
        self._world = world
        self._resolvers: dict[str, dict[str, Resolver]] = {
            "query": {"myself": self._myself, "pod": self._pod},
            "mutation": {"podTerminate": self._terminate},
        }

    def answer(self, asked: Asked) -> Answer:
        knobs = self._world.knobs
        if knobs.graphql_gone:
            return problem(410, "the GraphQL API has been retired: use REST v2")
        if knobs.graphql_throttled:
            answer = problem(429, "rate limit exceeded")
            answer.headers["Retry-After"] = str(knobs.retry_after_s)
            return answer
        body = asked.json()
        if not isinstance(body, dict) or not isinstance(body.get("query"), str):
            return problem(400, "POST body missing")
        try:
            kind, fields = parse(body["query"], body.get("variables") or {})
        except GraphQLError as error:
            return _errors(error.message, "GRAPHQL_PARSE_FAILED")
        known = self._resolvers[kind]
        if not asked.who:
            return Answer(401, b'{"message": "Unauthorized"}')
        if self._world.knobs.use("graphql_errors"):
            return _errors(
                "Something went wrong. Please try again later or contact support.",
                "INTERNAL_SERVER_ERROR",
                fields[0].name,
            )
        data: dict[str, Any] = {}
        for field in fields:
            if field.name not in known:
                return _errors(
                    f'Cannot query field "{field.name}" on type "{kind.title()}".',
                    "GRAPHQL_VALIDATION_FAILED",
                )
            try:
                value = known[field.name](field.arguments.get("input") or {}, asked)
                data[field.alias] = select(value, field, field.name)
            except Wrong as error:
                return _errors(str(error), error.code, field.alias)
            except Refused as error:
                return _errors(error.detail, "INTERNAL_SERVER_ERROR", field.alias)
        return reply({"data": data})

    # -- queries ---------------------------------------------------------------------------

    def _myself(self, given: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
        if asked.who != "account":
            raise Wrong("Unauthorized", "UNAUTHORIZED")
        world = self._world
        pods = [self._shown(pod) for pod in world.listed()]
        return {
            "id": "user_standin",
            "clientBalance": round(world.balance, 6),
            "currentSpendPerHr": round(world.rate(), 6),
            "spendLimit": world.spend_limit,
            "pods": [] if world.knobs.use("list_empty") else pods,
        }

    def _pod(self, given: Mapping[str, Any], asked: Asked) -> dict[str, Any] | None:
        if asked.who not in ("account", given.get("podId")):
            raise Wrong("Unauthorized", "UNAUTHORIZED")
        try:
            return self._shown(self._world.find(str(given.get("podId"))))
        except Refused:
            return None

    # -- mutations -------------------------------------------------------------------------

    def _terminate(self, given: Mapping[str, Any], asked: Asked) -> None:
        pod_id = str(given.get("podId"))
        self._may_end(pod_id, asked)
        knobs = self._world.knobs
        if knobs.use("delete_noop"):
            return
        if pod_id not in self._world.pods:
            raise Wrong("pod not found to terminate", "RUNPOD")
        self._world.delete(pod_id, by=by_whom(asked))

    def _may_write(self, asked: Asked) -> None:
        if asked.who != "account" or self._world.knobs.read_only:
            raise Wrong("Unauthorized", "UNAUTHORIZED")

    def _may_end(self, pod_id: str, asked: Asked) -> None:
        if asked.who == pod_id and self._world.knobs.self_graphql:
            return
        self._may_write(asked)

    def _shown(self, pod: Pod) -> dict[str, Any]:
        body, up = pod.body, pod.status == "RUNNING" and not pod.host_lost
        gpu = catalog.gpu(pod.gpu_id)
        runtime = None
        if up:
            found = {port: self._world.machines.address(pod, port) for port in pod.tcp_ports}
            ports = [(at[0], True, port, at[1], "tcp") for port, at in found.items() if at]
            ports += [(HTTP_IP, False, port, HTTP_PORT, "http") for port in pod.http_ports]
            names = ("ip", "isIpPublic", "privatePort", "publicPort", "type")
            runtime = {
                "uptimeInSeconds": int(self._world.now() - (pod.started_at or 0)),
                "ports": [dict(zip(names, port, strict=True)) for port in ports],
                "gpus": [],
                "container": {"cpuPercent": 1, "memoryPercent": 1},
            }
        return {
            "id": pod.id,
            "name": pod.name,
            "imageName": body.get("image"),
            "dockerArgs": body.get("args"),
            "dockerId": None,
            "env": [f"{key}={value}" for key, value in body.get("env", {}).items()],
            "desiredStatus": DESIRED[pod.status],
            "lastStatusChange": stamp(pod.started_at or pod.created_at),
            "costPerHr": 0.0 if pod.status == "EXITED" else pod.rate,
            "gpuCount": pod.gpu_count,
            "vcpuCount": 8,
            "memoryInGb": 64,
            "containerDiskInGb": body.get("disk", 50),
            "volumeInGb": pod.persistent_gb,
            "volumeMountPath": pod.mount_path,
            "networkVolumeId": pod.volume_id or None,
            "machineId": pod.host,
            "machine": {
                "gpuDisplayName": gpu.name if gpu else None,
                "location": pod.data_center,
                "podHostId": f"{pod.id}-{pod.host}",
            },
            "containerRegistryAuthId": None,
            "podType": "RESERVED",
            "port": None,
            "ports": ",".join(body.get("ports", [])),
            "uptimeSeconds": 0,
            "createdAt": stamp(pod.created_at),
            "runtime": runtime,
        }


def select(value: Any, field: Field, path: str) -> Any:
    """What was asked of a value; Wrong where a field does not exist."""
    if value is None or not field.fields:
        return value
    if isinstance(value, list):
        return [select(item, field, path) for item in value]
    chosen = {}
    for inner in field.fields:
        if inner.name not in value:
            raise Wrong(
                f'Cannot query field "{inner.name}" on "{path}".', "GRAPHQL_VALIDATION_FAILED"
            )
        chosen[inner.alias] = select(value[inner.name], inner, f"{path}.{inner.name}")
    return chosen


def _errors(message: str, code: str, path: str = "") -> Answer:
    error: dict[str, Any] = {"message": message, "extensions": {"code": code}}
    if path:
        error["path"] = [path]
    return reply({"errors": [error], "data": {path: None} if path else None})
