"""The comparison of sweeps on tables; `make bench-sweep` runs this where the other tuners are."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("syne_tune") is None, reason="Syne Tune is not installed"
)


def test_each_method_of_whole_trials_stays_within_the_budget() -> None:
    import itertools

    from bench.sweep import whole

    # Two words and nine numbers: the last of each is the best, and takes the longest.
    data = {
        "".join(map(str, key)): {
            "train_time": [1.0 + sum(key), 1.1 + sum(key)],
            "val_loss": [30.0 - sum(key), 30.5 - sum(key)],
        }
        for key in itertools.product(*(range(n) for n in (2, 2, 4, 3, 3, 6, 2, 6, 6)))
    }
    table = whole.Whole("hpolib", "made up", data)
    assert table.best == 30.25 - 25
    for name, method in whole.METHODS.items():
        path = method(table, 1, 20 * table.mean_s)
        times = [spent for spent, _ in path]
        assert times == sorted(times), name
        assert 0 < times[-1] <= 20 * table.mean_s, name
        assert path[-1][1] < path[0][1], name


def test_each_method_pays_for_restarts_and_stays_within_the_budget() -> None:
    import numpy as np

    from bench.sweep import restarts

    sizes, learners = [16, 64, 256, 1024, 4096], [f"learner{n}" for n in range(16)]
    cube = np.zeros((25, len(learners), len(sizes), 3))
    for learner, size in np.ndindex(len(learners), len(sizes)):
        cube[:, learner, size, 0] = sizes[size] * (1 + learner) / 1000
        cube[:, learner, size, 1:] = 0.5 + learner / 100 + size / 50
    table = restarts.Learners("7", learners, sizes, cube)
    budget = table.budget_s(3)
    assert table.best == pytest.approx(0.73)
    for name, method in restarts.METHODS.items():
        path = method(table, 3)
        most = budget * restarts.PART if method is restarts.train_all else budget
        assert path, name
        assert path[-1][0] <= most * (1 + 1e-6), name
    # All of them, each once, on all rows: the last one that is better ends with the whole cost.
    assert restarts.METHODS["train all to the end"](table, 3)[-1][1] == pytest.approx(0.73)
    # A trial's interval trains from its start: the sizes add up.
    made = list(restarts._interval(table, 0, 0, [], 1.4))
    assert [place for place, _ in made] == [0, 1, 2, 3]
    assert sum(cost for _, cost in made) == pytest.approx(1.36)


def test_a_section_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    from bench.sweep.page import put_section

    page = tmp_path / "page.md"
    for name, text in (("restarts", "one"), ("lcbench", "two"), ("restarts", "three\n\n### more")):
        put_section(page, name, text)
    found = page.read_text(encoding="utf-8")
    assert found.index("\ntwo\n") < found.index("\nthree\n\n### more\n")
    assert "one" not in found.partition("## LCBench")[2]


def test_a_state_that_was_cut_is_read_without_its_last_line(tmp_path: Path) -> None:
    from bench.sweep.__main__ import read_rows

    state = tmp_path / "state.jsonl"
    state.write_text(json.dumps({"seed": 1}) + '\n{"seed"', encoding="utf-8")
    assert read_rows(state) == [{"seed": 1}]
    assert state.read_text(encoding="utf-8") == '{"seed": 1}\n'
