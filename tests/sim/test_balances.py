"""Accounts whose balance ends in the simulated world, since other machines of theirs use it up."""

from __future__ import annotations

from collections import Counter

import pytest

from tests import registered  # noqa: F401
from tests.sim.drawing import draw, with_balance
from tests.sim.faults import NAMES, arm_all
from tests.sim.play import play
from trmcloud.core.control.balance import AccountBalance
from trmcloud.core.errors import ProviderError
from trmcloud.core.spec.spec import STOP
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.ports import SimCompute


def worlds(first: int, beyond: int, faults: tuple[str, ...]) -> list[Scenario]:
    made = (with_balance(draw(seed, faults)) for seed in range(first, beyond))
    return [each for each in made if each.paid_in is not None]


def test_with_stop_runs_land_before_the_balance_ends() -> None:
    """The oracle judges each machine that is alive at a balance of zero; here, that some are."""
    outcomes: Counter[str] = Counter()
    saved = 0
    for scenario in worlds(0, 120, ()):
        played = play(scenario, arm_all)
        assert not played.violation, played.detail
        if scenario.wishes[0].plan.spec.balance != STOP or scenario.wishes[0].detached:
            continue
        outcomes.update(outcome for _, outcome, _, _ in played.runs)
        saved += sum(step > 0 for step in played.saved)
    assert outcomes["stopped"] >= 10, outcomes
    assert saved >= outcomes["stopped"] // 2


def test_no_promise_breaks_where_balances_end_beside_other_faults() -> None:
    zero = 0
    for scenario in worlds(0, 90, NAMES):
        played = play(scenario, arm_all)
        assert not played.violation, f"{scenario.seed}: {played.detail}"
        zero += any("the balance is $0" in line.text for line in played.timeline)
    assert zero >= 10


def test_a_balance_that_cannot_be_read_lands_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Counter[str]()

    def refused(self: SimCompute) -> AccountBalance | None:
        reads["refused"] += 1
        raise ProviderError("500 from the provider")

    monkeypatch.setattr(SimCompute, "balance", refused)
    for scenario in worlds(0, 12, ()):
        played = play(scenario, arm_all)
        assert not played.violation or "had not landed" in played.detail, played.detail
    assert reads["refused"] > 0


def test_what_is_paid_later_and_worlds_of_before_have_no_balance() -> None:
    for seed in range(40):
        plain = draw(seed, NAMES)
        assert plain.paid_in is None
        if plain.providers == ("local",):
            assert with_balance(plain) is plain
