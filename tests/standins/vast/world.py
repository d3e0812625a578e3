"""The stand-in's hosts, offers, instances, credit and charges."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.standins.runpod.machines import RealMachines
from tests.standins.runpod.pods import OnPaper, Pod

HOURS_PER_MONTH = 730.0


@dataclass
class Host:
    """One offer of the market. Prices as vast.ai names them; ``shown`` is the GPU that the
    container finds, by RunPod's catalogue, which need not be what is offered."""

    id: int
    gpu_name: str
    num_gpus: int
    dph_base: float
    gpu_ram: int
    shown: str
    power: float
    country: str = "US"
    datacenter: bool = True
    verification: str = "verified"
    reliability: float = 0.995
    cuda_max_good: float = 12.8
    driver_version: str = "570.133.20"
    storage_cost: float = 0.15
    inet_up_cost: float = 0.0045
    inet_down_cost: float = 0.0012
    disk_space: float = 4000.0
    lasts_s: float = 90 * 86_400.0
    rented: bool = False


_GPUS = (
    ("RTX 4090", 24564, "NVIDIA GeForce RTX 4090", 450.0, 0.35),
    ("RTX 3090", 24576, "NVIDIA GeForce RTX 3090", 350.0, 0.16),
    ("L4", 23034, "NVIDIA L4", 72.0, 0.49),
    ("L40S", 46068, "NVIDIA L40S", 350.0, 0.62),
    ("A100 SXM4", 81920, "NVIDIA A100-SXM4-80GB", 400.0, 0.95),
    ("A100 PCIE", 81920, "NVIDIA A100 80GB PCIe", 300.0, 0.85),
    ("H100 PCIE", 81559, "NVIDIA H100 PCIe", 350.0, 1.75),
    ("H100 NVL", 95830, "NVIDIA H100 NVL", 400.0, 1.85),
    ("H100 SXM", 81559, "NVIDIA H100 80GB HBM3", 700.0, 2.05),
    ("H200", 143771, "NVIDIA H200", 700.0, 2.75),
    ("B200", 183359, "NVIDIA B200", 1000.0, 4.4),
)


def hosts() -> list[Host]:
    """For each GPU data centres in two countries and a private person's host, one to eight GPUs."""
    made: list[Host] = []
    for name, memory, shown, watts, price in _GPUS:
        for count in (1, 2, 4, 8):
            for number, (country, datacenter, dearer) in enumerate(
                (("US", True, 1.0), ("US", True, 1.0), ("SE", True, 1.1), ("CA", False, 0.8))
            ):
                made.append(
                    Host(
                        id=10_000_000 + 10 * len(made) + number, gpu_name=name, num_gpus=count,
                        dph_base=round(price * dearer * count, 6), gpu_ram=memory, shown=shown,
                        power=watts, country=country, datacenter=datacenter,
                    )
                )  # fmt: skip
    return made


@dataclass
class Instance:
    id: int
    host: Host
    body: dict[str, Any]
    key: str
    disk_gb: float
    made_at: float
    running_at: float
    intended: str = "running"
    actual: str | None = None
    message: str | None = None
    ended_at: float | None = None
    ended_by: str = ""
    gpu_s: float = 0.0
    """Seconds billed for GPUs up to ``counted_at``."""
    counted_at: float = 0.0
    keys: list[str] = field(default_factory=list)
    pod: Pod | None = None
    lines: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        return str(self.body.get("label") or "")

    @property
    def disk_rate(self) -> float:
        return self.host.storage_cost * self.disk_gb / HOURS_PER_MONTH

    def cost(self, until: float) -> float:
        end = until if self.ended_at is None else self.ended_at
        return (self.gpu_s * self.host.dph_base + (end - self.made_at) * self.disk_rate) / 3600.0


@dataclass
class Knobs:
    load_s: float = 0.0
    """From create until the container runs."""
    stuck: str = ""
    """New instances stay in ``loading`` with this message of their host."""
    taken: int = 0
    """So many of the next creates find that their offer is gone."""
    throttle: int = 0
    retry_after: str = ""
    list_omits: int = 0
    """So many of the next lists are empty."""
    vanish: tuple[int, ...] = ()
    """Instances that no list shows, though they run."""
    down: bool = False
    revoked: bool = False
    no_charges: bool = False
    shown: str = ""
    """The GPU that every host shows in truth."""
    self_refused: bool = False
    """The instance's own key is refused."""


@dataclass
class World:
    """``machines`` run the containers. All is done below ``lock``."""

    now: Callable[[], float]
    machines: RealMachines | OnPaper
    account_key: str
    credit: float = 100.0
    knobs: Knobs = field(default_factory=Knobs)
    hosts: list[Host] = field(default_factory=hosts)
    instances: dict[int, Instance] = field(default_factory=dict)
    log_bytes: dict[str, bytes] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _next: int = 20_000_001

    # -- the market ------------------------------------------------------------------------------

    def offers(self, query: Mapping[str, Any]) -> list[dict[str, Any]]:
        """
        Raises:
            ValueError: a filter that vast.ai does not know.
        """
        disk = float(query.get("allocated_storage", 8))
        found = [self.offer(host, disk) for host in self.hosts]
        filters = {k: v for k, v in query.items() if k not in _NO_FILTERS}
        for name in filters:
            if name not in _FIELDS:
                raise ValueError(f"Invalid args: unknown field {name}")
        found = [row for row in found if all(_holds(row, n, each) for n, each in filters.items())]
        for name, direction in reversed(query.get("order", [])):
            found.sort(key=lambda row: row[name], reverse=direction == "desc")
        return found[: int(query.get("limit", 64))]

    def offer(self, host: Host, disk: float) -> dict[str, Any]:
        storage = host.storage_cost * disk / HOURS_PER_MONTH
        gpus = host.num_gpus
        return {
            "id": host.id, "ask_contract_id": host.id, "machine_id": host.id // 10,
            "host_id": host.id // 100, "gpu_name": host.gpu_name, "num_gpus": gpus,
            "gpu_ram": host.gpu_ram, "gpu_total_ram": host.gpu_ram * gpus, "gpu_frac": 1.0,
            "gpu_max_power": host.power, "dph_base": host.dph_base,
            "dph_total": host.dph_base + storage, "storage_cost": host.storage_cost,
            "storage_total_cost": storage, "inet_up_cost": host.inet_up_cost,
            "inet_down_cost": host.inet_down_cost, "inet_up": 900.0, "inet_down": 1800.0,
            "reliability": host.reliability, "reliability2": host.reliability,
            "verification": host.verification, "rentable": not host.rented, "rented": host.rented,
            "cuda_max_good": host.cuda_max_good, "driver_version": host.driver_version,
            "disk_space": host.disk_space, "direct_port_count": 100, "is_bid": False,
            "geolocation": f"Somewhere, {host.country}", "duration": host.lasts_s,
            "end_date": self.now() + host.lasts_s, "cpu_cores_effective": 16.0 * gpus,
            "cpu_ram": 128_000 * gpus, "external": False, "static_ip": True,
            "bw_nvlink": 0.0, "pcie_bw": 24.0, "score": 100.0 / host.dph_base,
            "_datacenter": host.datacenter,
        }  # fmt: skip

    # -- instances -------------------------------------------------------------------------------

    def create(self, host: Host, body: dict[str, Any]) -> Instance:
        now, number = self.now(), self._next
        self._next += 1
        host.rented = True
        made = Instance(
            id=number, host=host, body=body, key=f"instance{number}{'k' * 48}",
            disk_gb=float(body.get("disk") or 8), made_at=now, counted_at=now,
            running_at=math.inf if self.knobs.stuck else now + self.knobs.load_s,
        )  # fmt: skip
        made.actual = "loading"
        made.message = self.knobs.stuck or None
        self.instances[number] = made
        self.settle()
        return made

    def destroy(self, instance: Instance, by: str) -> None:
        self.settle()
        if instance.ended_at is None:
            instance.ended_at, instance.ended_by = self.now(), by
            instance.host.rented = False
            self._halt(instance, forget=True)

    def stop(self, instance: Instance) -> None:
        self.settle()
        instance.intended = "stopped"
        self._halt(instance, forget=False)
        instance.actual = "exited"

    def settle(self) -> None:
        """Bill up to now, and let happen what is due."""
        now = self.now()
        for each in self.living():
            if each.actual == "loading" and each.intended == "running" and now >= each.running_at:
                each.actual = "running"
                each.message = f"success, running {each.body.get('image')}"
                self._boot(each)
            if each.intended == "running":
                each.gpu_s += max(0.0, now - each.counted_at)
            each.counted_at = now
        if self.left() <= 0:
            for each in self.living():
                if each.intended == "running":
                    each.intended, each.actual = "stopped", "exited"
                    self._halt(each, forget=False)

    def left(self) -> float:
        now = self.now()
        return self.credit - sum(each.cost(now) for each in self.instances.values())

    def living(self) -> list[Instance]:
        return [each for each in self.instances.values() if each.ended_at is None]

    def row(self, each: Instance) -> dict[str, Any]:
        """As the list shows it."""
        offer = self.offer(each.host, each.disk_gb)
        published = None
        if each.actual == "running" and each.pod is not None:
            address = self.machines.address(each.pod, 22)
            if address is not None and "-p 22:22" in (each.body.get("env") or {}):
                published = {"22/tcp": [{"HostIp": "0.0.0.0", "HostPort": str(address[1])}]}
        env = [[name, value] for name, value in (each.body.get("env") or {}).items()]
        return {
            **{k: v for k, v in offer.items() if k not in ("id", "rentable", "_datacenter")},
            "id": each.id, "label": each.body.get("label"), "actual_status": each.actual,
            "intended_status": each.intended, "cur_state": each.intended,
            "next_state": each.intended, "status_msg": each.message, "start_date": each.made_at,
            "image_uuid": each.body.get("image"), "image_runtype": each.body.get("runtype"),
            "image_args": each.body.get("args") or [], "onstart": each.body.get("onstart"),
            "extra_env": env, "disk_space": each.disk_gb, "public_ipaddr": "127.0.0.1",
            "ports": published, "ssh_host": "ssh1.vast.ai", "ssh_port": 10_000 + each.id % 1000,
        }  # fmt: skip

    def charges(self, since: float, until: float) -> list[dict[str, Any]]:
        self.settle()
        if self.knobs.no_charges:
            return []
        rows = []
        for each in self.instances.values():
            end = each.ended_at if each.ended_at is not None else self.now()
            if end < since or each.made_at > until:
                continue
            rows.append(
                {
                    "start": int(each.made_at), "end": math.ceil(end), "type": "instance",
                    "source": f"instance-{each.id}", "description": f"Instance {each.id} Charges",
                    "amount": round(each.cost(self.now()), 6), "metadata": {"label": each.label},
                    "items": [],
                }
            )  # fmt: skip
        return rows

    # -- containers ------------------------------------------------------------------------------

    def _boot(self, each: Instance) -> None:
        entry, args = each.body.get("onstart"), each.body.get("args") or []
        command = {"entrypoint": [entry] if entry else [], "cmd": list(args)}
        variables = {k: v for k, v in (each.body.get("env") or {}).items() if not _is_port(k)}
        pod = Pod(
            id=str(each.id), name=each.label, created_at=each.made_at, visible_at=each.made_at,
            body={
                "args": json.dumps(command), "ports": ["22/tcp"], "env": variables,
                "mounts": {"persistent": {"path": "/workspace", "size": int(each.disk_gb)}},
            },
            cloud="SECURE", data_center=each.host.country, rate=each.host.dph_base,
            key=each.key, host=str(each.host.id), gpu_id=self.knobs.shown or each.host.shown,
            gpu_count=each.host.num_gpus, cuda=str(each.host.cuda_max_good), status="RUNNING",
            inside={"runpodctl": "absent", "absent": (), "fewer_gpus": 0, "workspace_mib": 0},
        )  # fmt: skip
        each.pod = pod
        self.machines.boot(pod)

    def _halt(self, each: Instance, *, forget: bool) -> None:
        if each.pod is not None:
            self.machines.halt(each.pod, forget)
            each.lines = [line for _, _, source, line in each.pod.log if source == "container"]
            each.pod = None

    def lines(self, each: Instance) -> Iterable[str]:
        if each.pod is None:
            return each.lines
        return [line for _, _, source, line in each.pod.log if source == "container"]

    def truth(self) -> list[dict[str, Any]]:
        self.settle()
        return [
            {"id": e.id, "label": e.label, "ended_by": e.ended_by, "billed": e.cost(self.now())}
            for e in self.instances.values()
        ]


_NO_FILTERS = ("order", "type", "limit", "allocated_storage")
_FIELDS = frozenset(
    (
        *("verified", "external", "rentable", "rented", "gpu_name", "num_gpus", "reliability"),
        *("cuda_max_good", "disk_space", "direct_port_count", "inet_down", "inet_up"),
        *("storage_cost", "inet_up_cost", "inet_down_cost", "datacenter", "geolocation"),
        *("duration", "dph_total", "dph_base", "gpu_ram", "gpu_max_power", "driver_version"),
        *("machine_id", "static_ip", "verification"),
    )
)


def _holds(row: Mapping[str, Any], name: str, asked: Mapping[str, Any]) -> bool:
    value = row.get(name)
    if name == "verified":
        value = row["verification"] == "verified"
    elif name == "datacenter":
        value = row["_datacenter"]
    elif name == "geolocation":
        value = str(row["geolocation"]).rpartition(", ")[2]
    elif name == "driver_version":
        parts = [int(part) for part in str(value).split(".")]
        value = (parts[0] * 1000 + parts[1]) * 1000 + (parts[2] if len(parts) > 2 else 0)
    return all(_OPERATORS[operator](value, wanted) for operator, wanted in asked.items())


_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": lambda value, wanted: value == wanted,
    "neq": lambda value, wanted: value != wanted,
    "gt": lambda value, wanted: value > float(wanted),
    "gte": lambda value, wanted: value >= float(wanted),
    "lt": lambda value, wanted: value < float(wanted),
    "lte": lambda value, wanted: value <= float(wanted),
    "in": lambda value, wanted: str(value) in map(str, wanted),
    "notin": lambda value, wanted: str(value) not in map(str, wanted),
}


def _is_port(name: str) -> bool:
    return name.startswith("-")
