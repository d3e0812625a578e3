"""Every family goes through one trainer: learns, resumes to the last bit, is scored and asked."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

import pytest
import torch

from model.families import registry
from model.training.checkpoint import read_tensors
from model.training.load import load_model
from model.training.optim import Average
from tests.model.attempts import check_learns_is_scored_and_asked
from tests.settings import changed
from trmcloud.core.contract.gate import judge
from trmcloud.core.errors import UsageError
from trmcloud.core.spec import settings as spec
from trmcloud.core.spec.overrides import with_overrides
from trmcloud.core.spec.settings import PhaseRecipe

NewRun = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("keep_generator")

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt": {"family": "gpt", "hidden": 48, "depth": 2},
    "gpt-tied-adamw": {
        **{"family": "gpt", "tied": True, "optimizer": "adamw"},
        **{"matrix_lr": 5e-3, "embedding_lr": 5e-3, "head_lr": 5e-3},
    },
    "nanochat-ema": {"family": "nanochat", "ema": True, "activation_checkpointing": True},
}


@pytest.mark.parametrize("name", ["gpt-tied-adamw", "nanochat-ema"])
def test_it_learns_is_scored_and_asked(
    new_run: NewRun, data_dir: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run = new_run(steps=40, eval_every=40, **FAMILIES[name])
    (*_, last), _, text = check_learns_is_scored_and_asked(run, data_dir, capsys, "the dog")
    assert text.startswith("the dog")
    assert len(last["val_step_losses"]) == 1
    assert "refinement_percent" not in last
    line = run.metrics("train")[-1]
    assert line["step_losses"] == [line["loss"]]
    assert run.heartbeat.step_losses == (line["loss"],)
    assert not {"ce", "reward"} & set(line)
    assert last["judged"] == ["the text"]
    verdict = judge("train", run.metrics())
    assert verdict.passed
    assert "validation order" not in {check.name for check in verdict.checks}


def test_every_family_with_a_trainer_has_one_and_no_other() -> None:
    trained = {name for name, family in spec.FAMILIES.items() if family.has_trainer}
    for name in trained:
        assert callable(importlib.import_module(f"model.families.{name}.model").build)


def test_a_tied_head_is_saved_once(new_run: NewRun) -> None:
    run = new_run(steps=3, **FAMILIES["gpt-tied-adamw"])
    assert run.train_here() == "finished"
    model = load_model(run.out / "checkpoints/step-00000003").model
    assert "head.weight" not in model.state_dict()
    sizes = {file.kind: file.size_bytes for file in run.manifests()[3].files}
    weights = sum(p.numel() for p in model.parameters())
    assert sizes["weights"] < 4 * weights + 2000


def test_an_average_is_the_sum_of_its_formula_and_leaves_the_weights() -> None:
    model = torch.nn.Linear(3, 2, bias=False)
    average = Average(model, decay=0.9)
    expected = model.weight.detach().double().clone()
    for step in range(120):
        with torch.no_grad():
            model.weight.add_(torch.full_like(model.weight, 0.01 * (step % 7)))
        average.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach().double()
    trained = model.weight.detach().clone()
    with average.applied():
        torch.testing.assert_close(model.weight.double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(model.weight, trained)
    assert torch.equal(average.trained()["trained.weight"].tensor, trained)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"width": 64}, "width 32 → 64"),
        ({"family": "nanochat"}, "family gpt → nanochat"),
        ({"sequence": 8}, "sequence 16 → 8"),
        ({"seed": 7}, "seed 1337 → 7"),
        ({"batch": 4}, "sequences a step 2 → 4"),
        ({"accumulation": 3}, "sequences a step 2 → 6"),
        ({"optimizer": "adamw"}, "optimizer muon → adamw"),
        ({"ema": True}, "ema False → True"),
        ({"mlp": "gelu"}, "mlp swiglu → gelu"),
        ({"kv_heads": 1}, "kv_heads 0 → 1"),
    ],
)
def test_a_resume_that_would_train_something_else_is_refused_by_name(
    trained_gpt: Any, change: dict[str, Any], told: str
) -> None:
    run = replace(trained_gpt)
    run.job = replace(run.job, settings={**run.job.settings, "steps": 8, **change})
    assert run.train_here(attempt=2) == "bad_checkpoint"
    assert told in run.heartbeat.message
    assert "TRMCLOUD_ACCEPT_CHANGE=1" in run.heartbeat.message
    assert run.weights_at(5) == trained_gpt.weights_at(5)


@pytest.fixture(scope="module")
def trained_gpt(tmp_path_factory: pytest.TempPathFactory, run_in: Callable[..., Any]) -> Any:
    run = run_in(tmp_path_factory.mktemp("gpt"), steps=5, **FAMILIES["gpt"])
    assert run.train_here() == "finished"
    return run


def test_an_accepted_change_goes_on_and_rates_and_steps_may_always_change(
    new_run: NewRun,
) -> None:
    run = new_run(steps=5, **FAMILIES["gpt"])
    assert run.train_here() == "finished"
    changed = {**run.job.settings, "steps": 8, "matrix_lr": 1e-3}
    run.job = replace(run.job, settings=changed)
    assert run.train_here(attempt=2) == "finished"
    run.job = replace(run.job, settings={**changed, "steps": 10, "batch": 4})
    assert run.train_here(attempt=3, TRMCLOUD_ACCEPT_CHANGE="1") == "finished"
    assert run.metrics("start")[-1]["from_step"] == 8
    run.job = replace(run.job, settings={**run.job.settings, "steps": 11, "seed": 3})
    assert run.train_here(attempt=3) == "bad_checkpoint"
    accepting = replace(run, job=replace(run.job, accept_change=True))
    assert accepting.train_here(attempt=3) == "finished"
    changed = run.job.settings
    # Equal whole batches mean the same, however they are taken.
    taken = {**changed, "steps": 12, "batch": 1, "accumulation": 4}
    run.job = replace(run.job, settings=taken)
    assert run.train_here(attempt=4) == "finished"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"optimizer": "muon"}, {"optimizer": "adamw", "ema": True}),
        ({"optimizer": "adamw", "ema": True}, {"optimizer": "muon", "ema": False}),
        ({"normuon": False}, {"normuon": True}),
    ],
)
def test_another_update_rule_that_is_accepted_goes_on_from_the_trained_weights(
    new_run: NewRun, before: dict[str, Any], after: dict[str, Any]
) -> None:
    run = new_run(steps=20, schedule="constant", **(FAMILIES["gpt"] | before))
    assert run.train_here() == "finished"
    settings = {**run.job.settings, **after, "steps": 21}
    run.job = replace(run.job, settings=settings, accept_change=True)
    assert run.train_here(attempt=2) == "finished"
    first, last = [line["loss"] for line in run.metrics("train")][:: len(run.metrics("train")) - 1]
    assert run.metrics("train")[-1]["step"] == 21
    assert last < first - 0.3, "what was learnt is not lost"
    folder = run.out / "checkpoints/step-00000021"
    saved = read_tensors(folder, run.manifests()[21], "optimizer")
    assert any(name.startswith("trained.") for name in saved) == settings["ema"]


SHAPES: dict[str, Any] = {
    "depth": 2, "width": 64, "head_dim": 8, "vocab_size": 320, "hidden": 40, "tied": True,
    "positions": "learned", "mlp": "gelu", "kv_heads": 1, "value_embeddings": True,
}  # fmt: skip
SAME_SHAPE: dict[str, Any] = {
    "sequence": 32, "norm": "layer", "qk_norm": True, "dropout": 0.1, "logit_cap": 5.0,
    "windows": "SL",
}  # fmt: skip


@pytest.mark.parametrize("key", [*SHAPES, *SAME_SHAPE])
def test_only_what_leaves_the_shapes_alone_can_be_accepted(settings: PhaseRecipe, key: str) -> None:
    """Of the keys that a resume holds to the plan each changes some model's weights; no other
    does."""
    base = changed(settings, family="gpt", mlp="swiglu", value_embeddings=key == "head_dim")
    other = changed(base, **{key: {**SHAPES, **SAME_SHAPE}[key]})

    def shapes(each: PhaseRecipe) -> dict[str, Any]:
        model = registry.build(each, torch.device("meta"))
        return {name: tensor.shape for name, tensor in model.state_dict().items()}

    assert (shapes(base) != shapes(other)) == (key in base.fixed_keys()) == (key in SHAPES)


def test_a_table_of_positions_keeps_its_sequence(settings: PhaseRecipe) -> None:
    learned = changed(settings, family="gpt", positions="learned")
    longer = replace(learned, sequence=32)
    sizes = [registry.build(each, torch.device("meta")).state_dict() for each in (learned, longer)]
    assert [t.shape for t in sizes[0].values()] != [t.shape for t in sizes[1].values()]
    with pytest.raises(UsageError, match="sequence is 16 in this run"):
        with_overrides(learned, {"sequence": 32})
