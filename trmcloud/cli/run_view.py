"""How a run looks while it is carried: the block before, a line per stage, the bar, the end."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from typing import Any

from trmcloud.app.drive import RunDriver
from trmcloud.app.launch import follow_or_drive, request_stop
from trmcloud.app.world import World
from trmcloud.cli.text import bpb, duration, losses
from trmcloud.core.errors import StaleEpoch
from trmcloud.core.gate import verdict_from_json
from trmcloud.core.hardware import LOCAL
from trmcloud.core.money import ZERO
from trmcloud.core.plan import Candidate, Plan, plan_to_json
from trmcloud.core.pod_contract import Heartbeat
from trmcloud.core.report import spent_so_far
from trmcloud.core.run_state import Outcome, RunState, State

_PLAIN_EVERY_S = 10.0
_BAD_ENDS = (Outcome.FAILED, Outcome.LOST, Outcome.KILLED)
_STAGES = {
    State.RESERVED: "Reserved",
    State.RENTING: "Renting",
    State.BOOTING: "Booting",
    State.RUNNING: "Starting the trainer",
    State.ENDING: "Ending the pod",
    State.SETTLING: "Settling",
}
_IN_STOPS = ("lands at", "hard stop", "landing reserve")
"""Limits that the row "stops" tells already."""
_TRAINER_STAGES = {"compiling": "Compiling", "training": "Training", "landing": "Landing"}


def show_plan(world: World, plan: Plan, *, as_json: bool = False) -> None:
    """The block before ``Proceed?``: the very plan that will run, every limit, "off" included."""
    if as_json:
        print(json.dumps(plan_to_json(plan), indent=1))
        return
    chosen = plan.recommended
    rows: list[tuple[str, str]] = [("plan", plan.id)]
    if chosen is not None:
        rows.append(("hardware", _hardware(chosen)))
        for phase in chosen.phases:
            s = phase.settings
            rows.append(
                (
                    phase.name,
                    f"{s.steps:,} steps of {s.batch}×{s.accumulation}×{chosen.gpus} sequences "
                    f"of {s.sequence}, depth {s.depth}, width {s.width}, {s.dtype}; "
                    f"about {duration(phase.seconds.p50)}",
                )
            )
        rows.append(("rate", f"{chosen.rate}/h"))
        cap = f"{plan.cap} · reserves {plan.reservation}" if plan.launchable else "none: plan only"
        rows.append(("cap", cap))
        rows.append(
            (
                "stops",
                f"lands {duration(chosen.soft_stop_s)} after its start, "
                f"killed at {duration(chosen.hard_stop_s)}; {duration(chosen.landing_s)} to land",
            )
        )
    rows.append(("survives in", plan.survives))
    for line in world.ledger.read().lines_for(world.project, world.wall()):
        name = line.level if line.level != "project" else f"project {line.key}"
        text = f"{line.remaining} of {line.cap} left" if line.cap is not None else "no cap set"
        rows.append((name, text))
    rows += sorted(item for item in plan.limits.items() if item[0] not in _IN_STOPS)
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"  {name:<{width}}  {text}")
    for reason in chosen.reasons if chosen is not None else ():
        print(f"  · {reason}")


def _hardware(chosen: Candidate) -> str:
    if chosen.provider != LOCAL:
        return f"{chosen.gpus} × {chosen.sku}, {chosen.provider} {chosen.region}"
    if "CPU" in chosen.sku:
        plural = "es" if chosen.gpus > 1 else ""
        return f"{chosen.gpus} process{plural} on {chosen.sku}, this machine"
    return f"{chosen.gpus} × {chosen.sku}, this machine"


def carry(world: World, driver: RunDriver, *, detach: bool) -> int:
    """Drive a run in the foreground until it is closed, or in ``-d`` until it runs; exit code."""
    run = driver.run()
    print(f"{run.run_id}: reserved {run.reserved} of a cap of {run.cap}")
    done = _training_has_begun if detach else _is_closed
    with _Bar(world) as bar:
        try:
            run = driver.until(done, bar.watch)
        except KeyboardInterrupt:
            bar.pause()
            run = _interrupted(world, driver, bar)
        except StaleEpoch:
            run = follow_or_drive(world, driver.run_id, done, bar.watch)
    if run.live:
        world.ledger.release(run.run_id, driver.epoch)
        print(f"{run.run_id} goes on by itself, and ends by itself.")
        print(f"  trmcloud status {run.run_id} · logs -f {run.run_id} · stop {run.run_id}")
        return 0
    return show_end(world, run)


def show_end(world: World, run: RunState) -> int:
    """What became of a run; the exit code that says so."""
    outcome = run.outcome or Outcome.LOST
    print(f"{run.run_id} {outcome.value}: {outcome.meaning}")
    if run.message:
        print(f"  {run.message}")
    for phase, judged in run.gates.items():
        show_verdict(phase, judged.verdict)
    manifests = world.files.manifests(run.run_id)
    spent = f"  spent {run.settled} of {run.cap}"
    print(spent + ("" if run.reserved == ZERO else f", {run.reserved} still reserved"))
    if manifests:
        print(f"  trmcloud fetch-best {run.run_id}")
    if outcome in _BAD_ENDS:
        print(f"  trmcloud logs {run.run_id}")
    return outcome.exit_code


def show_verdict(phase: str, data: Any) -> None:
    verdict = verdict_from_json(data)
    print(f"  gate after {phase}: {'passed' if verdict.passed else 'FAILED'}")
    for check in verdict.checks:
        mark = {True: "✔", False: "✘", None: "–"}[check.passed]
        weight = "" if check.blocking else "  (does not block)"
        print(f"    {mark} {check.name}: {check.detail}{weight}")


def progress_line(run: RunState, beat: Heartbeat, now: float) -> str:
    """``fast  step 120/3,000 · 0.11 s/step · loss … · bpb 2.31 · $0.05 of $0.20``."""
    parts = [f"{beat.phase} {beat.state}", f"step {beat.step:,}/{beat.steps:,}"]
    if beat.step_seconds:
        parts.append(f"{beat.step_seconds:.2f} s/step")
    if beat.step_losses:
        parts.append(f"ℓ {losses(beat.step_losses)}")
    parts.append(f"bpb {bpb(beat.val_bpb)}")
    parts.append(f"{spent_so_far(run, now)} of {run.cap}")
    generation = run.generation
    if generation is not None and beat.state != "ended":
        parts.append(f"lands in {duration(generation.soft_stop_at - now)}")
    return " · ".join(parts)


def _interrupted(world: World, driver: RunDriver, bar: _Bar) -> RunState:
    """Ctrl-C: ask; without an answer, or without anyone to answer, the run goes on."""
    answer = ""
    if sys.stdin.isatty():
        try:
            print("\nstop the run, or leave it running? [s/L] ", end="", flush=True)
            answer = sys.stdin.readline().strip().lower()
        except KeyboardInterrupt:
            answer = ""
    if answer not in ("s", "stop"):
        return driver.run()
    request_stop(world, driver.run_id, "Ctrl-C")
    bar.resume()
    try:
        return driver.until(_is_closed, bar.watch)
    except KeyboardInterrupt:
        return driver.run()


def _is_closed(run: RunState) -> bool:
    return not run.live


def _training_has_begun(run: RunState) -> bool:
    return run.state in (State.RUNNING, State.ENDING) or not run.live


class _Bar(AbstractContextManager["_Bar"]):
    """A line per stage, and a bar on terminals; a line every ten seconds elsewhere."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stage = ""
        self._stage_at = world.wall()
        self._phase = ""
        self._said_at = 0.0
        self._progress: Any = None
        self._task: Any = None

    def __exit__(self, *exc: object) -> None:
        self.pause()

    def pause(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def resume(self) -> None:
        if self._progress is not None:
            self._progress.start()

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
            self._show_beat(run, beat, now)
        if not run.live:
            self._end_stage(run, now)

    def _beat(self, run: RunState) -> Heartbeat | None:
        phases = self._world.files.phases(run.run_id)
        beats = [self._world.files.heartbeat(run.run_id, phase) for phase in phases]
        made = [beat for beat in beats if beat is not None]
        return max(made, key=lambda beat: beat.at, default=None)

    def _end_stage(self, run: RunState, now: float) -> None:
        if self._stage:
            took = duration(now - self._stage_at)
            spent = spent_so_far(run, now)
            mark = "✘" if run.outcome in _BAD_ENDS else "✔"
            self._print(f"{mark} {self._stage:<22} {took:>10} · {spent}")
        self._stage = ""

    def _show_beat(self, run: RunState, beat: Heartbeat, now: float) -> None:
        text = progress_line(run, beat, now)
        if not sys.stdout.isatty():
            if now - self._said_at >= _PLAIN_EVERY_S:
                self._said_at = now
                print(text, flush=True)
            return
        if self._progress is None:
            self._start_bar()
        shown, deadline = _share_done(run, beat, now)
        self._progress.update(self._task, completed=shown, description=text, total=1.0, by=deadline)

    def _start_bar(self) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self._progress = Progress(
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.description}"),
            refresh_per_second=4,
        )
        self._progress.start()
        self._task = self._progress.add_task("", total=1.0)

    def _print(self, text: str) -> None:
        if self._progress is not None:
            self._progress.console.print(text, highlight=False)
        else:
            print(text, flush=True)


def _share_done(run: RunState, beat: Heartbeat, now: float) -> tuple[float, str]:
    """How far the phase is: by steps or by time, whichever is further."""
    by_steps = beat.step / beat.steps if beat.steps else 0.0
    generation = run.generation
    if generation is None:
        return by_steps, "steps"
    whole = generation.soft_stop_at - generation.intended_at
    by_time = (now - generation.intended_at) / whole if whole > 0 else 0.0
    return (by_steps, "steps") if by_steps >= by_time else (min(1.0, by_time), "time")
