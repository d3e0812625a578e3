"""What a board is told: each line once, under known names, and anew where a trainer went back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.core.runs import AT, running
from trmcloud.app import boards
from trmcloud.app.boards import BoardFeed, need_metrics
from trmcloud.app.context import Context
from trmcloud.core.contract.metric_names import MOST_VALUES, figures_of
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import NotFoundError
from trmcloud.core.values import replace


class Told:
    """A board that remembers."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.rows: list[tuple[str, int, int, Mapping[str, float]]] = []

    def begin(self, phase: str, step: int) -> None:
        self.begun.append((phase, step))

    def tell(
        self, phase: str, step: int, on_axis: int, at: float, values: Mapping[str, float]
    ) -> None:
        self.rows.append((phase, step, on_axis, values))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class Files:
    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, run_id: str) -> str:
        return str(self.root)

    def phases(self, run_id: str) -> list[str]:
        return [name for name in ("fast", "extreme") if (self.root / name).is_dir()]


class World:
    """The part of a context that is looked at."""

    def __init__(self, root: Path) -> None:
        self.files = Files(root)


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setattr(boards, "find_run", lambda context, run_id: running())
    return cast(Context, World(tmp_path))


def log(root: Path, phase: str, *lines: Mapping[str, Any] | str) -> None:
    (root / phase).mkdir(exist_ok=True)
    with open(root / phase / "metrics.jsonl", "a") as file:
        for line in lines:
            file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")


def line(step: Any, **told: Any) -> dict[str, Any]:
    return {"kind": "train", "step": step, "at": AT + 60, "loss": 1.0, **told}


def test_each_line_is_told_once_and_phases_follow_one_another(
    context: Context, tmp_path: Path
) -> None:
    board = Told()
    feed = BoardFeed(context, "r1", board)
    assert feed.look() == 0
    log(tmp_path, "fast", line(10), line(20))
    assert (feed.look(), feed.look()) == (2, 0)
    log(tmp_path, "extreme", line(5))
    log(tmp_path, "fast", line(30))
    assert feed.look() == 2
    assert [row[:3] for row in board.rows] == [
        ("fast", 10, 10), ("fast", 20, 20), ("fast", 30, 30), ("extreme", 5, 35),
    ]  # fmt: skip
    assert board.begun == [("fast", 10), ("extreme", 5)]


def test_one_that_goes_back_is_told_anew(context: Context, tmp_path: Path) -> None:
    board = Told()
    feed = BoardFeed(context, "r1", board)
    log(tmp_path, "fast", line(10), line(20))
    feed.look()
    log(tmp_path, "new", line(10), line(20, loss=3.0), line(30))
    (tmp_path / "new" / "metrics.jsonl").replace(tmp_path / "fast" / "metrics.jsonl")
    assert feed.look() == 3
    assert board.begun == [("fast", 10), ("fast", 10)]
    assert [row[1] for row in board.rows[2:]] == [10, 20, 30]


def test_what_it_had_cost_by_then_is_told_beside_it(context: Context, tmp_path: Path) -> None:
    run = running()
    assert run.generation is not None
    rate = float(run.generation.billed_rate or run.generation.rate)
    board = Told()
    log(tmp_path, "fast", {**line(10), "at": run.generation.intended_at + 1800.0})
    BoardFeed(context, "r1", board).look()
    values = board.rows[0][3]
    assert values["cost/hours"] == pytest.approx(0.5)
    assert values["cost/usd"] == pytest.approx(rate / 2)


@pytest.mark.parametrize(
    "hostile",
    [
        line("1"),
        line(True),
        line(-1),
        line(10**13),
        {**line(1), "at": "soon"},
        {**line(1), "kind": ["train"]},
        {**line(1), "kind": "../../etc"},
        {"kind": "train", "step": 1, "at": AT},
        "[" * 5000,
        "null",
        "\x00",
    ],
    ids=str,
)
def test_what_is_no_line_of_figures_is_passed_over(
    context: Context, tmp_path: Path, hostile: Any
) -> None:
    board = Told()
    log(tmp_path, "fast", line(5), hostile, line(6))
    BoardFeed(context, "r1", board).look()
    assert [row[1] for row in board.rows] == [5, 6]


def test_a_trainer_that_makes_up_names_is_not_followed(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "MOST_NAMES", 3)
    board = Told()
    log(tmp_path, "fast", *({"kind": "train", "step": n, "at": AT, f"x{n}": n} for n in range(9)))
    BoardFeed(context, "r1", board).look()
    assert {name for row in board.rows for name in row[3] if name.startswith("train/")} == {
        "train/x0", "train/x1", "train/x2",
    }  # fmt: skip


def test_the_names_that_are_known() -> None:
    told = {
        "loss": 1, "tokens_per_second": 5.0, "gpu_memory_bytes": 2_000_000_000, "grad_norm": 0.5,
        "landing": True, "words": "x", "nothing": None, "nan": float("nan"), "huge": 10**400,
        "step_losses": [3.0, None, 2.0], "a name": 1.0, "x" * 65: 1.0, "<img>": 1.0,
    }  # fmt: skip
    assert dict(figures_of("train", told)) == {
        "train/loss": 1.0, "train/throughput": 5.0, "system/gpu_memory_allocated": 2.0,
        "train/grad_norm": 0.5, "train/step_losses/0": 3.0, "train/step_losses/2": 2.0,
    }  # fmt: skip
    assert len(dict(figures_of("train", {"long": [1.0] * 1000}))) == MOST_VALUES


def test_a_run_that_left_nothing_is_refused(context: Context, tmp_path: Path) -> None:
    need_metrics(context, running())
    with pytest.raises(NotFoundError, match="left no metrics on this machine"):
        need_metrics(context, replace(running(), state=State.CLOSED))
    log(tmp_path, "fast", line(1))
    need_metrics(context, replace(running(), state=State.CLOSED))
