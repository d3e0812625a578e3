"""Which tests are run once more, and what comes of it."""

from __future__ import annotations

import pytest

from tests.again import MOST, judged

REAL = "tests/e2e/test_main_job.py::test_real"
OTHERS = [f"tests/crash/test_it.py::test_{number}" for number in range(MOST)]
COMPUTES = "tests/sim/test_seeds.py::test_no_invariant_breaks[0]"


@pytest.mark.parametrize(
    ("failed", "asked"),
    [
        ([REAL], 1),
        (OTHERS, MOST),
        ([REAL, *OTHERS], 0),
        ([COMPUTES], 0),
        ([REAL, COMPUTES], 0),
        ([], 0),
    ],
)
def test_a_few_about_real_processes_get_a_second_look(failed: list[str], asked: int) -> None:
    ran: list[str] = []
    told: list[str] = []

    def passes(nodeid: str) -> bool:
        ran.append(nodeid)
        return True

    assert judged(failed, passes, told.append) == bool(asked)
    assert len(ran) == asked
    assert [line.split()[0] for line in told] == (["UNSTEADY"] * asked or ["no"])


def test_what_fails_again_has_failed() -> None:
    told: list[str] = []
    assert not judged([REAL, OTHERS[0]], lambda nodeid: nodeid != REAL, told.append)
    assert told == [f"FAILED AGAIN {REAL}", f"UNSTEADY {OTHERS[0]}"]
