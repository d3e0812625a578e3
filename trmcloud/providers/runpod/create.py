"""A create in RunPod's words: the pod, its agent's environment, and its first command.

The agent's sources are one variable, and the command unpacks them. They travel in the create and
not over SSH, so that the agent, which alone can end the pod without us, runs from the container's
first second. An image needs /bin/sh and a python3 of 3.10 or newer with its standard library; no
bash, base64, tar, gzip, xz or curl.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.pod_contract import ENV_BOOT, ENV_LINGER_S
from trmcloud.core.errors import NotSupported
from trmcloud.core.storage import asked_work_gb, prices_of
from trmcloud.operations.sending import packing
from trmcloud.operations.sending.packing import POD_ENTRY, POD_PREFIX, start_script
from trmcloud.ports.compute import PodKeys, PodRequest
from trmcloud.providers.runpod import self_end
from trmcloud.providers.runpod.http import compact
from trmcloud.providers.runpod.offers import RUNPOD_IDS
from trmcloud.providers.runpod.traits import NAME

WORKSPACE = "/workspace"
AS_ROOT = {"RUNPOD_POD_USER": "0"}
"""RunPod starts the container as this user, whatever its image says (dstack's #2286, which sets it
too): another one could not open port 22 nor write below /workspace."""
MAX_ENV = 50
"""RunPod takes no more variables than this."""
LIMIT_BODY_BYTES = 102_400
"""A create beyond this is answered with 413 before its key is looked at, and so is what RunPod
makes of it."""
MAX_BODY_BYTES = 95_000
"""The most that we send: RunPod's own form of it is a little longer."""
ANYWHERE = ("", "any")
_SKU_IDS: Mapping[str, str] = {sku: gpu_id for gpu_id, sku in RUNPOD_IDS.items()}


def create_body(
    request: PodRequest,
    keys: Callable[[str], PodKeys],
    payload: bytes,
    image: str,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """``CreatePodRequest`` for a pod. ``keys`` gives a pod's SSH keys by its name; ``payload`` is
    ``packing.boot_payload``'s; ``environment`` is added to every pod's (never a key of the
    account's).

    Raises:
        NotSupported: RunPod rents no such GPU, or does not take a request of this size.
    """
    gpu_id = _SKU_IDS.get(request.sku)
    if gpu_id is None:
        raise NotSupported(
            f"this version does not know {request.sku} at RunPod",
            next_step=f"one of: {', '.join(sorted(_SKU_IDS))}",
        )
    boot = boot_environment(payload)
    image = request.image or image
    # The host key is the pod's own, and opens nothing else.
    words = request.agent_words(keys(request.name), NAME, image)
    variables = {**AS_ROOT, **environment, **boot, **words}
    if len(variables) > MAX_ENV:
        raise NotSupported(f"{len(variables)} variables are too many for a RunPod pod")
    if request.volume:
        mounts: dict[str, Any] = {"network": [{"volumeId": request.volume, "path": WORKSPACE}]}
    else:
        size = asked_work_gb(NAME, request.disk_gb)
        mounts = {"persistent": {"size": size, "path": WORKSPACE}}
    gpu: dict[str, Any] = {"id": gpu_id, "count": request.gpus}
    if request.min_cuda:
        gpu["minCudaVersion"] = request.min_cuda
    body: dict[str, Any] = {
        "name": request.name,
        "image": image,
        "entrypoint": list(ENTRYPOINT),
        "cmd": boot_command(),
        "gpu": gpu,
        "cloud": "COMMUNITY" if request.community else "SECURE",
        "disk": prices_of(NAME).system_gb,
        "mounts": mounts,
        "ports": [f"{contract.POD_SSH_PORT}/tcp"],
        "startSsh": False,
        "env": variables,
    }
    if request.region not in ANYWHERE:
        body["dataCenterIds"] = [request.region]
    size = len(compact(body))
    if size > MAX_BODY_BYTES:
        raise NotSupported(
            f"the request for this pod has {size:,} bytes; RunPod takes {LIMIT_BODY_BYTES:,}, of "
            f"which we use {MAX_BODY_BYTES:,} ({len(boot[contract.ENV_BOOT]):,} are the agent's "
            "sources): nothing was rented",
            next_step="use fewer phases, shorter names, or a trainer that imports less of trmcloud",
        )
    return body


# -- what it starts with ----------------------------------------------------------------------

#: Before what cannot start ends its pod: for the line that says why to be read in the log.
_READ_S = 60

#: Put before whatever entry point the image has: RunPod's own images inherit one from NVIDIA's,
#: which is a bash script and ends the container where it does not like the driver.
ENTRYPOINT = ("/bin/sh", "-c")

#: base85's characters that RunPod replaces in a variable, that Go writes as six, or that a
#: container's runtime may expand; and those of none of these kinds that stand for them.
_TAKEN, _INSTEAD = "{}<>&$", "[].:/,"

_START = start_script(
    "pod",
    f'base64.b85decode(os.environ["{ENV_BOOT}"]'
    f'.translate(str.maketrans("{_INSTEAD}", "{_TAKEN}")))',
)
_ASK = """\
import os, sys, urllib.request as u
h = {"Authorization": "Bearer " + os.environ["RUNPOD_API_KEY"], "User-Agent": "trmcloud",
 "Content-Type": "application/json"}
u.urlopen(u.Request(sys.argv[1], sys.argv[2].encode(), h), timeout=30)
"""
#: A container whose command ends is started again while its rent goes on. So what cannot start
#: stays, and asks for the pod's end by whatever the image has.
_SCRIPT = f"""\
if ! command -v python3 >/dev/null; then
    echo "trmcloud: there is no python3 in this image: the agent cannot be started" >&2
elif python3 -W ignore -c "$1"; then
    export PYTHONPATH={POD_PREFIX}
    exec python3 -m {POD_ENTRY}
fi
stay="${{{ENV_LINGER_S}:-{_READ_S}}}"
echo "trmcloud: this pod asks for its own end in $stay s" >&2
sleep "$stay" || exit
pod="${{TRMCLOUD_RUNPOD_API:-https://api.runpod.io}}"
pod="${{pod%/v2}}/v2/pods/$RUNPOD_POD_ID/action"
end='{{"action":"terminate"}}'
kind='Content-Type: application/json'
while :; do
    python3 -c "$2" "$pod" "$end"
    printf 'header = "Authorization: Bearer %s"\\n' "$RUNPOD_API_KEY" |
        curl -sS -m 30 -K - -H "$kind" -d "$end" "$pod"
    runpodctl pod delete "$RUNPOD_POD_ID" || runpodctl remove pod "$RUNPOD_POD_ID"
    sleep 30 || exit
done >/dev/null 2>&1
"""


def boot_payload(trainer: Path | None = None) -> bytes:
    """See ``packing.boot_payload``."""
    return packing.boot_payload(NAME, Path(self_end.__file__), trainer)


def boot_environment(payload: bytes) -> dict[str, str]:
    """In base85, which takes a sixteenth less room than base64."""
    text = base64.b85encode(payload).decode("ascii")
    return {ENV_BOOT: text.translate(str.maketrans(_TAKEN, _INSTEAD))}


def boot_command() -> list[str]:
    """Return the arguments of ``ENTRYPOINT``: unpack, then become the agent's first process."""
    return [_SCRIPT, "trmcloud", _START, _ASK]
