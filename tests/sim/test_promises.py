"""The judge of rehearsals finds each broken promise, and changes no world."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.drawing import draw
from tests.sim.faults import NAMES, arm_all
from tests.sim.play import play
from trmcloud.core.control.observation import Bill
from trmcloud.core.money import Usd
from trmcloud.core.values import replace
from trmcloud.sim import play as product
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.account import Account, RentedMachine
from trmcloud.sim.world.ports import SimCompute
from trmcloud.sim.world.store import SimFiles


def rehearsed(seed: int, faults: tuple[str, ...] = ()) -> Scenario:
    """A drawn world in which users do what they do in a rehearsal."""
    made = draw(seed, faults)
    wish = replace(made.wishes[0], stop_after_s=0.0, resume_after_s=0.0)
    return replace(
        made, wishes=(wish,), account_cap=None, foreign=False, off=frozenset(), reaper="laptop"
    )


def broken_of(count: int) -> set[str]:
    """Return what the first worlds break."""
    return {product.play(rehearsed(seed)).violation for seed in range(count)} - {""}


def test_a_play_is_the_same_whoever_judges_it() -> None:
    for seed in range(60):
        scenario = rehearsed(seed, NAMES)
        alone, judged = product.play(scenario, arm_all), play(scenario, arm_all)
        assert (alone.violation, judged.violation) == ("", "")
        assert (alone.digest, alone.runs) == (judged.digest, judged.runs)
        assert (alone.over_exposed_usd, alone.exposed_s) == (
            judged.over_exposed_usd,
            judged.exposed_s,
        )
        assert alone.events <= judged.events


def test_without_a_mistake_nothing_is_broken() -> None:
    assert broken_of(30) == set()


def _keeps(*_: object) -> None:
    """A provider that ends nothing."""


def _forgets(*_: object) -> None:
    """A bucket that stores nothing."""


def _dearer(self: RentedMachine, now: float) -> int:
    return 3 * _micros(self, now)


def _bills_more(self: SimCompute, pod_id: str) -> Bill | None:
    bill = _bill(self, pod_id)
    return replace(bill, amount=bill.amount + Usd("0.10")) if bill is not None else None


_micros, _bill = RentedMachine.micros, SimCompute.bill


@pytest.mark.parametrize(
    ("owner", "name", "mistake", "broken"),
    [
        (RentedMachine, "micros", _dearer, "I1"),
        (Account, "delete", _keeps, "I2"),
        (SimFiles, "store", _forgets, "I3"),
        (SimCompute, "bill", _bills_more, "I4"),
    ],
)
def test_a_rehearsal_finds_a_broken_promise(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    mistake: Callable[..., object],
    broken: str,
) -> None:
    monkeypatch.setattr(owner, name, mistake)
    assert broken in broken_of(30)
