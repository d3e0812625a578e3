"""Whoever looks is told what a run waits for, and until when; it ends as ``decide`` ends it."""

from __future__ import annotations

from dataclasses import replace

from tests.reasons import quoted, sentence
from tests.unit.core.runs import (
    AT,
    TRAITS,
    booting,
    failed,
    follow,
    renting,
    running,
    the_pod,
)
from trmcloud.core.clock import Seen, Unknown
from trmcloud.core.control.blockers import waits_for
from trmcloud.core.control.events import StopRequested
from trmcloud.core.control.reason import ReasonKind
from trmcloud.core.control.run_state import State

NOBODY = Unknown(AT, "401: the key is not valid")


def test_a_run_at_work_waits_for_nothing() -> None:
    run = running()
    assert waits_for(run, TRAITS, Seen((the_pod(run),), AT)) is None


def test_a_boot_ends_where_the_controller_ends_it() -> None:
    run = booting()
    told = waits_for(run, TRAITS, Seen((the_pod(run),), AT))
    assert told is not None
    assert (told.until_at, told.what.kind) == (AT + 310, ReasonKind.AWAITS_AGENT)


def test_an_unclear_create_is_waited_for_until_it_counts_as_never_made() -> None:
    run = failed("ambiguous")
    told = waits_for(run, TRAITS, Seen((), AT))
    assert told is not None
    assert told.until_at is not None
    assert "it said ambiguous" in sentence(told.what)
    before, _ = follow(run, told.until_at - 1, absent_lists=3)
    after, _ = follow(run, told.until_at, absent_lists=3)
    assert (before.state, after.generations[0].not_made is not None) == (State.RENTING, True)


def test_a_list_that_cannot_be_read_is_named_with_its_reason() -> None:
    told = waits_for(failed("ambiguous"), TRAITS, NOBODY)
    assert told is not None
    assert told.until_at is None
    assert "401" in sentence(told.what)
    refused, _ = follow(failed("refused"), AT + 5, pods=NOBODY)
    told = waits_for(refused, TRAITS, NOBODY)
    assert told is not None
    assert (refused.state, told.until_at) == (State.RESERVED, None)
    assert "nothing is rented before it shows that no earlier pod is left" in sentence(told.what)
    assert "401" in sentence(told.what)
    stopped = replace(refused, stop=StopRequested("user", quoted("enough")))
    told = waits_for(stopped, TRAITS, NOBODY)
    assert told is not None
    assert told.what.kind is ReasonKind.AWAITS_LIST_TO_STOP


def test_what_is_listed_or_was_never_asked_for_is_not_waited_for() -> None:
    run = failed("ambiguous")
    assert waits_for(run, TRAITS, Seen((the_pod(run),), AT)) is None
    assert waits_for(renting(), TRAITS, Seen((), AT)) is None
