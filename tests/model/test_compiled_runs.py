"""A compiled run that is resumed ends with the same weights as one without a break."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.more, pytest.mark.timeout(1800)]


def test_a_compiled_run_is_resumed_to_the_last_bit(new_run: Callable[..., Any]) -> None:
    settings = {
        **{"family": "nanochat", "architecture": "nanochat-2026", "value_embeddings": True},
        **{"mlp": "relu2", "qk_norm": True, "optimizer": "muon", "weight_decay": 0.1},
        **{"depth": 2, "width": 64, "head_dim": 16, "sequence": 32, "batch": 2},
        **{"dtype": "float32", "compile": True, "steps": 8, "save_every": 4, "eval_every": 4},
        "dropout": 0.1,
    }
    whole, part = (new_run(name, **settings) for name in ("whole", "part"))
    assert whole.train_here() == "finished"
    shutil.copytree(whole.out, part.out, dirs_exist_ok=True)
    shutil.rmtree(Path(part.out) / "checkpoints" / "step-00000008")
    assert part.train_here(attempt=2) == "finished"
    assert 0 < part.metrics("start")[-1]["from_step"] < 8
    for kind in ("weights", "optimizer"):
        one, other = (
            [file.sha256 for file in run.manifests()[8].files if file.kind == kind]
            for run in (whole, part)
        )
        assert one == other != []
