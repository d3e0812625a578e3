"""The calibration's outcome as constants, so that a plan does not fit anything anew.

Fitted on 2026-11-23 to the 131 published trainings of ``bench/throughput.csv``, each with its
source. ``make calibrate`` prints the constants and how far off they are; a test holds them to it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from trmcloud.core.catalog.hardware import Gpu
from trmcloud.core.planner.roofline import Parameters

SOFTWARE = "torch-compile"
"""The family of ours: PyTorch, compiled blocks, SDPA, DDP."""
FITTED = Parameters(
    sustained=0.9872,
    half_w=0.4382,
    fill=136.8036,
    pass_fill=944.6476,
    traffic_values=35.8243,
    eager_traffic=1.4874,
    attention_share=0.5014,
    masked_cost=2.9316,
    memory_share=0.8357,
    software={
        "composer": 1.1073,
        "fused-eager": 1.1019,
        "llm.c": 1.0014,
        "megatron": 0.6726,
        "paxml": 1.0985,
        "torch-compile": 1.0349,
        "torch-eager": 1.1421,
        "torchtitan-compile": 1.0019,
    },
    fp8={"block": 0.9905, "engine": 0.9507, "row": 1.0856, "tensor": 1.0086},
    chip={
        "A100-40GB": 0.9478,
        "A100-80GB-PCIe": 0.9488,
        "A100-80GB-SXM": 0.9423,
        "B200": 0.8938,
        "H100-NVL": 1.1681,
        "H100-PCIe": 0.9466,
        "H100-SXM": 0.9702,
        "H200": 0.9732,
        "L4": 1.1933,
        "L40S": 1.1741,
        "RTX3090": 1.009,
        "RTX4090": 0.9096,
    },
)
P90_SIGMAS = 1.2816
FITTED_SIGMA = 0.202 / P90_SIGMAS
"""Of the logarithm of time. Four of five trainings like ours, each predicted without its source,
came within e^±0.202 of what was measured."""
NEW_CHIP_SIGMA = 0.2
"""A chip that no published row names has a factor of its own that is not known."""
RECURSION_SIGMA = 0.10
"""No published row is a recursive model; its own doubt, added in quadrature."""


class Reach(NamedTuple):
    """The share of the ideal that a GPU is expected to reach, and how sure that is."""

    share: float
    sigma: float
    """Standard deviation of the logarithm of time."""
    basis: str


class Measured(NamedTuple):
    """A probe of one machine: the median of ``steps`` measured steps, in seconds."""

    sku: str
    """Or the name of a local machine."""
    gpus: int
    step_s: float
    steps: int
    tokens_per_step: int
    flops_per_token: float


def reach_of(gpu: Gpu) -> Reach:
    """What ``gpu`` reaches under our software before it was probed."""
    share = FITTED.reached(gpu.sku, SOFTWARE)
    if gpu.sku in FITTED.chip:
        return Reach(share, math.hypot(FITTED_SIGMA, RECURSION_SIGMA), "published trainings on it")
    return Reach(
        share,
        math.hypot(FITTED_SIGMA, RECURSION_SIGMA, NEW_CHIP_SIGMA),
        "from its power and peak: never measured",
    )
