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

DEPLOY_INPUT = frozenset(
    {
        *("name", "imageName", "gpuTypeId", "gpuCount", "cloudType", "containerDiskInGb"),
        *("volumeInGb", "volumeMountPath", "networkVolumeId", "ports", "env", "dockerArgs"),
        *("startSsh", "startJupyter", "supportPublicIp", "minVcpuCount", "minMemoryInGb"),
        *("minDownload", "minUpload", "allowedCudaVersions", "minCudaVersion", "cudaVersion"),
        *("dataCenterId", "countryCode", "templateId", "containerRegistryAuthId", "deployCost"),
        *("compliance", "stopAfter", "terminateAfter"),
    }
)
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
            "query": {"myself": self._myself, "pod": self._pod, "gpuTypes": self._gpu_types},
            "mutation": {
                "podFindAndDeployOnDemand": self._deploy,
                "podTerminate": self._terminate,
                "updateUserSettings": self._settings,
            },
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
        if not asked.who and [field.name for field in fields] != ["gpuTypes"]:
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
        volumes = [
            {"id": v.id, "name": v.name, "size": v.size, "dataCenterId": v.data_center}
            for v in world.volumes.values()
        ]
        return {
            "id": "user_standin",
            "email": None,
            "pubKey": "\n".join(world.ssh_keys) or None,
            "clientBalance": round(world.balance, 6),
            "currentSpendPerHr": round(world.rate(), 6),
            "spendLimit": world.spend_limit,
            "networkVolumes": volumes,
            "podTemplates": [],
            "pods": [] if world.knobs.use("list_empty") else pods,
        }

    def _pod(self, given: Mapping[str, Any], asked: Asked) -> dict[str, Any] | None:
        if asked.who not in ("account", given.get("podId")):
            raise Wrong("Unauthorized", "UNAUTHORIZED")
        try:
            return self._shown(self._world.find(str(given.get("podId"))))
        except Refused:
            return None

    def _gpu_types(self, given: Mapping[str, Any], asked: Asked) -> list[dict[str, Any]]:
        kinds = [gpu for gpu in catalog.GPUS if given.get("id") in (None, gpu.id)]
        return [
            {
                "id": gpu.id,
                "displayName": gpu.name,
                "manufacturer": gpu.manufacturer,
                "memoryInGb": gpu.memory_gb,
                "cudaCores": 0,
                "maxGpuCount": gpu.max_secure,
                "secureCloud": gpu.secure > 0,
                "communityCloud": gpu.community > 0,
                "securePrice": gpu.secure,
                "communityPrice": gpu.community,
                "secureSpotPrice": None,
                "communitySpotPrice": None,
                "oneWeekPrice": None,
                "oneMonthPrice": None,
                "threeMonthPrice": None,
                "lowestPrice": {
                    "minimumBidPrice": None,
                    "uninterruptablePrice": gpu.secure,
                    "minVcpu": 8,
                    "minMemory": 64,
                    "stockStatus": gpu.stock.title(),
                },
            }
            for gpu in kinds
        ]

    # -- mutations -------------------------------------------------------------------------

    def _deploy(self, given: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
        self._may_write(asked)
        unknown = set(given) - DEPLOY_INPUT
        if unknown:
            raise Wrong(
                f'Field "{min(unknown)}" is not defined by type "PodFindAndDeployOnDemandInput".'
            )
        knobs = self._world.knobs
        if knobs.use("create_500"):
            raise Wrong("Something went wrong.", "INTERNAL_SERVER_ERROR")
        body = self._as_rest(given)
        clouds = {"ALL": ("SECURE", "COMMUNITY")}.get(str(given.get("cloudType", "ALL")))
        for cloud in clouds or (given["cloudType"],):
            try:
                pod = self._world.create({**body, "cloud": cloud})
                break
            except Refused as error:
                refused = error
        else:
            raise refused
        if knobs.use("create_500_but_made"):
            raise Wrong("Something went wrong.", "INTERNAL_SERVER_ERROR")
        return self._shown(pod)

    def _as_rest(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The same wish in v2's words; the timers have none."""
        places = [given["dataCenterId"]] if given.get("dataCenterId") else []
        body: dict[str, Any] = {
            "name": given.get("name", ""),
            "image": given.get("imageName", ""),
            "args": given.get("dockerArgs", ""),
            "disk": given.get("containerDiskInGb") or 10,
            "env": {pair["key"]: pair["value"] for pair in given.get("env") or []},
            "ports": [port for port in (given.get("ports") or "").split(",") if port],
            "gpu": {"id": given.get("gpuTypeId", ""), "count": given.get("gpuCount") or 1},
            "dataCenterIds": places,
            "startSsh": bool(given.get("startSsh")),
        }
        for name in ("minCudaVersion", "allowedCudaVersions"):
            if given.get(name):
                body["gpu"][name] = given[name]
        path = given.get("volumeMountPath") or "/runpod-volume"
        if given.get("networkVolumeId"):
            body["mounts"] = {"network": [{"volumeId": given["networkVolumeId"], "path": path}]}
        elif given.get("volumeInGb"):
            body["mounts"] = {"persistent": {"size": max(10, given["volumeInGb"]), "path": path}}
        return body

    def _terminate(self, given: Mapping[str, Any], asked: Asked) -> None:
        pod_id = str(given.get("podId"))
        self._may_end(pod_id, asked)
        knobs = self._world.knobs
        if knobs.use("delete_500"):
            raise Wrong("Something went wrong.", "INTERNAL_SERVER_ERROR")
        if knobs.use("delete_noop"):
            return
        if knobs.use("delete_404") or pod_id not in self._world.pods:
            raise Wrong("pod not found to terminate", "RUNPOD")
        self._world.delete(pod_id, by=by_whom(asked))

    def _settings(self, given: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
        self._may_write(asked)
        self._world.ssh_keys[:] = [key for key in str(given.get("pubKey") or "").split("\n") if key]
        return {"id": "user_standin", "pubKey": given.get("pubKey")}

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
