"""Requests as RunPod's published contract demands them: what breaks it is named, for the 422.

Written from the contract; where the contract itself is at hand, each request of a test is judged
by it too, and the two must agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any, str], list[str]]

ACTIONS = ("start", "stop", "restart", "terminate")
_KEY = re.compile(r"^(ssh|ecdsa|sk)-[^\s]+ [^\s]+([ \t][^\n\r]*)?$")
_VERSION = re.compile(r"^\d+\.\d+$")


def text(least: int = 0) -> Check:
    def check(value: Any, at: str) -> list[str]:
        if not isinstance(value, str):
            return [f"{at}: expected string"]
        return [f"{at}: at least {least} characters"] if len(value) < least else []

    return check


def whole(least: int | None = None, most: int | None = None) -> Check:
    def check(value: Any, at: str) -> list[str]:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or value != int(value):
            return [f"{at}: expected integer"]
        if least is not None and value < least:
            return [f"{at}: must be >= {least}"]
        return [f"{at}: must be <= {most}"] if most is not None and value > most else []

    return check


def flag(value: Any, at: str) -> list[str]:
    return [] if isinstance(value, bool) else [f"{at}: expected boolean"]


def one_of(*names: str) -> Check:
    def check(value: Any, at: str) -> list[str]:
        return [] if value in names else [f"{at}: must be one of {', '.join(names)}"]

    return check


def matching(pattern: re.Pattern[str]) -> Check:
    def check(value: Any, at: str) -> list[str]:
        if not isinstance(value, str):
            return [f"{at}: expected string"]
        return [] if pattern.search(value) else [f"{at}: does not match {pattern.pattern}"]

    return check


def or_null(inner: Check) -> Check:
    return lambda value, at: [] if value is None else inner(value, at)


def items(inner: Check, most: int | None = None) -> Check:
    def check(value: Any, at: str) -> list[str]:
        if not isinstance(value, list):
            return [f"{at}: expected array"]
        wrong = [error for i, item in enumerate(value) for error in inner(item, f"{at}[{i}]")]
        if most is not None and len(value) > most:
            wrong.append(f"{at}: at most {most} items")
        return wrong

    return check


def strings(value: Any, at: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{at}: expected object"]
    return [f"{at}.{key}: expected string" for key, v in value.items() if not isinstance(v, str)]


def record(fields: Mapping[str, Check], required: tuple[str, ...] = ()) -> Check:
    """An object with these fields and no others."""

    def check(value: Any, at: str) -> list[str]:
        if not isinstance(value, dict):
            return [f"{at}: expected object"]
        wrong = [
            f"{at}: additional properties '{key}' not allowed" for key in value if key not in fields
        ]
        wrong += [f"{at}: missing property '{key}'" for key in required if key not in value]
        for key, inner in fields.items():
            if key in value:
                wrong += inner(value[key], f"{at}.{key}")
        return wrong

    return check


_CONTAINER: Mapping[str, Check] = {
    "image": text(),
    "args": text(),
    "cmd": items(text()),
    "entrypoint": items(text()),
    "disk": whole(1),
    "env": strings,
    "ports": items(text()),
    "registry": or_null(text()),
}
_MOUNTS = record(
    {
        "persistent": record({"size": whole(10), "path": text()}, ("size", "path")),
        "network": items(
            record({"volumeId": text(), "path": text()}, ("volumeId", "path")), most=1
        ),
    }
)
_GPU = record(
    {
        "id": text(),
        "count": whole(1),
        "allowedCudaVersions": items(matching(_VERSION)),
        "minCudaVersion": matching(_VERSION),
        "minRamPerGpu": whole(1),
        "minVcpuCountPerGpu": whole(1),
    },
    ("id",),
)
_CPU = record({"id": text(1), "vcpuCount": whole(2)}, ("id", "vcpuCount"))
_CREATE_POD = record(
    {
        **_CONTAINER,
        "name": text(1),
        "gpu": _GPU,
        "cpu": _CPU,
        "cloud": one_of("SECURE", "COMMUNITY"),
        "dataCenterIds": items(text()),
        "globalNetworking": flag,
        "mounts": _MOUNTS,
        "startJupyter": flag,
        "startSsh": flag,
        "templateId": text(1),
    },
    ("name",),
)


def create_pod(value: Any, at: str = "$") -> list[str]:
    wrong = _CREATE_POD(value, at)
    if isinstance(value, dict) and "templateId" not in value and "image" not in value:
        wrong.append(f"{at}: missing property 'image'")
    return wrong


update_pod = record(
    {
        **_CONTAINER,
        "name": text(1),
        "locked": flag,
        "globalNetworking": flag,
        "mounts": _MOUNTS,
        "templateId": text(),
    }
)
pod_action = record({"action": one_of(*ACTIONS)}, ("action",))
ssh_keys = record({"keys": items(matching(_KEY))}, ("keys",))
create_volume = record(
    {
        "name": text(1),
        "size": whole(10, 4096),
        "dataCenter": text(1),
        "type": one_of("STANDARD", "HIGH_PERFORMANCE"),
    },
    ("name", "size", "dataCenter"),
)
_UPDATE_VOLUME = record({"name": text(1), "size": whole(10, 4096)})


def update_volume(value: Any, at: str = "$") -> list[str]:
    wrong = _UPDATE_VOLUME(value, at)
    return wrong or ([f"{at}: at least one property is needed"] if not value else [])
