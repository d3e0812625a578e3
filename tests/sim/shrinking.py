"""From a failing world to the smallest one that fails likewise."""

from __future__ import annotations

import itertools

from tests.sim.faults import arm_all
from tests.sim.play import PlayResult, play
from trmcloud.core.values import replace
from trmcloud.sim.scenario import Scenario


def without(scenario: Scenario, index: int) -> Scenario:
    """The same world with one fault fewer."""
    keep = [i for i in range(len(scenario.faults)) if i != index]
    return replace(
        scenario,
        faults=tuple(scenario.faults[i] for i in keep),
        fault_seeds=tuple(scenario.fault_seeds[i] for i in keep),
    )


def shrink(scenario: Scenario) -> tuple[Scenario, PlayResult]:
    """The smallest world found in which the same invariant still fails.

    Raises:
        ValueError: nothing fails in ``scenario``.
    """
    played = play(scenario, arm_all)
    name = played.violation
    if not name:
        raise ValueError(f"seed {scenario.seed} fails nothing")
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(scenario):
            tried = play(candidate, arm_all)
            if tried.violation == name:
                scenario, played, smaller = candidate, tried, True
                break
    return scenario, played


def _smaller(scenario: Scenario) -> list[Scenario]:
    """Two faults alone, then one thing fewer each: a fault, a run, a wish of the user's.

    Leaving one fault out moves the world's other dice, so that a few at once may well still fail
    where none can be left out alone.
    """
    count = len(scenario.faults)
    made = []
    for pair in itertools.combinations(range(count), 2) if count > 2 else ():
        smaller = scenario
        for index in sorted(set(range(count)) - set(pair), reverse=True):
            smaller = without(smaller, index)
        made.append(smaller)
    made += [without(scenario, index) for index in range(count)]
    if len(scenario.wishes) > 1:
        made += [replace(scenario, wishes=(wish,)) for wish in scenario.wishes]
    if scenario.foreign:
        made.append(replace(scenario, foreign=False))
    if scenario.account_cap is not None:
        made.append(replace(scenario, account_cap=None))
    for index, wish in enumerate(scenario.wishes):
        for calmer in (
            replace(wish, stop_after_s=0.0),
            replace(wish, resume_after_s=0.0),
            replace(wish, fetch_after_s=0.0),
        ):
            if calmer != wish:
                wishes = list(scenario.wishes)
                wishes[index] = calmer
                made.append(replace(scenario, wishes=tuple(wishes)))
    return made
