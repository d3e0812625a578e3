"""Reasons are data, each with one sentence; what was mended, and which stage a run is in."""

from __future__ import annotations

import ast
import json
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trmcloud.core.control as control
from tests.plans import a_generation
from trmcloud.core.clock import Instant
from trmcloud.core.contract.pod_contract import AgentReport
from trmcloud.core.contract.recovery import AGAIN, SKIPPED, Recovery
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control import events as ev
from trmcloud.core.control.events import ActionKey
from trmcloud.core.control.ledger_records import event_from_json, event_to_json
from trmcloud.core.control.reason import FACTS, Fact, Reason, ReasonKind, make_reason
from trmcloud.core.control.run_state import Absence, ActionState, RunState, State
from trmcloud.core.money import Usd
from trmcloud.operations.curves.symptoms import loss_text, remedy_text, trouble_text
from trmcloud.operations.curves.trainings import RecoveryRow
from trmcloud.operations.reasons import FOLLOWS, SENTENCES, sentence
from trmcloud.operations.run_queries import WorkerTransfer
from trmcloud.operations.runs.live_run import (
    GONE,
    PULLING,
    SENDING,
    Speed,
    absence,
    stage_of,
    transfer_lines,
)
from trmcloud.operations.runs.run_views import reason_note
from trmcloud.operations.views import note

# -- Reasons are data, and each has one sentence ------------------------------------------------


_UNITS: dict[str, Fact] = {"_s": 90.0, "_usd": "1.5", "_usd_per_hour": "1.5", "_ratio": 1.68}
CONTROL = Path(control.__path__[0])


def sample(kind: ReasonKind) -> Reason:
    facts = {
        name: 3
        if declared is int
        else next((value for unit, value in _UNITS.items() if name.endswith(unit)), "word")
        for name, declared in FACTS[kind].items()
    }
    return Reason(kind, facts)


@pytest.mark.parametrize("kind", ReasonKind)
def test_each_kind_has_a_sentence_that_tells_its_facts_and_no_others(kind: ReasonKind) -> None:
    named = {name for _, name, _, _ in string.Formatter().parse(SENTENCES[kind]) if name}
    assert named == set(FACTS[kind])
    assert sentence(sample(kind))
    assert "{" not in sentence(sample(kind))


@pytest.mark.parametrize("kind", ReasonKind)
def test_each_is_read_from_a_ledger_as_it_was_written(kind: ReasonKind) -> None:
    closed = ev.Closed("lost", Reason(ReasonKind.POD_ENDED, more=sample(kind)))
    text = json.dumps(event_to_json(closed))
    assert event_from_json("Closed", json.loads(text)) == closed


def test_every_sentence_and_fact_is_of_a_kind() -> None:
    assert set(SENTENCES) == set(FACTS) == set(ReasonKind)
    assert set(FOLLOWS) < set(ReasonKind)


def test_facts_are_shown_in_the_units_of_their_names() -> None:
    dear = make_reason(
        ReasonKind.BILLED_ABOVE_RATE, billed_usd_per_hour=Usd("9"), planned_usd_per_hour=Usd("2.5")
    )
    assert sentence(dear) == "billed $9.00/h, planned $2.50/h"
    line = make_reason(ReasonKind.LINK_FAILED, text="no route")
    silent = make_reason(ReasonKind.NO_AGENT, line, boot_deadline_s=900.0)
    ended = make_reason(ReasonKind.POD_ENDED, silent)
    assert sentence(ended) == "the pod was ended: no agent within 15 min 00 s: no route"
    assert sentence(None) == ""


def test_somebody_elses_words_are_quoted_whatever_they_hold() -> None:
    assert (
        sentence(make_reason(ReasonKind.AGENT_SAID, text="{0} {text} {x!r}")) == "{0} {text} {x!r}"
    )


def test_a_program_gets_kind_and_facts_beside_the_sentence() -> None:
    cut = make_reason(ReasonKind.BUDGET_CUT, level="month", cap_usd=Usd(4))
    facts = {"level": "month", "cap_usd": "4"}
    assert reason_note(cut) == note("budget_cut", "the month budget was cut to $4.00", **facts)
    assert reason_note(None) is None


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"boot_deadline_s": "900"},
        {"boot_deadline_s": 900},
        {"boot_deadline_s": True},
        {"boot_deadline_s": 900.0, "more": 1.0},
    ],
)
def test_facts_that_are_not_those_of_their_kind_are_refused(facts: dict[str, Fact]) -> None:
    with pytest.raises(ValueError, match="no_agent"):
        Reason(ReasonKind.NO_AGENT, facts)
    recorded = {"outcome": "lost", "reason": {"kind": "no_agent", "facts": facts, "more": None}}
    with pytest.raises(ValueError, match="no_agent"):
        event_from_json("Closed", recorded)


def test_a_kind_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="fate"):
        event_from_json("Closed", {"outcome": "lost", "reason": {"kind": "fate"}})


@pytest.mark.parametrize(
    ("kind", "recorded", "kept"),
    [
        ("StopRequested", {"by": "user", "reason": "enough"}, "enough"),
        ("PodNotMade", {"generation": 1, "reason": "none left"}, "none left"),
        ("PlanRevised", {"candidate_id": "c2", "reason": "sold out"}, "sold out"),
        ("ResultKnown", {"result": "landed", "message": "soft stop"}, "soft stop"),
        ("LateReport", {"generation": 1, "result": "landed", "message": "soft stop"}, "soft stop"),
        ("Heard", {"generation": 1, "result": "landed", "message": "soft stop"}, "soft stop"),
        ("Closed", {"outcome": "lost", "message": "the pod ended"}, "the pod ended"),
        (
            "ActionFinished",
            {"action_id": "r1/g1/terminate/1", "verb": "terminate", "detail": "billed $9/h"},
            "billed $9/h",
        ),
    ],
)
def test_a_sentence_of_an_earlier_version_is_told_as_it_was(
    kind: str, recorded: dict[str, object], kept: str
) -> None:
    event = event_from_json(kind, recorded)
    assert getattr(event, "reason", None) == make_reason(ReasonKind.SAID, text=kept)
    assert sentence(getattr(event, "reason", None)) == kept


def test_no_sentence_of_an_earlier_version_is_none() -> None:
    assert event_from_json("Closed", {"outcome": "lost", "message": ""}) == ev.Closed("lost")
    never = event_from_json("PodNotMade", {"generation": 1, "reason": ""})
    assert never == ev.PodNotMade(1, make_reason(ReasonKind.SAID, text="")), (
        "it was not made, all the same"
    )


def test_what_a_create_answered_is_no_reason() -> None:
    recorded = {"action_id": "r1/g1/create/1", "verb": "create", "detail": "pod-1", "taken": False}
    event = event_from_json("ActionFinished", recorded)
    assert event == ev.ActionFinished("r1/g1/create/1", "create", "pod-1")


def test_that_a_pod_was_ended_with_its_checkpoints_here_is_known_of_earlier_ones() -> None:
    recorded = {
        "action_id": "r1/g2/terminate/1",
        "verb": "terminate",
        "detail": "its work is done, and its checkpoints are here",
        "taken": True,
    }
    event = event_from_json("ActionFinished", recorded)
    assert isinstance(event, ev.ActionFinished)
    assert event.reason == make_reason(ReasonKind.SAVED_HERE)


def made_in(path: Path) -> list[ast.Call]:
    """Every call that makes a reason, in one file of the core."""
    makers = ("make_reason", "quoted_reason", "Reason")
    return [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in makers
    ]


def words_in(call: ast.Call) -> list[str]:
    """Text with a space in it that is written right there: a sentence, or a part of one."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    parts = [part for value in given for part in ast.walk(value)]
    texts = [part.value for part in parts if isinstance(part, ast.Constant)]
    return [text for text in texts if isinstance(text, str) and " " in text.strip()]


@pytest.mark.parametrize("path", sorted(CONTROL.glob("*.py")), ids=lambda path: path.name)
def test_the_core_gives_no_reason_words_of_its_own(path: Path) -> None:
    assert [(call.lineno, words_in(call)) for call in made_in(path) if words_in(call)] == []


def test_words_would_be_seen() -> None:
    tree = ast.parse(
        'make_reason(KIND, text=f"no agent within {s}"), make_reason(KIND, runs=", ".join(r))'
    )
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name)]
    assert [words_in(call) for call in named] == [["no agent within "], []]
    assert sum(len(made_in(path)) for path in CONTROL.glob("*.py")) > 25


# -- What was mended, in words: plain whatever a pod says ---------------------------------------


def row(what: str, rung: str, **more: Any) -> RecoveryRow:
    made = Recovery(what, rung, **{"step": 1240, "lost_steps": 12, "lost_s": 34.0, **more})
    return RecoveryRow(1, "fast", made, Usd("0.034"))


@pytest.mark.parametrize(
    ("made", "what", "done"),
    [
        (
            row("out_of_memory", "batch", changed={"batch": 2, "accumulation": 8}, why="no room"),
            "fast step 1,240: ran out of memory (no room)",
            "restarted with batch 2 × accumulation 8",
        ),
        (
            row("out_of_memory", "checkpointing", changed={"activation_checkpointing": True}),
            "fast step 1,240: ran out of memory",
            "restarted with activation checkpointing on",
        ),
        (
            row("diverged", "rate", changed={"rate": 0.25}),
            "fast step 1,240: the loss rose and did not fall again",
            "restarted with learning rates × 0.25",
        ),
        (
            row("lost", AGAIN, why="no step for 301 s", times=2),
            "fast step 1,240: the trainer made no progress, twice (no step for 301 s)",
            "restarted from its last checkpoint",
        ),
        (
            row("lost", AGAIN, times=12),
            "fast step 1,240: a process of the trainer was lost, 12 times",
            "restarted from its last checkpoint",
        ),
        (
            row("unsound", SKIPPED, times=3),
            "fast step 1,240: 3 steps were skipped, because the loss was not finite or far too "
            "high",
            "training continued with the next data, and the weights did not change",
        ),
    ],
)
def test_each_kind_has_its_words(made: RecoveryRow, what: str, done: str) -> None:
    assert (trouble_text(made), remedy_text(made)) == (what, done)


def test_what_it_cost_is_told_in_steps_time_and_money() -> None:
    assert loss_text(row("lost", AGAIN)) == "12 steps · 34 s · $0.0340 lost"
    assert loss_text(row("lost", AGAIN, lost_steps=1)).startswith("1 step · ")


def test_words_of_a_pod_steer_no_terminal_and_fill_no_screen() -> None:
    bad = row("lost", AGAIN, why="\x1b[2J\u202ebad\r\n" + "x" * 290, changed={"k": "\x1b[2J"})
    for text in (trouble_text(bad), remedy_text(bad)):
        assert text.isprintable()
        assert len(text) < 220
    assert "\u202e" not in trouble_text(bad)


# -- run stages ---------------------------------------------------------------------------------
# Which stage a run is in, by its state and by what its pod said; what is carried meanwhile.


POD = a_generation(
    pod_name="trmc-0badcafe-r1-g1-1790000000", rate=Usd("1.79"), soft_stop_at=3000.0,
    hard_stop_at=3600.0, intended_at=1000.0, up_at=1001.0,
)  # fmt: skip
RUN = RunState("r-1", State.RUNNING, generations=(POD,))
BEAT = Heartbeat("r-1", "fast", 1, 7, "1", 1100.0, "training", 3, 9)


def report(waiting: str) -> AgentReport:
    return AgentReport(
        "r-1", POD.pod_name, 1, 5, 1010.0, 1020.0, (), 3000.0, 3600.0, waiting=waiting
    )


@pytest.mark.parametrize(
    ("waiting", "stage"),
    [
        ("checking", "Checking the machine"),
        ("installing", "Installing"),
        ("files", SENDING),
        ("", "Starting the trainer"),
        ("something newer", "Starting the trainer"),
    ],
)
def test_before_the_trainer_beats_the_agent_says_its_wait(waiting: str, stage: str) -> None:
    assert stage_of(RUN, None, report(waiting), "") == stage


@pytest.mark.parametrize(
    ("state", "before", "stage"),
    [
        ("starting", "", "Starting the trainer"),
        ("compiling", "Starting the trainer", "Compiling"),
        ("training", "Compiling", "Training fast"),
        ("evaluating", "Training fast", "Training fast"),
        ("landing", "Training fast", "Landing"),
    ],
)
def test_then_the_trainer_does(state: str, before: str, stage: str) -> None:
    assert stage_of(RUN, replace(BEAT, state=state), report("files"), before) == stage


def test_the_way_to_the_end() -> None:
    ending = replace(RUN, state=State.ENDING)
    assert stage_of(ending, BEAT, None, "Training fast") == "Ending the pod"
    assert stage_of(ending, BEAT, None, "Training fast", pulls=True) == PULLING
    assert stage_of(ending, BEAT, None, PULLING) == PULLING  # between one pull and the next
    asked = replace(
        ending, actions={ActionKey("r-1", 1, "terminate", 1): ActionState("terminate", 1200.0)}
    )
    assert stage_of(asked, BEAT, None, PULLING) == "Ending the pod"
    missed = replace(asked, generations=(replace(POD, absence=Absence(Instant(1210.0, 0.0))),))
    assert stage_of(missed, BEAT, None, "Ending the pod") == GONE
    assert absence(missed, 1250.0) == "not listed by runpod for 40 s; gone after 5 min 00 s"
    assert stage_of(replace(missed, state=State.SETTLING), BEAT, None, GONE) == "Settling"
    assert stage_of(replace(missed, state=State.CLOSED), BEAT, None, "Settling") == ""


def test_speed_is_that_of_the_last_seconds() -> None:
    speed = Speed()
    key = ActionKey("r-1", 1, "stage", 1)
    assert speed.words(WorkerTransfer(key, "stage", 0, 0), 0.0) == ""
    assert speed.words(WorkerTransfer(key, "stage", 0, 100_000_000), 1.0) == "0.0 of 100.0 MB"
    quick = speed.words(WorkerTransfer(key, "stage", 50_000_000, 100_000_000), 2.0)
    assert quick == "50.0 of 100.0 MB · 25.0 MB/s · 2 s left"
    for second in range(3, 14):
        slow = speed.words(WorkerTransfer(key, "stage", 50_000_000, 100_000_000), float(second))
    assert slow == "50.0 of 100.0 MB"


def test_what_is_sent_and_what_is_pulled_are_told_apart() -> None:
    errands = [
        WorkerTransfer(ActionKey("r-1", 1, "stage", 1), "stage", 1_000_000, 2_000_000),
        WorkerTransfer(
            ActionKey("r-1", 1, "pull", 1, "fast-40-1f3a9c00"), "fast step 40", 3_000_000, 4_000_000
        ),
        WorkerTransfer(ActionKey("r-1", 1, "pull", 1, "fast-60-1f3a9c00"), "fast step 60", 0, 0),
    ]
    assert transfer_lines(errands, Speed(), 0.0) == (
        "1.0 of 2.0 MB",
        ["pulling fast step 40 · 3.0 of 4.0 MB", "pulling fast step 60"],
    )
