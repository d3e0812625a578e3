"""What the stand-in rents out: GPU types, data centres, prices, stock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One GPU type. Prices in USD an hour for one GPU; ``memory_gb`` as the catalogue says it,
    ``memory_mib`` as nvidia-smi does."""

    id: str
    name: str
    memory_gb: int
    memory_mib: int
    secure: float
    community: float
    max_secure: int
    max_community: int
    stock: str
    data_centers: tuple[str, ...]
    manufacturer: str = "NVIDIA"
    smi_name: str = ""

    @property
    def shown(self) -> str:
        return self.smi_name or self.id

    def price(self, cloud: str) -> float:
        return self.community if cloud == "COMMUNITY" else self.secure

    def most(self, cloud: str) -> int:
        return self.max_community if cloud == "COMMUNITY" else self.max_secure


@dataclass(frozen=True)
class DataCenter:
    id: str
    name: str
    volume_types: tuple[str, ...] = ("STANDARD",)


DATA_CENTERS: Sequence[DataCenter] = (
    DataCenter("US-KS-2", "US Kansas 2", ("STANDARD", "HIGH_PERFORMANCE")),
    DataCenter("US-CA-2", "US California 2"),
    DataCenter("US-TX-3", "US Texas 3", ()),
    DataCenter("EU-RO-1", "EU Romania 1"),
    DataCenter("EUR-IS-1", "Iceland 1"),
)

_US = ("US-KS-2", "US-CA-2", "US-TX-3")
_EU = ("EU-RO-1", "EUR-IS-1")

GPUS: Sequence[Gpu] = (
    Gpu("NVIDIA B200", "B200", 180, 183359, 6.79, 5.98, 8, 8, "LOW", ("US-CA-2", "EUR-IS-1")),
    Gpu("NVIDIA H200", "H200 SXM", 141, 143771, 4.59, 3.59, 8, 1, "MEDIUM", (*_US, "EUR-IS-1")),
    Gpu("NVIDIA H100 80GB HBM3", "H100 SXM", 80, 81559, 3.99, 2.69, 8, 8, "HIGH", (*_US, *_EU)),
    Gpu("NVIDIA H100 PCIe", "H100 PCIe", 80, 81559, 2.89, 1.99, 8, 4, "MEDIUM", ("US-KS-2", *_EU)),
    Gpu("NVIDIA H100 NVL", "H100 NVL", 94, 95830, 3.19, 2.59, 8, 2, "LOW", ("US-KS-2",)),
    Gpu("NVIDIA A100-SXM4-80GB", "A100 SXM", 80, 81920, 1.79, 1.39, 8, 8, "HIGH", (*_US, *_EU)),
    Gpu("NVIDIA A100 80GB PCIe", "A100 PCIe", 80, 81920, 1.79, 1.19, 8, 8, "HIGH", (*_US, *_EU)),
    Gpu("NVIDIA L40S", "L40S", 48, 46068, 0.99, 0.79, 8, 4, "HIGH", (*_US, "EU-RO-1")),
    Gpu("NVIDIA L4", "L4", 24, 23034, 0.49, 0.44, 8, 4, "HIGH", ("US-KS-2", "EU-RO-1")),
    Gpu("NVIDIA GeForce RTX 4090", "RTX 4090", 24, 24564, 0.69, 0.34, 8, 8, "HIGH", (*_US, *_EU)),
    Gpu("NVIDIA GeForce RTX 3090", "RTX 3090", 24, 24576, 0.46, 0.22, 4, 4, "MEDIUM", ("US-KS-2",)),
    Gpu(
        "AMD Instinct MI300X OAM", "MI300X", 192, 196592, 2.69, 2.39, 8, 8, "LOW", ("EU-RO-1",),
        manufacturer="AMD",
    ),
)  # fmt: skip

CUDA_VERSIONS: Sequence[tuple[str, bool]] = (
    ("12.4", True),
    ("12.8", True),
    ("13.0", True),
)


def gpu(gpu_id: str) -> Gpu | None:
    return next((kind for kind in GPUS if kind.id == gpu_id), None)


_HOSTS = {"NVIDIA L4": (8, 45), "NVIDIA L40S": (12, 62), "NVIDIA B200": (28, 180)}


def host(gpu_id: str) -> tuple[int, int]:
    """(vCPUs, GB of RAM) that a machine has for each of its GPUs."""
    return _HOSTS.get(gpu_id, (16, 117))


def data_center(dc_id: str) -> DataCenter | None:
    return next((place for place in DATA_CENTERS if place.id == dc_id), None)


def version(text: str) -> tuple[int, ...]:
    """ "12.11" is above "12.2"."""
    return tuple(int(part) for part in text.split("."))
