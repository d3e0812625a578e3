"""FSDP2 learns what DDP and one process alone learn, and no rank holds more than its share."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from model.machine.distributed import World
from model.machine.tensors import Span, span_among
from model.training.optim import Matrix
from model.training.sharding import Peers
from tests.model.conftest import output_of, torchrun
from tests.model.sharded_ranks import CASES, STEPS, make_tasks, scored, settings_of, train

pytestmark = pytest.mark.usefixtures("keep_generator")


@pytest.fixture(
    scope="module", params=[2, pytest.param(4, marks=[pytest.mark.slow, pytest.mark.more])]
)
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def trained(ranks: int, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every case, both ways, by so many ranks."""
    folder = tmp_path_factory.mktemp(f"ranks-{ranks}")
    make_tasks(folder)
    process = torchrun(ranks, "tests.model.sharded_ranks", RESULT=str(folder / "result.json"))
    output_of(process)
    made: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return made


@pytest.mark.parametrize("case", list(CASES))
def test_one_process_ddp_and_fsdp_agree(trained: dict[str, Any], case: str, ranks: int) -> None:
    """In float32: every loss within 1e-5, and every gradient's norm before clipping."""
    alone = train(settings_of(case, 1, "ddp"), World(0, 1, torch.device("cpu")))
    for how in ("ddp", "fsdp"):
        other = trained[f"{case} {how}"]
        for (loss, norm), (wanted, wanted_norm) in zip(
            other["course"], alone["course"], strict=True
        ):
            assert loss == pytest.approx(wanted, abs=1e-5)
            assert norm == pytest.approx(wanted_norm, rel=1e-5)
        assert other["judged"] == pytest.approx(alone["judged"], abs=1e-5)
    losses = [loss for loss, _ in alone["course"]]
    assert len(set(losses)) == len(losses), "the weights move"


def test_ranks_score_what_one_process_does(trained: dict[str, Any], tmp_path: Path) -> None:
    make_tasks(tmp_path)
    alone = scored(tmp_path, World(0, 1, torch.device("cpu")), "ddp")
    shared, sharded = (trained[f"scores {how}"] for how in ("ddp", "fsdp"))
    assert [each.pop("held") for each in (alone, shared, sharded)] == [False, False, True]
    assert alone == shared == sharded
    assert 0 < alone["tasks"][0]["correct"] < 37


@pytest.mark.parametrize("case", list(CASES))
def test_no_more_is_gathered_than_needed(trained: dict[str, Any], case: str, ranks: int) -> None:
    settings = settings_of(case, ranks, "fsdp")
    calls = trained[f"{case} fsdp"]["calls"]
    gathers = sum(times for name, times in calls.items() if "gather" in name)
    passes = settings.accumulation
    assert 0 < gathers <= passes * (2 * settings.depth + 2)
    scatters = sum(times for name, times in calls.items() if "reduce_scatter" in name)
    assert scatters == passes * (settings.depth + 1)


def test_each_rank_holds_its_share_alone(trained: dict[str, Any], ranks: int) -> None:
    for case in CASES:
        there = trained[f"{case} fsdp"]
        assert there["held"] < there["every"] / ranks * 1.02
        assert trained[f"{case} ddp"]["held"] == there["every"]


def test_ranks_that_hold_all_deal_the_matrices_out(trained: dict[str, Any], ranks: int) -> None:
    """Of 3 blocks: q, k, v and mix, which are of one shape, and two others."""
    shapes = {"qkv and mix": 12, "up": 3, "down": 3}
    settings = settings_of("muon", 1, "ddp")
    assert settings.depth == 3
    alone = train(settings, World(0, 1, torch.device("cpu")))
    assert alone["worked"] == STEPS * sum(shapes.values())
    shared = trained["muon ddp"]
    assert shared["worked"] == STEPS * sum(math.ceil(each / ranks) for each in shapes.values())
    assert sum(n for name, n in shared["calls"].items() if "gather" in name) == len(shapes)


def test_one_process_of_a_sharded_run_holds_everything() -> None:
    made = train(settings_of("muon", 1, "fsdp"), World(0, 1, torch.device("cpu")))
    assert made["held"] == made["every"]


@pytest.mark.parametrize("rows", [1, 3, 7, 8, 64, 101])
@pytest.mark.parametrize("among", [1, 2, 3, 4, 8])
def test_rows_are_shared_out_as_torch_does(rows: int, among: int) -> None:
    chunks = list(torch.arange(rows).chunk(among))
    for rank in range(among):
        span = span_among(rows, rank, among)
        wanted = chunks[rank].tolist() if rank < len(chunks) else []
        assert list(range(*span)) == wanted
    assert math.fsum(span_among(rows, rank, among).length for rank in range(among)) == rows


def test_a_matrix_that_is_some_rows_of_a_parameter_lies_on_some_ranks() -> None:
    """Keys of a fused weight of 10 rows: 4 to 6, which two of four ranks hold."""
    keys, peers = Matrix("qkv", 4, 7, 10), Peers(0, 4, None)
    held = [keys.held(peers, rank) for rank in range(4)]
    assert [span.length for span in held] == [0, 2, 1, 0]
    assert (held[1], held[2]) == (Span(4, 6), Span(6, 7))
