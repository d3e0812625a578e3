"""Sudokus: made from a seed with one solution each, the two parts apart, and tables of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model import prepare, sample, score
from model.preparing import puzzles
from model.preparing.corpus import load_data_set, named_corpus, one_file_corpus
from model.preparing.readers import documents, units_of
from model.training.checkpoint import read_tensors
from tests.model.attempts import (
    BEST,
    BETWEEN_SAVES,
    check_best_is_saved,
    check_learns_is_scored_and_asked,
)
from tests.model.conftest import Run
from tests.model.preparing_rig import PATH, Rig
from tests.model.test_trm_puzzle import settings
from tests.standins.data_host import DataHost, serving
from trmcloud.core.catalog.datasets import DataSet
from trmcloud.core.contract.trainer_contract import PhaseJob
from trmcloud.core.errors import DataError

HEADER = "source,question,answer,rating\n"


def cells(text: str) -> list[int]:
    return [int(each) for each in text]


# -- solutions -----------------------------------------------------------------------------------


def test_there_are_288_grids_of_4_in_two_classes() -> None:
    grids = puzzles.small_grids()
    assert len(grids) == len(set(grids)) == 288
    assert len({puzzles.canonical(grid) for grid in grids}) == 2
    for grid in grids:
        square = np.array(grid).reshape(4, 4)
        boxes = square.reshape(2, 2, 2, 2).swapaxes(1, 2).reshape(4, 4)
        for line in (*square, *square.T, *boxes):
            assert sorted(line) == [1, 2, 3, 4]


def test_solutions_are_all_there_are() -> None:
    """Held to a search through every way of filling the blanks."""
    puzzle = list(puzzles.small_grids()[5])
    for at in (0, 1, 4, 5, 10, 11, 14):
        puzzle[at] = 0
    blanks = [at for at, digit in enumerate(puzzle) if not digit]
    every = set(puzzles.small_grids())
    found = set()
    for digits in itertools.product(range(1, 5), repeat=len(blanks)):
        grid = list(puzzle)
        for at, digit in zip(blanks, digits, strict=True):
            grid[at] = digit
        if tuple(grid) in every:
            found.add(tuple(grid))
    assert set(puzzles.solutions(puzzle, 1000)) == found
    assert puzzles.solutions([1, 1, *[0] * 14], 5) == []


def test_a_known_puzzle_of_9_is_solved() -> None:
    text = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
    [solution] = puzzles.solutions(cells(text), 2)
    assert "".join(map(str, solution)).startswith("534678912672195348198342567")


def test_equivalent_grids_have_one_canonical_form() -> None:
    [grid] = puzzles.solutions([0] * 81, 1, puzzles.Draws(3))
    square = np.array(grid).reshape(9, 9)
    other = square.T[[2, 0, 1, 6, 8, 7, 5, 4, 3]][:, [3, 4, 5, 2, 1, 0, 8, 7, 6]]
    digits = np.array([0, 3, 1, 2, 9, 8, 7, 6, 5, 4])
    form = puzzles.canonical(grid)
    assert puzzles.canonical(digits[other].flatten().tolist()) == form
    assert puzzles.solutions(form, 2) == [form]
    assert form[:9] == tuple(range(1, 10))
    [another] = puzzles.solutions([0] * 81, 1, puzzles.Draws(4))
    assert puzzles.canonical(another) != form


# -- made puzzles --------------------------------------------------------------------------------


@pytest.mark.parametrize("held_out", [False, True])
def test_made_puzzles_have_one_solution(held_out: bool) -> None:
    for side, number in ((4, 50), (9, 2)):
        made = puzzles.make_documents(side, 1, 0, number, held_out=held_out)
        assert made == puzzles.make_documents(side, 1, 0, number, held_out=held_out)
        assert made[1:] == puzzles.make_documents(side, 1, 1, number, held_out=held_out)
        assert made != puzzles.make_documents(side, 2, 0, number, held_out=held_out)
        for text in made:
            puzzle, solution = cells(text[: side**2]), cells(text[side**2 :])
            assert puzzles.solutions(puzzle, 2) == [tuple(solution)]
            assert 2 * puzzle.count(0) >= side**2 - 1
            assert puzzles.is_held_out(solution) == held_out


def test_no_grid_of_4_is_in_both_parts() -> None:
    training, held_out = puzzles.small_parts()
    assert (len(training), len(held_out)) == (200, 88)
    assert set(training) | set(held_out) == set(puzzles.small_grids())
    solutions = [
        {text[16:] for text in puzzles.make_documents(4, 9, 0, 3000, held_out=part)}
        for part in (False, True)
    ]
    assert [len(each) for each in solutions] == [200, 88]
    assert not solutions[0] & solutions[1]


def test_symmetry_makes_no_held_out_grid_of_9_from_a_training_grid() -> None:
    """Whatever is done to a grid, it stays in its part."""
    generator = np.random.default_rng(1)
    orders = puzzles._line_orders(9)
    for seed in range(3):
        [grid] = puzzles.solutions([0] * 81, 1, puzzles.Draws(seed))
        square = np.array(grid).reshape(9, 9)
        moved = square[generator.choice(orders)][:, generator.choice(orders)]
        digits = np.concatenate(([0], generator.permutation(9) + 1))
        for each in (moved, moved.T):
            assert puzzles.is_held_out(digits[each].flatten().tolist()) == puzzles.is_held_out(grid)


def test_the_named_sets_are_made_as_their_rows_say() -> None:
    small = load_data_set("sudoku-4x4")
    [shard] = named_corpus("sudoku-4x4", small).train
    units = units_of(small, shard.name, None)
    assert (units[0].start, units[-1].stop) == (0, 20_000)
    [first, *_] = documents(small, shard.name, None, units[0], 1)
    assert first == puzzles.make_documents(4, 1, 0, 50, held_out=False)
    [first, *_] = documents(small, small.validation, None, units[0], 1)
    assert first == puzzles.make_documents(4, 1, 0, 50, held_out=True)
    with pytest.raises(DataError, match="4x4 and 9x9"):
        units_of(small, "16x16-000", None)


# -- tables --------------------------------------------------------------------------------------


def table(tmp_path: Path, number: int, blank: str = ".") -> tuple[Path, list[str]]:
    """A table like Sudoku-Extreme's, and its puzzles as documents."""
    every = puzzles.make_documents(4, 3, 0, number, held_out=False)
    rows = [
        f"a source,{text[:16].replace('0', blank)},{text[16:]},{at}\n"
        for at, text in enumerate(every)
    ]
    path = tmp_path / "train.csv"
    path.write_text(HEADER + "".join(rows))
    return path, every


def read(path: Path, data_set: DataSet) -> list[str]:
    return [
        text
        for unit in units_of(data_set, path.name, path)
        for batch in documents(data_set, path.name, path, unit, 1)
        for text in batch
    ]


@pytest.mark.parametrize("blank", [".", "0"])
def test_a_table_is_read_whole_and_in_order(tmp_path: Path, blank: str) -> None:
    path, every = table(tmp_path, 40, blank)
    corpus = one_file_corpus(str(path), "puzzles")
    assert read(path, corpus.data_set) == every


def test_parts_of_a_table_share_no_line(tmp_path: Path) -> None:
    path, every = table(tmp_path, 40)
    size = path.stat().st_size
    for cut in range(0, size, 97):
        parts = [puzzles.table_documents(path, *ends) for ends in ((0, cut), (cut, size))]
        assert [text for part in parts for text, _ in part] == every


def test_a_sample_is_spread_over_a_table(tmp_path: Path) -> None:
    path, every = table(tmp_path, 400)
    made = [text for text, _ in puzzles.table_documents(path, 0, 20, sample=20)]
    places = [every.index(text) for text in made]
    assert len(set(places)) == 20
    assert places[0] == 0
    assert max(np.diff(places)) <= 22
    parts = [puzzles.table_documents(path, *ends, sample=20) for ends in ((0, 7), (7, 20))]
    assert [text for part in parts for text, _ in part] == made


@pytest.mark.parametrize(
    "row",
    [
        "x,12,1234123412341234,1",
        "x,0000000000000000,1234341221434320,1",
        "x,a000000000000000,1234341221434321,1",
        "x,2000000000000000,1234341221434321,1",  # the answer has another digit there
        "x",
    ],
)
def test_a_line_that_is_no_puzzle_is_refused(tmp_path: Path, row: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(f"{HEADER}{row}\n")
    with pytest.raises(DataError, match="no puzzle with its solution at byte 30"):
        list(puzzles.table_documents(path, 0, path.stat().st_size))


def test_a_table_without_the_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("one,two\n1,2\n")
    with pytest.raises(DataError, match="question and answer"):
        list(puzzles.table_documents(path, 0, 99))
    path.write_text("rating,A,Q\n1,1234341221434321,1000000000000000\n")
    [(text, _)] = puzzles.table_documents(path, 0, path.stat().st_size)
    assert text == "10000000000000001234341221434321"


# -- prepared, trained on, resumed, scored ---------------------------------------------------------

SETTINGS: dict[str, Any] = {
    "tokenizer": "char", "characters": "01234", "data": "sudoku-4x4", "validation_fraction": 0.1,
    "steps": 30, "compile": False, "ema": True, "schedule": "constant", "cooldown_fraction": 0.0,
    "warmup_steps": 2, "log_every": 1, "eval_every": 10, "eval_tokens": 32 * 20, "save_every": 10,
    "keep_best": 9, "matrix_lr": 2e-3, "embedding_lr": 2e-3, "head_lr": 2e-3, "hidden_multiple": 16,
}  # fmt: skip


@pytest.fixture
def new_training(tmp_path: Path) -> Callable[..., Run]:
    """A factory: a job on a table of 400 puzzles, in a folder of its own."""
    path, _ = table(tmp_path, 400)
    made = settings(**SETTINGS)
    (tmp_path / "settings.json").write_text(json.dumps(made.to_json()))
    arguments = ["--source", str(path), "--settings", str(tmp_path / "settings.json")]
    assert prepare.main([*arguments, "--out", str(tmp_path / "data"), "--workers", "1"]) == 0

    def make(name: str, **changes: Any) -> Run:
        chosen = settings(**{**SETTINGS, **changes}).to_json()
        return Run(
            PhaseJob(
                run_id="r1",
                phase="train",
                settings=chosen,
                data_dir=str(tmp_path / "data"),
                out_dir=str(tmp_path / name),
                processes=1,
            )
        )

    return make


@pytest.mark.usefixtures("keep_generator")
def test_the_best_between_two_saves_is_saved(new_training: Callable[..., Run]) -> None:
    """With its carry: rows are in the middle of their puzzles when it is saved."""
    changes = {"halt_max_steps": 3}
    whole = check_best_is_saved(new_training, **changes)
    folder = whole.out / f"checkpoints/step-{BEST:08d}"
    kept = read_tensors(folder, whole.manifests()[BEST], "optimizer")
    assert not kept["carried.0.halted"].all()

    # Another batch has no rows of the same shape: they begin with new puzzles.
    changes = {**BETWEEN_SAVES, **changes, "steps": 16, "batch": 3, "accumulation": 2}
    other = new_training("whole", **changes)
    assert other.train_here(attempt=3) == "finished"


@pytest.mark.usefixtures("keep_generator")
def test_a_training_is_scored_by_its_average(
    new_training: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_training("run", width=64, batch=16, steps=60, eval_every=60, save_every=60)
    puzzle = puzzles.make_documents(4, 5, 0, 1, held_out=True)[0][:16]
    evals, scored, text = check_learns_is_scored_and_asked(run, tmp_path / "data", capsys, puzzle)
    first, *_, last = evals
    assert len(text.strip()) == 32
    # Bits per byte are those of the solution alone: 16 characters of a row's 32.
    assert last["val_bpb"] == pytest.approx(last["val_step_losses"][0] / np.log(2))
    assert last["cell_accuracy"] > first["cell_accuracy"]
    assert {"answer", "halt", "solved"} <= set(run.metrics("train")[-1])

    folder = run.out / "checkpoints/step-00000060"
    for key in ("exact_accuracy", "cell_accuracy"):
        assert scored[key] == pytest.approx(last[key], rel=1e-5)
    assert "solved:" in score._as_text(scored)
    trained = read_tensors(folder, run.manifests()[60], "optimizer")
    weights = read_tensors(folder, run.manifests()[60], "weights")
    assert not torch.equal(trained["trained.head.weight"], weights["head.weight"])
    assert {"answer_start", "latent_start"} < set(weights)

    assert sample.main(["--checkpoint", str(folder), "--prompt", "123"]) != 0
    assert "a puzzle has 16" in capsys.readouterr().err


def test_puzzles_of_another_size_are_refused(
    new_training: Callable[..., Run], tmp_path: Path
) -> None:
    nine = settings(**{**SETTINGS, "sequence": 162, "vocab_size": 11, "characters": "0123456789"})
    run = new_training("nine")
    job = replace(run.job, settings=nine.to_json())
    assert Run(job).train_here() == "bad_data"
    assert "no puzzle of 81 cells" in run.heartbeat.message


def test_a_remote_table_is_sampled_for_training_and_read_whole_for_validation(
    tmp_path: Path,
) -> None:
    """As Sudoku-Extreme's row has it: 20 of 300 training puzzles, and every test puzzle."""
    draws = puzzles.Draws(5)
    [grid] = puzzles.solutions([0] * 81, 1, draws)
    answer = "".join(map(str, grid))

    def rows(number: int) -> tuple[str, list[str]]:
        questions = ["".join(d if draws.below(3) else "." for d in answer) for _ in range(number)]
        lines = "".join(f"a,{question},{answer},{at}\n" for at, question in enumerate(questions))
        return HEADER + lines, [question.replace(".", "0") + answer for question in questions]

    (tmp_path / "up").mkdir()
    made = {}
    for name, number in (("train.csv", 300), ("test.csv", 50)):
        text, made[name] = rows(number)
        (tmp_path / "up" / name).write_text(text)
    nine = {"sequence": 162, "vocab_size": 11, "characters": "0123456789"}
    with serving(DataHost()) as host:
        rig = Rig(tmp_path, host, settings(**{**SETTINGS, **nine}))
        host.put(PATH, tmp_path / "up")
        rig.describe(
            layout="puzzles", shards="train.csv", first=0, last=0, validation="test.csv",
            tokenizer_shards=1, shard_text_bytes=20 * 162,
        )  # fmt: skip
        rig.grow(wanted=300 * 163)
        [training], validation = rig.decoded()
    assert len(training) == 20
    assert validation == made["test.csv"]
    places = [made["train.csv"].index(text) for text in training]
    assert places[0] == 0
    assert all(12 <= gap <= 18 for gap in np.diff(places))


def test_a_made_set_grows_into_its_two_parts(tmp_path: Path) -> None:
    with serving(DataHost()) as host:
        rig = Rig(tmp_path, host, settings(**SETTINGS))
        rig.describe(
            layout="sudoku", base_url="", shards="4x4-{:03d}", first=0, last=1,
            validation="4x4-test", tokenizer_shards=1, shard_text_bytes=600 * 32,
            validation_text_bytes=500 * 32,
        )  # fmt: skip
        rig.grow(wanted=1200 * 33)
        shards, validation = rig.decoded()
    seed = rig.settings.seed
    assert shards[0] + shards[1] == puzzles.make_documents(4, seed, 0, 1200, held_out=False)
    assert validation == puzzles.make_documents(4, seed, 0, 500, held_out=True)
    assert not {text[16:] for text in validation} & {text[16:] for text in shards[0] + shards[1]}
