"""Attempts that die, and trainings that go on from them, for every family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model import sample, score
from model.machine.telemetry import Clock
from model.training import loop
from trmcloud.core.contract import manifest as mf


class TickingClock:
    """Each look at it takes a fixed time: a run against a deadline, without waiting for it."""

    def __init__(self, tick: float = 0.01, at: float = 1000.0) -> None:
        self.at, self.tick = at, tick

    def __call__(self) -> float:
        self.at += self.tick
        return self.at

    def clock(self) -> Clock:
        return Clock(epoch=self, monotonic=self)


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


def before_steps(patch: pytest.MonkeyPatch, act: Callable[[Any], object]) -> None:
    """``act`` is called with the trainer before each step."""
    real = loop.Trainer._step

    def step(self: Any) -> Any:
        act(self)
        return real(self)

    patch.setattr(loop.Trainer, "_step", step)


def dying_at(patch: pytest.MonkeyPatch, *steps: int) -> None:
    """No step is made after one of ``steps``: what is on disk by then is all that there is."""

    def die(trainer: Any) -> None:
        if trainer._progress.step in steps:
            raise RuntimeError("struck by lightning")

    before_steps(patch, die)


def crash(run: Any, step: int, attempt: int = 1, **environment: Any) -> None:
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
    """Check that the best is on disk with the weights that were evaluated, and that a training
    which is killed after it resumes to the same hashes. Return the uninterrupted training."""
    changes = {**BETWEEN_SAVES, **changes}
    with pytest.MonkeyPatch.context() as patch:
        scored(patch, SCORES)
        whole = make("whole", **changes, keep_best=9)
        assert whole.train_here() == "finished"
        best = mf.pick_best(whole.manifests().values())
        assert best is not None
        assert (best.step, best.val_bpb) == (BEST, SCORES[BEST])
        assert (whole.heartbeat.best_step, whole.heartbeat.best_bpb) == (BEST, SCORES[BEST])
        broken = make("broken", **changes, keep_best=9)
        crash(broken, 9)
        check_resumed(broken, whole, BEST)
        return whole


def check_learns_is_scored_and_asked(
    run: Any, data: Path, capsys: pytest.CaptureFixture[str], prompt: str, *more: str
) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """It learns, is scored as training scored it, and a sample of it can be had: the evaluations,
    the score, and what ``model.sample`` printed."""
    assert run.train_here() == "finished"
    evals = run.metrics("eval")
    first, *_, last = evals
    assert last["val_bpb"] < first["val_bpb"]
    folder = run.out / "checkpoints" / mf.step_dir_name(run.heartbeat.step)
    scored = score.score(folder, data)
    assert scored["val_bpb"] == pytest.approx(last["val_bpb"], rel=1e-5), "the weights it names"
    capsys.readouterr()
    assert sample.main(["--checkpoint", str(folder), "--prompt", prompt, *more]) == 0
    return evals, scored, capsys.readouterr().out
