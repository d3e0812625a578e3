"""What is tried after a bad end: which, in which order, how often, and what is told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.phases import BEAT, EXTREME, ONE, after, ended, view
from trmcloud.core.contract import recovery
from trmcloud.core.contract.phase_account import close_attempt, next_try, started
from trmcloud.core.contract.pod_contract import (
    AgentReport,
    ContractError,
    PhaseReport,
    PhaseState,
    dump,
    load_lease,
    load_report,
)
from trmcloud.core.contract.recovery import LADDER, Recovery, noted, overrides_of, read_overrides
from trmcloud.core.contract.supervisor import EndPod, StartPhase, supervise
from trmcloud.core.contract.trainer_contract import OUTCOMES

OWN: dict[str, Any] = {
    "batch": 12, "accumulation": 2, "activation_checkpointing": False, "compile": True,
    "loader_workers": 2, "preset": "extreme",
}  # fmt: skip
LEASE = replace(ONE, phases=(replace(ONE.phases[0], settings=OWN),))


def tries(outcome: str, lease: Any = LEASE, **own: Any) -> list[tuple[str, dict[str, Any]]]:
    """All that is tried where every attempt ends in the same way: rungs and overrides."""
    share = replace(lease.phases[0], settings={**lease.phases[0].settings, **own})
    lease, report, made = replace(lease, phases=(share,)), ended(outcome, fruitless=1), []
    while isinstance(act := after(report, lease), StartPhase):
        report = started(lease, report, act.attempt, 100.0)
        made.append((report.recoveries[-1].rung, dict(act.overrides)))
        assert overrides_of(report.recoveries) == act.overrides
        report = close_attempt(report, replace(BEAT, outcome=outcome, message="why"), 200.0)
    assert isinstance(act, EndPod)
    assert act.result == "failed"
    return made


def test_out_of_memory_is_answered_from_the_top_of_the_ladder_down() -> None:
    first = {"batch": 6, "accumulation": 4}
    second, third = {"batch": 3, "accumulation": 8}, {"batch": 1, "accumulation": 24}
    kept = {**third, "activation_checkpointing": True}
    assert tries("out_of_memory") == [
        ("batch", first),
        ("batch", second),
        ("batch", third),
        ("checkpointing", kept),
        ("compile", {**kept, "compile": False}),
        ("loader", {**kept, "compile": False, "loader_workers": 0}),
    ]


def test_a_rung_with_nothing_to_change_is_passed_over() -> None:
    bare = {"batch": 1, "activation_checkpointing": True, "compile": False, "loader_workers": 0}
    assert tries("out_of_memory", **bare) == []
    assert tries("out_of_memory", **{**bare, "compile": True}) == [("compile", {"compile": False})]


@pytest.mark.parametrize("outcome", ["non_finite", "diverged"])
def test_a_loss_that_is_lost_goes_back_at_half_the_rate_then_a_preset_lower(outcome: str) -> None:
    quarter = {"rate": 0.25}
    assert tries(outcome) == [
        ("rate", {"rate": 0.5}),
        ("rate", quarter),
        ("preset", {**quarter, "preset": "aggressive"}),
        ("preset", {**quarter, "preset": "moderate"}),
    ]
    own = {key: value for key, value in OWN.items() if key != "preset"}
    dense = replace(LEASE, phases=(replace(LEASE.phases[0], settings=own),))
    assert [rung for rung, _ in tries(outcome, dense)] == ["rate", "rate"]


def test_no_rung_is_tried_more_often_than_the_table_says() -> None:
    for outcome in OUTCOMES:
        rungs = (
            [rung for rung, _ in tries(outcome, batch=2**30)] if outcome in recovery.MENDED else []
        )
        for rung in LADDER:
            assert rungs.count(rung.name) <= rung.most


def test_what_did_not_help_is_told_at_the_end() -> None:
    rate = Recovery("non_finite", "rate", changed={"rate": 0.25})
    rows = (rate, rate, Recovery("non_finite", "preset", changed={"preset": "moderate"}))
    act = after(ended("non_finite", message="the loss is nan", recoveries=rows), LEASE)
    told = "the loss is nan; nothing is left to try: not even rate=0.25, preset=moderate helped"
    assert act == EndPod("failed", told)


def test_settings_are_not_blamed_for_an_end_that_they_were_not_to_prevent() -> None:
    changed = Recovery("out_of_memory", "batch", changed={"batch": 6, "accumulation": 4})
    crashed = ended("crashed", message="boom", fruitless=9, recoveries=(changed,))
    assert after(crashed, LEASE) == EndPod("failed", "boom")


def test_a_lease_that_names_no_settings_has_nothing_changed() -> None:
    for outcome in ("out_of_memory", "non_finite"):
        assert after(ended(outcome, message="why")) == EndPod("failed", "why")


def test_one_of_several_machines_is_not_started_again_with_other_settings() -> None:
    several = replace(LEASE, max_restarts=-1)
    assert after(ended("out_of_memory", message="why"), several) == EndPod("failed", "why")


def test_the_money_and_orders_come_before_another_try() -> None:
    last = ended("out_of_memory")
    assert after(last, LEASE, hard_left_s=0.0).result == "killed"  # type: ignore[union-attr]
    stopped = after(last, LEASE, land_ordered=True, land_reason="asked to")
    assert stopped == EndPod("stopped", "asked to")
    late = after(last, LEASE, soft_left_s=LEASE.min_useful_s)
    assert late == EndPod("landed", "out_of_memory, and too little time was left to start again")


def test_other_settings_are_another_try_with_restarts_of_its_own() -> None:
    tired = ended("out_of_memory", fruitless=LEASE.max_restarts + 1)
    assert started(LEASE, tired, 5, 1.0).fruitless == 0
    assert started(LEASE, ended("crashed", fruitless=2), 5, 1.0).fruitless == 2


def test_a_crash_keeps_what_was_changed_before_it() -> None:
    changed = Recovery("out_of_memory", "batch", changed={"batch": 6, "accumulation": 4})
    act = after(ended("lost", recoveries=(changed,)), LEASE)
    assert act == StartPhase("fast", 2, {"batch": 6, "accumulation": 4})


def test_what_it_cost_is_what_was_done_since_the_last_checkpoint() -> None:
    running = PhaseReport("fast", state=PhaseState.RUNNING, attempts=1, saved_step=30)
    beat = replace(BEAT, step=47, saved_step=40)
    closed = close_attempt(running, beat, 500.0, 12.5)
    assert (closed.lost_steps, closed.lost_s) == (7, 12.5)
    again = started(LEASE, closed, 2, 501.0)
    [row] = again.recoveries
    assert (row.what, row.rung, row.step, row.at) == ("lost", "again", 47, 500.0)
    assert (row.lost_steps, row.lost_s, row.times) == (7, 12.5, 1)
    twice = close_attempt(again, replace(beat, step=41), 600.0, 2.5)
    [row] = started(LEASE, twice, 3, 601.0).recoveries
    assert (row.step, row.lost_steps, row.lost_s, row.times) == (41, 8, 15.0, 2)


def test_why_a_trainer_was_killed_is_told_where_it_has_no_last_word() -> None:
    running = PhaseReport("fast", state=PhaseState.RUNNING, message="no step for 300 s")
    closed = close_attempt(running, BEAT, 500.0, 301.0)
    row = next_try(LEASE, closed)
    assert row is not None
    assert (row.what, row.why) == ("lost", "no step for 300 s")
    own = close_attempt(running, replace(BEAT, outcome="crashed", message="its own"), 500.0)
    assert own.message == "its own"
    assert started(LEASE, own, 2, 1.0).message == ""


def test_steps_left_out_are_told_at_the_price_of_a_step() -> None:
    running = PhaseReport("fast", state=PhaseState.RUNNING)
    beat = replace(BEAT, outcome="finished", skipped=3, skipped_step=77, step_seconds=2.0)
    closed = close_attempt(running, beat, 500.0)
    [row] = closed.recoveries
    assert (row.rung, row.step, row.times, row.lost_steps, row.lost_s) == ("skipped", 77, 3, 3, 6.0)
    assert overrides_of(closed.recoveries) == {}


def test_a_phase_taken_up_anew_keeps_its_overrides() -> None:
    rows = (Recovery("non_finite", "rate", changed={"rate": 0.5}),)
    act = supervise(LEASE, (PhaseReport("fast", recoveries=rows), EXTREME), view())
    assert act == StartPhase("fast", 1, {"rate": 0.5})


def test_the_account_is_bounded_whatever_happens() -> None:
    rows: tuple[Recovery, ...] = ()
    for number in range(100):
        rows = noted(rows, Recovery(f"w{number}", "again", why="x" * 1000))
    assert len(rows) == recovery.MOST_RECOVERIES
    assert all(len(row.why) <= 300 for row in rows)
    load_report(dump(report_with(rows)))


def report_with(rows: Any) -> AgentReport:
    phase = PhaseReport("fast", recoveries=rows)
    return AgentReport("r1", "p", 1, 1, 0.0, 0.0, (phase,), 0.0, 0.0)


@pytest.mark.parametrize(
    "row",
    [
        Recovery("a b", "again"),
        Recovery("lost", "\x1b[2J"),
        Recovery("lost", "again", lost_s=-1.0),
        Recovery("lost", "again", lost_s=1e12),
        Recovery("lost", "again", step=-1),
        Recovery("lost", "again", times=-1),
        Recovery("lost", "again", why="x" * 301),
        Recovery("lost", "again", changed={"a b": 1}),
        Recovery("lost", "again", changed={"a": "\x1b[2J"}),
        Recovery("lost", "again", changed={"a": [1]}),
        Recovery("lost", "again", changed={f"k{n}": n for n in range(17)}),
    ],
)
def test_what_no_agent_of_ours_would_say_is_no_report(row: Recovery) -> None:
    with pytest.raises(ContractError):
        load_report(dump(report_with((row,))))


def test_more_rows_than_there_can_be_are_no_report() -> None:
    with pytest.raises(ContractError):
        load_report(dump(report_with((Recovery("lost", "again"),) * 33)))


def test_reports_and_leases_of_before_still_open() -> None:
    text = dump(report_with(())).replace(', "recoveries": []', "").replace('"lost_s": 0.0, ', "")
    assert "recoveries" not in text
    assert load_report(text).phases[0].recoveries == ()
    assert load_lease(dump(LEASE)) == LEASE
    old = dump(ONE).replace(', "settings": {}', "")
    assert "settings" not in old
    assert load_lease(old) == ONE


@pytest.mark.parametrize(
    "text",
    [
        "[]", "no", '{"steps": 1}', '{"batch": 0}', '{"batch": true}', '{"batch": 2.0}',
        '{"rate": 2.0}', '{"rate": 0.0}', '{"rate": 1}', '{"compile": 0}', '{"preset": "extreme"}',
        '{"loader_workers": 4}', '{"loader_workers": false}', '{"rate": NaN}',
    ],
)  # fmt: skip
def test_overrides_that_no_rung_gives_are_refused(text: str) -> None:
    with pytest.raises(ContractError):
        read_overrides(text)


@given(
    st.integers(1, 4096), st.integers(1, 64), st.booleans(), st.booleans(), st.integers(0, 8),
    st.sampled_from(["moderate", "aggressive", "extreme"]),
    st.sampled_from(["out_of_memory", "non_finite", "diverged"]),
)  # fmt: skip
def test_every_override_can_be_read_and_keeps_the_batch(
    batch: int, accumulation: int, kept: bool, compiled: bool, workers: int, preset: str,
    outcome: str,
) -> None:  # fmt: skip
    own = {
        "batch": batch, "accumulation": accumulation, "activation_checkpointing": kept,
        "compile": compiled, "loader_workers": workers, "preset": preset,
    }  # fmt: skip
    for _, overrides in tries(outcome, **own):
        assert read_overrides(dump(overrides)) == overrides
        now = {**own, **overrides}
        assert now["batch"] * now["accumulation"] == batch * accumulation
