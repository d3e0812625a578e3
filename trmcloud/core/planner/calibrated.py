"""The calibration's outcome as constants, so that a plan does not fit anything anew.

Fitted on 2026-11-23 to the 131 published trainings of ``bench/throughput.csv``, each with its
source. ``make calibrate`` prints the constants and how far off they are; a test holds them to it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from trmcloud.core.catalog.hardware import GPUS, Gpu
from trmcloud.core.planner.roofline import Parameters

SOFTWARE = "torch-compile"
"""The family of ours: PyTorch, compiled blocks, SDPA, DDP."""
FITTED = Parameters(
    sustained=0.954,
    half_w=0.4386,
    fill=146.5567,
    pass_fill=944.3357,
    traffic_values=38.6792,
    eager_traffic=1.4969,
    attention_share=0.4875,
    masked_cost=1.5171,
    memory_share=0.8322,
    software={
        "composer": 1.0697,
        "fused-eager": 1.0624,
        "llm.c": 0.9559,
        "megatron": 0.8394,
        "paxml": 1.1813,
        "torch-compile": 0.9964,
        "torch-eager": 1.1377,
        "torchtitan-compile": 0.9816,
    },
    fp8={"block": 0.9881, "engine": 0.9525, "row": 1.086, "tensor": 1.0055},
    chip={
        "A100-40GB": 0.9485,
        "A100-80GB-PCIe": 0.9495,
        "A100-80GB-SXM": 0.9424,
        "B200": 0.9214,
        "H100-NVL": 1.1683,
        "H100-PCIe": 0.9464,
        "H100-SXM": 0.9699,
        "H200": 0.9437,
        "L4": 1.1943,
        "L40S": 1.1752,
        "RTX3090": 1.0561,
        "RTX4090": 0.8921,
    },
)
P90_SIGMAS = 1.2816
FITTED_SIGMA = 0.204 / P90_SIGMAS
"""Of the logarithm of time. Four of five trainings like ours, each predicted without its source,
came within e^±0.204 of what was measured."""
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
    """A probe of one machine, or a run on it: the median of ``steps`` measured steps, in
    seconds."""

    sku: str
    """Or the name of a local machine."""
    gpus: int
    step_s: float
    steps: int
    tokens_per_step: int
    flops_per_token: float
    predicted_s: float = 0.0
    """What the model says of such a step; 0: nothing is known of its settings but the FLOPs."""
    at: float = 0.0
    """When, in epoch s; 0: a version that did not say."""
    run_id: str = ""
    """The run that it was; empty: a probe."""

    @property
    def is_possible(self) -> bool:
        """Whether it is at most the chip's highest dense peak: what a pod tells of its steps may be
        anything. Of a machine without a known GPU nothing is known."""
        gpu = GPUS.get(self.sku)
        if gpu is None:
            return True
        peak = max(gpu.bf16_tflops, gpu.fp8_tflops) * 1e12 * self.gpus
        return self.tokens_per_step * self.flops_per_token <= peak * self.step_s


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
