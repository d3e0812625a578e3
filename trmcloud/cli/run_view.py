"""How a run looks while it is carried: the block before, a line per stage, the bar, the end."""

from __future__ import annotations

import json
import sys
from typing import Any

from trmcloud.app.drive import RunDriver
from trmcloud.app.launch import follow_or_drive, request_stop
from trmcloud.app.world import World
from trmcloud.cli.run_bar import BAD_ENDS, RunBar
from trmcloud.cli.text import duration
from trmcloud.core.errors import StaleEpoch
from trmcloud.core.gate import verdict_from_json
from trmcloud.core.hardware import LOCAL
from trmcloud.core.money import ZERO
from trmcloud.core.plan import Candidate, Plan, plan_to_json
from trmcloud.core.pod_contract import strip_control
from trmcloud.core.run_state import Outcome, RunState, State

_RESUMABLE = (Outcome.STOPPED, Outcome.KILLED, Outcome.LOST)
_IN_STOPS = ("lands at", "hard stop", "landing reserve")
"""Limits that the row "stops" tells already."""


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
        if line.cap is not None:
            rows.append((f"{line.level} {line.key}", f"{line.remaining} of {line.cap} left"))
    uncapped = [
        line.level
        for line in world.ledger.read().lines_for(world.project, world.wall())
        if line.cap is None
    ]
    if uncapped:
        rows.append(("no cap on", " · ".join(uncapped)))
    limits = sorted(item for item in plan.limits.items() if item[0] not in _IN_STOPS)
    rows += [item for item in limits if item[1] != "off"]
    rows.append(("off", " · ".join(name for name, text in limits if text == "off")))
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
    with RunBar(world) as bar:
        try:
            run = driver.until(done, bar.watch)
        except KeyboardInterrupt:
            bar.pause()
            run = _interrupted(world, driver, bar)
        except StaleEpoch:
            bar.pause()
            print(f"{driver.run_id}: another command has taken it over; looking on", flush=True)
            bar.resume()
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
        print(f"  why: {strip_control(run.message)}")
    for phase, judged in run.gates.items():
        show_verdict(phase, judged.verdict)
    manifests = world.files.manifests(run.run_id)
    spent = f"  spent {run.settled} of {run.cap}"
    print(spent + ("" if run.reserved == ZERO else f", {run.reserved} still reserved"))
    if manifests:
        again = f" · resume {run.run_id}" if outcome in _RESUMABLE else ""
        print(f"  trmcloud fetch-best {run.run_id}{again}")
    if outcome in BAD_ENDS:
        print(f"  trmcloud logs {run.run_id}")
    return outcome.exit_code


def show_verdict(phase: str, data: Any) -> None:
    verdict = verdict_from_json(data)
    print(f"  gate after {phase}: {'passed' if verdict.passed else 'FAILED'}")
    for check in verdict.checks:
        mark = {True: "✔", False: "✘", None: "–"}[check.passed]
        weight = "" if check.blocking else "  (does not block)"
        print(f"    {mark} {check.name}: {check.detail}{weight}")


def _interrupted(world: World, driver: RunDriver, bar: RunBar) -> RunState:
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
    return run.trains or run.state is State.ENDING or not run.live
