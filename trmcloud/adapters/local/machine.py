"""This machine's CPUs, memory and GPUs, found without importing torch."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from trmcloud.core.catalog.hardware import GPUS, LocalMachine

_CPU_MFU = 0.12
"""Small matrices on CPU cores reach about an eighth of the nominal peak under torch."""
_GPU_MFU = 0.40
_NOMINAL_GHZ = 2.5


def this_machine() -> LocalMachine:
    """The machine as the planner needs it. CPU peak = cores × clock × SIMD lanes × 2 × 2 (fused
    multiply-add on two ports), a nominal figure."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    found = _nvidia_gpus()
    if found:
        name, gpu_memory_gb = found[0]
        sku = _sku_of(name, gpu_memory_gb)
        peak = GPUS[sku].bf16_tflops * 1e12 if sku else 50e12
        return LocalMachine(
            name=name,
            cpus=cpus,
            memory_gb=memory_gb,
            gpu_sku=sku,
            gpus=len(found),
            gpu_memory_gb=gpu_memory_gb,
            peak_flops_per_process=peak,
            mfu=_GPU_MFU,
        )
    info = _cpu_info()
    lanes = 16 if "avx512f" in info.get("flags", "").split() else 8
    peak = cpus * _NOMINAL_GHZ * 1e9 * lanes * 4
    machine = LocalMachine(
        name=f"{cpus} CPU cores",
        cpus=cpus,
        memory_gb=memory_gb,
        peak_flops_per_process=peak,
        mfu=_CPU_MFU,
    )
    return machine._replace(peak_flops_per_process=peak / machine.default_processes)


def _nvidia_gpus() -> list[tuple[str, float]]:
    """(name, GB) of each NVIDIA GPU; empty where there is no driver."""
    if not Path("/proc/driver/nvidia").exists():
        return []
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for line in answer.stdout.splitlines():
        name, _, mib = line.rpartition(",")
        if mib.strip().isdigit():
            found.append((name.strip(), int(mib) * 2**20 / 1e9))
    return found


def _sku_of(name: str, memory_gb: float) -> str | None:
    squashed = "".join(char for char in name.upper() if char.isalnum())
    for sku, gpu in GPUS.items():
        model = sku.split("-", maxsplit=1)[0].upper()
        if model in squashed and abs(gpu.memory_gb - memory_gb) < 0.15 * gpu.memory_gb:
            return sku
    return None


def _cpu_info() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    first = text.partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
