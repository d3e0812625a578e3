"""How long each rank's own passes take."""

from __future__ import annotations

import itertools

import pytest
import torch

from model.training.stepping import Pace, Paces


def test_passes_are_timed_and_nothing_between_them() -> None:
    clock = itertools.count()
    pace = Pace(torch.device("cpu"), lambda: next(clock) ** 2)
    with pace.timed():  # from 0 to 1
        pass
    with pace.timed():  # from 4 to 9
        pass
    assert pace.taken_s() == 6
    assert pace.taken_s() == 0


def test_means_are_told_once() -> None:
    paces = Paces()
    assert paces.told() == []
    paces.add([1.0, 2.0])
    paces.add([2.0, 4.0])
    assert paces.told() == [1.5, 3.0]
    assert paces.told() == []
    paces.add([1.0, 2.0])
    with pytest.raises(ValueError, match="zip"):
        paces.add([1.0])
