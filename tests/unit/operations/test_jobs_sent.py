"""A job as a rented pod's environment has it: what is left out must be what may be missing."""

from __future__ import annotations

from typing import Any

import pytest

from trmcloud.core import codec
from trmcloud.core.contract.trainer_contract import PhaseJob
from trmcloud.ports.compute import _told

BARE: dict[str, Any] = {
    "run_id": "r-1f3a9c", "phase": "train", "settings": {}, "data_dir": "", "out_dir": "/out",
    "processes": 1,
}  # fmt: skip


@pytest.mark.parametrize("more", [{}, {"data_dir": "/data"}, {"code_dir": "/code"}], ids=str)
def test_a_job_is_read_as_it_was_sent(more: dict[str, Any]) -> None:
    job = PhaseJob(**{**BARE, **more})
    sent = {name: value for name, value in _told(job).items() if name != "version"}
    assert codec.from_json(PhaseJob, sent) == job
    assert "initial_weights" not in sent
