"""Selective checkpointing within what is compiled: the backward pass computes no product again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile

from model.families import registry
from model.families.dense import Dense
from model.families.registry import provide_families
from model.machine.distributed import World
from model.training import sharding
from tests import settings as made
from trmcloud.core.spec.settings import PhaseRecipe

pytestmark = [pytest.mark.slow, pytest.mark.more]
PRODUCTS = ("aten::mm", "aten::addmm", "mkldnn::_linear_pointwise", "aten::_scaled_dot_product")
MODES: dict[str, dict[str, Any]] = {"none": {}, "selective": {"selective_checkpointing": True}}


def settings_of(mode: str) -> PhaseRecipe:
    settings: dict[str, Any] = {
        **{"depth": 1, "width": 64, "head_dim": 16, "vocab_size": 64, "sequence": 16},
        **{"mlp": "relu2", "batch": 2, "dtype": "float32", "sharding": "fsdp"},
        **MODES[mode],
    }
    made_of: PhaseRecipe = made.settings_of(
        "nanochat", "train", activation_checkpointing=mode != "none", **settings
    )
    return made_of


def products_of_backward(model: Dense) -> tuple[int, list[Tensor]]:
    """Matrix products and attentions of a compiled model's second backward pass; its gradients."""
    model.initialise(0)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "mix" in name or "down" in name or "head" in name:
                weight.normal_(std=0.1)
    model.compile_parts()
    ids = torch.arange(32).view(2, 16) % 64
    for _ in range(2):
        model.zero_grad()
        loss = model(ids, ids.flip(1)).loss
        with profile(activities=[ProfilerActivity.CPU]) as taken:
            loss.backward()
    names = [event.name for event in taken.events()]
    count = sum(name in PRODUCTS or name.startswith(PRODUCTS[-1]) for name in names)
    return count, [each.grad for each in model.parameters() if each.grad is not None]


def test_compiled_it_computes_no_product_again() -> None:
    counts, gradients = {}, {}
    for mode in MODES:
        torch._dynamo.reset()
        model = sharding.build(settings_of(mode), World(0, 1, torch.device("cpu")))
        assert isinstance(model, Dense)
        counts[mode], gradients[mode] = products_of_backward(model)
    assert counts["none"] == counts["selective"] > 0, counts  # 20 where it lay around the graph
    for here, there in zip(gradients["selective"], gradients["none"], strict=True):
        torch.testing.assert_close(here, there)


def test_what_was_compiled_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    found: Counter[str] = counters["aot_autograd"]
    for hits in (0, 1):
        torch._dynamo.reset()
        found.clear()
        model = sharding.build(settings_of("selective"), World(0, 1, torch.device("cpu")))
        assert isinstance(model, Dense)
        model.compile_parts()
        ids = torch.arange(32).view(2, 16) % 64
        model(ids, ids.flip(1)).loss.backward()
        assert found["autograd_cache_bypass"] == 0
        assert bool(found["autograd_cache_hit"]) == bool(hits)


def test_with_weights_that_are_shared_out_it_computes_none_again(tmp_path: Path) -> None:
    # A process of its own: gloo's threads stay where they were started.
    done = subprocess.run(
        [sys.executable, "-m", "tests.model.test_selective_compiled", str(tmp_path / "store")],
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, timeout=400,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["none"] == counts["selective"] > 0, counts


def main(store: str) -> None:
    torch.set_num_threads(1)
    provide_families()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    counts = {}
    for mode in MODES:
        torch._dynamo.reset()
        settings, world = settings_of(mode), World(0, 1, torch.device("cpu"))
        with torch.device("meta"):
            model = registry.build(settings, torch.device("meta"))
        assert isinstance(model, Dense)
        sharding._shard(model, model.shardable(), settings, world)
        model.to_empty(device=world.device)
        counts[mode], _ = products_of_backward(model)
    print(json.dumps(counts), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
