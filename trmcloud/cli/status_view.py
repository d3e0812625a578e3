"""How runs stand: a table of all, or one in full."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trmcloud.app.reports import report_run
from trmcloud.app.world import World
from trmcloud.cli.text import bpb, duration, losses, table
from trmcloud.core.errors import ProviderError
from trmcloud.core.money import ZERO
from trmcloud.core.report import spent_so_far
from trmcloud.core.run_state import RunState

if TYPE_CHECKING:
    from trmcloud.core.observation import PodSeen
    from trmcloud.core.pod_contract import AgentReport, Heartbeat


@dataclass(frozen=True)
class Layer:
    """One kill layer: ``state`` is armed, silent, or absent."""

    name: str
    state: str
    detail: str


def show_table(world: World, runs: Sequence[RunState]) -> None:
    if not runs:
        print("no runs yet · trmcloud launch local --recipe trm-tiny --budget 1 --rate 3.60")
        return
    header = ("run", "state", "spent / cap", "bpb", "best", "kill layers", "worst overshoot")
    print("\n".join(table(header, [_row(world, run) for run in runs])))


def show_json(world: World, runs: Sequence[RunState]) -> None:
    print(json.dumps([_as_json(world, run) for run in runs], indent=1))


def show_one(world: World, run: RunState) -> None:
    """Everything about one run."""
    report = report_run(world, run)
    now = world.wall()
    rows = [
        ("run", f"{run.run_id} · {report.recipe} on {report.hardware} · project {run.project}"),
        ("state", run.state.value + (f" · {run.outcome.meaning}" if run.outcome else "")),
        ("spent", f"{spent_so_far(run, now)} of {run.cap} · {run.reserved} reserved"),
    ]
    beat = _last_beat(world, run)
    if beat is not None:
        rows.append(
            ("training", f"{beat.phase} step {beat.step:,} of {beat.steps:,} · {beat.state}")
        )
        rows.append(("losses", f"ℓ {losses(beat.step_losses)} · bpb {bpb(beat.val_bpb)}"))
    if run.live and run.generation is not None:
        rows.append(("lands in", duration(run.generation.soft_stop_at - now)))
        rows.append(("killed in", duration(run.generation.hard_stop_at - now)))
    if report.best is not None:
        best = report.best
        rows.append(("best", f"{best.label} · bpb {bpb(best.val_bpb)} · {best.sha256}"))
    for fetched in run.fetched:
        rows.append(("fetched", f"{fetched.phase} step {fetched.step} → {fetched.path}"))
    for layer in kill_layers(world, run):
        rows.append((f"guard: {layer.name}", f"{layer.state} · {layer.detail}"))
    if run.live:
        rows.append(("worst overshoot", _overshoot(world, run)))
    for label, why in world.files.damaged(run.run_id):
        rows.append(("damaged", f"{label}: {why}"))
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"{name:<{width}}  {text}")
    from trmcloud.cli.run_view import show_verdict

    for phase, judged in run.gates.items():
        show_verdict(phase, judged.verdict)


def kill_layers(world: World, run: RunState) -> list[Layer]:
    """The layers that this run's provider has, and how each stands now."""
    generation = run.generation
    if not run.live or generation is None:
        return []
    from trmcloud.app.drive import is_driven
    from trmcloud.core.providers import traits_of

    now = world.wall()
    beat = _last_beat(world, run)
    agent = _agent_report(world, run)
    traits = traits_of(generation.provider)
    pod = _pod(world, run)
    driven = is_driven(world, world.ledger.driver(run.run_id))
    layers = [
        _heart("trainer", beat.at if beat is not None else None, now, 60.0, "lands by itself"),
        _heart("agent", agent.at if agent is not None else None, now, traits.silence_s, "♥"),
        Layer(
            "guardian",
            "armed" if pod is not None and pod.status == "running" else "absent",
            "kills everything at the hard stop",
        ),
        Layer("controller", "armed" if driven else "absent", "a command is driving the run"
              if driven else "nobody drives it now; any trmcloud command settles it"),
        Layer("provider limit", "absent", "this machine has none"),
    ]  # fmt: skip
    return layers


def _heart(name: str, at: float | None, now: float, patience_s: float, detail: str) -> Layer:
    if at is None:
        return Layer(name, "absent", "not heard of yet")
    age = now - at
    return Layer(name, "armed" if age <= patience_s else "silent", f"{detail}, {age:.0f} s ago")


def _row(world: World, run: RunState) -> tuple[str, ...]:
    report = report_run(world, run)
    beat = _last_beat(world, run)
    best = "–"
    if report.best is not None:
        best = f"s{report.best.step}" + (" ✔" if run.fetched else "")
    layers = " · ".join(f"{x.name}" for x in kill_layers(world, run) if x.state == "armed")
    state = run.outcome.value if run.outcome else run.state.value
    return (
        f"{run.run_id} {report.hardware}",
        state,
        f"{spent_so_far(run, world.wall())} / {run.cap}",
        bpb(beat.val_bpb if beat is not None else None),
        best,
        layers or ("–" if not run.live else "none armed"),
        _overshoot(world, run) if run.live else "–",
    )


def _overshoot(world: World, run: RunState) -> str:
    """What could be spent beyond the cap, if everything that may fail from here on did."""
    generation = run.generation
    if generation is None or generation.ended_at is not None:
        return str(ZERO)
    armed = {layer.name for layer in kill_layers(world, run) if layer.state == "armed"}
    if armed & {"guardian", "agent"}:
        return f"{ZERO} (exposed: none)"
    if "controller" in armed:
        return f"{ZERO} while this controller lives"
    return f"{generation.rate}/h until a command runs here"


def _as_json(world: World, run: RunState) -> dict[str, Any]:
    beat = _last_beat(world, run)
    data = report_run(world, run).to_json()
    data["cap_usd"] = float(run.cap)
    data["spent_usd"] = float(spent_so_far(run, world.wall()))
    data["step"] = beat.step if beat is not None else None
    data["val_bpb"] = beat.val_bpb if beat is not None else None
    data["kill_layers"] = [
        {"name": layer.name, "state": layer.state, "detail": layer.detail}
        for layer in kill_layers(world, run)
    ]
    data["worst_overshoot"] = _overshoot(world, run) if run.live else None
    return data


def _last_beat(world: World, run: RunState) -> Heartbeat | None:
    beats = [world.files.heartbeat(run.run_id, p) for p in world.files.phases(run.run_id)]
    return max((b for b in beats if b is not None), key=lambda b: b.at, default=None)


def _agent_report(world: World, run: RunState) -> AgentReport | None:
    generation = run.generation
    if generation is None:
        return None
    return world.links[generation.provider].report(generation.pod_name)


def _pod(world: World, run: RunState) -> PodSeen | None:
    generation = run.generation
    if generation is None:
        return None
    try:
        pods = world.computes[generation.provider].list_pods()
    except ProviderError:
        return None
    return next((pod for pod in pods if pod.name == generation.pod_name), None)
