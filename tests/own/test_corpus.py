"""One script of the corpus, stopped and killed: what came home opens, with the metric it logged.

``make own-all`` runs all of them to all three endings.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.own.cells import run_cell
from tests.own.corpus import CORPUS

SCRIPT = next(script for script in CORPUS if script.name == "torch-evaluate-save")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["stopped", pytest.param("killed", marks=pytest.mark.more)])
def test_what_comes_home_opens_with_its_metric(ending: str, tmp_path: Path) -> None:
    cell = run_cell(SCRIPT, ending, tmp_path)
    print(f"{ending}: {cell}")
    assert cell.came != "nothing, and it says so", "it had no time to save: the machine is too busy"


@pytest.mark.more
def test_one_that_has_saved_nothing_says_so(tmp_path: Path) -> None:
    cell = run_cell(dataclasses.replace(SCRIPT, pause=1000.0), "stopped", tmp_path)
    assert cell.came == "nothing, and it says so"
