"""Which of a command's checkpoints are put back where its script wrote them."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.core.manifests import manifest
from trmcloud.core.contract.command import RECIPE
from trmcloud.core.contract.command_resuming import checkpoints_to_put_back
from trmcloud.core.contract.manifest import (
    LAYOUT,
    NAMED_BEST,
    OUTPUTS,
    OUTPUTS_AT,
    CheckpointManifest,
)
from trmcloud.operations.checkpoints.bucket_grants import latest_resumable


def saved(step: int, bpb: float | None = None, layout: str = "pt") -> CheckpointManifest:
    return manifest(step, bpb, created_at=float(step), recipe=RECIPE, extra={LAYOUT: layout})


def best(step: int, bpb: float | None = None) -> CheckpointManifest:
    made = saved(step, bpb)
    return replace(made, extra={**made.extra, NAMED_BEST: "out/best.pt"})


def test_the_latest_comes_first_and_the_scripts_own_best_after_it() -> None:
    assert checkpoints_to_put_back([saved(1), best(2), saved(3), best(4), saved(5)]) == [
        *(saved(5), best(4)),
    ]
    assert checkpoints_to_put_back([best(2, 0.5), saved(3, 0.75)]) == [saved(3, 0.75), best(2, 0.5)]
    assert checkpoints_to_put_back([saved(1), saved(2)]) == [saved(2)]
    assert checkpoints_to_put_back([]) == []


def test_the_last_that_was_saved_beside_a_best_is_resumed_from() -> None:
    assert checkpoints_to_put_back([saved(3), best(4)]) == [saved(3), best(4)]
    assert checkpoints_to_put_back([saved(3), best(303)]) == [best(303), saved(3)]
    assert checkpoints_to_put_back([best(4)]) == [best(4)]
    alone = saved(5, layout="transformers-model")
    assert checkpoints_to_put_back([saved(3), best(4), alone])[0] == saved(3)


def test_a_model_alone_is_resumed_from_only_where_there_is_nothing_else() -> None:
    alone = saved(9, layout="transformers-model")
    whole = saved(6, layout="transformers-model-and-optimizer")
    assert checkpoints_to_put_back([whole, alone]) == [whole, alone]
    assert checkpoints_to_put_back([alone]) == [alone]
    archive = replace(saved(10, layout=OUTPUTS), created_at=OUTPUTS_AT)
    assert checkpoints_to_put_back([archive]) == []


def test_a_new_machine_may_fetch_them_from_the_bucket() -> None:
    made = [best(2), saved(3), saved(4), saved(5)]
    assert latest_resumable(made) == (saved(5), saved(4), best(2))
    ours = [replace(each, recipe="fast") for each in made]
    assert best(2).step not in {each.step for each in latest_resumable(ours)}
