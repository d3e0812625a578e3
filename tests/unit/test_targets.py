"""The long targets (``tests/targets.py``): which changes make one stale, and what a run leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import targets
from tests.targets import ROOT, TARGETS, Result, hash_of, last_words, paths_of, why_stale


def paths(name: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in paths_of(TARGETS[name])}


def test_what_a_target_starts_and_reads_counts_among_its_paths() -> None:
    written = paths("written-commands")
    assert {"trmcloud/cli/commands/launch.py", "trmcloud/pod/agent/process.py"} <= written
    assert {"model/train.py", "model/recipes/trm-tiny.toml", "docs/guide/demo.md"} <= written
    assert "tests/e2e/test_slurm.py" not in written
    assert "trmcloud/cli/commands/launch.py" in paths("hostile-contents")
    simulated = paths("planted")
    assert {"trmcloud/core/control/controller.py", "trmcloud/sim/play.py"} <= simulated
    assert "trmcloud/providers/vast/profile.py" in simulated
    assert not [path for path in simulated if path.startswith("trmcloud/cli/page")]
    compiled = paths("compiled")
    assert "model/training/loop.py" in compiled
    assert "trmcloud/core/control/controller.py" not in compiled


def test_every_target_has_a_rule_and_tests() -> None:
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name, target in TARGETS.items():
        assert f"\n{target.make}: " in rules, name
        assert len(paths_of(target)) > 20, name


def test_a_change_of_one_path_makes_it_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TARGETS["compiled"]
    result = Result("2026-11-29", "HEAD", hash_of(paths_of(target)), "whole", "3 passed")
    assert why_stale(target, None) == "never run"
    assert why_stale(target, result) == ""
    monkeypatch.setattr(targets, "_content", lambda path: path.name.encode())
    assert "changed" in why_stale(target, result)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["12 passed, 4 skipped in 211.84s (0:03:31)", "4 tests were not run"],
         "12 passed, 4 skipped"),
        (["==== 3 passed in 4.00s ====", "2 skipped in 0.1s"], ""),
        (["a line", "267 of 286 caught", ""], "267 of 286 caught"),
        ([], ""),
    ],
)  # fmt: skip
def test_the_result_is_pytests_or_the_last_line(lines: list[str], words: str) -> None:
    assert last_words(lines) == words


MAKEFILE = """
planted:
	@echo 3 of 3 caught
mutants:
	@echo 9 of 10; exit 1
ray:
	@echo begun; sleep 60
"""


def test_only_what_ended_well_and_in_time_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    table = tmp_path / "targets.json"
    monkeypatch.setattr(targets, "ROOT", tmp_path)
    monkeypatch.setattr(targets, "RESULTS", table)
    monkeypatch.setattr(targets, "paths_of", lambda target: [])
    assert targets.run("planted", tenth=True, minutes=1.0) == 0
    assert targets.run("mutants", tenth=False, minutes=1.0) != 0
    assert targets.run("ray", tenth=False, minutes=0.02) == 124
    kept = json.loads(table.read_text())
    assert list(kept) == ["planted"]
    assert kept["planted"]["result"] == "3 of 3 caught"
    assert kept["planted"]["share"] == "a drawn tenth"
    capsys.readouterr()
    assert targets.show_stale(fail=False) == 0
    assert "planted" not in capsys.readouterr().out
    assert targets.show_stale(fail=True) == 1
    assert "planted" in capsys.readouterr().out, "a tenth is no release"
