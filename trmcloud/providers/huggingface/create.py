"""A job in the Hub's words: image, command, variables, secrets, time-out and labels.

The agent's sources are one variable, and the command unpacks them: the agent runs from the job's
first second. An image needs /bin/sh and a python3 of 3.10 or newer. Base64 and not base85: where
Kubernetes starts a container, ``$$`` in a variable becomes ``$``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.errors import NotSupported
from trmcloud.operations.sending.packing import POD_ENTRY, POD_PREFIX, start_script
from trmcloud.ports.compute import PodKeys, PodRequest
from trmcloud.providers.huggingface.api import LABEL, NAME_LABEL
from trmcloud.providers.huggingface.secrets import refuse_tokens
from trmcloud.providers.huggingface.traits import NAME

MAX_VARIABLE_BYTES = 120_000
"""Linux starts no program with a variable of 128 KiB."""
_SECRET = (contract.ENV_HOST_KEY,)
"""Sent as secrets, which the Hub encrypts and never shows again."""

_START = start_script("job", f'base64.b64decode(os.environ["{contract.ENV_BOOT}"])')
#: What cannot start ends, and with it the job and its rent: nothing has to be asked for that.
_SCRIPT = f"""\
if ! command -v python3 >/dev/null; then
    echo "trmcloud: there is no python3 in this image: the agent cannot be started" >&2
    exit 1
fi
python3 -W ignore -c "$1" || exit 1
export PYTHONPATH={POD_PREFIX}
exec python3 -m {POD_ENTRY}
"""


def timeout_s(hard_stop_at: float, now: float) -> int:
    """The time-out of a job that is made at ``now`` (epoch s), in whole seconds: until its hard
    stop, and never none, for which the platform would take its own 30 minutes."""
    return max(1, ceil(hard_stop_at - now))


def job_spec(
    request: PodRequest,
    flavor: str,
    keys: Callable[[str], PodKeys],
    payload: bytes,
    image: str,
    environment: Mapping[str, str],
    *,
    token: str,
    timeout: int,
) -> dict[str, Any]:
    """The body of ``POST /api/jobs/NAMESPACE``. ``keys`` gives a job's SSH keys by its name,
    ``payload`` is ``packing.boot_payload``'s; ``token`` is the account's, which may be nowhere in
    it.

    Raises:
        NotSupported: a value is a token, or the agent's sources are too large.
    """
    image = request.image or image
    words = request.agent_words(keys(request.name), NAME, image)
    variables = {
        **environment,
        contract.ENV_BOOT: base64.b64encode(payload).decode("ascii"),
        **words,
        contract.ENV_SSH_PORT: str(contract.INNER_SSH_PORT),
        contract.ENV_SSH_LISTEN: "127.0.0.1",
    }
    longest = max(variables, key=lambda name: len(variables[name]))
    if len(variables[longest]) > MAX_VARIABLE_BYTES:
        raise NotSupported(
            f"{longest} has {len(variables[longest]):,} bytes, but a job's variable takes "
            f"{MAX_VARIABLE_BYTES:,}: nothing was rented",
            next_step="use fewer phases, shorter names, or a trainer that imports less of trmcloud",
        )
    hidden = {name: variables.pop(name) for name in _SECRET}
    # What it trains travels in base64, in which a token would not be seen.
    trained = {f"phase {job.phase}": contract.dump(job) for job in request.jobs}
    refuse_tokens({**variables, **hidden, **request.given, **trained}, token)
    return {
        "command": ["/bin/sh", "-c", _SCRIPT, NAME, _START],
        "arguments": [],
        "environment": variables,
        "flavor": flavor,
        "secrets": hidden,
        "timeoutSeconds": timeout,
        "attempts": 1,
        "labels": {LABEL: "pod", NAME_LABEL: request.name},
        "ssh": {"enabled": True},
        "dockerImage": image,
    }
