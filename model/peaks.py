"""Which GPU of ``trmcloud.core.catalog.hardware`` a driver's device name stands for."""

from __future__ import annotations

from trmcloud.core.catalog.hardware import GPUS, Gpu

#: (words that must all be in the driver's name, SKU), the more special ones first.
_NAMES = (
    (("B200",), "B200"),
    (("H200",), "H200"),
    (("H100", "PCIe"), "H100-PCIe"),
    (("H100", "NVL"), "H100-NVL"),
    (("H100",), "H100-SXM"),
    (("RTX A1000",), "RTXA1000"),
    (("A100", "40GB"), "A100-40GB"),
    (("A100", "PCIe"), "A100-80GB-PCIe"),
    (("A100",), "A100-80GB-SXM"),
    (("L40S",), "L40S"),
    (("L40",), "L40"),
    (("4090",), "RTX4090"),
    (("3090",), "RTX3090"),
    (("A10G",), "A10G"),
    (("NVIDIA L4",), "L4"),
)


def gpu_of(device_name: str) -> Gpu | None:
    """The GPU that a driver means; None where it is not in the table."""
    for words, sku in _NAMES:
        if all(word in device_name for word in words):
            return GPUS[sku]
    return None


def peak_flops(device_name: str, dtype: str) -> float | None:
    """Dense FLOP/s of the device at ``dtype``; None where it is not in the table."""
    gpu = gpu_of(device_name)
    return None if gpu is None else gpu.peak_flops(dtype)
