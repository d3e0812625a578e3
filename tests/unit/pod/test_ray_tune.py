"""What of ``--on ray`` needs no Ray; the rest is ``make ray``."""

from __future__ import annotations

import sys

import pytest

from tests.present import present
from trmcloud.core.errors import MissingExtra
from trmcloud.core.sweep.job import place_of, ray_address
from trmcloud.pod.sweep.ray_tune import LOST, Desk, Wanted, load_ray, slot_resources


@pytest.mark.parametrize(
    ("nodes", "slots", "ranks", "each"),
    [
        ([{"CPU": 8.0}], 2, 1, {"CPU": 4.0}),
        ([{"CPU": 2.0}], 4, 1, {"CPU": 0.5}),
        ([{"CPU": 2.0}], 3, 1, {"CPU": 0.66}),
        # A trial is not divided: of 24 CPUs in threes, seven slots of three do not fit.
        ([{"CPU": 8.0}] * 3, 7, 1, {"CPU": 2.0}),
        ([{"CPU": 8.0}, {"CPU": 4.0}], 3, 1, {"CPU": 4.0}),
        ([{"CPU": 16.0, "GPU": 8.0}, {"CPU": 4.0}], 4, 2, {"CPU": 2.0, "GPU": 2.0}),
        ([], 2, 1, {"CPU": 0.01}),
    ],
)
def test_a_slot_takes_what_all_slots_can_have(
    nodes: list[dict[str, float]], slots: int, ranks: int, each: dict[str, float]
) -> None:
    assert slot_resources(nodes, slots, ranks) == each
    total = sum(node.get("CPU", 0.0) for node in nodes)
    assert not nodes or each["CPU"] * slots <= total


def test_an_interval_is_taken_once_by_who_it_fits() -> None:
    desk = Desk()
    desk.ask(Wanted(1, 1, {}))
    desk.ask(Wanted(2, 1, {}))
    assert present(desk.take(lambda trial: trial == 2)).trial == 2
    assert desk.take(lambda trial: trial == 2) is None
    desk.withdraw(2, 1)  # it runs: what ends it is its own end
    assert desk.code(2, 1) is None
    desk.end(2, 1, 0)
    desk.end(2, 1, LOST)  # the first word counts
    assert desk.code(2, 1) == 0


def test_an_interval_that_was_never_taken_is_lost_when_it_is_withdrawn() -> None:
    desk = Desk()
    desk.ask(Wanted(1, 2, {}))
    desk.withdraw(1, 2)
    assert desk.code(1, 2) == LOST
    assert desk.take(lambda trial: True) is None


def test_the_address_is_that_of_rays_variable() -> None:
    assert place_of("", "10.0.0.5:6379") == ""
    assert ray_address("") is None
    assert ray_address(place_of("ray", "")) == ""
    assert ray_address(place_of("ray", "10.0.0.5:6379")) == "10.0.0.5:6379"


def test_without_ray_it_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match="--on ray needs the 'ray' extra"):
        load_ray()
