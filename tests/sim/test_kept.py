"""Scenarios as JSON: nothing of a world is lost, and nothing is read that was not written."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.sim import keep
from tests.sim.drawing import draw, with_balance
from tests.sim.faults import NAMES, arm_all
from tests.sim.kept import FOLDER, KEPT, NotAScenario, from_json, read, to_json, write
from tests.sim.play import play
from trmcloud.core.control import bookkeeping
from trmcloud.sim.scenario import Scenario


def as_read(scenario: Scenario) -> Scenario:
    return from_json(json.loads(json.dumps(to_json(scenario))))


@pytest.mark.parametrize("kind", keep.KINDS)
def test_a_scenario_is_read_as_it_was_written(kind: str) -> None:
    for seed in range(40):
        drawn = keep.KINDS[kind](seed)
        if drawn is not None:
            made = with_balance(drawn)
            assert as_read(made) == made
            # Equal values may be written apart: 1 and 1.0, or 1.5 and 1.50 dollars.
            assert json.dumps(to_json(as_read(made))) == json.dumps(to_json(made))


def test_a_scenario_from_json_plays_the_same_events() -> None:
    for seed in range(12):
        drawn = draw(seed, NAMES)
        assert play(as_read(drawn), arm_all) == play(drawn, arm_all)


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("version",), 2, "version 2"),
        (("moon",), "full", "moon"),
        (("reaper",), None, "reaper"),
        (("paid_in",), 1.5, "money must be text"),
        (("wishes", 0, "moon"), "full", "moon"),
        (("wishes", 0, "at_s"), None, "at_s"),
        (("wishes", 0, "shapes", 0, "moon"), 1, "moon"),
        (("wishes", 0, "plan", "version"), 99, "newer"),
        (("wishes", 0, "plan", "spec", "moon"), 1, "plan.spec.moon is not read"),
        (("wishes", 0, "plan", "cap_usd"), "1.500", "cap_usd is not read"),
        (("wishes", 0, "plan", "candidates", 0, "phases", 0, "settings", "moon"), 1, "moon"),
    ],
)  # fmt: skip
def test_json_that_means_another_world_is_refused(
    path: tuple[str | int, ...], value: object, why: str
) -> None:
    data = json.loads(json.dumps(to_json(draw(1, NAMES))))
    *above, last = path
    place = data
    for key in above:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    with pytest.raises(NotAScenario, match=why):
        from_json(data)


def test_each_kept_world_says_what_it_teaches_in_its_own_file() -> None:
    assert len(KEPT) >= 84
    for kept in KEPT:
        assert kept.taught.strip()
        assert (FOLDER / f"{kept.name}.json").stat().st_size < 1 << 20
        assert str(kept.scenario.seed) in kept.name


def test_a_world_that_breaks_is_kept_by_the_command_that_a_failing_test_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(keep, "write", partial(write, folder=tmp_path))
    assert keep.main(["1", "--taught", "caps are judged"]) == 1
    assert "nothing was kept" in capsys.readouterr().err
    monkeypatch.setattr(bookkeeping, "admit", lambda *anything: None)
    seed = next(seed for seed in range(200) if play(draw(seed, NAMES), arm_all).violation)
    assert keep.main([str(seed), "--taught", "caps are judged"]) == 0
    [path] = tmp_path.iterdir()
    assert str(path) in capsys.readouterr().out
    kept = read(path)
    assert (kept.name, kept.taught) == (str(seed), "caps are judged")
    assert kept.scenario == draw(seed, NAMES)


def test_a_process_that_dies_of_an_error_breaks_the_world_it_is_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def die(*anything: object) -> None:
        raise KeyError("of nothing")

    monkeypatch.setattr(bookkeeping, "admit", die)
    played = play(draw(1, NAMES), arm_all)
    assert played.violation == "crash"
    assert "KeyError: 'of nothing', at test_kept.py:" in played.detail
