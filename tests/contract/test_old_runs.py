"""Runs that were launched with what this version has no option for any more: ``old_runs.json`` has
their records as they were written then, of a sweep on two machines whose second trial was scaled
from a smaller sweep's, and of a launch with every rule. They are read, told of and end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trmcloud.app.sweep_facts import SweepFacts, facts_of
from trmcloud.app.sweep_priors import priors_of
from trmcloud.app.sweep_terms import terms_of
from trmcloud.cli.views.sweep import report_lines, terms_lines, trial_lines
from trmcloud.core.contract.gate import StopRules
from trmcloud.core.contract.pod_contract import Lease, dump, load_lease
from trmcloud.core.contract.recovery import (
    OUT_OF_MEMORY,
    Recovery,
    next_rung,
    read_overrides,
)
from trmcloud.core.control import events as ev
from trmcloud.core.control.ledger_records import event_from_json
from trmcloud.core.control.run_state import RunState, State, apply_event
from trmcloud.core.sweep.job import load_job

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
