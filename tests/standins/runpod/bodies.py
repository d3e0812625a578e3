"""Requests as RunPod's published contract demands them: what breaks it is named, for the 422.

Written from the contract as JSON Schema; where the contract itself is at hand, each request of a
test is judged by it too, and the two must agree.
"""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

ACTIONS = ("start", "stop", "restart", "terminate")
_TEXT, _FLAG, _NAME = {"type": "string"}, {"type": "boolean"}, {"type": "string", "minLength": 1}
_TEXTS = {"type": "array", "items": _TEXT}
_VERSION = {"type": "string", "pattern": r"^\d+\.\d+$"}


def _whole(least: int, most: int | None = None) -> dict[str, Any]:
    return {"type": "integer", "minimum": least} | ({"maximum": most} if most else {})


def _record(required: str = "", **fields: Any) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": fields,
        "required": required.split(),
        "additionalProperties": False,
    }


_CONTAINER: dict[str, Any] = {
    "image": _TEXT,
    "args": _TEXT,
    "cmd": _TEXTS,
    "entrypoint": _TEXTS,
    "disk": _whole(1),
    "env": {"type": "object", "additionalProperties": _TEXT},
    "ports": _TEXTS,
    "registry": {"type": ["string", "null"]},
    "mounts": _record(
        persistent=_record("size path", size=_whole(10), path=_TEXT),
        network={
            "type": "array",
            "items": _record("volumeId path", volumeId=_TEXT, path=_TEXT),
            "maxItems": 1,
        },
    ),
}
_GPU = _record(
    "id",
    id=_TEXT,
    count=_whole(1),
    allowedCudaVersions={"type": "array", "items": _VERSION},
    minCudaVersion=_VERSION,
    minRamPerGpu=_whole(1),
    minVcpuCountPerGpu=_whole(1),
)
_CREATE_POD = _record(
    "name",
    **_CONTAINER,
    name=_NAME,
    gpu=_GPU,
    cpu=_record("id vcpuCount", id=_NAME, vcpuCount=_whole(2)),
    cloud={"enum": ["SECURE", "COMMUNITY"]},
    dataCenterIds=_TEXTS,
    globalNetworking=_FLAG,
    startJupyter=_FLAG,
    startSsh=_FLAG,
    templateId=_NAME,
)
_SCHEMAS = {
    "create pod": _CREATE_POD | {"anyOf": [{"required": ["image"]}, {"required": ["templateId"]}]},
    "pod action": _record("action", action={"enum": list(ACTIONS)}),
    "create volume": _record(
        "name size dataCenter",
        name=_NAME,
        size=_whole(10, 4096),
        dataCenter=_NAME,
        type={"enum": ["STANDARD", "HIGH_PERFORMANCE"]},
    ),
    "update volume": _record(name=_NAME, size=_whole(10, 4096)) | {"minProperties": 1},
}
_VALIDATORS = {name: Draft202012Validator(schema) for name, schema in _SCHEMAS.items()}


def wrong_with(name: str, body: Any) -> list[str]:
    """What breaks the contract's schema of that name; empty where nothing does."""
    return [f"{error.json_path}: {error.message}" for error in _VALIDATORS[name].iter_errors(body)]
