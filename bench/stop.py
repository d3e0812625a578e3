"""What rules that end a training save, and what they cost: three trainings, with and without.

``make bench-stop TEXT=…``: Shakespeare's text. What is trained, its seeds and its rule stand here
and in docs/bench/stop.md, which were written before any of it was trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.launched import asked, launched
from bench.row import Row

RULE = ("--stop-at-gain", "0.3/usd", "--patience", "6")
_COMMON = {
    "width": 128, "depth": 2, "batch": 4, "eval_every": 50, "eval_tokens": 8192, "save_every": 50,
    "warmup_steps": 20, "cooldown_fraction": 0.2, "log_every": 50,
}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """One training: ``characters`` of the text from its beginning (0: all of them)."""

    name: str
    steps: int
    characters: int
    settings: dict[str, int]


TRIALS = (
    Trial("overfits", 2000, 30_000, {"seed": 1}),
    Trial("still pays", 1500, 0, {"seed": 2}),
    Trial(
        "saturates",
        6000,
        0,
        {"seed": 3, "width": 32, "depth": 1, "eval_every": 100, "save_every": 100},
    ),
)


@dataclass(frozen=True)
class Trained:
    """What came of one: the best bits per byte of any evaluation, and the steps that were paid."""

    best_bpb: float
    steps: int
    message: str


def run() -> Iterator[Row]:
    """
    Raises:
        SystemExit: no text.
    """
    text, folder = asked("build/stop")
    for trial in TRIALS:
        without = train(trial, text, folder, ruled=False)
        ruled = train(trial, text, folder, ruled=True)
        lost = 100 * (ruled.best_bpb / without.best_bpb - 1)
        saved = 100 * (1 - ruled.steps / without.steps)
        told = f"{without.best_bpb:.4f} bpb in {without.steps}, {ruled.best_bpb:.4f} in"
        told += f" {ruled.steps}: {ruled.message or 'to its end'}"
        yield Row(f"{trial.name}: bits per byte lost", lost, 1.0, "lower", "%", told)
        if trial.name == "overfits":
            yield Row(f"{trial.name}: steps saved", saved, 50.0, "higher", "%", "")
        elif trial.name == "still pays":
            yield Row(f"{trial.name}: steps left out", saved, 0.0, "lower", "%", "")
        else:
            yield Row(f"{trial.name}: steps saved", saved, 0.0, "higher", "%", "")


def train(trial: Trial, text: Path, folder: Path, *, ruled: bool) -> Trained:
    """One training by ``launch local``; what a former call made is read again."""
    home = folder / f"{trial.name.replace(' ', '-')}-{'rule' if ruled else 'plain'}"
    data = home / "text.txt"
    if not data.exists():
        home.mkdir(parents=True, exist_ok=True)
        whole = text.read_text(encoding="utf-8")
        data.write_text(whole[: trial.characters or None], encoding="utf-8")
    rule = RULE if ruled else ()
    settings = {**_COMMON, **trial.settings}
    lines = launched(home, "shakespeare", "train", data, trial.steps, settings, *rule)
    evaluated = [line for line in lines if line["kind"] == "eval"]
    return Trained(
        min(line["val_bpb"] for line in evaluated), lines[-1]["step"], lines[-1].get("message", "")
    )
