"""Scripts of well-known frameworks, as their users write them, and what each of them logs.

Each row has its command, where it saves, which opener of ``openers.py`` opens that, and which
values the script itself logged, by the step in its own counting. ``cells.py`` runs a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

Truth = Mapping[int, str]
"""The metric as it was logged, by step."""


@dataclass(frozen=True)
class Script:
    name: str
    command: str
    """With ``{steps}`` and ``{pause}``."""
    steps: int
    """How long it is where it shall finish."""
    pause: float
    """So that it saves every two to three seconds."""
    checkpoints: str
    metric: str
    saves: str
    """A pattern of what each complete save adds below the working folder."""
    opener: str
    truth: Callable[[str, Path], Truth]
    """From its log and its working folder."""
    best: str = "min"
    beside: tuple[str, ...] = ()
    """Scripts that it imports."""
    is_light: bool = False
    """It needs no more than torch."""
    saves_once: bool = False
    """On the way it saves one file, written anew each time."""

    @property
    def files(self) -> tuple[str, ...]:
        own = next(word for word in self.command.split() if word.endswith(".py"))
        return (own, *self.beside)

    def words(self, steps: int) -> list[str]:
        return self.command.format(steps=steps, pause=self.pause).split()

    @property
    def starts_in_s(self) -> int:
        """How long until it trains, on a busy machine."""
        return 20 if self.is_light else 45


def logged(pattern: str, plus: int = 0) -> Callable[[str, Path], Truth]:
    """A pattern with a group for the step, to which ``plus`` is added, and NUMBER for the value."""
    pattern = pattern.replace("NUMBER", r"([0-9.]+(?:e-?[0-9]+)?)")

    def truth(log: str, work: Path) -> Truth:
        return {int(step) + plus: value for step, value in re.findall(pattern, log)}

    return truth


def every(steps: int, key: str) -> Callable[[str, Path], Truth]:
    """transformers prints no step: the n-th line is of the n-th period."""

    def truth(log: str, work: Path) -> Truth:
        values = re.findall(rf"'{key}': '([-+0-9.e]+)'", log)
        return {steps * (index + 1): value for index, value in enumerate(values)}

    return truth


def lightning(log: str, work: Path) -> Truth:
    """From its TensorBoard file, which counts from 0."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [folder] = work.glob("lightning_logs/version_*")
    events = EventAccumulator(str(folder))
    events.Reload()
    if "val_loss" not in events.Tags()["scalars"]:
        return {}
    return {event.step + 1: f"{event.value:.4g}" for event in events.Scalars("val_loss")}


def catboost(log: str, work: Path) -> Truth:
    """It prints each fifth tree, and at the end its best, to which it shrinks its model."""
    found = {int(tree) + 1: value for tree, value in _CATBOOST.findall(log)}
    for value, tree in re.findall(r"bestTest = ([0-9.]+)\s+bestIteration = ([0-9]+)", log):
        found[int(tree) + 1] = value
    return found


_CATBOOST = re.compile(r"^([0-9]+):\tlearn: [0-9.]+\ttest: ([0-9.]+)", re.M)

CORPUS = (
    Script(
        "transformers",
        "python transformers_trainer.py --steps {steps} --pause {pause}",
        *(30, 0.25),
        checkpoints="out",
        metric="eval_loss",
        saves="out/checkpoint-*/trainer_state.json",
        opener="transformers",
        truth=every(10, "eval_loss"),
    ),
    Script(
        "trl-sft",
        "python trl_sft.py --steps {steps} --pause {pause}",
        *(30, 0.25),
        checkpoints="sft",
        metric="eval_loss",
        saves="sft/checkpoint-*/trainer_state.json",
        opener="transformers",
        truth=every(10, "eval_loss"),
    ),
    Script(
        "trl-grpo",
        "python trl_grpo.py --steps {steps} --pause {pause}",
        *(12, 0.6),
        checkpoints="grpo",
        metric="reward",
        saves="grpo/checkpoint-*/trainer_state.json",
        opener="transformers",
        truth=every(2, "reward"),
        best="max",
        beside=("trl_sft.py",),
    ),
    Script(
        "peft-lora",
        "python peft_lora.py --steps {steps} --pause {pause}",
        *(30, 0.25),
        checkpoints="lora",
        metric="eval_loss",
        saves="lora/checkpoint-*/trainer_state.json",
        opener="peft",
        truth=every(10, "eval_loss"),
    ),
    Script(
        "accelerate",
        "python accelerate_state.py --steps {steps} --pause {pause}",
        *(40, 0.25),
        checkpoints="out",
        metric="eval_loss",
        saves="out/checkpoints/checkpoint_*/random_states_0.pkl",
        opener="accelerate",
        truth=logged(r"step (\d+): loss \S+ eval_loss: NUMBER"),
    ),
    Script(
        "accelerate-steps",
        "python accelerate_state.py --by-step --steps {steps} --pause {pause}",
        *(40, 0.25),
        checkpoints="out",
        metric="eval_loss",
        saves="out/step_*/random_states_0.pkl",
        opener="accelerate",
        truth=logged(r"step (\d+): loss \S+ eval_loss: NUMBER"),
    ),
    Script(
        "lightning",
        "python lightning_defaults.py --steps {steps} --pause {pause}",
        *(32, 0.35),
        checkpoints="lightning_logs",
        metric="val_loss",
        saves="lightning_logs/version_*/checkpoints/*.ckpt",
        opener="lightning",
        truth=lightning,
        saves_once=True,
    ),
    Script(
        "orbax-flax",
        "python orbax_flax.py --steps {steps} --pause {pause}",
        *(60, 0.25),
        checkpoints="ck",
        metric="val_loss",
        saves="ck/*/commit_success.txt",
        opener="orbax",
        truth=logged(r"step=(\d+) train_loss=\S+ val_loss=NUMBER"),
    ),
    Script(
        "keras",
        "python keras_checkpoint.py --epochs {steps} --pause {pause}",
        *(4, 0.3),
        checkpoints="models",
        metric="val_loss",
        saves="models/weights.*.keras",
        opener="keras",
        truth=logged(r"Epoch (\d+)/(?:(?!Epoch \d)[\s\S])*? val_loss: NUMBER"),
    ),
    Script(
        "xgboost",
        "python xgboost_checkpoint.py --rounds {steps} --pause {pause}",
        *(40, 0.25),
        checkpoints="boosters",
        metric="valid-logloss",
        saves="boosters/model_*.ubj",
        opener="xgboost",
        truth=logged(r"\[(\d+)\]\ttrain-logloss:\S+\tvalid-logloss:NUMBER", plus=1),
    ),
    Script(
        "lightgbm",
        "python lightgbm_snapshots.py --rounds {steps} --pause {pause}",
        *(40, 0.25),
        checkpoints="boosters",
        metric="valid's binary_logloss",
        saves="boosters/model_*.txt",
        opener="lightgbm",
        truth=logged(r"\[(\d+)\]\tvalid's binary_logloss: NUMBER"),
    ),
    Script(
        "scikit-learn",
        "python sklearn_joblib.py --epochs {steps} --pause {pause}",
        *(5, 2.5),
        checkpoints="models",
        metric="log_loss",
        saves="models/*.joblib",
        opener="sklearn",
        truth=logged(r"Epoch (\d+)/\d+ - log_loss: NUMBER"),
    ),
    Script(
        "catboost",
        "python catboost_snapshot.py --rounds {steps} --pause {pause}",
        *(40, 0.25),
        checkpoints=".",
        metric="test",
        saves="catboost_info/experiment.cbsnapshot",
        opener="catboost",
        truth=catboost,
        saves_once=True,
    ),
    Script(
        "hydra",
        "python hydra_app.py epochs={steps} pause={pause}",
        *(5, 2.5),
        checkpoints="outputs",
        metric="val/loss",
        saves="outputs/*/*/checkpoints/epoch_*.ckpt",
        opener="torch",
        truth=logged(r"epoch (\d+): val/loss=NUMBER"),
    ),
    Script(
        "dcp-torchrun",
        "torchrun --standalone --nproc-per-node 2 dcp_torchrun.py --steps {steps} --pause {pause}",
        *(40, 0.25),
        checkpoints="checkpoints",
        metric=r"val_loss ([0-9.]+)",
        saves="checkpoints/step_*/.metadata",
        opener="dcp",
        truth=lambda log, work: {
            int(step.replace(",", "")): value
            for step, value in re.findall(r"step ([\d,]+) \| train \S+ \| val_loss ([0-9.]+)", log)
        },
        is_light=True,
    ),
    Script(
        "torch-evaluate-save",
        "python torch_evaluate_save.py --epochs {steps} --pause {pause}",
        *(5, 2.5),
        checkpoints="checkpoints",
        metric="val_loss",
        saves="checkpoints/epoch_*.pt",
        opener="torch",
        truth=logged(r"Epoch: (\d+)  train_loss: \S+  val_loss: NUMBER"),
        is_light=True,
    ),
    Script(
        "torch-save-evaluate",
        "python torch_save_evaluate.py --epochs {steps} --pause {pause}",
        *(5, 3.0),
        checkpoints="out",
        metric="val_loss",
        saves="out/model_*.pth",
        opener="torch",
        truth=logged(r"epoch=(\d+) val_loss=NUMBER"),
        is_light=True,
    ),
    Script(
        "deepspeed-layout",
        "python deepspeed_layout.py --steps {steps} --pause {pause}",
        *(40, 0.25),
        checkpoints="ds",
        metric="eval_loss",
        saves="ds/global_step*/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        opener="deepspeed",
        truth=logged(r"'step': (\d+), 'loss': \S+, 'eval_loss': NUMBER"),
        is_light=True,
    ),
    Script(
        "names-without-suffix",
        "python plain_names.py --steps {steps} --pause {pause}",
        *(40, 0.25),
        checkpoints="checkpoints/puzzles/small",
        metric="lm_loss",
        saves="checkpoints/puzzles/small/step_*",
        opener="plain",
        truth=logged(r'"step": (\d+), "eval": {"lm_loss": NUMBER'),
        is_light=True,
    ),
)
