"""A pod's word has no text of its own; a view that wants a bare value does not type-check."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trmcloud.core.control.reported import BY_POD, Reported

ROOT = Path(__file__).parents[3]


def test_a_pods_word_cannot_be_printed_as_a_fact() -> None:
    told = Reported(1.234567)
    for text in (
        str(told),
        repr(told),
        f"{told}",
        f"{told:.3f}",
        f"{[told]}",
        " ".join(map(str, [told])),
    ):
        assert "1.2" not in text
    with pytest.raises(TypeError):
        bool(told)
    with pytest.raises(TypeError):
        float(told)  # type: ignore[arg-type]
    assert told.as_reported("{:.2f}".format) == f"1.23 {BY_POD}"
    assert told.as_marked("{:.2f}".format) == "1.23*"
    assert told.checked(lambda value: value > 1) is True
    assert told == Reported(1.234567)
    assert told != 1.234567


def test_what_this_machine_measured_is_shown_as_it_is() -> None:
    told = Reported(1.5, here=True)
    assert (told.as_reported(str), told.as_marked(str)) == ("1.5", "1.5")


WRONG = """
from trmcloud.cli.views.metrics import score_cell, score_rows, score_words
from trmcloud.cli.views.metrics import best_words, metric_cell, metric_words, training_rows
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.cli.views.text import bpb
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.control.reported import Reported

def shown(best: CheckpointManifest, told: Reported[float]) -> None:
    score_words(None, best)
    score_rows(None, best)
    score_cell(best)
    bpb(told)
    print(told + 1)
    print("best " + told)

def heard(beat: Heartbeat) -> None:
    metric_words(None, beat)
    metric_cell(None, beat)
    best_words(None, beat)
    training_rows(None, beat)
"""


def test_views_that_take_a_bare_value_or_print_a_report_do_not_type_check(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            str(tmp_path / "wrong.py"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = {line.partition("wrong.py:")[2].partition(":")[0] for line in done.stdout.splitlines()}
    assert set(map(str, (*range(10, 16), *range(18, 22)))) <= lines, done.stdout + done.stderr
