"""The one wait of all tests (``tests/waiting.py``)."""

from __future__ import annotations

import os

import pytest

from tests.waiting import MOST, deadline_s, until


@pytest.mark.parametrize(("load", "times"), [(0.2, 1.0), (3.0, 3.0), (100.0, MOST)])
def test_a_deadline_grows_with_the_load_of_a_core(
    load: float, times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = os.cpu_count() or 1
    monkeypatch.setattr(os, "getloadavg", lambda: (load * cores, 0.0, 0.0))
    assert deadline_s(10.0) == pytest.approx(10.0 * times)


def test_it_returns_the_first_true_answer_and_fails_with_what_is_said_of_it() -> None:
    answers = iter(([], [7]))
    assert until(lambda: next(answers)) == [7]
    with pytest.raises(AssertionError, match="not within 0 s: the log"):
        until(lambda: False, within_s=0.0, what=lambda: "the log")
