"""What is told of a graph that Inductor compiled, by the process that compiled it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from bench.cubins import Cubin

PLAIN, GRAPHS = "default", "reduce-overhead"
"""``torch.compile``'s modes: as the trainer has it, and with CUDA graphs."""


@dataclass
class Graph:
    """One graph that Inductor compiled."""

    mode: str
    part: str
    way: str
    """forward, backward, or evaluation: forward, where no gradient is wanted."""
    varies: bool = False
    """For any number of rows, as a piece of another length came up."""
    kernels: list[str] = field(default_factory=list)
    cubins: list[Cubin] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Configurations of a kernel that were not compiled, and why."""
    calls: dict[str, int] = field(default_factory=dict)
    """Of kernels that libraries have ready."""
    timed: list[str] = field(default_factory=list)
    """Products of shapes that Inductor pads or not as a GPU's clock says; here it does not."""
    no_cuda_graph: list[str] = field(default_factory=list)
    """Why it could not be recorded, whole, as a CUDA graph."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Graph:
        return cls(**{**data, "cubins": [Cubin(**each) for each in data["cubins"]]})
