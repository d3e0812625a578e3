"""Each script of the corpus in three endings: what came home opens, with the metric it logged.

Of those that need no more than torch each is killed, and one ends in each way; all of them in all
ways with TRMCLOUD_OWN=1, and by ``make own-all``.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from tests.own.cells import ENDINGS, run_cell
from tests.own.corpus import CORPUS, Script

CELLS = [
    pytest.param(script, ending, id=f"{script.name}-{ending}")
    for script in CORPUS
    for ending in ENDINGS
    if os.environ.get("TRMCLOUD_OWN")
    or (script.is_light and (ending == "killed" or script.name == "torch-evaluate-save"))
]


@pytest.mark.parametrize(("script", "ending"), CELLS)
def test_what_comes_home_opens_with_its_metric(script: Script, ending: str, tmp_path: Path) -> None:
    cell = run_cell(script, ending, tmp_path)
    print(f"{script.name}, {ending}: {cell}")
    assert cell.came != "nothing, and it says so", "it had no time to save: the machine is too busy"


def test_one_that_has_saved_nothing_says_so(tmp_path: Path) -> None:
    script = next(script for script in CORPUS if script.name == "torch-evaluate-save")
    cell = run_cell(dataclasses.replace(script, pause=1000.0), "stopped", tmp_path)
    assert cell.came == "nothing, and it says so"
