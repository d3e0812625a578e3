"""The tasks that a phase's last checkpoint is scored on: a part of its job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from trmcloud.core.contract.records import record_of
from trmcloud.core.values import Value


class ScoringJob(Value):
    """``PhaseJob.scoring``: tasks to ask once the checkpoint is saved and evaluated."""

    suite: str
    folder: str
    """Of the tasks' files, on this machine."""
    within_s: float
    """For so long; or until the deadline of the training, if that is later."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def scoring_of(content: Mapping[str, Any]) -> ScoringJob | None:
    """
    Raises:
        ContractError: the content is no such job.
    """
    return record_of(ScoringJob, content) if content else None
