"""A run while it is carried: a line per stage, and on terminals a bar with its figures below."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any

from trmcloud.app.world import World
from trmcloud.cli.text import bpb, columns, duration, losses
from trmcloud.core.pod_contract import Heartbeat
from trmcloud.core.report import spent_so_far
from trmcloud.core.run_state import Outcome, RunState, State

BAD_ENDS = (Outcome.FAILED, Outcome.LOST, Outcome.KILLED)

_PLAIN_EVERY_S = 10.0
_BAR_WIDTH = 20
_STAGES = {
    State.RESERVED: "Reserved",
    State.RENTING: "Renting",
    State.BOOTING: "Booting",
    State.RUNNING: "Starting the trainer",
    State.ENDING: "Ending the pod",
    State.SETTLING: "Settling",
}
_TRAINER_STAGES = {"compiling": "Compiling", "training": "Training", "landing": "Landing"}


class RunBar(AbstractContextManager["RunBar"]):
    """``watch`` is shown every state of the run; nothing moves where stdout is no terminal."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stage = ""
        self._stage_at = world.wall()
        self._said_at = 0.0
        self._live: Any = None

    def __exit__(self, *exc: object) -> None:
        self.pause()

    def pause(self) -> None:
        if self._live is not None:
            self._live.stop()

    def resume(self) -> None:
        if self._live is not None:
            self._live.start()

    def watch(self, run: RunState) -> None:
        now = self._world.wall()
        beat = self._beat(run)
        stage = _STAGES.get(run.state, "")
        if run.state is State.RUNNING and beat is not None:
            stage = _TRAINER_STAGES.get(beat.state, self._stage or stage)
            if beat.state == "training":
                stage = f"Training {beat.phase}"
        if stage and stage != self._stage:
            self._end_stage(run, now)
            self._stage, self._stage_at = stage, now
        if beat is not None and run.state is State.RUNNING:
            self._show(run, beat, now)
        if not run.live:
            self._end_stage(run, now)
            self.pause()

    def _beat(self, run: RunState) -> Heartbeat | None:
        phases = self._world.files.phases(run.run_id)
        beats = [self._world.files.heartbeat(run.run_id, phase) for phase in phases]
        made = [beat for beat in beats if beat is not None]
        return max(made, key=lambda beat: beat.at, default=None)

    def _end_stage(self, run: RunState, now: float) -> None:
        if self._stage:
            took = duration(now - self._stage_at)
            mark = "✘" if run.outcome in BAD_ENDS else "✔"
            self._print(f"{mark} {self._stage:<22} {took:>12} · {spent_so_far(run, now)}")
        self._stage = ""

    def _show(self, run: RunState, beat: Heartbeat, now: float) -> None:
        if sys.stdout.isatty():
            self._draw(run, beat, now)
        elif now - self._said_at >= _PLAIN_EVERY_S:
            self._said_at = now
            print(" · ".join([*training_words(beat), *money_words(run, beat, now)]), flush=True)

    def _draw(self, run: RunState, beat: Heartbeat, now: float) -> None:
        from rich.console import Group
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        share = share_done(run, beat, now)
        line = Table.grid(padding=(0, 1))
        first, *rest = training_words(beat)
        below = [" · ".join(money_words(run, beat, now))]
        beside = columns() - len(first) - _BAR_WIDTH - 8
        if len(" · ".join(rest)) > beside:  # the long list of losses gets a line of its own
            below = [word for word in rest if word.startswith("ℓ")] + below
            rest = [word for word in rest if not word.startswith("ℓ")]
        bar = ProgressBar(total=1.0, completed=share, width=_BAR_WIDTH)
        line.add_row(Text(first), bar, Text(f"{100 * share:3.0f} %"), Text(" · ".join(rest)))
        if self._live is None:
            self._live = Live(refresh_per_second=4)
            self._live.start()
        self._live.update(Group(line, *(Text("  " + text) for text in below)))

    def _print(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, highlight=False)
        else:
            print(text, flush=True)


def training_words(beat: Heartbeat) -> list[str]:
    """``fast step 120/3,000``, ``0.11 s/step``, ``ℓ 5.9 > 4.7``, ``bpb 2.31``."""
    state = "" if beat.state == "training" else f" {beat.state}"
    words = [f"{beat.phase}{state} step {beat.step:,}/{beat.steps:,}"]
    if beat.step_seconds:
        words.append(f"{beat.step_seconds:.2f} s/step")
    if beat.step_losses:
        words.append(f"ℓ {losses(beat.step_losses)}")
    words.append(f"bpb {bpb(beat.val_bpb)}")
    return words


def money_words(run: RunState, beat: Heartbeat, now: float) -> list[str]:
    """``$0.05 of $0.20``, ``lands in 2 min``, ``best step 1,200``."""
    words = [f"{spent_so_far(run, now)} of {run.cap}"]
    if run.generation is not None and beat.state != "ended":
        words.append(f"lands in {duration(run.generation.soft_stop_at - now)}")
    if beat.saved_step is not None:
        words.append(f"saved step {beat.saved_step:,}")
    if beat.best_step is not None:
        words.append(f"best {bpb(beat.best_bpb)} at step {beat.best_step:,}")
    return words


def share_done(run: RunState, beat: Heartbeat, now: float) -> float:
    """How far the phase is, 0 to 1: by steps or by time, whichever is further."""
    by_steps = beat.step / beat.steps if beat.steps else 0.0
    generation = run.generation
    if generation is None:
        return by_steps
    whole = generation.soft_stop_at - generation.intended_at
    by_time = (now - generation.intended_at) / whole if whole > 0 else 0.0
    return max(0.0, min(1.0, max(by_steps, by_time)))
