"""The table of public scripts and its judge, without a script."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.own import openers
from tests.own.public import CELLS, PUBLIC, Saved, announced, better, each
from tests.own.public_cells import (
    MissError,
    Play,
    Versions,
    _best,
    _value_of,
    hash_of,
    page_of,
    read_plays,
    write_plays,
)
from tests.own.public_data import WRITERS
from tests.own.public_more import CANDIDATES, MORE, MORE_CELLS, SKIPPED, in_order, in_turn
from trmcloud.core.contract.command import Command
from trmcloud.operations.commands.trial_checks import is_higher_better

ROW = next(row for row in PUBLIC if row.name == "nanogpt")


def test_each_script_finishes_and_each_other_ending_is_played_fifteen_times() -> None:
    count = Counter(ending for _, ending in CELLS.values())
    assert count == {"finished": 20, "stopped": 15, "killed": 16, "resumed": 15}
    assert not any(row.saves_once for row, ending in CELLS.values() if ending == "resumed")
    assert {kind for row in PUBLIC for kind in row.kinds} >= {1, 2, 3, 4, 5, 6, 7}


def test_each_row_has_its_generator_its_opener_and_a_whole_commit() -> None:
    for row in PUBLIC:
        assert not row.data or row.data in WRITERS, row.name
        assert row.opener in openers.OPENERS, row.name
        assert len(row.commit) == 40, row.name


def test_a_script_needs_best_where_its_metric_has_no_name_and_each_can_be_made_longer() -> None:
    for row in (*PUBLIC, *MORE):
        name = Command(("x",), metric=row.metric).metric_name
        assert is_higher_better(name) in (None, row.best == "max"), row.name
        assert row.endless().command.split()[0] == row.command.split()[0]


def test_a_record_has_one_entry_per_save() -> None:
    log = "step 1 loss 3.0\nsaved\nstep 2 loss 4e0\nstep 3 loss 2.5\nsaved\n"
    three = each(r"step (\d+) loss NUMBER", "{step}.pt")(log, Path())
    assert three == [Saved("1.pt", 3.0), Saved("2.pt", 4.0), Saved("3.pt", 2.5)]
    two = [Saved("a.pt", 3.0), Saved("a.pt", 2.5)]
    assert better(r"loss NUMBER", "a.pt")(log, Path()) == two
    assert announced(r"loss NUMBER", "saved", "a.pt")(log, Path()) == two


def _versions(home: Path, *contents: str) -> Versions:
    path = home / "runs/r/train/work/out-shakespeare-char/ckpt.pt"
    path.parent.mkdir(parents=True)
    versions = Versions(home, ROW.saves)
    for content in contents:
        path.write_text(content)
        versions.look()
        versions.look()
    return versions


def test_what_came_home_has_the_value_of_the_save_with_its_bytes(tmp_path: Path) -> None:
    versions = _versions(tmp_path, "first save", "the second", "third one here")
    saved = [Saved("out-*/ckpt.pt", value) for value in (4.0, 3.0, 3.5)]
    fetched = tmp_path / "best"
    (fetched / "own").mkdir(parents=True)
    (fetched / "own" / "ckpt.pt").write_text("the second")
    assert _value_of(ROW, fetched, versions, saved) == 3.0
    assert _best(ROW, saved, versions) == 3.0
    (fetched / "own" / "ckpt.pt").write_text("bytes of nobody")
    with pytest.raises(MissError, match="no save that was seen") as miss:
        _value_of(ROW, fetched, versions, saved)
    assert miss.value.args[0] == "not judged"


def test_a_save_that_was_overwritten_unseen_does_not_shift_those_after_it(tmp_path: Path) -> None:
    versions = _versions(tmp_path, "the second", "third one here")
    saved = [Saved("out-*/ckpt.pt", value) for value in (1.0, 3.0, 3.5)]
    assert _best(ROW, saved, versions) == 3.0
    name = "out-shakespeare-char/ckpt.pt"
    path = tmp_path / "runs/r/train/work" / name
    assert versions.of[name][-1] == hash_of(path)


def test_a_miss_stays_on_the_page_and_in_the_first_totals(tmp_path: Path) -> None:
    plays = [
        Play("nanogpt-stopped", "old", "unsure, without the best", "v", 40, "read late"),
        Play("nanogpt-stopped", "new", "WRONG", "true best 1; came 2", 40, "row"),
        Play("nanogpt-stopped", "new", "best", "true best 1; came 1", 40),
        Play("timm-stopped", "new", "unsure, among 2", "v", 40),
        Play("mnist-stopped", "new", "nothing was saved", "v", 40),
        Play("vit-finished", "new", "not judged", "the harness", 40),
    ]
    write_plays(tmp_path / "plays.json", plays)
    page = page_of(read_plays(tmp_path / "plays.json"), "new", "2026-11-30")
    assert f"3 of\n{len(CELLS)} cells" in page
    assert "| ≥ 95 % | 1 of 2 (50 %) | 2 of 2 (100 %) |" in page
    assert "| unsure | ≤ 20 % | 1 of 2 (50 %) | 1 of 2 (50 %) |" in page
    assert "| unsure, metric through an API | 0 | 0 of 1 (0 %) | 0 of 1 (0 %) |" in page
    assert "| a wrong one called best | 0 | 1 of 2 (50 %) | 0 of 2 (0 %) |" in page
    assert "| nanogpt | stopped | best |" in page
    assert "| nanogpt-stopped | `new` | WRONG | true best 1; came 2 | row |" in page
    assert "| nanogpt-stopped | `old` | unsure, without the best | v | read late |" in page
    assert "vit-finished," in page.partition("without a verdict")[2]


def test_the_twelve_further_scripts_are_the_first_of_their_kinds() -> None:
    wanted = dict.fromkeys(CANDIDATES, 1)
    wanted |= {"transformers or keras": 2, "prints": 3, "folder": 2}
    drawn = set()
    for kind, count in wanted.items():
        able = [name for name in in_order(kind) if name not in SKIPPED]
        drawn |= {name.partition(":")[0] for name in able[:count]}
    assert drawn == {row.repository for row in MORE}
    assert len(MORE) == 12
    assert not drawn & {row.repository for row in PUBLIC}
    assert Counter(name.rpartition("-")[2] for name in MORE_CELLS)["finished"] == 12


def test_values_are_of_the_saves_in_turn() -> None:
    record = in_turn(r"loss NUMBER", "{step}.pt", first=0)
    assert record("loss 2 loss 1", Path()) == [Saved("0.pt", 2.0), Saved("1.pt", 1.0)]


def test_only_a_pattern_without_a_name_needs_best() -> None:
    assert [row.name for row in (*PUBLIC, *MORE) if row.order] == ["rnn-names"]
