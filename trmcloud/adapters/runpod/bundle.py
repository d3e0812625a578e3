"""What a pod is given to start with: the sources of the agent, small enough for its environment.

They travel in variables and not over SSH, so that the agent, which alone can end the pod without
us, runs from the container's first second. gzip rather than xz: a bare image need not have xz.
"""

from __future__ import annotations

import base64
from pathlib import Path

from trmcloud.app.packing import agent_sources, pack
from trmcloud.core.pod_contract import ENV_BOOT_PREFIX

_PACKAGE = Path(__file__).resolve().parents[2]
PIECE_CHARS = 90_000
"""Linux takes no variable beyond 128 KiB, its name included."""
MAX_PIECES = 8

_PREFIX = "/opt/trmcloud"


def boot_payload(package: Path = _PACKAGE) -> bytes:
    """A tar.gz of ``trmcloud/core`` and ``trmcloud/pod``; the same sources give the same bytes."""
    return pack(agent_sources(package))


def boot_environment(payload: bytes) -> dict[str, str]:
    """The payload as variables, each below what Linux takes.

    Raises:
        ValueError: it needs more of them than a pod should carry.
    """
    text = base64.b64encode(payload).decode("ascii")
    pieces = [text[at : at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS)]
    if not pieces or len(pieces) > MAX_PIECES:
        raise ValueError(f"a boot payload of {len(payload)} bytes does not fit the environment")
    return {f"{ENV_BOOT_PREFIX}{number}": piece for number, piece in enumerate(pieces)}


def boot_command(pieces: int) -> str:
    """The container's command: unpack, then become the agent's first process.

    It holds no single quote beside its own two. A container whose command ends is started again
    while its rent goes on, so what cannot be mended waits, says why, and leaves the end to the
    controller's boot deadline.
    """
    names = " ".join(f"${ENV_BOOT_PREFIX}{number}" for number in range(pieces))
    unpack = f"printf %s {names} | base64 -d | tar xz -C {_PREFIX}"
    script = "; ".join(
        (
            f"mkdir -p {_PREFIX}",
            f"export PYTHONPATH={_PREFIX}",
            _until("command -v python3 >/dev/null", "no python3 in this image"),
            _until(unpack, "its sources cannot be unpacked"),
            _until('python3 -c "import trmcloud.pod.boot"', "its sources cannot be run"),
            "exec python3 -m trmcloud.pod.boot",
        )
    )
    return f"bash -c '{script}'"


def _until(command: str, otherwise: str) -> str:
    return f'until {command}; do echo "trmcloud: {otherwise}" >&2; sleep 30; done'
