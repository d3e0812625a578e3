"""The plan of a sweep, and the results of its trials."""

from __future__ import annotations

from collections.abc import Sequence

from trmcloud.cli.views.text import table
from trmcloud.core.errors import ConflictError
from trmcloud.core.money import Usd
from trmcloud.core.sweep.job import ray_address
from trmcloud.core.sweep.priors import NO_PRIORS, Priors
from trmcloud.core.sweep.space import format_point
from trmcloud.core.sweep.state import Trial, TrialState
from trmcloud.core.sweep.terms import Goal, SweepTerms
from trmcloud.core.sweep.verdict import (
    NEXT_USD,
    Finding,
    Verdict,
    best_so_far,
    curve_points,
    expected_gain,
    importance,
    judge,
    quarters,
)
from trmcloud.core.text import one_line
from trmcloud.operations.curves.charts import Series, line_chart
from trmcloud.operations.sweeps.sweep_facts import SweepFacts
from trmcloud.operations.sweeps.sweep_terms import expected_trials


def terms_lines(terms: SweepTerms, priors: Priors = NO_PRIORS, on: str = "") -> list[str]:
    """The lines below a sweep's plan: its slots, rungs, reservations, how many trials they are
    expected to start, and what is known before the first. ``on`` is where they run, see
    ``core.sweep.job``."""
    rungs = " · ".join(amount(terms, each) for each in terms.rungs)
    kept = f"{amount(terms, terms.winner_usd)} for the winner"
    if terms.confirm_usd:
        kept += f", {amount(terms, terms.confirm_usd)} for repetitions with other seeds"
    rows = [
        ("space", " ".join(str(each) for each in terms.space.parameters)),
        ("first trial", format_point(terms.default)),
        *(
            (
                "" if number else "then",
                f"{format_point(each.point)} (trial {each.trial} of {each.run_id})",
            )
            for number, each in enumerate(priors.first)
        ),
        ("slots", f"{terms.slots}, {amount(terms, terms.slot_rate)}/h each"),
        ("rungs", f"{rungs} per trial; 1 of {terms.eta} is continued"),
        ("reserved", kept),
        ("trials", f"about {expected_trials(terms)} for {amount(terms, terms.usd)}"),
    ]
    rows += _known_rows(priors)
    if (address := ray_address(on)) is not None:
        rows.append(("trials on", f"the Ray at {address}" if address else "a Ray of this machine"))
    if terms.unit == "s":
        rows.append(("currency", "seconds of a slot, since this machine has no --rate"))
    if terms.space.is_one_point:
        rows.append(("one point", "there is nothing to choose: one training, then it ends"))
    width = max(len(name) for name, _ in rows)
    return ["  Sweep", *(f"    {name:<{width}}  {text}" for name, text in rows)]


def _known_rows(priors: Priors) -> list[tuple[str, str]]:
    rows = []
    if priors.earlier:
        used = ", ".join(f"{len(each.trials)} of {each.run_id}" for each in priors.earlier)
        rows.append(("earlier", f"trials on the same code are used: {used} (not: --no-earlier)"))
    if memory := memory_words(priors):
        rows.append(("memory", memory))
    return rows


def memory_words(priors: Priors) -> str:
    """``3 of 12 sizes are never started: width=512 needs 31.0 GB of 22.1``; empty where all fit."""
    table = priors.memory
    found = table.least_refused() if table is not None else None
    if table is None or found is None:
        return ""
    least, need_gb = found
    over, known = table.refused
    named = format_point(tuple(least.items()))
    return (
        f"{over} of {known} sizes are never started: {named} needs {need_gb:.3g} GB of "
        f"{table.room_gb:.3g}"
    )


def amount(terms: SweepTerms, value: Usd) -> str:
    """An amount in the sweep's currency."""
    return str(value) if terms.unit == "usd" else f"{float(value):,.0f} s"


_HEADER = ("trial", "rung", "spent", "metric", "where", "settings")
_ROWS, _WIDTH = 12, 80
_WHERE = {
    TrialState.RUNNING: "running",
    TrialState.PAUSED: "paused",
    TrialState.LANDED: "landed",
    TrialState.LOST: "lost, again",
    TrialState.COMPLETE: "complete",
    TrialState.FAILED: "failed",
    TrialState.DROPPED: "dropped",
}


def trial_lines(facts: SweepFacts, *, verbose: bool = False, most: int = _ROWS) -> list[str]:
    """The table of a sweep's trials: those that run first, then the best first. ``most`` of them
    within 80 columns; with ``verbose`` all, with all their settings."""
    header, rows = trial_table(facts)
    shown = rows if verbose else rows[:most]
    lines = table(header, shown) if rows else ["no trial has begun"]
    if not verbose:
        lines = _cut(lines)
    if more := len(rows) - len(shown):
        lines.append(f"and {more} more: -v")
    return lines


def _cut(lines: Sequence[str]) -> list[str]:
    return [line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…" for line in lines]


def joint_lines(found: Sequence[tuple[str, SweepFacts]]) -> list[str]:
    """One table of the trials of several runs, by their ids, that share one space out; and which
    checkpoint is the best of all."""
    trials = [(facts.place(t), run, facts, t) for run, facts in found for t in facts.ranked()]
    trials.sort(key=lambda each: each[:2])
    best = [(facts.place(facts.best), run, facts.best) for run, facts in found if facts.best]
    if not best:
        return ["no trial has a result"]
    header, _ = trial_table(found[0][1])
    rows = [(run, *_row(facts, trial)) for _, run, facts, trial in trials[:_ROWS]]
    lines = _cut(table(("run", *header), rows))
    if more := len(trials) - len(rows):
        lines.append(f"and {more} more: trmcloud status RUN -v")
    _, run, trial = min(best, key=lambda each: (-each[2].rung, each[0]))
    return [
        *lines,
        f"best of all: trial {trial.number} of {run} with {format_point(trial.point)}",
        f"  trmcloud fetch-best {run}",
    ]


def trial_table(facts: SweepFacts) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(the heads, a row for each trial): those that run first, then the best first."""
    header = tuple(facts.terms.metric[:12] if name == "metric" else name for name in _HEADER)
    return header, [_row(facts, trial) for trial in facts.ranked()]


def _row(facts: SweepFacts, trial: Trial) -> tuple[str, ...]:
    terms = facts.terms
    where = _WHERE[trial.state]
    if trial.is_running:
        where = f"to rung {trial.target + 1}"
    rung = f"{trial.rung + 1}/{terms.last + 1}" if trial.rung >= 0 else "–"
    point = format_point(trial.point)
    if trial.repeats:
        point = f"repeats {trial.repeats}, seed {trial.seed}"
    return (
        f"{trial.number}",
        rung,
        amount(terms, trial.spent),
        "–" if trial.metric is None else f"{trial.metric:.4g}",
        where,
        one_line(point)[:200],
    )


def progress_words(facts: SweepFacts) -> str:
    """``trial 7, 2 run · best val_bpb 2.31, trial 4``"""
    words = f"{len(facts.state.trials)} trials, {len(facts.state.running)} running"
    best = facts.best
    if best is not None and best.metric is not None:
        words += f" · best {facts.terms.metric} {best.metric:.4g}, trial {best.number}"
    return words


def report_lines(facts: SweepFacts, priors: Priors = NO_PRIORS) -> list[str]:
    """The results that the dollars bought, the settings that matter, the gain expected of more
    dollars, and what was known before the first trial."""
    terms, state = facts.terms, facts.state
    lines = [f"sweep: {progress_words(facts)}, {amount(terms, state.spent)} on trials"]
    if state.idle:
        lines[0] += f", {amount(terms, state.idle)} on free slots"
    for number, part in enumerate(quarters(state, terms), 1):
        told = "no result yet"
        if part.best is not None:
            told = f"{part.trials} trials, best {terms.metric} {part.best:.4g}"
        lines.append(f"quarter {number}: until {amount(terms, part.spent)}: {told}")
    best = facts.best
    if best is not None:
        lines.append(f"best settings: {format_point(best.point)}")
    if matters := importance(state, terms):
        shares = ", ".join(f"{each.name} {each.share:.0%}" for each in matters)
        lines.append(f"settings that explain the trials' ranks: {shares}")
    lines.append(verdict_line(judge(state, terms), terms))
    gain = expected_gain(state, terms) if terms.unit == "usd" else None
    if gain is not None:
        lines.append(
            f"the next {NEXT_USD} may gain {gain:.3g} {terms.metric}: an extrapolation of what "
            "the last two doublings of the money gained"
        )
    lines += [f"{name}: {text}" for name, text in _known_rows(priors)]
    if facts.own_share is not None:
        lines.append(
            f"the sweep's own decisions took {facts.own_share:.2%} of the processor time: "
            f"{facts.own_cpu_s:.1f} s beside {facts.trials_cpu_s:.1f} s of trials"
        )
    for trial in state.trials.values():
        if trial.state is TrialState.FAILED:
            lines.append(one_line(f"trial {trial.number} failed: {trial.error}")[:160])
    return lines


def verdict_line(found: Verdict, terms: SweepTerms) -> str:
    """Whether the winner beats the default by more than noise, with its interval."""
    if found.finding is Finding.NO_RESULT:
        return "verdict: no trial has a result"
    if found.finding is Finding.DEFAULT:
        return "verdict: the default is the best"
    sides = ("below", "above") if terms.goal is Goal.MIN else ("above", "below")
    is_worse = found.gain is not None and found.gain < 0.0
    side, sign = sides[is_worse], -1.0 if is_worse else 1.0
    if found.finding is Finding.NOT_TESTED:
        told = ""
        if found.gain is not None:
            told = f"; at rung {found.rung + 1} it is {abs(found.gain):.3g} {side} the default"
        return f"verdict: trial {found.winner} is the best, not tested with other seeds{told}"
    assert found.gain is not None
    assert found.low is not None
    assert found.high is not None
    low, high = sorted((sign * found.low, sign * found.high))
    interval = f"{abs(found.gain):.3g} {side} the default ({low:.3g} to {high:.3g}, 95 %)"
    if found.finding is Finding.NOT_BETTER:
        return f"verdict: nothing beats the default by more than noise: {interval}"
    return f"verdict: trial {found.winner} is better by more than noise: {interval}"


_STYLE = (
    "<style>text{font:12px sans-serif;fill:#444}.grid{stroke:#ddd;fill:none}"
    ".s0{stroke:#1b6ac9;fill:none;stroke-width:2}circle.s1{fill:#888;stroke:none}"
    "polyline.s1{stroke:none}svg{background:#fff}</style>"
)


def picture(facts: SweepFacts) -> str:
    """An SVG: the best so far against the dollars spent, and each trial's result at its rungs.

    Raises:
        ConflictError: no trial has a result yet.
    """
    terms = facts.terms
    steps: list[tuple[float, float]] = []
    for spent, metric, _ in best_so_far(facts.state, terms):
        if steps:
            steps.append((float(spent), steps[-1][1]))
        steps.append((float(spent), metric))
    if not steps:
        raise ConflictError("no trial has a result yet", next_step="trmcloud status")
    whole = float(facts.state.spent + facts.state.idle)
    steps.append((whole, steps[-1][1]))
    results = [(float(spent), metric) for spent, metric, _ in curve_points(facts.state)]
    unit = "USD spent" if terms.unit == "usd" else "seconds of slots"
    made = line_chart(
        f"best {terms.metric} so far against what was spent",
        [
            Series("best so far", tuple(steps)),
            Series("trials at their rungs", tuple(sorted(results)), dots=True),
        ],
        x_words=lambda x: f"{x:g}",
        x_title=f"{unit}; line: best {terms.metric} so far, dots: trials at their rungs",
        x_from=0.0,
    )
    head, title, rest = made.partition("<title>")
    head = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ')
    return f"{head}{_STYLE}{title}{rest}\n"
