"""One rented pod, its states, and the places that run what it contains."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.standins.runpod import billing

ACTIONS = {
    "PROVISIONING": ("stop", "terminate"),
    "STARTING": ("stop", "terminate"),
    "RUNNING": ("stop", "restart", "terminate"),
    "EXITED": ("start", "terminate"),
    "ERROR": ("start", "terminate"),
    "TERMINATED": (),
}
HTTP_IP = "100.65.0.1"
HTTP_PORT = 60_000
UP = ("PROVISIONING", "STARTING", "RUNNING")
LOG_LINES = 5000


@dataclass
class Volume:
    id: str
    name: str
    size: int
    data_center: str
    kind: str
    created_at: float
    rates: list[tuple[float, float]]
    ended_at: float | None = None

    def cost(self, until: float) -> float:
        return billing.volume_amount(self.rates, self.ended_at, until)


@dataclass
class Pod:
    """``rate`` is USD an hour of all its GPUs, disks apart. Times are epoch s."""

    id: str
    name: str
    created_at: float
    visible_at: float
    body: dict[str, Any]
    cloud: str
    data_center: str
    rate: float
    key: str
    host: str
    gpu_id: str = ""
    gpu_count: int = 0
    cuda: str | None = None
    status: str = "PROVISIONING"
    starting_at: float = 0.0
    running_at: float = 0.0
    started_at: float | None = None
    ssh_after_s: float = 0.0
    stuck: bool = False
    """It ends in RUNNING with nothing in it."""
    host_says: list[str] = field(default_factory=list)
    deleted_at: float | None = None
    """When a delete was accepted."""
    gone_at: float | None = None
    """When it is off the list and the bill."""
    ended_by: str = ""
    host_lost: bool = False
    boots: int = 0
    meter: billing.Meter = field(default_factory=billing.Meter)
    log: deque[tuple[float, int, str, str]] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    """(epoch s, number, source, line)."""
    inside: dict[str, Any] = field(default_factory=dict)
    """What its container is to find: knobs as they stood when it was made."""
    lines: int = 0

    @property
    def alive(self) -> bool:
        return self.deleted_at is None

    @property
    def persistent_gb(self) -> int:
        return int((self.body.get("mounts", {}).get("persistent") or {}).get("size", 0))

    @property
    def volume_id(self) -> str:
        network = self.body.get("mounts", {}).get("network") or []
        return str(network[0]["volumeId"]) if network else ""

    @property
    def mount_path(self) -> str:
        mounts = self.body.get("mounts", {})
        if mounts.get("network"):
            return str(mounts["network"][0]["path"])
        return str((mounts.get("persistent") or {}).get("path", ""))

    @property
    def tcp_ports(self) -> list[int]:
        return self._ports("tcp")

    @property
    def http_ports(self) -> list[int]:
        """Reached through RunPod's proxy, never at an address."""
        return self._ports("http")

    def _ports(self, wanted: str) -> list[int]:
        ports = [str(port).partition("/") for port in self.body.get("ports", [])]
        return [int(number) for number, _, kind in ports if kind == wanted and number.isdigit()]

    def say(self, at: float, source: str, line: str) -> None:
        self.lines += 1
        self.log.append((at, self.lines, source, line))


class Machines(Protocol):
    """Where pods' containers run. Calls return at once."""

    def boot(self, pod: Pod) -> None:
        """Start the command; again, if it ends, for as long as the pod is up."""

    def halt(self, pod: Pod, forget: bool) -> None:
        """Kill all its processes now. ``forget``: and its disks."""

    def address(self, pod: Pod, port: int) -> tuple[str, int] | None:
        """Where a port of the container is published; None while it is not."""

    def remove_volume(self, volume_id: str) -> None: ...

    def close(self) -> None: ...


class OnPaper:
    """No processes: pods that exist in the books alone."""

    def boot(self, pod: Pod) -> None:
        pod.boots += 1

    def halt(self, pod: Pod, forget: bool) -> None:
        pass

    def address(self, pod: Pod, port: int) -> tuple[str, int] | None:
        # Below the kernel's ephemeral ports, which other tests' servers take.
        return "127.0.0.1", 10000 + (sum(pod.id.encode()) * 97 + port) % 20000

    def remove_volume(self, volume_id: str) -> None:
        pass

    def close(self) -> None:
        pass
