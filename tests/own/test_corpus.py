"""Each script of the corpus in three endings: what came home opens, with the metric it logged.

Those that need no more than torch always; all of them with TRMCLOUD_OWN=1, after ``make own``.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from tests.own.cells import ENDINGS, run_cell
from tests.own.corpus import CORPUS, Script

SCRIPTS = [script for script in CORPUS if script.is_light or os.environ.get("TRMCLOUD_OWN")]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("script", SCRIPTS, ids=[script.name for script in SCRIPTS])
def test_what_comes_home_opens_with_its_metric(script: Script, ending: str, tmp_path: Path) -> None:
    cell = run_cell(script, ending, tmp_path)
    print(f"{script.name}, {ending}: {cell}")
    assert cell.came != "nothing, and it says so", "it had no time to save: the machine is too busy"


def test_one_that_has_saved_nothing_says_so(tmp_path: Path) -> None:
    script = next(script for script in CORPUS if script.name == "torch-evaluate-save")
    cell = run_cell(dataclasses.replace(script, pause=1000.0), "stopped", tmp_path)
    assert cell.came == "nothing, and it says so"
