"""How much of a RunPod create's room its largest body takes: beyond the limit no pod is made."""

from __future__ import annotations

from bench.row import Row
from tests.contract.runpod_largest import bodies
from tests.standins.runpod.commands import deployment_bytes
from trmcloud.core.contract.pod_contract import ENV_BOOT
from trmcloud.providers.runpod.create import LIMIT_BODY_BYTES, MAX_BODY_BYTES
from trmcloud.providers.runpod.http import compact


def run() -> list[Row]:
    """Bytes of the largest create, as shares of what we send at most and of what RunPod takes."""
    largest = max(bodies(), key=lambda body: len(compact(body)))
    size, made = len(compact(largest)), deployment_bytes(largest)
    sources = len(largest["env"][ENV_BOOT])
    detail = f"{size:,} bytes, of which {sources:,} are the agent's sources"
    room = f"{MAX_BODY_BYTES - size:,} bytes left"
    return [
        Row(
            "largest create of a pod ÷ 95,000 bytes", size / MAX_BODY_BYTES, 1.0, "lower", "",
            f"{detail}; {room}",
        ),
        Row(
            "what RunPod makes of it ÷ 102,400 bytes", made / LIMIT_BODY_BYTES, 1.0, "lower", "",
            f"{made:,} bytes in the older API's form; as sent {size / LIMIT_BODY_BYTES:.3f}",
        ),
    ]  # fmt: skip
