"""Where a run's figures are drawn by programs that are not ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Board(Protocol):
    """Told one phase after the other, each in the order of its steps."""

    def begin(self, phase: str, step: int) -> None:
        """What is told of this phase begins now, at this step: for the first time, or anew, where
        its trainer went back to a checkpoint."""

    def tell(
        self, phase: str, step: int, on_axis: int, at: float, values: Mapping[str, float]
    ) -> None:
        """Figures by their names, logged at ``at`` (epoch s). ``step`` is the phase's own,
        ``on_axis`` counts on over phases."""

    def flush(self) -> None: ...

    def close(self) -> None: ...
