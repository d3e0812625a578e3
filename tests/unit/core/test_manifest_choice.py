"""Of a run's checkpoints the best wins, and the best and the latest stay."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.manifests import STATE, WEIGHTS, manifest
from trmcloud.core.contract.manifest import (
    from_json,
    is_before_cooldown,
    pick_best,
    pick_latest,
    to_json,
    to_prune,
    with_metric,
    with_metrics,
)
from trmcloud.core.errors import CheckpointError

# -- choosing ----------------------------------------------------------------------------------


def test_the_lowest_bits_per_byte_are_best() -> None:
    assert pick_best([manifest(1, 2.0), manifest(2, 1.5), manifest(3, 1.7)]) == manifest(2, 1.5)


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf, None])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_never_wins(bad: float | None, place: int) -> None:
    row = [manifest(1, 2.0), manifest(2, 1.5)]
    row.insert(place, manifest(3, bad))
    assert pick_best(row) == manifest(2, 1.5)
    assert pick_best([manifest(3, bad)]) is None


def test_of_equals_the_later_is_best() -> None:
    assert pick_best([manifest(9, 1.5), manifest(10, 1.5), manifest(2, 1.5)]) == manifest(10, 1.5)


def test_of_equals_at_one_step_the_newer_is_best() -> None:
    older, newer = manifest(9, 1.5, created_at=5.0), manifest(9, 1.5, "extreme", created_at=6.0)
    assert pick_best([older, newer]) == pick_best([newer, older]) == newer


def test_of_nothing_there_is_neither_best_nor_latest() -> None:
    assert pick_best([]) is None
    assert pick_latest([]) is None


def test_the_latest_is_so_by_time_across_phases() -> None:
    fast = manifest(900, created_at=100.0)
    extreme = manifest(10, phase="extreme", created_at=200.0)
    assert pick_latest([extreme, fast]) == extreme


# -- pruning -----------------------------------------------------------------------------------


def test_the_best_and_the_latest_stay() -> None:
    row = [manifest(1, 1.9), manifest(2, 1.2), manifest(3, 1.5), manifest(4, 1.4), manifest(5, 1.8)]
    pruning = to_prune(row, keep_best=2)
    assert {m.step for m in pruning.kept} == {2, 4, 5}
    assert [m.step for m in pruning.checkpoints] == [1, 3]
    assert pruning.freed_bytes == 2 * 1010


def test_each_phase_keeps_its_own() -> None:
    row = [
        manifest(1, 1.9),
        manifest(2, 1.2),
        manifest(1, 3.0, "extreme"),
        manifest(2, 2.0, "extreme"),
    ]
    assert {m.label for m in to_prune(row, keep_best=1).kept} == {
        "fast/step-00000002",
        "extreme/step-00000002",
    }


def test_a_run_that_broke_keeps_its_best_and_its_broken_latest() -> None:
    row = [manifest(1, 1.9), manifest(2, math.nan), manifest(3, None)]
    assert {m.step for m in to_prune(row, keep_best=5).kept} == {1, 3}


rows = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.none() | st.floats() | st.sampled_from([1.0, 1.5]),
        st.sampled_from(["fast", "extreme"]),
    ),
    max_size=12,
    unique_by=lambda row: (row[0], row[2]),
)


@given(rows, st.integers(-1, 5))
def test_pruning_never_takes_the_best_or_the_latest(
    drawn: list[tuple[int, float | None, str]], keep_best: int
) -> None:
    every = [manifest(step, bpb, phase) for step, bpb, phase in drawn]
    pruning = to_prune(every, keep_best)
    kept, gone = {m.label for m in pruning.kept}, {m.label for m in pruning.checkpoints}
    assert kept | gone == {m.label for m in every}
    assert not kept & gone
    for phase in {m.phase for m in every}:
        mine = [m for m in every if m.phase == phase]
        best, latest = pick_best(mine), pick_latest(mine)
        assert latest is not None
        assert latest.label in kept
        assert best is None or best.label in kept
        assert sum(m.phase == phase for m in pruning.kept) <= max(1, keep_best) + 1
    overall = pick_best(every)
    assert overall is None or overall.label in kept


# -- saved, and not evaluated yet --------------------------------------------------------------


def test_one_without_a_metric_is_the_latest_and_never_the_best() -> None:
    row = [manifest(1, 2.0), manifest(2, 1.5), manifest(3, None)]
    assert pick_best(row) == row[1]
    assert pick_latest(row) == row[2]
    assert to_prune(row, keep_best=1).checkpoints == (row[0],)
    assert to_prune([*row, manifest(4, 3.0)], keep_best=1).checkpoints == (row[0], row[2])


def test_a_metric_is_added_once() -> None:
    scored = with_metric(manifest(3, None, step_losses=()), 1.25, [3.0, 2.0])
    assert scored == manifest(3, 1.25, step_losses=(3.0, 2.0))
    assert with_metric(scored, 9.0, [9.0]) == scored
    assert from_json(to_json(scored), "here") == scored


def test_a_copy_takes_its_metric_from_a_copy_of_the_very_same_weights() -> None:
    here = [manifest(2, 1.5), manifest(3, None), manifest(4, None)]
    other = replace(manifest(4, 1.0), files=(replace(WEIGHTS, sha256="ff" * 32), STATE))
    found = with_metrics(here, [manifest(2, 0.1), manifest(3, 1.25), other])
    assert found == (manifest(2, 1.5), manifest(3, 1.25), manifest(4, None))
    assert pick_best(found) == found[1]


# -- before a cooldown ---------------------------------------------------------------------------


def test_what_was_saved_before_the_latest_ones_cooldown_stays() -> None:
    row = [manifest(20, 3.0), manifest(40, None), manifest(60, 2.0), manifest(80, 1.0)]
    cooled = [replace(m, cooldown_from=40) if m.step > 40 else m for m in row]
    assert {m.step for m in to_prune(row, keep_best=1).kept} == {80}
    assert {m.step for m in to_prune(cooled, keep_best=1).kept} == {40, 80}
    assert {m.step for m in to_prune(cooled[1:3], keep_best=1).kept} == {40, 60}
    assert is_before_cooldown(cooled[1], cooled[3])
    assert is_before_cooldown(cooled[1].kept, cooled[3].kept)
    assert not is_before_cooldown(cooled[2], cooled[3])
    assert not is_before_cooldown(cooled[1], None)
    other = manifest(40, None, "extreme")
    assert not is_before_cooldown(other, cooled[3])
    own = replace(cooled[3], cooldown_from=80)
    assert not is_before_cooldown(own, own), "as nobody but a liar says"


def test_once_the_run_has_gone_on_from_it_it_may_go() -> None:
    row = [manifest(40, None), manifest(80, 1.0, cooldown_from=40), manifest(100, 2.0)]
    assert {m.step for m in to_prune(row, keep_best=1).kept} == {80, 100}
    again = [*row, manifest(120, None), manifest(140, 1.5, cooldown_from=120)]
    assert {m.step for m in to_prune(again, keep_best=1).kept} == {80, 120, 140}


def test_a_cooldown_is_read_as_it_was_written_and_older_manifests_know_of_none() -> None:
    made = manifest(80, cooldown_from=40)
    assert from_json(to_json(made), "here") == made
    before = json.loads(to_json(made))
    del before["cooldown_from"]
    assert from_json(json.dumps(before), "here") == replace(made, cooldown_from=None)
    for wrong in (-1, 1.5, "40", True, 10**9):
        with pytest.raises(CheckpointError):
            from_json(json.dumps({**before, "cooldown_from": wrong}), "here")
