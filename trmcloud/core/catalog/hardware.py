"""GPUs and the machines they sit in: dense peaks, memory, bandwidth and links, by exact SKU.

Three traps this table avoids. Marketing's peak is the sparse one, twice the dense; links are quoted
with both directions summed, here they are one-way; and a name such as "H100" is three chips, so
every price and every prediction is held by exact SKU.
"""

from __future__ import annotations

import re
from typing import Mapping, NamedTuple

from trmcloud.core.contract.boards import NVL, PCIE, SXM
from trmcloud.core.errors import UsageError
from trmcloud.core.nearest import suggest_name
from trmcloud.core.values import Value, replace

MAX_GPUS = 64
MAX_NODES = 64
LOCAL = "local"


class Gpu(NamedTuple):
    """One GPU. Peaks are dense TFLOP/s with FP32 accumulation; links are GB/s one-way.

    ``nvlink_span`` counts the GPUs that NVLink joins in a rented host: 8 on SXM boards; a PCIe
    card's two-GPU bridge cannot be counted on and is 1 here. ``p2p`` is False where the driver
    refuses direct GPU-to-GPU copies.
    """

    sku: str
    name: str
    """The common name: the part behind the ``x`` of ``8xA100``."""
    bf16_tflops: float
    fp8_tflops: float
    """0 where the chip has none."""
    memory_gb: float
    memory_gb_s: float
    nvlink_gb_s: float
    nvlink_span: int
    pcie_gb_s: float
    p2p: bool
    tdp_w: int
    source: str
    is_tried: bool = True
    """Whether a run of this product's images may be rented on it: the others are planned only."""

    @property
    def form(self) -> str:
        """Its form factor as ``contract.boards`` names it."""
        last = self.sku.rpartition("-")[2]
        if last in (PCIE, NVL, SXM):
            return last
        return SXM if self.nvlink_span > 1 else PCIE

    def peak_flops(self, dtype: str) -> float:
        """Dense FLOP/s at ``dtype``; float32 matmuls run as TF32, half the bfloat16 rate."""
        return self.bf16_tflops * 1e12 * (0.5 if dtype == "float32" else 1.0)

    def link_gb_s(self, gpus: int) -> float:
        """One-way GB/s between neighbours in a ring of ``gpus`` GPUs of one host."""
        if self.nvlink_gb_s and gpus <= self.nvlink_span:
            return self.nvlink_gb_s
        return self.pcie_gb_s * (1.0 if self.p2p else 0.5)


_SHEET = "NVIDIA datasheet"
_BRIEF = "NVIDIA's Blackwell tables, by kler.cn/a/406002, glennklockwood.com (B200, B300)"
_GEFORCE = "NVIDIA's figures, by spheron.network; matmuls that sum in FP32 run at half the rate"
_ROWS = (
    # sku, name, bf16, fp8, GB, GB/s, NVLink, span, PCIe, p2p, W, source
    ("B200", "B200", 2250, 4500, 180, 8000, 900, 8, 64, True, 1000, "NVIDIA HGX B200 brief"),
    ("H200", "H200", 989, 1979, 141, 4800, 450, 8, 64, True, 700, _SHEET),
    ("H100-SXM", "H100", 989, 1979, 80, 3350, 450, 8, 64, True, 700, _SHEET),
    ("H100-PCIe", "H100-PCIe", 756, 1513, 80, 2000, 300, 1, 64, True, 350, _SHEET),
    ("H100-NVL", "H100-NVL", 835, 1671, 94, 3900, 300, 1, 64, True, 400, _SHEET),
    ("A100-80GB-SXM", "A100", 312, 0, 80, 2039, 300, 8, 32, True, 400, _SHEET),
    ("A100-80GB-PCIe", "A100", 312, 0, 80, 1935, 300, 1, 32, True, 300, _SHEET),
    ("A100-40GB", "A100-40GB", 312, 0, 40, 1555, 300, 8, 32, True, 400, _SHEET),
    ("L40S", "L40S", 362, 733, 48, 864, 0, 1, 32, True, 350, _SHEET),
    ("L40", "L40", 181, 362, 48, 864, 0, 1, 32, True, 300, "NVIDIA datasheet, from a seller"),
    ("RTX4090", "RTX4090", 165, 330, 24, 1008, 0, 1, 32, False, 450, "NVIDIA Ada whitepaper"),
    ("RTX3090", "RTX3090", 71, 0, 24, 936, 56.25, 1, 32, True, 350, "NVIDIA GA102 whitepaper"),
    ("L4", "L4", 121, 242, 24, 300, 0, 1, 32, True, 72, _SHEET),
    ("A10G", "A10G", 70, 0, 24, 600, 0, 1, 32, True, 300, "NVIDIA datasheet (AWS g5)"),
    ("RTXA1000", "RTXA1000", 26.9, 0, 8, 192, 0, 1, 16, True, 50,
     "computed: 72 tensor cores × 256 FLOP × 1.46 GHz; its datasheet was not available"),
)  # fmt: skip

_UNTRIED_ROWS = (
    ("B300", "B300", 2250, 4500, 288, 8000, 900, 8, 128, True, 1400, _BRIEF),
    ("GB200", "GB200", 2500, 5000, 186, 8000, 900, 4, 64, True, 1200, _BRIEF),
    ("GH200", "GH200", 990, 1979, 96, 4000, 0, 1, 64, True, 1000, _SHEET),
    ("MI300X", "MI300X", 1307, 2615, 192, 5300, 448, 8, 64, True, 750,
     "AMD's datasheet, by jaredwatkins.com; seven links of 64 GB/s one-way, emergentmind.com"),
    ("RTX5090", "RTX5090", 209.5, 419, 32, 1792, 0, 1, 64, False, 575, _GEFORCE),
    ("RTX-PRO-6000", "RTX-PRO-6000", 500, 1000, 96, 1597, 0, 1, 64, True, 600,
     "NVIDIA's datasheet of the server edition: 4,000 sparse FP4 TOPS, an eighth of it dense"),
    ("GB10", "GB10", 125, 250, 128, 273, 0, 1, 32, True, 140,
     "DGX Spark: 1,000 sparse FP4 TFLOPS, an eighth of it dense; meterpreter.org, kubesimplify"),
)  # fmt: skip

GPUS: Mapping[str, Gpu] = {
    **{str(row[0]): Gpu(*row) for row in _ROWS},
    **{str(row[0]): Gpu(*row)._replace(is_tried=False) for row in _UNTRIED_ROWS},
}

GUIDE_HARDWARE = ("8xB200", "8xH200", "8xH100", "8xA100", "4xH100", "4xA100")
"""The configurations of the training guides, in their order."""

#: What a name accepts, the preferred SKU first. "A100" is any 80 GB A100 and never the 40 GB one.
#: "H100" is the SXM part alone, as in the guides: the PCIe card has 76 % of its peak and no NVLink
#: between eight, so a recipe for the one says little about the other. Ask for H100-PCIe or
#: H100-NVL by name.
_ACCEPTS: Mapping[str, tuple[str, ...]] = {
    **{sku: (sku,) for sku in GPUS},
    "H100": ("H100-SXM",),
    "A100": ("A100-80GB-SXM", "A100-80GB-PCIe"),
}
_ALIASES: Mapping[str, str] = {
    "A100-80GB": "A100",
    "A100-SXM": "A100-80GB-SXM",
    "A100-PCIe": "A100-80GB-PCIe",
    "H200-SXM": "H200",
    "B200-SXM": "B200",
    "3090": "RTX3090",
    "4090": "RTX4090",
    "5090": "RTX5090",
    "RTXPRO6000": "RTX-PRO-6000",
    "DGX-Spark": "GB10",
}

#: What a driver calls each, without the maker's name. A name that is not one of these is no GPU of
#: the table, however alike: "GH200 480GB" is no H200, a slice of a GPU is not the GPU.
_DEVICES: tuple[tuple[str, str], ...] = (
    (r"B300( SXM6( AC)?)?", "B300"),
    (r"GB200", "GB200"),
    (r"GH200( \d+GB)?", "GH200"),
    (r"B200", "B200"),
    (r"H200( SXM)?", "H200"),
    (r"H100 PCIe", "H100-PCIe"),
    (r"H100 NVL", "H100-NVL"),
    (r"H100( 80GB HBM3| SXM5?.*)?", "H100-SXM"),
    (r"A100[- ](SXM4|PCI[Ee])-40GB", "A100-40GB"),
    (r"A100[- ]PCI[Ee]-80GB|A100 80GB PCIe", "A100-80GB-PCIe"),
    (r"A100([- ]SXM4?)?([- ]80GB)?", "A100-80GB-SXM"),
    (r"L40S", "L40S"),
    (r"L40", "L40"),
    (r"L4", "L4"),
    (r"A10G", "A10G"),
    (r"(GeForce )?RTX 5090", "RTX5090"),
    (r"(GeForce )?RTX 4090", "RTX4090"),
    (r"(GeForce )?RTX 3090", "RTX3090"),
    (r"RTX PRO 6000 Blackwell( (Server|Workstation|Max-Q Workstation) Edition)?", "RTX-PRO-6000"),
    (r"GB10", "GB10"),
    (r"RTX A1000( (Laptop|Embedded) GPU)?", "RTXA1000"),
    (r"Instinct MI300X( OAM)?", "MI300X"),
)
_MEMORY_SLACK = 0.15
"""By which a GPU's memory, as its driver counts it, may differ from the table's."""


def gpu_of(device_name: str, memory_gb: float | None = None) -> Gpu | None:
    """The GPU that a driver's device name stands for; None where it is not in the table, or has
    other memory than it."""
    name = re.sub(r"^(NVIDIA|AMD) ", "", device_name.strip())
    for pattern, sku in _DEVICES:
        if re.fullmatch(pattern, name):
            gpu = GPUS[sku]
            differs = memory_gb is not None and (
                abs(gpu.memory_gb - memory_gb) > _MEMORY_SLACK * gpu.memory_gb
            )
            return None if differs else gpu
    return None


class HardwareRequest(Value):
    """The hardware that the user asked for: ``text`` is canonical, ``count`` GPUs a machine,
    ``skus`` are acceptable, best first; ``nodes`` machines like that."""

    text: str
    count: int
    skus: tuple[str, ...]
    is_local: bool
    nodes: int = 1

    def accepts(self, sku: str, gpus: int) -> bool:
        return not self.is_local and gpus == self.count and sku in self.skus


def hardware_name(sku: str, gpus: int, nodes: int = 1) -> str:
    """``8xA100`` for eight of any 80 GB A100: the name recipes and users go by; ``2x8xA100`` on two
    machines."""
    gpu = GPUS.get(sku)
    name = f"{gpus}x{gpu.name if gpu else sku}"
    return name if nodes == 1 else f"{nodes}x{name}"


def nodes_of(text: str) -> int:
    """Return the number of machines in canonical hardware text; 1 where the text is empty."""
    return parse_hardware(text).nodes if text else 1


def parse_hardware(text: str) -> HardwareRequest:
    """``8xA100``, ``1xRTX4090``, ``8xH100-PCIe`` or ``local``, and ``2x8xA100`` for two machines of
    eight; case does not matter.

    Raises:
        UsageError: a malformed name, a count outside 1..64, or an unknown GPU (nearest offered).
    """
    cleaned = text.strip()
    if cleaned.lower() == LOCAL:
        return HardwareRequest(LOCAL, 0, (), True)
    several = _SEVERAL.fullmatch(cleaned)
    if several is not None:
        nodes, each = int(several[1]), parse_hardware(several[2])
        if not 1 <= nodes <= MAX_NODES or each.nodes > 1:
            raise UsageError(
                f"{cleaned!r}: the number of machines must be from 1 to {MAX_NODES}",
                next_step="2x8xH100: two machines of eight",
            )
        name = each.text if nodes == 1 else f"{nodes}x{each.text}"
        return replace(each, text=name, nodes=nodes)
    count_text, x, name = cleaned.lower().partition("x")
    if not x or not count_text.isdigit():
        if _squash(cleaned) in _BY_SQUASHED:
            raise UsageError(
                f"{cleaned!r} gives no number of GPUs",
                next_step=f"1x{_BY_SQUASHED[_squash(cleaned)]}",
            )
        raise UsageError(
            f"unknown hardware {cleaned!r}",
            next_step=suggest_name(cleaned, (*GUIDE_HARDWARE, LOCAL)),
        )
    count = int(count_text)
    known = _BY_SQUASHED.get(_squash(name))
    if known is None:
        names = [f"{count}x{each}" for each in _ACCEPTS]
        raise UsageError(f"unknown hardware {cleaned!r}", next_step=suggest_name(cleaned, names))
    if not 1 <= count <= MAX_GPUS:
        raise UsageError(f"{cleaned!r}: the number of GPUs must be from 1 to {MAX_GPUS}")
    return HardwareRequest(f"{count}x{known}", count, _ACCEPTS[known], False)


_COUNTED = re.compile(r"(?:[1-9][0-9]?x){1,2}(?:any|[A-Za-z]+[0-9][A-Za-z0-9-]*)", re.IGNORECASE)


def looks_like_hardware(text: str) -> bool:
    """Whether a word is meant as hardware, known or not: ``local``, ``8xH100`` or ``H100``."""
    word = text.strip()
    return word.lower() == LOCAL or bool(_COUNTED.fullmatch(word)) or _squash(word) in _BY_SQUASHED


def find_gpu(sku: str) -> Gpu:
    """The GPU of an exact SKU.

    Raises:
        UsageError: not in the table (nearest offered).
    """
    gpu = GPUS.get(sku) or GPUS.get(_BY_SQUASHED.get(_squash(sku), ""))
    if gpu is None:
        raise UsageError(f"unknown GPU {sku!r}", next_step=suggest_name(sku, GPUS))
    return gpu


def on_other_board(sku: str, form: str) -> Gpu | None:
    """The GPU of the same family in another form factor, with no less memory; None where the table
    has none."""
    gpu, family = GPUS.get(sku), sku.partition("-")[0]
    if gpu is None:
        return None
    others = (g for g in GPUS.values() if g.sku.partition("-")[0] == family and g.form == form)
    return next((g for g in others if g.memory_gb >= gpu.memory_gb), None)


def slowdown(planned: Gpu, found: Gpu, gpus: int) -> float:
    """Return by how much a step may be slower on ``gpus`` of ``found`` than planned: the worst of
    the ratios of compute, memory and links, since each part of a step is bound by one of them."""
    ratios = [
        planned.bf16_tflops / found.bf16_tflops,
        planned.memory_gb_s / found.memory_gb_s,
    ]
    if gpus > 1:
        ratios.append(planned.link_gb_s(gpus) / found.link_gb_s(gpus))
    return max(ratios)


def least_step_s(sku: str, gpus: int, flops: float) -> float:
    """Return the least seconds in which ``gpus`` GPUs can do a step of ``flops``, at the highest
    dense peak of any number format; 0 of a GPU that is not in the table."""
    gpu = GPUS.get(sku)
    if gpu is None or gpus < 1:
        return 0.0
    return flops / (max(gpu.bf16_tflops, gpu.fp8_tflops) * 1e12 * gpus)


class LocalMachine(NamedTuple):
    """The machine this runs on, as an adapter found it.

    ``peak_flops_per_process`` is dense FLOP/s of one of ``default_processes`` processes at the
    recipe's dtype: a GPU's peak, or a nominal share of the CPUs (cores × clock × SIMD width ÷
    processes). ``mfu`` is the share of it that training is expected to reach.
    """

    name: str
    cpus: int
    memory_gb: float
    gpu_sku: str | None = None
    gpus: int = 0
    gpu_memory_gb: float = 0.0
    peak_flops_per_process: float = 0.0
    mfu: float = 0.4

    @property
    def default_processes(self) -> int:
        """One per GPU; on CPUs two, so that the reduction between ranks is always exercised."""
        return self.gpus if self.gpus else max(1, min(2, self.cpus))

    def peak_flops(self, processes: int) -> float:
        """FLOP/s of one of ``processes`` processes: CPUs are shared out, GPUs are not."""
        if self.gpus:
            return self.peak_flops_per_process
        return self.peak_flops_per_process * self.default_processes / max(1, processes)


_SEVERAL = re.compile(r"([0-9]{1,6})[xX]([0-9]{1,6}[xX].+)")


def _squash(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())


_BY_SQUASHED: Mapping[str, str] = {
    **{_squash(name): name for name in _ACCEPTS},
    **{_squash(alias): name for alias, name in _ALIASES.items()},
}
