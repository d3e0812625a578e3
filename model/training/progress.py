"""How far a training has come, and the curve that its losses follow."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from model.training.schedule import Cooldown
from trmcloud.core.contract import gate

# Where a training stands: what a checkpoint's ``state.json`` holds besides the tensors.

STATE_VERSION = 1


@dataclass
class Progress:
    """Counts since the run's first step; what was measured last; what was decided.

    ``samples`` is the global sample counter that decides what is read next. ``trained_s`` is the
    time trained over all attempts, the only figure here that differs between equal runs.
    """

    step: int = 0
    samples: int = 0
    tokens: int = 0
    trained_s: float = 0.0
    cooldown: Cooldown | None = None
    """Decided for a deadline; the cooldown of steps alone follows from the settings."""
    warm_from: int = 0
    evaluated_step: int | None = None
    val_bpb: float | None = None
    val_step_losses: list[float] = field(default_factory=list)
    best_bpb: float | None = None
    best_step: int | None = None
    saved_step: int | None = None
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    """(updates, bits per byte) of those between warm-up and cooldown, the newest of them."""
    since_best: int = 0
    """Of those the number in a row, up to now, that were not better than the best."""
    left_behind: int = 0
    """Steps of cooldowns that were gone back from: see ``counted_on``."""

    @property
    def updates(self) -> int:
        """The steps that these weights have taken."""
        return self.step - self.left_behind

    @property
    def is_evaluated(self) -> bool:
        return self.evaluated_step == self.step

    def note_saved(self) -> None:
        """The checkpoint of this step is on disk, its metric with it where it has one: then it may
        be the best so far."""
        self.saved_step = self.step
        if not self.is_evaluated:
            return
        better = self.best_bpb is None or (self.val_bpb or 0.0) <= self.best_bpb
        if self.val_bpb is not None and better:
            self.best_bpb, self.best_step = self.val_bpb, self.step

    @property
    def is_new_best(self) -> bool:
        """Whether this step was evaluated as better than all that is saved, and is not saved. What
        a training begins with is not: it is made again from the seed, or is saved elsewhere."""
        if not self.step or self.saved_step == self.step or not self.is_evaluated:
            return False
        return self._is_better(self.val_bpb)

    def note_metric(
        self, val_bpb: float | None, step_losses: Sequence[float], *, is_on_curve: bool
    ) -> None:
        """Note the result of this step's evaluation; None where it was not finite.

        ``is_on_curve``: it lies between warm-up and cooldown, where it tells what more steps would
        buy.
        """
        if is_on_curve:
            self.since_best = 0 if self._is_better(val_bpb) else self.since_best + 1
            if val_bpb is not None:
                self.evaluations.append((self.updates, val_bpb))
                del self.evaluations[: -gate.MOST_POINTS]
        self.evaluated_step, self.val_bpb = self.step, val_bpb
        self.val_step_losses = list(step_losses)
        if self.saved_step == self.step:
            self.note_saved()

    def _is_better(self, bpb: float | None) -> bool:
        return bpb is not None and (self.best_bpb is None or bpb < self.best_bpb)

    def counted_on(self, reached: Progress) -> None:
        """This stood before a cooldown that ended where ``reached`` stands, and is gone on from.

        Steps are counted on from there: no two checkpoints of a run have one step, and its newest
        is the one with the highest. What the cooldown has read is read again, by weights that have
        not seen it.
        """
        self.left_behind += reached.step - self.step
        self.warm_from += reached.step - self.step
        self.cooldown = None
        self.step = self.saved_step = self.evaluated_step = reached.step
        self.val_bpb, self.val_step_losses = reached.val_bpb, reached.val_step_losses
        self.best_bpb, self.best_step = reached.best_bpb, reached.best_step

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        data["cooldown"] = self.cooldown.to_json() if self.cooldown else None
        return {"version": STATE_VERSION, **data}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Progress:
        """Raises: KeyError, TypeError, ValueError: not what ``to_json`` gave."""
        if data["version"] != STATE_VERSION:
            raise ValueError(f"state version {data['version']!r}")
        later = {"left_behind": 0, "evaluations": [], "since_best": 0}
        values = {name: data[name] for name in cls.__dataclass_fields__ if name not in later}
        values |= {name: data.get(name, default) for name, default in later.items()}
        values["evaluations"] = [(int(at), float(bpb)) for at, bpb in values["evaluations"]]
        if values["cooldown"] is not None:
            values["cooldown"] = Cooldown.from_json(values["cooldown"])
        return cls(**values)


def generator_states(device: torch.device) -> Tensor:
    """This rank's random generators as one row of bytes: the CPU's, then the device's own."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def restore_generators(row: bytes, device: torch.device) -> None:
    """Takes up what ``generator_states`` gave; a row of another kind of device is left alone."""
    states = torch.frombuffer(bytearray(row), dtype=torch.uint8)
    own = len(torch.get_rng_state())
    if len(states) >= own:
        torch.set_rng_state(states[:own])
    if device.type == "cuda" and len(states) > own:
        torch.cuda.set_rng_state(states[own:], device)


def rows_to_json(rows: list[Tensor]) -> list[str]:
    return [base64.b64encode(row.numpy().tobytes()).decode("ascii") for row in rows]


def row_from_json(text: str) -> bytes:
    return base64.b64decode(text)


# The curve that tells what more steps would buy, fitted to a training's own evaluations.


class CurveEstimator:
    """Of one attempt, which begins where ``progress`` stands now."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._first_step = progress, progress.step
        self.latest: gate.Curve | None = None
        """None while too little is known."""

    def take(self, attempt_s: float, *, cools: bool) -> gate.Curve | None:
        """Update the curve that the heartbeats report: none once the rate falls to its end.

        Args:
            attempt_s: how long this attempt has trained, pauses included: a moment's load on the
                machine is no reason.
        """
        progress = self._progress
        self.latest = None
        fitted = None if cools else gate.fit(progress.evaluations)
        taken = progress.step - self._first_step
        if fitted is not None and taken > 0 and attempt_s > 0:
            self.latest = gate.Curve(
                step=progress.updates,
                slope=fitted[0],
                scatter=fitted[1],
                steps_per_hour=3600.0 * taken / attempt_s,
                since_best=gate.since_best(progress.evaluations),
            )
        return self.latest
