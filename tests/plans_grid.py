"""Thousands of plans judged from outside: rules that an expert would hold a plan to.

    python -m tests.plans_grid [--tenth] [--minutes N] [--state FILE] [--page FILE] [--date DAY]

Reads the documents of ``trmcloud plan --json``, and, for "also buys", the lines of the text. It
imports nothing of the planner. Each command runs in this process, in a home of its own. The state
keeps each answer as long as the product's files stay the same; the rules are applied to all
answers at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DAY_S = 86_400.0
RECIPES = (
    "trm", "gpt350m", "d24", "d32", "d64", "speedrun", "nanochat-d32", "shakespeare", "bd3lm",
    "hdp", "sudoku", "sudoku-4x4",
)  # fmt: skip
BUDGETS = (0.05, 0.5, 1, 5, 10, 20, 50, 95, 100, 200, 1000, 10_000, 100_000)
OBJECTIVES = ("value", "cheapest", "fastest", "most-training")
HARDWARE = (
    "local", "1xL4", "1xRTX4090", "1xA100", "1xH100", "4xH100", "8xH100", "2x8xH100", "8xA100",
)  # fmt: skip
GOALS = ("gpt2", "shakespeare", "sudoku", "sudoku-4x4", "chat-tiny")
OPTIONS = (
    "--max-price 5", "--max-price 30", "--deadline 6h", "--deadline 2d", "--deadline 14d",
    "--steps 100", "--hours 1", "--hours 300", "--set batch=1", "--set accumulation=8", "--fill",
    "--gpus 1", "--gpus 8", "--provider runpod", "--provider vast", "--equal-work", "--community",
    "--objective cheapest", "--objective fastest",
)  # fmt: skip

Words = tuple[str, ...]


def queries() -> list[Words]:
    """Return the grid; the order is that in which it is run."""
    found: list[Words] = []

    def add(*parts: object) -> None:
        found.append(tuple(word for part in parts for word in str(part).split()))

    for recipe, budget, objective in itertools.product(RECIPES, BUDGETS, OBJECTIVES):
        add("--recipe", recipe, "--budget", budget, "--objective", objective)
    for recipe, hardware, budget in itertools.product(RECIPES, HARDWARE, (1, 5, 50, 500, 10_000)):
        add("--recipe", recipe, "--hardware", hardware, "--budget", budget)
    for recipe, option, budget in itertools.product(RECIPES, OPTIONS, (20, 100, 1000)):
        add("--recipe", recipe, "--budget", budget, option)
    for goal, budget, objective in itertools.product(GOALS, BUDGETS[2:], OBJECTIVES[:3]):
        add("--goal", goal, "--budget", budget, "--objective", objective)
    for recipe, option in itertools.product(RECIPES, ("", *OPTIONS[2:9], *OPTIONS[17:])):
        add("--recipe", recipe, option)
    for budget in BUDGETS:
        add("--budget", budget)
    drawn = random.Random(20261130)
    while len(found) < 2400:
        recipe, hardware = drawn.choice(RECIPES), drawn.choice(("", "", "", *HARDWARE))
        one, two = drawn.sample(OPTIONS, 2)
        if one.split()[0] != two.split()[0] and not (hardware and "--gpus" in one + two):
            place = f"--hardware {hardware}" if hardware else ""
            add("--recipe", recipe, "--budget", drawn.choice(BUDGETS), place, one, two)
    return list(dict.fromkeys(found))


BOUGHT = tuple(
    ("--budget", f"{budget}", *option.split())
    for budget in (5, 20, 50, 100, 1000)
    for option in ("", "--fill", "--deadline 6h", "--max-price 5", "--objective cheapest")
)
"""Queries whose text is read for what the budget also buys."""
METHODS = ("full", "lora", "qlora")
"""Of fine-tunings, in whose rows they stand where a recipe's name does."""


class Row(NamedTuple):
    """What a document says of one machine."""

    id: str
    hardware: str
    nodes: int
    offer: str
    """Provider, region, machine, day and kind of the quote."""
    rate: float
    planned: float
    cost: float
    hours: float
    is_local: bool
    is_usable: bool
    """It fits in memory and keeps budget and deadline, by the document."""
    tokens: float
    """That it trains at P50 until it ends or is stopped."""
    stop_late_s: float
    """By how much its hard stop is after 2 × P90, or P90 and half an hour, and its landing."""
    planned_tokens: float
    planned_steps: int
    """Of its last phase."""
    phases: int
    steps: float
    until_evaluation: float
    """Steps of its first phase until the first evaluation, or all of them."""
    epochs: float
    """The most passes over the data of any phase at P50; 0 where they are not counted."""
    notes: tuple[tuple[str, str], ...]
    most: float
    """Dollars that it costs at most, in JSON ``worst_case_usd``."""
    most_at_stop: float
    """Dollars of rent at its highest rate until half an hour after its hard stop, and storage."""
    limit: float
    """Dollars that it costs at most where its stop is moved; 0: it is not."""


class Answer(NamedTuple):
    """An exit status; the recommended machine, those listed as launchable or usable, and lines to
    type."""

    code: int
    recommended: str = ""
    rows: tuple[Row, ...] = ()
    typed: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    message: str = ""

    @property
    def row(self) -> Row | None:
        return next((row for row in self.rows if row.id == self.recommended), None)


def _row(each: dict[str, Any]) -> Row:
    startup, left = each["startup_s"]["p50"], each["duration_s"]["p50"]
    left = min(left, each["soft_stop_s"]) - startup
    notes = tuple((note["code"], note["message"]) for note in each["notes"])
    of_data = {
        name: int(size.replace(",", ""))
        for _, text in notes
        for name, size in re.findall(r"^(\w+): [\d,.]+ epochs over .*?([\d,]{4,}) tokens", text)
    }
    tokens = planned = steps = epochs = 0.0
    for phase in each["phases"]:
        parts, whole = phase["parts_s"], phase["duration_s"]["p50"]
        before = sum(parts.get(name, 0.0) for name in ("data", "start", "compile"))
        working = whole - before - parts.get("landing", 0.0)
        share = min(1.0, max(0.0, left - before) / working) if working > 0 else 1.0
        likely = min(phase["steps"], parts.get("training", 0.0) / phase["step_s"]["p50"])
        per_step = phase["tokens"] / max(1, phase["steps"])
        tokens += share * likely * per_step
        planned += likely * per_step
        steps += share * likely
        settings = phase["settings"]
        if phase["name"] in of_data and settings.get("rows") != "puzzle":
            epochs = max(epochs, likely * per_step / of_data[phase["name"]])
        left -= whole
    first, p90_s = each["phases"][0], each["duration_s"]["p90"]
    every = first["settings"].get("eval_every") or 0
    return Row(
        id=each["id"],
        hardware=each["hardware"],
        nodes=each["nodes"],
        offer=" ".join(
            str(each[key]) for key in ("provider", "region", "hardware", "sku", "priced_at", "spot",
                                       "rate_per_hour_usd", "source")
        ),
        rate=float(each["rate_per_hour_usd"]),
        planned=float(each["planned_rate_per_hour_usd"]),
        cost=float(each["cost_p50_usd"]),
        hours=min(each["duration_s"]["p50"], each["hard_stop_s"] or 1e12) / 3600,
        is_local=each["provider"] == "local",
        is_usable=each["fits_memory"]
        and each["within_budget"]
        and not any("cannot be launched" in text or "only be planned" in text for _, text in notes),
        tokens=tokens,
        stop_late_s=each["hard_stop_s"] - max(2 * p90_s, p90_s + 1800) - each["landing_s"],
        planned_tokens=planned,
        planned_steps=each["phases"][-1]["steps"],
        phases=len(each["phases"]),
        steps=steps,
        until_evaluation=min(every, first["steps"]) if every else first["steps"],
        epochs=epochs,
        notes=notes,
        most=float(each["worst_case_usd"]),
        most_at_stop=sum(
            float(each[f"{part}_rate_per_hour_usd"]) for part in ("most", "disk", "volume")
        ) * (each["hard_stop_s"] + 1800) / 3600 + float(each["storage_usd"]),
        limit=float(each.get("limit_usd") or 0),
    )  # fmt: skip


def _answer(code: int, document: dict[str, Any]) -> Answer:
    if document["schema"].startswith("error/"):
        typed = (document["next"],) if document["next"] else ()
        return Answer(code, typed=typed, message=document["message"])
    launchable = set(document["launchable"])
    rows = tuple(
        _row(each)
        for each in document["candidates"]
        if each["id"] in launchable
        or each["id"] == document["recommended"]
        or (each["fits_memory"] and each["within_budget"])
    )
    notes = [*document["limits"], *document["notes"]]
    return Answer(
        code,
        document["recommended"] or "",
        rows,
        tuple(note["next"] for note in notes if note["next"]),
        tuple((note["code"], note["message"]) for note in notes),
    )


class Asker:
    """Runs ``trmcloud plan`` in this process and keeps each answer in a file."""

    def __init__(self, state: Path) -> None:
        self.state, self.answers, self.texts = state, dict[Words, Answer](), dict[Words, str]()
        self.key = _hash_of_product()
        self.spent_s = 0.0
        if state.exists():
            lines = state.read_text(encoding="utf-8").splitlines()
            if lines and json.loads(lines[0]) == self.key:
                for line in lines[1:]:
                    words, kept = json.loads(line)
                    self._take(tuple(words), kept)
                return
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text(json.dumps(self.key) + "\n", encoding="utf-8")

    def _take(self, words: Words, kept: Any) -> None:
        if isinstance(kept, str):
            self.texts[words] = kept
        else:
            code, recommended, rows, typed, notes, message = kept
            made = [Row._make((*row[:-1], tuple(map(tuple, row[-1])))) for row in rows]
            pairs = tuple((code, text) for code, text in notes)
            self.answers[words] = Answer(
                code, recommended, tuple(made), tuple(typed), pairs, message
            )

    def _keep(self, words: Words, kept: Any) -> None:
        with self.state.open("a", encoding="utf-8") as file:
            file.write(json.dumps([words, kept]) + "\n")

    def ask(self, words: Words) -> Answer:
        if words not in self.answers:
            code, out = self.run("plan", *words, "--json")
            try:
                answer = _answer(code, json.loads(out))
            except ValueError:
                answer = Answer(code, message=f"no document: {out[:200]}")
            self._keep(words, answer)
            self.answers[words] = answer
        return self.answers[words]

    def text(self, words: Words) -> str:
        if words not in self.texts:
            self.texts[words] = self.run("plan", *words)[1]
            self._keep(words, self.texts[words])
        return self.texts[words]

    def run(self, *words: str) -> tuple[int, str]:
        """Return (exit status, standard output)."""
        from trmcloud.cli.main import main

        out, begun = io.StringIO(), time.process_time()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            try:
                main(list(words))
                code: object = 0
            except SystemExit as ended:
                code = ended.code
        self.spent_s += time.process_time() - begun
        return int(str(code or 0)), out.getvalue()


def _hash_of_product() -> str:
    words = ["git", "ls-files", "-z", "trmcloud", "model", "tests/plans_grid.py"]
    names = subprocess.check_output(words, cwd=ROOT, text=True).split("\0")[:-1]
    digest = hashlib.sha256()
    for name in names:
        if (ROOT / name).exists():
            digest.update(name.encode() + (ROOT / name).read_bytes())
    return digest.hexdigest()


class Broken(NamedTuple):
    """A rule that an answer breaks, and how."""

    rule: str
    words: Words
    how: str


RULES = {
    "trains": "a recommended or listed plan does at least one evaluation and 5 % of the recipe",
    "days": "none lasts longer than 7 days without --deadline or --hours",
    "stop": "without --fill or --hours a run on one rented machine is killed by 2 × P90, or P90 "
    "and 30 minutes, and reserves what that costs; moved, it stays within the budget",
    "dominated": "the recommended one is not beaten in both cost and time by one with as much work",
    "machines": "several machines are recommended with their network stated, and where one machine "
    "is cheaper and not slower the plan says so",
    "more": "a larger budget never buys less of the recipe, and --steps never buys more of it",
    "price": "an offer's planned price is the same whatever filter is set",
    "results": "a result is printed only where the whole recipe is trained",
    "figures": "what a budget also buys has the figures of that recipe's own plan",
    "epochs": "more than 4 passes over the data are said",
    "tokens": "tokens cut by --set are said",
    "typed": "exit 4 comes with a line that can be typed and gives a plan",
    "settings": "settings that are said to fit do fit when they are typed",
    "saved": "at most 20 plans are kept, of at most 50 KB",
}


def option(words: Words, name: str) -> str:
    """Return the value of an option; empty where it was not typed."""
    return words[words.index(name) + 1] if name in words else ""


def without(words: Words, *names: str) -> Words:
    """Return ``words`` without these options and their values."""
    kept: list[str] = []
    skips = False
    for word in words:
        if skips:
            skips = False
        elif word in names:
            skips = True
        else:
            kept.append(word)
    return tuple(kept)


class Judge:
    """Applies the rules to the answers."""

    def __init__(self, asker: Asker) -> None:
        self.asker, self.broken, self.checked = asker, list[Broken](), Counter[str]()

    def hold(self, rule: str, words: Words, holds: bool, how: str) -> None:
        self.checked[rule] += 1
        if not holds:
            self.broken.append(Broken(rule, words, how))

    def recipe_tokens(self, words: Words, hardware: str) -> float:
        """Return the recipe's whole tokens on ``hardware``, as a plan without limits has them; the
        least of any where it has no such row."""
        named = [*("--recipe", option(words, "--recipe"))] if "--recipe" in words else []
        named += [*("--goal", option(words, "--goal"))] if "--goal" in words else []
        rows = self.asker.ask((*named, "--deadline", "364d")).rows
        assert rows, f"{named}: no plan without limits"
        there = [row.planned_tokens for row in rows if row.hardware == hardware]
        whole = sorted(row.planned_tokens for row in rows)
        return there[0] if there else whole[0]

    def judge(self, words: Words) -> None:
        """Apply the rules that look at one query."""
        answer = self.asker.ask(words)
        self._typed(words, answer)
        self._settings(words, answer)
        if answer.row is None:
            return
        for row in answer.rows:
            self._row(words, row)
        self._dominated(words, answer, answer.row)
        self._machines(words, answer.row)
        self._said(words, answer.row)
        self._whole(words, answer.row)

    def _row(self, words: Words, row: Row) -> None:
        asked_less = any(name in words for name in ("--steps", "--hours"))
        whole = self.recipe_tokens(words, row.hardware)
        by_sum = option(words, "--hardware") == "local" and "--rate" in words
        if by_sum and row.tokens < 0.05 * whole and not asked_less:
            told = any("buys about" in text or "stops and saves" in text for _, text in row.notes)
            self.hold("trains", words, row.steps >= 1 and told, f"{row.id}: {row.steps:,.0f} steps")
        elif not asked_less and "--set" not in words:
            enough = row.tokens >= 0.05 * whole
            evaluates = row.steps >= row.until_evaluation - 0.5 or row.tokens >= 0.999 * whole
            self.hold(
                "trains", words, enough and evaluates,
                f"{row.id} {row.hardware}: {row.tokens / max(1.0, whole):.2%} of the recipe, "
                f"{row.steps:,.0f} steps, an evaluation after {row.until_evaluation:,.0f}",
            )  # fmt: skip
        if "--deadline" not in words:
            most_h = 7 * 24 + 0.01
            if "--hours" in words:
                # The last evaluation comes on top, and takes days on this machine's processor.
                most_h = max(most_h, 1.2 * float(option(words, "--hours")) + 24)
            self.hold("days", words, row.hours <= most_h, f"{row.hardware}: {row.hours:,.1f} h")

        by_clock = {"--hours", "--fill", "most-training"} & set(words)
        if not by_clock and not row.is_local and row.nodes == 1:
            holds = row.stop_late_s <= 1 and row.most <= row.most_at_stop
            if "--budget" in words:
                holds = holds and row.limit <= float(option(words, "--budget"))
            self.hold(
                "stop", words, holds,
                f"{row.hardware}: killed {row.stop_late_s / 3600:,.1f} h after that, at most "
                f"${row.most:,.2f}, or ${row.limit:,.2f}",
            )  # fmt: skip

    def _dominated(self, words: Words, answer: Answer, row: Row) -> None:
        if "most-training" in words or "--fill" in words:
            better = [r for r in answer.rows if r.is_usable and r.cost < 0.99 * row.cost
                      and r.tokens > 1.01 * row.tokens]  # fmt: skip
        else:
            better = [
                r for r in answer.rows
                if r.is_usable and r.cost < row.cost - 1e-6 and r.hours <= row.hours
                and r.tokens >= 0.999 * row.tokens
            ]  # fmt: skip
        seen = better[0] if better else row
        self.hold(
            "dominated", words, not better,
            f"{row.hardware} {row.hours:.2f} h ${row.cost:.2f}, but {seen.hardware} "
            f"{seen.hours:.2f} h ${seen.cost:.2f}",
        )  # fmt: skip

    def _machines(self, words: Words, row: Row) -> None:
        if row.nodes < 2:
            return
        text = " ".join(text for _, text in row.notes)
        single = re.sub(r"^\d+x(?=\d)", "", option(words, "--hardware"))
        alone = self.asker.ask((*without(words, "--hardware"), "--hardware", single)).row
        self.hold("machines", words, "GB/s" in text, "the network is not stated")
        if alone is not None and alone.cost < row.cost and alone.hours <= row.hours:
            said = f"{row.nodes} machines" in text and f"one {single}" in text
            self.hold(
                "machines", words, said,
                f"{row.hardware} {row.hours:.1f} h ${row.cost:.0f}, {single} {alone.hours:.1f} h "
                f"${alone.cost:.0f}",
            )  # fmt: skip

    def _said(self, words: Words, row: Row) -> None:
        warned = any(code == "warning" and "epochs" in text for code, text in row.notes)
        named = option(words, "--recipe") + option(words, "--goal")
        if row.epochs > 4.05 and not named.startswith("sudoku"):
            self.hold("epochs", words, warned, f"{row.hardware}: {row.epochs:,.1f} passes")
        if "--set" in words and "--fill" not in words and "--steps" not in words:
            whole = self.recipe_tokens(words, row.hardware)
            if row.planned_tokens < 0.9 * whole:
                said = any("--set" in text and "tokens" in text for _, text in row.notes)
                share = row.planned_tokens / whole
                self.hold("tokens", words, said, f"{row.hardware}: {share:.0%} of the tokens")

    def _typed(self, words: Words, answer: Answer) -> None:
        if answer.code != 4:
            return
        lines = [line for line in answer.typed if line.startswith("trmcloud plan ")]
        if not lines:
            self.hold("typed", words, False, f"no line to type; {answer.message}")
            return
        typed = tuple(shlex.split(lines[0].split("   ")[0])[2:])
        lost = [
            name for name in ("--recipe", "--goal") if option(words, name) != option(typed, name)
        ]
        again = self.asker.ask(typed)
        self.hold(
            "typed", words, again.code == 0 and not lost,
            f"{lines[0]!r}: exit {again.code} {again.message}{f' loses {lost}' * bool(lost)}",
        )  # fmt: skip

    def _settings(self, words: Words, answer: Answer) -> None:
        said = [("", answer.message)]
        said += [(row.hardware, text) for row in answer.rows for _, text in row.notes]
        for hardware, text in said:
            for hint in re.findall(r"((?:--set \w+=\S+ )+)would fit", text)[:1]:
                again = self.asker.ask((*without(words, "--set"), *hint.split()))
                alike = [row for row in again.rows if row.hardware == hardware]
                more = [again.message, *(t for row in alike for _, t in row.notes)]
                endless = any("would fit" in each for each in more) or again.code == 5
                self.hold("settings", words, not endless, f"{hint}: {again.message}")
                return

    def _share(self, words: Words, row: Row | None) -> float:
        return row.tokens / self.recipe_tokens(words, row.hardware) if row is not None else 0.0

    def _whole(self, words: Words, row: Row) -> None:
        """Without limits of time the same budget must not buy more of the recipe elsewhere."""
        free = ("--recipe", "--budget", "--objective")
        if set(words[::2]) - set(free) or "most-training" in words:
            return
        asked = self.asker.ask((*words, "--steps", f"{row.planned_steps}"))
        more, less = self._share(words, asked.row), self._share(words, row)
        if "--budget" in words and row.phases == 1:
            told = f"{less:.1%} ({row.hardware} ${row.cost:.2f}); {more:.1%} with --steps"
            self.hold("more", words, less >= 0.995 * more, told)

    def across(self) -> None:
        """Apply the rules that compare queries."""
        asked = self.asker.answers
        chains: dict[Words, list[tuple[float, Words]]] = defaultdict(list)
        for words, answer in asked.items():
            if "--budget" in words and answer.code in (0, 4):
                budget = float(option(words, "--budget"))
                chains[without(words, "--budget")].append((budget, words))
        for chain in chains.values():
            for (_, less), (_, more) in itertools.pairwise(sorted(chain)):
                one, two = asked[less].row, asked[more].row
                by_tokens = {"most-training", "--fill", "--equal-work"} & set(more)
                if by_tokens and one is not None and two is not None:
                    before, after = one.tokens, two.tokens
                else:
                    before, after = self._share(less, one), self._share(more, two)
                self.hold(
                    "more", more, after >= 0.995 * before,
                    f"{after:,.3f} of the recipe ({two.hardware if two else 'no plan'}); for "
                    f"${option(less, '--budget')} {before:,.3f} ({one.hardware if one else ''})",
                )  # fmt: skip
        prices: dict[str, tuple[float, Words]] = {}
        plain_first = sorted(asked, key=len)
        for words in plain_first:
            for row in asked[words].rows:
                if row.is_local:
                    continue
                known, first = prices.setdefault(row.offer, (row.planned, words))
                same = abs(known - row.planned) < 1e-6
                told = f"{row.offer}: {row.planned} and {known} of {' '.join(first)}"
                self.hold("price", words, same, told)

    def bought(self, words: Words) -> None:
        """Compare what a budget also buys with the plans of those recipes."""
        lines = self.asker.text(words).partition("(all: --recipes):")[2].splitlines()[1:]
        for line in lines:
            found = re.match(r"  (\S+) +(\S+) +([\d.,]+) h +\$([\d.,]+) +(.*)", line)
            if found is None or found[1] in METHODS:  # a fine-tuning is no recipe
                break
            recipe, hardware, _, dollars, result = found.groups()
            row = self.asker.ask(("--recipe", recipe, *words)).row
            whole = self.recipe_tokens(("--recipe", recipe), hardware)
            share = row.tokens / whole if row is not None and whole else 0.0
            cost, shown = row.cost if row is not None else 0.0, float(dollars.replace(",", ""))
            same = row is not None and abs(shown - cost) <= max(0.006, 0.01 * cost)
            self.hold("figures", words, same, f"{line.strip()}: its plan costs ${cost:.3f}")
            if re.search(r"\d", result):
                is_whole = 0.99 <= share <= 1.5
                self.hold("results", words, is_whole, f"{line.strip()}: {share:,.0%} trained")

    def saved(self, home: Path) -> None:
        paths = list(home.rglob("p-*.json"))
        if paths:
            largest = max(path.stat().st_size for path in paths)
            how = f"{len(paths)} plans of up to {largest / 1000:,.0f} KB"
            self.hold("saved", ("plan",), len(paths) <= 20 and largest <= 50_000, how)


def page(judge: Judge, asked: int, date: str) -> str:
    """Return the page of a run."""
    counts = Counter(each.rule for each in judge.broken)
    lines = [
        "# Plans held to rules",
        "",
        f"`make plans-grid` on {date or 'an unknown day'}: {asked:,} queries of `trmcloud plan "
        "--json` over recipes, budgets of $0.05 to $100,000, objectives, goals, hardware and "
        "options, with the shipped prices; judged by `tests/plans_grid.py`, which reads the "
        "documents alone. [Twenty plans](plans.md) shows what some of them print.",
        "",
        "| rule | checks | broken |",
        "|---|--:|--:|",
    ]
    lines += [f"| {RULES[rule]} | {judge.checked[rule]:,} | {counts[rule]:,} |" for rule in RULES]
    return "\n".join([*lines, "", f"In all: {result_line(judge, asked)}."]) + "\n"


def result_line(judge: Judge, asked: int) -> str:
    checks = sum(judge.checked.values())
    return f"{asked:,} queries, {checks:,} checks, {len(judge.broken):,} broken"


def _asked(grid: Sequence[Words], asker: Asker, until: float) -> Iterator[Words]:
    for words in grid:
        if time.monotonic() > until:
            return
        asker.ask(words)
        yield words


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.plans_grid", description=__doc__)
    parser.add_argument("--tenth", action="store_true", help="every tenth query")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "plans-grid.jsonl")
    parser.add_argument("--page", type=lambda name: Path(name).absolute())
    parser.add_argument("--date", default="")
    parser.add_argument("--show", type=int, default=5, help="examples of each broken rule")
    given = parser.parse_args()
    grid = queries()[:: 10 if given.tenth else 1]
    until = time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory() as home:
        os.environ["TRMCLOUD_HOME"] = home
        os.chdir(home)
        asker = Asker(given.state.absolute())
        done = list(_asked(grid, asker, until))
        if len(done) < len(grid):
            print(f"{len(done):,} of {len(grid):,} queries; run it again to continue")
            return 124
        judge = Judge(asker)
        for words in grid:
            judge.judge(words)
        for words in BOUGHT[:: 5 if given.tenth else 1]:
            judge.bought(words)
        judge.across()
        judge.saved(Path(home))
    counts = Counter(each.rule for each in judge.broken)
    for rule in RULES:
        print(f"{rule:10} {judge.checked[rule]:7,} checks {counts[rule]:6,} broken: {RULES[rule]}")
        for each in [b for b in judge.broken if b.rule == rule][: given.show]:
            print(f"    trmcloud plan {' '.join(each.words)}\n        {each.how}")
    print(f"{asker.spent_s:,.0f} s of processor time in the commands", file=sys.stderr)
    if given.page is not None:
        given.page.write_text(page(judge, len(grid), given.date), encoding="utf-8")
    print(result_line(judge, len(grid)))
    return 1 if judge.broken else 0


if __name__ == "__main__":
    sys.exit(main())
