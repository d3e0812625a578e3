"""What ``sky api status`` and ``sky api logs`` say of a launch, taken apart."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.skypilot.rig import NAME
from tests.unit.skypilot.said import SaidSky
from trmcloud.core.errors import ProviderError
from trmcloud.providers.skypilot.clusters import Launches

NONE_LEFT = "sky.exceptions.ResourcesUnavailableError: Failed to acquire resources for {'H100': 8}."
FIRST, SECOND = "0a1b2c3d-0000", "ffffffff-1111"


def launch(state: str, request: Any = FIRST, **more: Any) -> dict[str, Any]:
    return {"request_id": request, "name": "sky.launch", "status": state, **more}


def asked(*rows: Any, logs: str = "", code: int = 1) -> tuple[SaidSky, Launches]:
    sky = SaidSky(list(rows))
    sky.by_words = {("api", "logs"): (code, "", logs)}
    return sky, Launches(sky)


def test_what_goes_on_is_in_any_state_that_is_no_end() -> None:
    sky, launches = asked(
        launch("RUNNING"), launch("PENDING", SECOND), launch("SUCCEEDED", "c" * 8)
    )
    assert launches.active(NAME) == [FIRST, SECOND]
    assert sky.asked == [("api", "status", "-c", NAME, "-o", "json")]
    assert launches.ended(NAME) == {"SUCCEEDED"}
    assert sky.asked[1] == ("api", "status", "-a", "-c", NAME, "-o", "json")
    assert launches.are_known(NAME)
    _, none = asked()
    assert not none.are_known(NAME)
    assert (none.active(NAME), none.ended(NAME)) == ([], set())


@pytest.mark.parametrize(
    "row",
    ["odd", None, launch("RUNNING", name="sky.down"), launch("RUNNING", "$(x)"),
     launch("RUNNING", None), launch("RUNNING", "abc"), {"status": "RUNNING"},
     launch("RUNNING", "a" * 37)],
)  # fmt: skip
def test_what_is_no_launch_is_passed_over(row: Any) -> None:
    _, launches = asked(row, launch("RUNNING", SECOND))
    assert launches.active(NAME) == [SECOND]


@pytest.mark.parametrize("rows", [{}, launch("RUNNING")])
def test_what_is_no_list_is_an_error(rows: Any) -> None:
    with pytest.raises(ProviderError, match="printed no list"):
        Launches(SaidSky(rows)).active(NAME)


def test_nothing_to_rent_is_told_with_where_to_look_it_up() -> None:
    said = "warning\n" + NONE_LEFT + "\nReason: no capacity for {'L4': 1}.\nTo fix: x\n"
    sky, launches = asked(launch("FAILED"), launch("FAILED", SECOND), logs=said)
    assert launches.why_none(NAME) == "Reason: no capacity (sky api logs 0a1b2c3d)"
    assert sky.asked[1:] == [("api", "logs", FIRST), ("api", "logs", SECOND)]


def test_a_reason_is_cut_and_what_was_asked_for_is_left_out() -> None:
    _, launches = asked(launch("FAILED"), logs=f"  {NONE_LEFT} {'x' * 500}")
    why = launches.why_none(NAME)
    assert why is not None
    assert why.startswith(
        "sky.exceptions.ResourcesUnavailableError: Failed to acquire resources. x"
    )
    assert why.endswith("x (sky api logs 0a1b2c3d)")
    assert len(why) == 160 + len(" (sky api logs 0a1b2c3d)")


@pytest.mark.parametrize("states", [(), ("RUNNING",), ("FAILED", "PENDING"), ("odd",)])
def test_while_it_may_still_come_through_nothing_is_known(states: tuple[str, ...]) -> None:
    _, launches = asked(*map(launch, states), logs=NONE_LEFT)
    assert launches.why_none(NAME) is None


@pytest.mark.parametrize("states", [("SUCCEEDED",), ("FAILED", "CANCELLED")])
def test_what_succeeded_or_was_called_off_may_have_made_a_machine(states: tuple[str, ...]) -> None:
    _, launches = asked(*map(launch, states), logs=NONE_LEFT)
    assert launches.why_none(NAME) == ""


@pytest.mark.parametrize(
    ("logs", "code"), [("ValueError: x", 1), ("", 1), (f"as in {NONE_LEFT}", 1), (NONE_LEFT, 0)]
)
def test_what_failed_otherwise_may_have_made_one_too(logs: str, code: int) -> None:
    _, launches = asked(launch("FAILED"), logs=logs, code=code)
    assert launches.why_none(NAME) == ""


def test_one_of_several_that_failed_otherwise_is_enough() -> None:
    sky, launches = asked(launch("FAILED"), launch("FAILED", SECOND), logs=NONE_LEFT)
    sky.by_words[("api", "logs", SECOND)] = (1, "", "ValueError: x")
    assert launches.why_none(NAME) == ""


def test_of_more_requests_than_a_pod_has_no_logs_are_asked_for() -> None:
    rows = [launch("FAILED", f"{n:08x}") for n in range(9)]
    sky, launches = asked(*rows[:8], logs=NONE_LEFT)
    assert launches.why_none(NAME)
    assert len(sky.asked) == 9
    sky, launches = asked(*rows, logs=NONE_LEFT)
    assert launches.why_none(NAME) == ""
    assert len(sky.asked) == 1
