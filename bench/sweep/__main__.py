"""Equal dollars on LCBench: play the methods, and write the page.

    python -m bench.sweep --table build/sweep-tables/lcbench.onnx --state build/sweep-bench.jsonl
        [--seeds 30] [--page docs/soak/sweep.md] [--date 2026-11-27]

Each result is a line of the state: an interrupted bench resumes. Seed by seed over all tasks, so
that a page can be written of the seeds that are complete (``--seeds 0``: play nothing).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from bench.sweep.methods import ALL, METHODS, SAMPLED, Method, at_shares
from bench.sweep.page import write_page
from bench.sweep.tables import LCBENCH_TASKS, Lcbench, open_lcbench

TRAININGS = 10
"""The budget, in mean whole trainings of the task."""
ALL_TIMES = 5
"""By how much the budget of training all to the end is larger."""
SHARES = tuple(share / 20 for share in range(1, 21))
REFERENCE = 20_000
SAMPLER_SEEDS = 10
TUNED_ON = LCBENCH_TASKS[::2]
"""The tasks on which the algorithm was tuned; the others judge it."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--date", default="")
    asked = parser.parse_args()
    session = open_lcbench(asked.table)
    tables = {task: Lcbench(session, task) for task in LCBENCH_TASKS}
    rows = read_rows(asked.state)
    done = {(row["method"], row["task"], row["seed"]) for row in rows}
    references = {row["task"]: row for row in rows if row["method"] == "reference"}
    with asked.state.open("a", encoding="utf-8") as state:
        for task, table in tables.items():
            if task not in references:
                best, median, mean_s = table.reference(REFERENCE)
                row = {
                    "method": "reference", "task": task, "seed": 0,
                    "best": best, "median": median, "mean_s": mean_s,
                }  # fmt: skip
                references[task] = row
                _keep(state, row, rows)
        for seed in range(asked.seeds):
            for task, table in tables.items():
                for name, method in _methods(task, seed):
                    if (name, task, seed) not in done:
                        mean_s = references[task]["mean_s"]
                        _keep(state, _play(name, method, table, seed, mean_s), rows)
                table.forget()
            print(f"seed {seed}, {time.process_time():.0f} CPU-s", flush=True)
    if asked.page:
        write_page(rows, asked.page, SHARES, TUNED_ON, TRAININGS, ALL_TIMES, asked.date)


def read_rows(path: Path) -> list[dict[str, Any]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return []
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
    path.write_text(whole + "\n" if whole else "", encoding="utf-8")
    return [json.loads(line) for line in whole.split("\n") if line]


def _methods(task: str, seed: int) -> list[tuple[str, Method]]:
    others = SAMPLED.items() if task in TUNED_ON and seed < SAMPLER_SEEDS else ()
    return [*METHODS.items(), *others]


def _play(name: str, method: Method, table: Lcbench, seed: int, mean_s: float) -> dict[str, Any]:
    began = time.process_time()
    budget = TRAININGS * mean_s * (ALL_TIMES if name == ALL else 1)
    path = method(table, seed, budget, mean_s)
    return {
        "method": name, "task": table.task, "seed": seed,
        "best": at_shares(path, budget, SHARES), "cpu_s": round(time.process_time() - began, 3),
    }  # fmt: skip


def _keep(state: Any, row: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    state.write(json.dumps(row) + "\n")
    state.flush()
    rows.append(row)


if __name__ == "__main__":
    main()
