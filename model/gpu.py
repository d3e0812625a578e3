"""Measurement of this machine's GPUs: ``python -m model.gpu [--json] [--device cpu]``.

Matrix products by number format, copies within a GPU's memory, to it, and between two of them; then
the traps that GPU and torch are known for together. A product of two n × n matrices is 2 n³
floating-point operations. Each figure is the best of several rounds: what the hardware can do, not
what a training will. Where there is no GPU the processor is measured, what only a GPU can show is
named, and the exit code is 2.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from model.command import run_command
from model.machine.traps import KNOWN, traps_of
from trmcloud.core.catalog.hardware import gpu_of
from trmcloud.core.errors import UsageError

if TYPE_CHECKING:
    import torch

_SIDE = {"cuda": 8192, "cpu": 512}
"""Of the matrices: large enough to keep the device busy, and 128 MB in bfloat16 on a GPU."""
_COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
_ROUNDS = 5
_SHOWN = ("float32", "tf32", "float16", "bfloat16", "float8")
_ON_A_GPU = (
    "compute capability",
    "free memory",
    "copies from the host",
    "links between GPUs",
    "matrix products, against the datasheet",
)
"""The measurements that no processor can replace."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model.gpu", description=__doc__)
    parser.add_argument("--device", choices=tuple(_SIDE), default="cuda", help="default: cuda")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(arguments)

    def command() -> None:
        missing = _why_none() if chosen.device == "cuda" else None
        found = examine("cpu" if missing else chosen.device)
        if missing:
            found |= {"no_gpu": missing, "not_measured": list(_ON_A_GPU), "looked_for": list(KNOWN)}
        print(json.dumps(found) if chosen.json else as_text(found), flush=True)
        if missing:
            raise UsageError(
                f"no GPU was found: {missing}",
                next_step="a torch that is built for your driver's CUDA",
            )

    return run_command(command)


def examine(kind: str) -> dict[str, Any]:
    """Every device of ``kind``, measured one after another.

    Returns: ``torch``, ``cuda``, ``devices`` and ``traps``; rates are in TFLOP/s and GB/s, a figure
    that could not be had is in the device's ``failed`` with its reason.
    """
    import torch

    count = torch.cuda.device_count() if kind == "cuda" else 1
    made = [_measured(torch.device(kind, index)) for index in range(count)]
    for device in made:
        if kind == "cuda":
            device["peers_gb_s"] = _to_peers(device, count)
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "devices": made,
        "traps": traps_of(made, torch.__version__),
    }


def _why_none() -> str | None:
    """Why torch uses no GPU here; None where it can."""
    import torch

    if torch.cuda.is_available() and torch.cuda.device_count():
        return None
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    try:
        torch.cuda.init()
    except Exception as error:  # whatever the driver's trouble is, it says so here
        return f"torch {torch.__version__}: {str(error).splitlines()[0]}"
    return (
        f"torch {torch.__version__} is built for CUDA {torch.version.cuda}, and finds no CUDA "
        "device"
    )


def _measured(device: torch.device) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"index": device.index, "kind": device.type, "failed": {}}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        free, total = torch.cuda.mem_get_info(device)
        sheet = gpu_of(properties.name)
        found |= {
            "name": properties.name,
            "capability": [properties.major, properties.minor],
            "memory_gb": total / 1e9,
            "free_gb": free / 1e9,
            "sheet": None if sheet is None else sheet.sku,
            "sheet_tflops": {} if sheet is None else _of_sheet(sheet),
        }
    else:
        found |= {"name": "this processor", "capability": None, "sheet_tflops": {}}
    tflops = {}
    for name in _SHOWN:
        made = _tried(found["failed"], name, partial(_product_tflops, device, name))
        if made is not None:
            tflops[name] = made
    found["tflops"] = tflops
    found["memory_gb_s"] = _tried(found["failed"], "memory", lambda: _memory_gb_s(device))
    if device.type == "cuda":
        found["to_gb_s"] = _tried(found["failed"], "copies to it", lambda: _to_gb_s(device))
    return found


def _of_sheet(gpu: Any) -> dict[str, float]:
    sheet = {"bfloat16": gpu.bf16_tflops, "float16": gpu.bf16_tflops, "tf32": gpu.bf16_tflops / 2}
    return {**sheet, "float8": gpu.fp8_tflops} if gpu.fp8_tflops else sheet


def _tried(failed: dict[str, str], name: str, measure: Callable[[], float]) -> float | None:
    try:
        return measure()
    except Exception as error:  # of a driver or a kernel, of any kind: the next figure may be had
        failed[name] = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        return None


# -- what is timed ------------------------------------------------------------------------------


def _product_tflops(device: torch.device, name: str) -> float:
    """Raises: RuntimeError, and others: this device has no such product."""
    import torch

    side = _SIDE[device.type]
    if name == "float8":
        product = _float8_product(device, side)
    else:
        if name == "tf32" and device.type != "cuda":
            raise RuntimeError("a GPU's format")
        dtype = torch.float32 if name in ("float32", "tf32") else getattr(torch, name)
        left = torch.randn(side, side, device=device).to(dtype)
        right = torch.randn(side, side, device=device).to(dtype)

        def product() -> torch.Tensor:
            return left @ right

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    try:
        return 2.0 * side**3 / _best_s(device, product) / 1e12
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _float8_product(device: torch.device, side: int) -> Callable[[], torch.Tensor]:
    """Products by the tensor: one scale for each matrix, and the right one column by column, as
    ``_scaled_mm`` will have it."""
    import torch

    float8 = torch.float8_e4m3fn
    left = torch.randn(side, side, device=device).to(float8)
    right = torch.randn(side, side, device=device).to(float8).t()
    one = torch.ones((), device=device)

    def product() -> torch.Tensor:
        return torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return product


def _memory_gb_s(device: torch.device) -> float:
    """Read and written: a copy moves each byte twice."""
    import torch

    size = _COPY_BYTES[device.type]
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2.0 * size / _best_s(device, lambda: target.copy_(source)) / 1e9


def _to_gb_s(device: torch.device) -> float:
    """From pinned memory of the host."""
    import torch

    size = _COPY_BYTES[device.type] // 4
    source = torch.ones(size, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(size, dtype=torch.uint8, device=device)
    return size / _best_s(device, lambda: target.copy_(source, non_blocking=True)) / 1e9


def _to_peers(device: Mapping[str, Any], count: int) -> dict[str, float | None]:
    """One way, by the number of the other GPU."""
    import torch

    here = torch.device("cuda", device["index"])
    size = _COPY_BYTES["cuda"] // 4
    made: dict[str, float | None] = {}
    for other in range(count):
        if other == here.index:
            continue
        there = torch.device("cuda", other)

        def copied(there: torch.device = there) -> float:
            source = torch.ones(size, dtype=torch.uint8, device=here)
            target = torch.empty(size, dtype=torch.uint8, device=there)
            return size / _best_s(there, lambda: target.copy_(source)) / 1e9

        made[str(other)] = _tried(device["failed"], f"copies to GPU {other}", copied)
    return made


def _best_s(device: torch.device, work: Callable[[], object]) -> float:
    """Seconds of ``work``, the best of several rounds after one to warm up."""
    import torch

    def waited() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    work()
    times = []
    for _ in range(_ROUNDS):
        begun = waited()
        work()
        times.append(waited() - begun)
    return max(min(times), 1e-9)


# -- as lines -----------------------------------------------------------------------------------


def as_text(found: Mapping[str, Any]) -> str:
    cuda = f" · CUDA {found['cuda']}" if found["cuda"] else ""
    lines = [f"torch {found['torch']}{cuda}"]
    for device in found["devices"]:
        lines.append("")
        lines.append(_title(device))
        for name, rate in device["tflops"].items():
            beside = device["sheet_tflops"].get(name)
            share = (
                f" · {100 * rate / beside:.0f} % of the datasheet's {beside:,g}" if beside else ""
            )
            lines.append(f"  {name:<12} {rate:>9,.2f} TFLOP/s{share}")
        for name, key in (("memory", "memory_gb_s"), ("from host", "to_gb_s")):
            if device.get(key) is not None:
                lines.append(f"  {name:<12} {device[key]:>9,.1f} GB/s")
        for other, rate in device.get("peers_gb_s", {}).items():
            if rate is not None:
                lines.append(f"  to GPU {other:<5} {rate:>9,.1f} GB/s")
        lines += [f"  {name}: not available: {why}" for name, why in device["failed"].items()]
    lines += ["", *(f"! {trap}" for trap in found["traps"])] if found["traps"] else []
    if "no_gpu" in found:
        lines += ["", f"not measured, without a GPU: {', '.join(found['not_measured'])}"]
        lines += ["would be measured on one:", *(f"  {trap}" for trap in found["looked_for"])]
    return "\n".join(lines)


def _title(device: Mapping[str, Any]) -> str:
    if device["kind"] == "cpu":
        return str(device["name"])
    major, minor = device["capability"]
    words = [f"GPU {device['index']}: {device['name']}", f"compute capability {major}.{minor}"]
    words.append(f"{device['free_gb']:.1f} of {device['memory_gb']:.1f} GB free")
    if device["sheet"] is None:
        words.append("not in our table: no datasheet to compare with")
    return " · ".join(words)


if __name__ == "__main__":
    raise SystemExit(main())
