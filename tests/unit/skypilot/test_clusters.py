"""How often SkyPilot's table is asked for on a machine that is busy."""

from __future__ import annotations

from typing import Any

import pytest

from trmcloud.adapters.skypilot.clusters import BUSY_AT_MOST_S, LIST_FRESH_S, Clusters

NAME = "trmc-0a5bffcd-r54aa48-g1-1795258139"
EXITED = f"  {NAME}: Failed to query RunPod cluster '{NAME}' status: [KeyError] 'EXITED'"


class SlowSky:
    """Takes ``took_s`` for each list, by the clock that ``Clusters`` measures itself with."""

    def __init__(self, took_s: float) -> None:
        self.at, self.took_s, self.asked, self.said = 0.0, took_s, 0, ""

    def read_and_said(self, *words: str) -> tuple[list[dict[str, Any]], str]:
        self.asked += 1
        self.at += self.took_s
        return [{"name": NAME, "status": "UP"}], self.said


@pytest.fixture
def sky(monkeypatch: pytest.MonkeyPatch) -> SlowSky:
    made = SlowSky(took_s=30.0)
    monkeypatch.setattr("time.monotonic", lambda: made.at)
    return made


def asked_after(sky: SlowSky, wait_s: float) -> bool:
    """Whether rows that are wanted so much later are asked for anew."""
    table = Clusters(sky, now=lambda: sky.at)  # type: ignore[arg-type]
    table.rows()
    before = sky.asked
    sky.at += wait_s
    table.rows()
    return sky.asked > before


def test_a_busy_machine_is_asked_less_often_yet_within_bounds(sky: SlowSky) -> None:
    assert not asked_after(sky, LIST_FRESH_S + 1)
    assert asked_after(sky, BUSY_AT_MOST_S)
    sky.took_s = 1.0
    assert asked_after(sky, LIST_FRESH_S)


def test_what_has_exited_is_looked_at_again_however_busy_the_machine_is(sky: SlowSky) -> None:
    sky.said = EXITED
    assert asked_after(sky, LIST_FRESH_S)
