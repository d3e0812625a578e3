"""Reasons are data, and each has one sentence."""

from __future__ import annotations

import ast
import json
import string
from pathlib import Path

import pytest

import trmcloud.core.control as control
from trmcloud.cli.views.reasons import FOLLOWS, SENTENCES, reason_json, sentence
from trmcloud.core.control import events as ev
from trmcloud.core.control.event_json import event_from_json, event_to_json
from trmcloud.core.control.reason import FACTS, Fact, Reason, ReasonKind, because
from trmcloud.core.money import Usd

_UNITS: dict[str, Fact] = {"_s": 90.0, "_usd": "1.5", "_usd_per_hour": "1.5"}
CONTROL = Path(control.__path__[0])


def sample(kind: ReasonKind) -> Reason:
    facts = {
        name: next((value for unit, value in _UNITS.items() if name.endswith(unit)), "word")
        for name in FACTS[kind]
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
    dear = because(
        ReasonKind.BILLED_ABOVE_RATE,
        billed_usd_per_hour=Usd("9"),
        planned_usd_per_hour=Usd("2.5"),
    )
    assert sentence(dear) == "billed $9.00/h, planned $2.50/h"
    line = because(ReasonKind.LINK_FAILED, text="no route")
    silent = because(ReasonKind.NO_AGENT, line, boot_deadline_s=900.0)
    ended = because(ReasonKind.POD_ENDED, silent)
    assert sentence(ended) == "the pod was ended: no agent within 15 min 00 s: no route"
    assert sentence(None) == ""


def test_somebody_elses_words_are_quoted_whatever_they_hold() -> None:
    assert sentence(because(ReasonKind.AGENT_SAID, text="{0} {text} {x!r}")) == "{0} {text} {x!r}"


def test_a_program_gets_kind_and_facts_beside_the_sentence() -> None:
    cut = because(ReasonKind.BUDGET_CUT, level="month", cap_usd=Usd(4))
    assert reason_json(cut) == {
        "reason": "the month budget was cut to $4.00",
        "reason_kind": "budget_cut",
        "reason_facts": {"level": "month", "cap_usd": "4"},
    }
    assert reason_json(None) == {"reason": "", "reason_kind": None, "reason_facts": {}}


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
    assert getattr(event, "reason", None) == because(ReasonKind.SAID, text=kept)
    assert sentence(getattr(event, "reason", None)) == kept


def test_no_sentence_of_an_earlier_version_is_none() -> None:
    assert event_from_json("Closed", {"outcome": "lost", "message": ""}) == ev.Closed("lost")
    never = event_from_json("PodNotMade", {"generation": 1, "reason": ""})
    assert never == ev.PodNotMade(1, because(ReasonKind.SAID, text="")), (
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
    assert event.reason == because(ReasonKind.SAVED_HERE)


def made_in(path: Path) -> list[ast.Call]:
    """Every call that makes a reason, in one file of the core."""
    makers = ("because", "said", "Reason")
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
    tree = ast.parse('because(KIND, text=f"no agent within {s}"), because(KIND, runs=", ".join(r))')
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name)]
    assert [words_in(call) for call in named] == [["no agent within "], []]
    assert sum(len(made_in(path)) for path in CONTROL.glob("*.py")) > 25
