"""A home whose ledger holds a run of every kind, written by events alone: for what screens show.

Its runs were never carried out: what pods, providers and trainers would have said is made up.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.reasons import quoted
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control import events as ev
from trmcloud.core.errors import Outcome
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import Plan, plan_to_json
from trmcloud.options import LaunchRequest
from trmcloud.ports.ledger import ControllerId
from trmcloud.wiring_plans import build_planner

ME = ControllerId("here", 1, "1")
RUNS = {outcome: f"r-{number:06x}" for number, outcome in enumerate(Outcome, start=0xA10C01)}
LIVE_RUN = "r-a10cff"
WHY = {
    Outcome.LANDED: "budget reached",
    Outcome.FAILED: "RuntimeError: [enforce fail at alloc_cpu.cpp:127] you tried to allocate"
    " 38654705664 bytes. Error code 12 (Cannot allocate memory); see"
    " https://pytorch.org/docs/stable/notes/faq.html#my-out-of-memory-exception-handler",
    Outcome.UNFIT: "8 × A100-80GB-SXM was rented and 7 × NVIDIA A100-SXM4-80GB are there",
    Outcome.NOT_STARTED: "RunPod has no free machine of NVIDIA A100-SXM4-80GB in US-KS-2",
    Outcome.LOST: "the pod ended without a report from its agent",
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("told") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRMCLOUD_HOME", str(home))
        write(home)
    return home


def write(home: Path) -> None:
    """The home: one closed run for each outcome, and one that still trains on a rented pod."""
    home.mkdir(parents=True, exist_ok=True)
    now = time.time()
    ledger = SqliteLedger(home / "ledger.db")
    ledger.set_cap(
        ev.CapSet("month", time.strftime("%Y-%m", time.gmtime(now)), Usd(500), "me"), now
    )
    rented = _plan(home, hardware="8xA100", budget="60", provider=["runpod"])
    here = _plan(home, hardware="local", recipe="trm-tiny", rate="3.60", budget="1")
    for number, (outcome, run_id) in enumerate(RUNS.items()):
        plan = here if number % 3 == 0 else rented
        _closed(ledger, plan, run_id, outcome, now - 86_400.0 + 600 * number)
        if outcome not in (Outcome.NOT_STARTED, Outcome.UNFIT, Outcome.LOST):
            _trained(home, plan, run_id, now)
    _live(ledger, rented, LIVE_RUN, now - 900.0)
    _trained(home, rented, LIVE_RUN, now)


def _plan(home: Path, **wish: Any) -> Plan:
    planner = build_planner(home)
    return planner.save(planner.plan(planner.spec(LaunchRequest(phase="fast", **wish))))


def _begun(
    ledger: SqliteLedger, plan: Plan, run_id: str, at: float
) -> tuple[int, list[ev.RunEvent]]:
    chosen = plan.recommended
    assert chosen is not None
    planned = ev.RunPlanned(plan_to_json(plan), plan.cap or Usd(1), "default")
    epoch = ledger.open_run(run_id, planned, plan.reservation, ME, at)
    hard_stop_at = at + chosen.hard_stop_s
    name = f"trmc-{ledger.ledger_id}-{run_id.replace('-', '')}-g1-{int(hard_stop_at)}"
    soft_stop_at = at + chosen.soft_stop_s
    intended = ev.PodIntended(
        1, name, chosen.provider, chosen.id, chosen.rate, soft_stop_at, hard_stop_at
    )
    create = f"{run_id}/g1/create/1"
    started = ev.ActionStarted(create, "create")
    return epoch, [intended, started, ev.PodUp(1, name, chosen.rate), ev.AgentUp(1)]


def _closed(ledger: SqliteLedger, plan: Plan, run_id: str, outcome: Outcome, at: float) -> None:
    why = WHY.get(outcome, "")
    epoch, events = _begun(ledger, plan, run_id, at)
    seconds = {"training": 2900.0, "startup": 180.0, "compile": 61.0, "evaluating": 30.0}
    judged = {
        "phase": "fast",
        "passed": outcome is not Outcome.GATE_FAILED,
        "checks": [
            {"name": "validation order", "passed": True, "blocking": True,
             "detail": "4.276 > 4.233 > 4.219 > 4.214"},
            {"name": "refinement (guide's band)", "passed": False, "blocking": False,
             "detail": "1.4%, outside 15%–25%"},
        ],
    }  # fmt: skip
    events += [
        ev.PhaseEnded(1, "fast", outcome.value, 1000, 1.402, seconds),
        ev.GateJudged(1, "fast", outcome is not Outcome.GATE_FAILED, judged),
        ev.ResultKnown(outcome.value, quoted(why)),
        ev.PodGone(1, at + 3400.0),
        ev.Settled(1, Usd("13.72"), Usd("13.71")),
        ev.Closed(outcome.value, quoted(why)),
    ]
    if outcome is Outcome.LANDED:
        events.append(ev.Fetched("fast", 1000, "ab" * 32, f"/home/you/{run_id}-fast-step-00001000"))
    for event in events:
        ledger.append(run_id, epoch, [event], at + 1)


def _live(ledger: SqliteLedger, plan: Plan, run_id: str, at: float) -> None:
    epoch, events = _begun(ledger, plan, run_id, at)
    for event in events:
        ledger.append(run_id, epoch, [event], at + 1)
    ledger.release(run_id, epoch)


def _trained(home: Path, plan: Plan, run_id: str, at: float) -> None:
    """What a trainer leaves: heartbeat, metrics, log, and two checkpoints."""
    chosen = plan.recommended
    assert chosen is not None
    settings = chosen.phases[0].settings
    folder = home / "runs" / run_id / "fast"
    losses = (5.91, 4.72, 4.31, 4.18)
    beat = Heartbeat(
        run_id=run_id, phase="fast", attempt=1, pid=1, pid_started="1",
        at=at, state="training", step=1000, steps=settings.steps, step_seconds=1.83, val_bpb=1.402,
        step_losses=losses, best_bpb=1.402,
    )  # fmt: skip
    for step, metric in ((900, 1.417), (1000, 1.402)):
        files = tuple(
            mf.CheckpointFile(name, kind, 5_280_000_000, "ab" * 32)
            for name, kind in (
                ("weights.safetensors", "weights"),
                ("optimizer.safetensors", "optimizer"),
                ("tokenizer.json", "tokenizer"),
            )
        )
        manifest = mf.CheckpointManifest(
            run_id=run_id, phase="fast", step=step, tokens=step * 524_288, created_at=at,
            recipe=plan.spec.recipe, settings=asdict(settings), world_size=8,
            val_bpb=metric, step_losses=losses, cooled=False, data_sha256="ab" * 32,
            tokenizer_sha256="ab" * 32, files=files,
        )  # fmt: skip
        place = folder / "checkpoints" / mf.step_dir_name(step)
        place.mkdir(parents=True)
        (place / "manifest.json").write_text(mf.to_json(manifest), encoding="utf-8")
    (folder / "heartbeat.json").write_text(contract.dump(beat), encoding="utf-8")
    (folder / "train.log").write_text("fast: step 1000\n", encoding="utf-8")


@pytest.fixture
def own_home(told: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that home, which is the user's during a test."""
    made = tmp_path / "home"
    shutil.copytree(told, made)
    monkeypatch.setenv("TRMCLOUD_HOME", str(made))
    return made
