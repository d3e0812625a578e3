"""The calibration's outcome as constants, so that a plan does not fit anything anew.

``make calibrate`` prints them; a test holds them to the table.
"""

from __future__ import annotations

import math
from typing import Mapping, NamedTuple

from trmcloud.core.hardware import Gpu
from trmcloud.core.roofline import Parameters

FITTED = Parameters(
    reached={"A100-80GB-SXM": 0.7173, "H100-SXM": 0.6302},
    pooled=0.6723,
    fill=119.6,
    traffic_values=34.69,
    attention_share=0.5283,
)
FITTED_SIGMA = 0.132
"""Root mean square of the leave-one-out errors, as logarithms."""
RECURSION_SIGMA = 0.10
"""No published row is a recursive model; its own doubt, added in quadrature."""
P90_SIGMAS = 1.2816

#: Chips whose die was measured under another name.
_SAME_DIE: Mapping[str, str] = {
    "H200": "H100-SXM",
    "A100-40GB": "A100-80GB-SXM",
    "A100-80GB-PCIe": "A100-80GB-SXM",
    "H100-PCIe": "H100-SXM",
    "H100-NVL": "H100-SXM",
}
PCIE_THROTTLE = 0.875
"""PCIe cards run at 300 to 400 W: planner's default MFU is .35 where the SXM part has .40."""
B200_SHARE = 0.5
"""Of the pooled share: its one published row, power limited, reached 45 % of the prediction; one
row fits no parameter, so this is a prior with a wide interval."""


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
    """What ``gpu`` reaches before it was probed."""
    if gpu.sku in FITTED.reached:
        return Reach(FITTED.reached[gpu.sku], _with(FITTED_SIGMA), "published trainings on it")
    sibling = _SAME_DIE.get(gpu.sku)
    if sibling is not None:
        throttled = PCIE_THROTTLE if gpu.sku.endswith(("PCIe", "NVL")) else 1.0
        return Reach(
            FITTED.reached[sibling] * throttled,
            _with(0.20),
            f"same die as {sibling}" + (", throttled by its power limit" if throttled < 1 else ""),
        )
    if gpu.sku == "B200":
        return Reach(FITTED.pooled * B200_SHARE, _with(0.40), "one power-limited row: wide")
    return Reach(FITTED.pooled, _with(0.28), "other GPUs' mean: never measured here")


def _with(sigma: float) -> float:
    return math.hypot(sigma, RECURSION_SIGMA)
