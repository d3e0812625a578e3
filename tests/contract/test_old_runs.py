"""Runs that were launched with what this version has no option for any more: ``old_runs.json`` has
their records as they were written then, of a sweep on two machines whose second trial was scaled
from a smaller sweep's, and of a launch with every rule. They are read, told of and end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from tests.contract.ledger_file import WHO, ledger_at
from tests.typist import InProcess, typist
from tests.unit.core.runs import a_report, ask, the_pod
from trmcloud.cli.views.sweep import report_lines, terms_lines, trial_lines
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.clock import Instant
from trmcloud.core.contract.gate import StopRules
from trmcloud.core.contract.pod_contract import (
    AgentReport,
    Lease,
    PhaseReport,
    PhaseState,
    dump,
    load_lease,
)
from trmcloud.core.contract.recovery import OUT_OF_MEMORY, Recovery, next_rung, read_overrides
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import LAND, Action
from trmcloud.core.control.continuing import keeps_uploads
from trmcloud.core.control.ledger_records import event_from_json
from trmcloud.core.control.observation import Bill, PodStatus
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import RunState, State, apply_event
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.sweep.job import load_job
from trmcloud.core.values import replace
from trmcloud.operations.sweeps.sweep_facts import SweepFacts, facts_of
from trmcloud.operations.sweeps.sweep_priors import priors_of
from trmcloud.operations.sweeps.sweep_terms import terms_of

__all__ = ["typist"]
AT = 1_795_000_300.0
RECORDS: dict[str, Any] = json.loads(Path(__file__).with_name("old_runs.json").read_text())


def run_of(name: str) -> RunState:
    run = RunState("r-two" if name == "sweep" else "r-ruled")
    for at, kind, data in RECORDS[name]["events"]:
        run = apply_event(run, ev.Record(1, run.run_id, 1, at, event_from_json(kind, data)))
    return run


@pytest.fixture
def swept() -> SweepFacts:
    return facts_of(terms_of(run_of("sweep").plan), RECORDS["sweep"]["metrics"])


def test_a_sweep_on_several_machines_is_told_of_as_it_was(swept: SweepFacts) -> None:
    run = run_of("sweep")
    assert run.state is State.RUNNING
    assert run.spec.nodes == 2
    assert swept.terms.slots == 16
    assert len(swept.events) == len(RECORDS["sweep"]["metrics"])
    assert swept.best is not None
    assert (swept.best.number, swept.best.metric) == (2, 1.125)
    shown = "\n".join(trial_lines(swept))
    assert "to rung 2" in shown
    priors = priors_of(run.plan, swept.terms)
    assert "lr=0.004 (trial 3 of r-small)" in "\n".join(terms_lines(swept.terms, priors))
    assert report_lines(swept)[0].startswith("sweep: 2 trials, 1 running · best val_bpb 1.125")


def test_a_sweep_on_several_machines_is_landed_settled_and_closed() -> None:
    run = following(run_of("sweep"), ev.StopRequested("user", make_reason(ReasonKind.STOP_COMMAND)))
    pod, report = the_pod(run), reported(run)
    run, actions = decided(run, pods=[pod], report=report)
    assert [action.verb for action in actions] == [LAND]
    landed = replace(report, result=Outcome.STOPPED.value, message="asked to stop")
    run, _ = decided(run, pods=[pod], report=landed)
    assert run.state is State.ENDING
    run = ended_at_cost(run, Usd("1.25"))
    assert (run.state, run.outcome, run.settled) == (State.CLOSED, Outcome.STOPPED, Usd("1.25"))
    assert run.reserved == ZERO


def test_a_sweep_on_several_machines_ends_with_its_machines() -> None:
    """No other is rented for it: its trials would find no executor that they know."""
    run = run_of("sweep")
    run, _ = decided(run, pods=[the_pod(run)], report=reported(run))
    lost = ended_at_cost(run, Usd("1.25"))
    assert (lost.state, len(lost.generations)) == (State.CLOSED, 1)
    alone = replace(run.plan, spec=replace(run.spec, hardware="8xH100"))
    assert keeps_uploads(run, alone)
    assert not keeps_uploads(run, run.plan)


def test_commands_show_it_and_do_not_resume_it(typist: InProcess) -> None:
    planned, reserved, *later = (event_from_json(*row[1:]) for row in RECORDS["sweep"]["events"])
    assert isinstance(planned, ev.RunPlanned)
    assert isinstance(reserved, ev.Reserved)
    plan = {**planned.plan, "spec": {**planned.plan["spec"], "bucket": ""}}  # none is asked here
    planned = replace(planned, plan=plan)
    ledger = ledger_at(typist.home / "ledger.db")
    epoch = ledger.open_run("r-two", planned, reserved.amount, WHO, AT - 300)
    stopped = ev.Closed(Outcome.STOPPED.value, make_reason(ReasonKind.STOP_COMMAND))
    ended = (ev.PodGone(1, AT), ev.Settled(1, Usd("1.25"), Usd("1.25")), stopped)
    ledger.append("r-two", epoch, [*cast("list[ev.RunEvent]", later), *ended], AT)
    metrics = typist.home / "runs" / "r-two" / "train" / "metrics.jsonl"
    metrics.parent.mkdir(parents=True)
    metrics.write_text("".join(f"{json.dumps(line)}\n" for line in RECORDS["sweep"]["metrics"]))
    assert "2 trials, 1 running · best val_bpb 1.125, trial 2" in typist.run("status", "r-two")
    assert "best settings: lr=0.004" in typist.run("report", "r-two")
    text = typist.fails("resume", "r-two", "--budget", "250", "-y", code=8)
    assert text.startswith("error: r-two was a sweep on 2 machines, and a sweep runs on one now")


def following(run: RunState, *events: ev.RunEvent, at: float = AT) -> RunState:
    for event in ev.stamp_events(events, Instant(at, at - AT + 9000.0, "here")):
        run = apply_event(run, ev.Record(1, run.run_id, 1, at, event))
    return run


def decided(run: RunState, at: float = AT, **seen: Any) -> tuple[RunState, tuple[Action, ...]]:
    """Append what follows from what is seen, until only actions are left."""
    traits = traits_of("lambda")
    known: dict[str, Any] = {"plan": run.plan, "traits": traits, **seen}
    clock = Instant(at, at - AT + 9000.0, "here")
    while (decision := ask(run, at, clock=clock, **known)).events:
        run = following(run, *decision.events, at=at)
    return run, decision.actions


def ended_at_cost(run: RunState, amount: Usd) -> RunState:
    """Its machines are proven gone, and billed."""
    gone = replace(the_pod(run), status=PodStatus.GONE, ended_at=AT + 5.0)
    return decided(run, AT + 60.0, pods=[gone], bill=Bill("id-1", amount, final=True))[0]


def reported(run: RunState) -> AgentReport:
    return replace(
        a_report(run), run_id=run.run_id, at=AT,
        phases=(PhaseReport("train", state=PhaseState.RUNNING),),
    )  # fmt: skip


def test_what_its_machine_was_sent_is_read() -> None:
    job = load_job(json.dumps(RECORDS["sweep"]["job"]))
    run = run_of("sweep")
    assert job.terms == terms_of(run.plan)
    assert job.priors == priors_of(run.plan, job.terms)


def test_a_launch_with_rules_that_are_gone_is_read_and_leased_without_them() -> None:
    run = run_of("launch")
    assert run.state is State.RUNNING
    assert run.spec.patience == 4
    old = load_lease(json.dumps(RECORDS["launch"]["lease"]))
    assert old.phases[0].settings["depth"] == 12
    assert old.phases[0].stop == StopRules(patience=4)
    assert RECORDS["launch"]["lease"]["strict_gate"]
    assert "strict_gate" not in dump(old)
    tried = ended_for_memory(old)
    assert tried == ["batch"] * 3 + ["checkpointing", "compile", "loader"]


def ended_for_memory(lease: Lease) -> list[str]:
    """The rungs that are tried where every attempt runs out of memory before its first save."""
    made: tuple[Recovery, ...] = ()
    while (rung := next_rung(lease.phases[0].settings, made, OUT_OF_MEMORY)) is not None:
        made = (*made, Recovery(OUT_OF_MEMORY, rung[0], changed=rung[1]))
    assert read_overrides(json.dumps({"depth": 8, "sequence": 512})), "of an earlier attempt"
    return [each.rung for each in made]
