"""A create in RunPod's words: what the pod is, and what its agent is told."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.errors import NotSupported
from trmcloud.core.storage import asked_work_gb, prices_of
from trmcloud.ports.compute import PodKeys, PodRequest
from trmcloud.providers.runpod.bundle import ENTRYPOINT, boot_command, boot_environment
from trmcloud.providers.runpod.http import compact
from trmcloud.providers.runpod.offers import RUNPOD_IDS
from trmcloud.providers.runpod.secrets import IMAGE, IMAGE_TORCH

WORKSPACE = "/workspace"
MAX_ENV = 50
"""RunPod takes no more variables than this."""
LIMIT_BODY_BYTES = 102_400
"""A create beyond this is answered with 413 before its key is looked at, and so is what RunPod
makes of it."""
MAX_BODY_BYTES = 95_000
"""What we send at most: what RunPod makes of it is a little longer."""
ANYWHERE = ("", "any")
_SKU_IDS: Mapping[str, str] = {sku: gpu_id for gpu_id, sku in RUNPOD_IDS.items()}


class CreateRequests:
    """Writes ``CreatePodRequest``: ``keys`` gives a pod's SSH keys by its name; ``payload`` is
    ``bundle.boot_payload``; ``environment`` is added to every pod's (never a key of the
    account's)."""

    def __init__(
        self,
        keys: Callable[[str], PodKeys],
        payload: Callable[[], bytes],
        image: str,
        environment: Mapping[str, str],
    ) -> None:
        self._keys = keys
        self._payload = payload
        self._image = image
        self._environment = dict(environment)

    def body(self, request: PodRequest) -> dict[str, Any]:
        """``CreatePodRequest`` for a pod.

        Raises:
            NotSupported: RunPod rents no such GPU, or does not take a request of this size.
        """
        gpu_id = _SKU_IDS.get(request.sku)
        if gpu_id is None:
            raise NotSupported(
                f"RunPod has no {request.sku} that this version knows",
                next_step=f"one of: {', '.join(sorted(_SKU_IDS))}",
            )
        boot = boot_environment(self._payload())
        environment = {**self._environment, **boot, **self._words(request)}
        if len(environment) > MAX_ENV:
            raise NotSupported(f"{len(environment)} variables are more than a RunPod pod takes")
        if request.volume:
            mounts: dict[str, Any] = {"network": [{"volumeId": request.volume, "path": WORKSPACE}]}
        else:
            size = asked_work_gb("runpod", request.disk_gb)
            mounts = {"persistent": {"size": size, "path": WORKSPACE}}
        gpu: dict[str, Any] = {"id": gpu_id, "count": request.gpus}
        if request.min_cuda:
            gpu["minCudaVersion"] = request.min_cuda
        body: dict[str, Any] = {
            "name": request.name,
            "image": request.image or self._image,
            "entrypoint": list(ENTRYPOINT),
            "cmd": boot_command(),
            "gpu": gpu,
            "cloud": "COMMUNITY" if request.community else "SECURE",
            "disk": prices_of("runpod").system_gb,
            "mounts": mounts,
            "ports": [f"{contract.POD_SSH_PORT}/tcp"],
            "startSsh": False,
            "env": environment,
        }
        if request.region not in ANYWHERE:
            body["dataCenterIds"] = [request.region]
        size = len(compact(body))
        if size > MAX_BODY_BYTES:
            raise NotSupported(
                f"the request for this pod is {size:,} bytes; RunPod takes {LIMIT_BODY_BYTES:,}, "
                f"of which we use {MAX_BODY_BYTES:,} ({len(boot[contract.ENV_BOOT]):,} are the "
                "agent's sources): nothing was asked for",
                next_step="fewer phases, shorter names, or a trainer that imports less of trmcloud",
            )
        return body

    def _check(self, request: PodRequest) -> dict[str, Any]:
        """What the pod must be, and what its image must bring where that is known."""
        if not request.check or (request.image or self._image) != IMAGE:
            return dict(request.check)
        return {**request.check, "torch": IMAGE_TORCH}

    def _words(self, request: PodRequest) -> dict[str, str]:
        """What the pod's agent is told. The host key is the pod's own, and opens nothing else."""
        keys = self._keys(request.name)
        jobs = "[" + ",".join(contract.dump(job) for job in request.jobs) + "]"
        return {
            contract.ENV_POD: request.name,
            contract.ENV_PROVIDER: "runpod",
            contract.ENV_ROOT: contract.POD_ROOT,
            contract.ENV_LEASE: _packed(contract.dump(request.lease)),
            contract.ENV_JOBS: _packed(jobs),
            contract.ENV_CHECK: _packed(compact(self._check(request))),
            contract.ENV_HOST_KEY: _packed(keys.host_private),
            contract.ENV_AUTHORIZED_KEY: keys.user_public.strip(),
        }


def _packed(text: str) -> str:
    return base64.b64encode(text.encode("utf-8")).decode("ascii")
