"""Attempts that die, and trainings that go on from them, for every family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from model.training import loop
from trmcloud.core.contract import manifest as mf

BEST = 8
BETWEEN_SAVES: dict[str, Any] = {
    **{"steps": 14, "eval_every": 4, "save_every": 6, "warmup_steps": 1, "log_every": 1},
    **{"schedule": "constant", "cooldown_fraction": 0.0},
}
"""Evaluations after 4, 6, 8, 12 and 14 steps, saves after 6, 12 and 14."""
SCORES = {0: 9.0, 4: 4.0, 6: 3.0, BEST: 2.0, 12: 2.5, 14: 2.4}


def scored(patch: pytest.MonkeyPatch, scores: Mapping[int, float]) -> None:
    """Each evaluation is made, and then says what ``scores`` says of its step."""
    real, steps = loop.evaluate, [0]  # type: ignore[attr-defined]
    evaluate_there = loop.Trainer._evaluate

    def evaluate_at(self: Any, landing: bool = False) -> None:
        steps.append(self._progress.step)
        evaluate_there(self, landing)

    def evaluate(*given: Any, **named: Any) -> Any:
        return replace(real(*given, **named), bits_per_byte=scores[steps[-1]])

    patch.setattr(loop.Trainer, "_evaluate", evaluate_at)
    patch.setattr(loop, "evaluate", evaluate)


def dying_at(patch: pytest.MonkeyPatch, step: int) -> None:
    """No step is made after ``step``: what is on disk by then is all that there is."""
    real = loop.Trainer._step

    def die(self: Any) -> Any:
        if self._progress.step == step:
            raise RuntimeError("struck by lightning")
        return real(self)

    patch.setattr(loop.Trainer, "_step", die)


def crash(run: Any, step: int, attempt: int = 1, **environment: str) -> None:
    """An attempt that dies after ``step``."""
    with pytest.MonkeyPatch.context() as patch:
        dying_at(patch, step)
        assert run.train_here(attempt, **environment) == "crashed"


def check_resumed(run: Any, whole: Any, from_step: int) -> None:
    """The second attempt goes on from ``from_step``, and ends as ``whole`` did to the last bit."""
    assert run.train_here(attempt=2) == "finished"
    assert run.metrics("start")[-1]["from_step"] == from_step
    last = whole.heartbeat.step
    assert run.weights_at(last) == whole.weights_at(last)
    assert run.exact_metrics() == whole.exact_metrics()


def check_best_is_saved(make: Callable[..., Any], **changes: Any) -> Any:
    """The best is on disk and is the one that is fetched, with the weights that were evaluated;
    and a training that dies right after it goes on from there to the last bit. Return the whole
    training."""
    changes = {**BETWEEN_SAVES, **changes}
    with pytest.MonkeyPatch.context() as patch:
        scored(patch, SCORES)
        run = make("run", **changes, keep_best=1)
        assert run.train_here() == "finished"
        assert sorted(run.manifests()) == [BEST, 14], "the best and the latest, and no more"
        best = mf.pick_best(run.manifests().values())
        assert best is not None
        assert (best.step, best.val_bpb) == (BEST, SCORES[BEST])
        assert (run.heartbeat.best_step, run.heartbeat.best_bpb) == (BEST, SCORES[BEST])

        whole = make("whole", **changes, keep_best=9)
        assert whole.train_here() == "finished"
        assert best.sha256 == whole.weights_at(BEST)
        assert run.weights_at(14) == whole.weights_at(14)

        broken = make("broken", **changes, keep_best=9)
        crash(broken, 9)
        check_resumed(broken, whole, BEST)
        return whole
