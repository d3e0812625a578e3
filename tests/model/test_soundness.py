"""Steps that are left out, trainings that are given up, and what goes on with other settings."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from model import train
from model.families.protocol import Objective
from model.families.trm.model import TRM
from model.training import loop
from model.training.soundness import (
    LEAST,
    MENDS_WITHIN,
    MOST_NOT_FINITE,
    MOST_SKIPPED,
    Diverged,
    Soundness,
)
from trmcloud.core.contract.records import dump
from trmcloud.core.contract.spikes import DEVIATIONS
from trmcloud.core.contract.trainer_contract import ENV_JOB, ENV_OVERRIDES
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.overrides import overridden
from trmcloud.core.spec.settings import PhaseRecipe

NewRun = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("keep_generator")


# -- the rule -----------------------------------------------------------------------------------


def rows(seed: int = 3) -> Iterator[tuple[float, float]]:
    """Losses about 3 and norms about 1, as a training's scatter."""
    made = random.Random(seed)
    while True:
        yield made.gauss(3.0, 0.1), made.gauss(1.0, 0.1)


def settled(steps: int = 200) -> tuple[Soundness, int]:
    made = Soundness()
    for step, (loss, norm) in zip(range(1, steps + 1), rows(), strict=False):
        assert made.judge(step, loss, norm, finite=True) == "", "the training's own scatter"
    return made, steps


def test_nothing_stands_out_before_there_is_enough_to_stand_out_of() -> None:
    early, step = settled(LEAST - 1)
    assert early.judge(step + 1, 1e6, 1e6, finite=True) == ""
    ready, step = settled(LEAST)
    assert ready.judge(step + 1, 1e6, 1.0, finite=True)


def test_six_deviations_are_the_limit_of_loss_and_of_norm() -> None:
    for name in ("loss", "norm"):
        made, step = settled()
        before = list(made.losses if name == "loss" else made.norms)
        mean = sum(before) / len(before)
        deviation = math.sqrt(sum((each - mean) ** 2 for each in before) / len(before))
        limit = mean + DEVIATIONS * deviation
        for value, out in ((limit - 1e-6, False), (limit + 1e-6, True)):
            again = Soundness.from_json(made.to_json())
            loss, norm = (value, 1.0) if name == "loss" else (3.0, value)
            assert bool(again.judge(step + 1, loss, norm, finite=True)) is out


def test_a_level_that_has_changed_is_taken_after_a_few_steps() -> None:
    made, step = settled()
    out = [bool(made.judge(step + n, 3.0, 2.5, finite=True)) for n in range(1, 60)]
    assert out[0]
    assert sum(out) <= 6
    assert not any(out[6:])


def test_a_loss_that_comes_back_is_settled_and_one_that_does_not_has_diverged() -> None:
    made, step = settled()
    assert made.is_settled
    assert made.judge(step + 1, 9.0, 1.0, finite=True)
    assert not made.is_settled
    assert made.judge(step + 2, 3.0, 1.0, finite=True) == ""
    assert made.is_settled
    lost, step = settled()
    for number in range(1, MENDS_WITHIN):
        lost.judge(step + number, 9.0, 1.0, finite=True)
    with pytest.raises(Diverged, match="above"):
        lost.judge(step + MENDS_WITHIN, 9.0, 1.0, finite=True)


def test_not_finite_is_left_out_and_in_a_row_is_the_end() -> None:
    made, step = settled()
    for number in range(1, MOST_NOT_FINITE):
        assert made.judge(step + number, math.nan, 1.0, finite=False)
    assert not made.is_settled
    again = Soundness.from_json(json.loads(json.dumps(made.to_json())))
    assert again == made
    assert again.judge(step + 5, 3.0, 1.0, finite=True) == ""
    assert again.is_settled
    with pytest.raises(FloatingPointError, match="in a row"):
        made.judge(step + MOST_NOT_FINITE, 3.0, math.inf, finite=False)


def test_skips_have_a_cap_however_far_apart() -> None:
    made, step = settled()
    for number in range(MOST_SKIPPED - 1):
        made.judge(step + 2 * number, math.nan, 1.0, finite=False)
        made.judge(step + 2 * number + 1, 3.0, 1.0, finite=True)
    with pytest.raises(FloatingPointError):
        made.judge(step + 2 * MOST_SKIPPED, math.nan, 1.0, finite=False)
    calm, step = settled()
    for number in range(2000):
        step += 1
        calm.judge(step, 3.0, 1.0, finite=number % 20 != 0)


# -- in a training ------------------------------------------------------------------------------


def poison(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[int, torch.Tensor], torch.Tensor]
) -> None:
    """``change(step, loss)`` takes the loss's place, whatever attempt comes to the step."""
    real, at = TRM.loss, [0]
    step = loop.Trainer._step

    def counted(self: Any) -> Any:
        at[0] = self._progress.step + 1
        return step(self)

    def loss(self: TRM, *batch: Any) -> Objective:
        made = real(self, *batch)
        return made._replace(loss=change(at[0], made.loss))

    monkeypatch.setattr(loop.Trainer, "_step", counted)
    monkeypatch.setattr(TRM, "loss", loss)


def test_a_step_that_is_not_finite_is_left_out_and_told(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, lambda step, loss: loss * math.nan if step == 7 else loss)
    run = new_run(steps=12)
    assert run.train_here() == "finished"
    [skip] = run.metrics("skip")
    assert (skip["step"], skip["loss"]) == (7, None)
    assert "not finite" in skip["why"]
    assert [line["step"] for line in run.metrics("train")] == [1, 2, 3, 4, 5, 6, *range(8, 13)]
    assert (run.heartbeat.skipped, run.heartbeat.skipped_step) == (1, 7)
    assert run.metrics("eval")[-1]["val_bpb"] < run.metrics("eval")[0]["val_bpb"]


def test_a_spike_is_left_out_and_a_resumed_run_leaves_out_the_same(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, lambda step, loss: loss * 50 if step == 80 else loss)
    whole = new_run("whole", steps=90, keep_best=9)
    assert whole.train_here() == "finished"
    assert [line["step"] for line in whole.metrics("skip")] == [80]
    broken = new_run("broken", steps=90, keep_best=9, save_every=15)
    real = loop.Trainer._step

    def die_at_78(self: Any) -> Any:
        if self._progress.step == 78:
            raise RuntimeError("struck by lightning")
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "_step", die_at_78)
        assert broken.train_here() == "crashed"
    assert broken.train_here(attempt=2) == "finished"
    assert broken.metrics("start")[-1]["from_step"] == 75
    assert [line["step"] for line in broken.metrics("skip")] == [80]
    assert broken.weights_at(90) == whole.weights_at(90)


def test_what_never_becomes_finite_again_ends_and_saves_nothing_of_it(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, lambda step, loss: loss * math.nan if step >= 19 else loss)
    run = new_run(steps=60, save_every=10)
    assert run.train_here() == "non_finite"
    assert run.heartbeat.step == 18 + MOST_NOT_FINITE - 1
    assert max(run.manifests()) == 10, "not at step 20, with steps left out since"
    assert "in a row" in run.heartbeat.message


def test_a_loss_that_stays_up_has_diverged_and_what_is_saved_is_from_before(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, lambda step, loss: loss + 100.0 if step >= 72 else loss)
    run = new_run(steps=200, save_every=10, eval_every=50)
    assert run.train_here() == "diverged"
    assert run.heartbeat.outcome == "diverged"
    assert max(run.manifests()) == 70
    assert run.metrics("end")[-1]["outcome"] == "diverged"


# -- with what recovery has changed ---------------------------------------------------------------


@pytest.mark.parametrize("family", ["trm", "control", "nanochat"])
def test_checkpointed_activations_give_the_same_weights_to_the_last_bit(
    new_run: NewRun, family: str
) -> None:
    settings = {"trm": {}, "control": {"control": True}, "nanochat": {"family": "nanochat"}}
    made: dict[str, Any] = settings[family]  # type: ignore[assignment]
    plain, kept = (
        new_run(f"{family}-{on}", steps=6, activation_checkpointing=on, **made)
        for on in (False, True)
    )
    assert plain.train_here() == "finished"
    job = replace(kept.job, settings={**kept.job.settings, "activation_checkpointing": True})
    kept.job = job
    assert kept.train_here() == "finished"
    assert kept.weights_at(6) == plain.weights_at(6)


def test_checkpointed_activations_are_not_kept(settings: PhaseRecipe) -> None:
    from model.families import registry

    sizes = {}
    for on in (False, True):
        model = registry.build(replace(settings, activation_checkpointing=on), torch.device("cpu"))
        model.initialise(1)
        kept: list[int] = []

        def note(tensor: torch.Tensor, kept: list[int] = kept) -> torch.Tensor:
            kept.append(tensor.numel())
            return tensor

        ids = torch.zeros(2, settings.sequence, dtype=torch.int64)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            model(ids, ids)
        sizes[on] = sum(kept)
    assert sizes[True] < 0.6 * sizes[False]


def test_half_the_batch_goes_on_from_the_same_checkpoint_with_the_same_samples(
    new_run: NewRun,
) -> None:
    """As after running out of memory at step 10: the global batch, and so each step's loss, is that
    of a run that was never stopped, but for rounding."""
    whole = new_run("whole", steps=20, save_every=10, keep_best=9, schedule="constant")
    assert whole.train_here() == "finished"
    mended = new_run("mended", steps=10, save_every=10, keep_best=9, schedule="constant")
    assert mended.train_here() == "finished"
    own = PhaseRecipe.from_json({**mended.job.settings, "steps": 20})
    changed = overridden(own, {"batch": 1, "accumulation": 2, "loader_workers": 0})
    assert changed.global_batch(1) == own.global_batch(1)
    mended.job = replace(mended.job, settings=changed.to_json())
    assert mended.train_here(attempt=2) == "finished"
    assert mended.metrics("start")[-1]["from_step"] == 10
    losses = [
        [line["loss"] for line in run.metrics("train") if line["step"] > 10]
        for run in (mended, whole)
    ]
    # TRM's reward is a ratio of losses, taken in each micro-batch.
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-5), "of the same samples"
    # An update divides what is almost nothing by its own size: there rounding is felt.
    assert losses[0] == pytest.approx(losses[1], rel=3e-3)
    assert max(losses[1]) > 1.03 * min(losses[1]), "which other samples would not give"


def test_overrides_are_read_from_the_environment_and_strictly(new_run: NewRun) -> None:
    run = new_run(steps=4)
    run.out.mkdir(parents=True)
    path = run.out / "job.json"
    path.write_text(dump(run.job))
    given = {ENV_JOB: str(path)}
    own = train._read(given)[1]
    text = json.dumps({"rate": 0.25, "preset": "moderate", "batch": 1, "accumulation": 2})
    made: Any = train._read({**given, ENV_OVERRIDES: text})[1]
    assert (made.batch, made.accumulation) == (1, 2)
    rates = [(s.matrix_lr, s.embedding_lr, s.head_lr) for s in (made, own)]
    assert rates[0] == tuple(rate * 0.25 for rate in rates[1])
    assert (made.preset, made.supervision_weight_base, made.improvement_reward_scale) == (
        *("moderate", 3.0, 0.5),
    )
    assert replace(made, **{
        name: getattr(own, name)
        for name in (
            "batch", "accumulation", "matrix_lr", "embedding_lr", "head_lr", "preset",
            "supervision_weight_base", "improvement_reward_scale",
        )
    }) == own  # fmt: skip
    for bad in ("nonsense", '{"steps": 1}', '{"batch": -1}'):
        with pytest.raises(UsageError, match="cannot be read"):
            train._read({**given, ENV_OVERRIDES: bad})
