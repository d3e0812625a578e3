"""The plan as tables and JSON: candidates, limits, own hardware."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trmcloud.cli.views.streams import columns as columns_here
from trmcloud.cli.views.text import duration
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.offers import DAY_S, FRESH_DAYS
from trmcloud.core.money import ZERO, Usd, cost, total
from trmcloud.core.planner.candidates import interruptions_of
from trmcloud.core.planner.estimates import HORIZON_S, HOUR_S
from trmcloud.core.planner.interruptions import rate_words
from trmcloud.core.planner.memory import USABLE_SHARE
from trmcloud.core.spec.plan import (
    LIVE_PRICES,
    SET_ASIDE,
    TRAINER,
    UNPRICED,
    Candidate,
    Interval,
    Plan,
    Remark,
    RemarkTopic,
)
from trmcloud.core.spec.spec import GUIDE_HOUR_VALUE
from trmcloud.core.storage import traffic_price
from trmcloud.core.text import one_line
from trmcloud.io.redaction import mask_tokens
from trmcloud.operations.plans.plan_choices import MOST_CHOICES, choices, nearest, shown_rows
from trmcloud.operations.plans.planning import Bought, OwnHardware
from trmcloud.operations.words import count

if TYPE_CHECKING:
    from trmcloud.operations.plans.spot_beside import SpotBeside
    from trmcloud.operations.views import PlanBalance

_IN_STOPS = ("lands at", "hard stop", "landing reserve")
"""Told by the row "stops", or by a plan's last lines, with and without -v."""
_NOT_CHOSEN = ("off", "any", "the recipe's")
_ALWAYS_TOLD = (
    *(RemarkTopic.NEED, RemarkTopic.PRICE, RemarkTopic.PLACE),
    *(RemarkTopic.WARNING, RemarkTopic.RANGE, RemarkTopic.PUBLISHED),
)


def limit_rows(plan: Plan, *, verbose: bool) -> list[tuple[str, str]]:
    """(name, what it is) of each limit to tell; with ``verbose`` those that are off are named in
    a row of their own."""
    limits = [(name, text) for name, text in plan.limits.items() if name not in _IN_STOPS]
    if not verbose:
        return [(name, text) for name, text in limits if _matters(plan, name, text)]
    off = " · ".join(sorted(name for name, text in limits if text == "off"))
    return [row for row in limits if row[1] != "off"] + ([("off", off)] if off else [])


def reasons_to_show(reasons: tuple[Remark, ...], *, verbose: bool) -> list[str]:
    """Why a candidate is planned as it is; without ``verbose`` what concerns money, limits and the
    place alone."""
    return [text for about, text in reasons if verbose or about in _ALWAYS_TOLD]


def _matters(plan: Plan, name: str, text: str) -> bool:
    """Whether it was chosen, or is about money that no other row tells."""
    spec, chosen = plan.spec, plan.recommended
    told = {
        "budget": False,  # the cap's row, or the headline
        "steps": False,  # the phases' rows
        "old prices": False,  # the price's own age says when that matters
        "objective": (spec.objective, spec.hour_value) != ("value", GUIDE_HOUR_VALUE),
        "providers": len(spec.providers) > 1,  # one stands beside the hardware
        "storage": chosen is not None and chosen.storage != ZERO,
        LIVE_PRICES: text.startswith("not read"),
        SET_ASIDE: False,  # told in the row of the offers
        UNPRICED: False,
    }
    return told.get(name, text not in _NOT_CHOSEN)


def balance_text(found: PlanBalance | None, trouble: str) -> str:
    """The balance that the plan would be paid from, what runs hold of it, what is free, and the
    worst case beside that; '' where none is told."""
    if found is None:
        return one_line(trouble)
    count, missing = len(found.held_usd), found.missing_usd
    runs = f"{count} other run{'s' * (count != 1)}"
    worst = f"worst case {found.worst_case_usd}"
    return " · ".join(
        (
            f"{found.balance_usd} at {found.provider}",
            f"{total(found.held_usd.values())} held by {runs}",
            f"{found.free_usd} free",
            worst + (f", {missing} too little" if missing else ""),
            "not checked while this machine is off",
        )
    )


WIDE_COLUMNS = 100
PIPE_COLUMNS = 80
_TOLD = (TRAINER, "objective", "fill", "storage")
"""Limits that the headline or a cost tells already."""
_PLACE_COLUMNS = 20
"""Of 80, for provider and region."""
_COMMAND_COLUMNS = 30
"""Of 80, for a command's words."""


def show(plan: Plan, *, more: Sequence[str] = (), **options: Any) -> None:
    """Print a plan by the ``options`` of ``render``; ``more``: lines below it."""
    columns = columns_here() if sys.stdout.isatty() else PIPE_COLUMNS
    print("\n".join([*render(plan, columns=columns, **options), *more]))


def render(
    plan: Plan,
    *,
    columns: int,
    everything: bool = False,
    verbose: bool = False,
    balance: str = "",
    others: Sequence[str] = (),
    spot: Sequence[str] = (),
    typed: Sequence[str] = (),
    from_file: bool = False,
    instead: str = "",
) -> list[str]:
    """The lines a user reads: what fits a terminal of 24 rows. With ``everything`` each candidate;
    with ``verbose`` one of each hardware, phases, reasons and defaults, too.

    Args:
        balance: what is told of the provider's.
        others: what else the budget buys.
        spot: what a spot machine in its place costs.
        typed: the words of options that the line to type next repeats.
        from_file: trmcloud.toml gives the command, and the line does not repeat it.
        instead: the command of a plan that there is, where this recommends nothing.
    """
    labels = choices(plan, MOST_CHOICES - bool(others))
    rows = [candidate for candidate in plan.candidates if candidate.id in labels]
    if everything:
        rows = list(plan.candidates)
    elif verbose:
        rows = shown_rows(plan)
    elif not rows:
        rows = nearest(plan)
    if others and plan.recommended is None and not (everything or verbose):
        return _what_fits(plan, others, instead)
    lines = [_headline(plan)]
    if untrained := plan.limits.get(TRAINER):
        lines.append(untrained)
    lines.append("")
    table = _table(plan, rows, labels)
    is_wide = columns >= max(WIDE_COLUMNS, *map(len, table))
    lines += table if is_wide else _plain(plan, rows, labels)
    if len(plan.spec.phases) > 1 and verbose:
        lines += ["", *_by_phase(rows), ""]
    more = "" if everything or len(rows) == plan.offers_total else " (--all, -v)"
    odd = " but odd ones" if SET_ASIDE in plan.limits else ""
    lines.append(
        f"shown {len(rows)} of {plan.offers_total} offers{odd}{more} · {_ages(plan, rows)}"
    )
    limits = limit_rows(plan, verbose=verbose)
    lines += [f"{name}: {text}" for name, text in limits if verbose or name not in _TOLD]
    if balance:
        lines.append(f"balance: {balance}")
    lines += spot
    lines += ["", *others] if others else []
    lines += ["", *_advice(plan, verbose, typed, from_file=from_file, instead=instead)]
    return lines


def _what_fits(plan: Plan, others: Sequence[str], instead: str) -> list[str]:
    """The lines of a wish that names no recipe, where the usual one does not fit."""
    needs = [
        f"{candidate.hardware}: {text}"
        for candidate in nearest(plan)
        for about, text in candidate.reasons
        if about is RemarkTopic.NEED
    ]
    spec = plan.spec
    limits = f"{spec.budget}"
    if spec.deadline_at is not None:
        limits += f" and {(spec.deadline_at - plan.created_at) / HOUR_S:.1f} h"
    does_not = [f"  {text}" for text in needs[:2]]
    next_step = f"Next: {instead}" if instead else "Next: a larger --budget, or a later --deadline"
    return [
        f"within {limits} (all: --recipes):",
        *others,
        "",
        f"{spec.recipe} does not fit; closest:",
        *does_not,
        next_step,
    ]


def hours_text(interval: Interval) -> str:
    return f"{_short(interval.p50)} ({_short(interval.p10)}–{_short(interval.p90)})"


def cost_text(candidate: Candidate) -> str:
    if not candidate.rate:
        return "$0"
    return f"{_dollars(candidate.cost_p50)} ({_dollars(candidate.cost_p90)})"


def fits_text(candidate: Candidate) -> str:
    """The range of what it needs, of what there is; a question mark where it may not fit."""
    need, have = candidate.memory_need_gb, candidate.memory_gb
    least, most = candidate.memory_least_gb or need, candidate.memory_most_gb or need
    if not most:  # a command that was not measured
        return f"{have:,.0f} GB"
    if not candidate.fits_memory:
        return f"no: {least:,.0f}–{most:,.0f} > {have:,.0f} GB"
    digits = 1 if need < 10 else 0
    span = f"{least:,.{digits}f}–{most:,.{digits}f}" if most > least else f"{need:,.{digits}f}"
    return f"{span}/{have:,.0f} GB{' ?' if most > have * USABLE_SHARE else ''}"


def _headline(plan: Plan) -> str:
    spec = plan.spec
    first = plan.recommended or next(iter(plan.candidates), None)
    tokens = sum(phase.tokens for phase in first.phases) if first is not None else 0
    if spec.command is not None:
        steps = f"{spec.steps:,} steps" if spec.steps else "until its limits"
        parts = [mask_tokens(one_line(" ".join(spec.command.words)))[:_COMMAND_COLUMNS], steps]
    else:
        most = "at most " if spec.fills else ""
        parts = [spec.recipe, " + ".join(spec.phases), f"{most}{count(tokens)} tokens"]
    parts.append(f"budget {spec.budget}" if spec.budget is not None else "no budget")
    if spec.fills:
        parts.append("filled")
    elif spec.objective == "value":
        parts.append(f"your time at {spec.hour_value}/h")
    else:
        parts.append(f"objective {spec.objective}")
    return " · ".join(parts)


_HEADER = (
    "hardware",
    "sku",
    "where",
    "$/h",
    "age",
    "hours p50 (p10–p90)",
    "cost p50 (p90)",
    "fits",
)


def _cells(plan: Plan, candidate: Candidate, label: str) -> tuple[str, ...]:
    where = f"{candidate.provider} {candidate.region}"
    if candidate.provider == LOCAL:
        where = candidate.region
    over, stock = _over_text(plan, candidate), _stock_text(candidate)
    published = any(each.about is RemarkTopic.PUBLISHED for each in candidate.reasons)
    kind = "spot" * candidate.spot
    about = (label, kind, fits_text(candidate), "by a report" * published, over, stock)
    return (
        LOCAL if candidate.provider == LOCAL else candidate.hardware,
        candidate.sku[:22],
        where.removesuffix(" any"),
        f"{float(_planned_rate(candidate)):.2f}",
        _age_text(plan, candidate),
        hours_text(candidate.hours),
        cost_text(candidate),
        " · ".join(filter(None, about)),
    )


def _planned_rate(candidate: Candidate) -> Usd:
    return candidate.planned_rate or candidate.rate


def _age_text(plan: Plan, candidate: Candidate) -> str:
    """The quote's age, and by how much dearer than it the candidate is planned."""
    if candidate.provider == LOCAL:
        return ""
    surcharge = 0.0
    if candidate.rate:
        surcharge = float(_planned_rate(candidate)) / float(candidate.rate) - 1
    return f"{age_days(plan, candidate)} d" + (f" +{surcharge:.0%}" if surcharge > 0 else "")


def _over_text(plan: Plan, candidate: Candidate) -> str:
    if candidate.within_budget or not candidate.fits_memory:
        return ""
    if candidate.hours.p50 * HOUR_S > HORIZON_S and plan.spec.deadline_at is None:
        return f"over {HORIZON_S / DAY_S:.0f} days"
    return "over budget" if plan.spec.deadline_at is None else "over limits"


def _extras_text(candidate: Candidate) -> str:
    """What its dollars hold beside hours × rate."""
    if candidate.storage < Usd("0.005"):
        return ""
    traffic = traffic_price(candidate.provider, candidate.work_gb, candidate.nodes)
    return f"storage{' and traffic' if traffic else ''} ${float(candidate.storage):,.2f}"


def _stock_text(candidate: Candidate) -> str:
    """``booted 3 of 8``, of what was asked for here before; empty where nothing was."""
    told = (text for about, text in candidate.reasons if about is RemarkTopic.STOCK)
    return next(told, "").partition(":")[0].removesuffix(" here before")


def _table(plan: Plan, rows: Sequence[Candidate], labels: Mapping[str, str]) -> list[str]:
    table = [_HEADER, *(_cells(plan, row, labels.get(row.id, "")) for row in rows)]
    widths = [max(len(row[n]) for row in table) for n in range(len(_HEADER))]
    lines = []
    for number, cells in enumerate(table):
        chosen = number > 0 and rows[number - 1].id == plan.recommended_id
        aligned = [
            cell.rjust(width) if _HEADER[n] == "$/h" else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append((" ▸ " if chosen else "   ") + "  ".join(aligned).rstrip())
    return lines


def _plain(plan: Plan, rows: Sequence[Candidate], labels: Mapping[str, str]) -> list[str]:
    lines = []
    for row in rows:
        hardware, sku, where, rate, age, hours, dollars, fits = _cells(plan, row, "")
        mark = "▸" if row.id == plan.recommended_id else " "
        days, _, dearer = age.partition(" +")
        old = f" ({days} old{f', +{dearer}' if dearer else ''})" if age else ""
        lines.append(f"{mark} {hardware:<13}{hours} h · {dollars} · ${rate}/h{old}")
        label = labels.get(row.id, "")
        others = [label, f"{sku}, ", fits, _extras_text(row)]
        used = 4 + sum(len(text) + 3 for text in others if text) - 3
        room = min(_PLACE_COLUMNS, max(1, PIPE_COLUMNS - used))
        where = where if len(where) <= room else f"{where[: room - 1]}…"
        about = " · ".join(filter(None, (label, f"{sku}, {where}", fits, _extras_text(row))))
        lines.append(f"    {about}")
    return lines


def _by_phase(rows: Sequence[Candidate]) -> list[str]:
    """Each phase's own P50 hours and rent."""
    lines = ["by phase, p50 (start-up and storage apart)"]
    for row in rows:
        rate = _planned_rate(row)
        parts = [
            f"{phase.name} {_short(phase.seconds.p50 / 3600)} h {cost(rate, phase.seconds.p50)}"
            for phase in row.phases
            if row.rate
        ]
        if parts:
            lines.append(f"  {row.hardware:<13}" + " · ".join(f"{part:<26}" for part in parts))
    return [line.rstrip() for line in lines]


def age_days(plan: Plan, candidate: Candidate) -> int:
    """Return the quote's age in days when the plan was made."""
    return int(max(0.0, plan.created_at - candidate.priced_at) // 86_400)


def _ages(plan: Plan, rows: Sequence[Candidate]) -> str:
    ages = [age_days(plan, row) for row in rows if row.provider != LOCAL]
    if not ages:
        return "this machine, at your own rate"
    span = f"{min(ages)} to {max(ages)}" if min(ages) < max(ages) else f"{ages[0]}"
    refresh = ": trmcloud prices refresh" if max(ages) > FRESH_DAYS else ""
    return f"prices {span} days old{refresh}"


def _advice(
    plan: Plan, verbose: bool, typed: Sequence[str], *, from_file: bool, instead: str
) -> list[str]:
    chosen = plan.recommended
    if chosen is None:
        lines = ["No plan fits these limits; closest:"]
        for candidate in nearest(plan):
            needs = [text for about, text in candidate.reasons if about is RemarkTopic.NEED]
            lines += [f"  {candidate.hardware}: {text}" for text in needs]
        if instead:
            return [*lines, f"Next: {instead}"]
        less = "" if plan.spec.goal is not None else ", fewer --steps, or --fill"
        joint = " or" if not less else ","
        return [*lines, f"Next: a larger --budget{joint} a later --deadline{less}"]
    why = {
        "value": f"best value, counting your time at {plan.spec.hour_value}/h",
        "cheapest": "least cost",
        "fastest": "finishes first",
    }.get("" if plan.spec.fills else plan.spec.objective, "most tokens for the money")
    lines = [f"Recommended: {chosen.hardware} — {why}."]
    lines += [f"  {reason}" for reason in reasons_to_show(chosen.reasons, verbose=verbose)]
    lines.append(
        f"  stops and saves after {duration(chosen.soft_stop_s)}, killed at "
        f"{duration(chosen.hard_stop_s)}: expected {chosen.cost_p50}, at most {chosen.worst_case}"
    )
    if chosen.limit_s and plan.spec.budget is not None:
        lines[-1] += f" (of {plan.spec.budget}, if its measured pace needs more)"
    if plan.launchable and plan.spec.command is not None:
        lines.append(f"Run it: {_run_line(plan, chosen, typed, from_file=from_file)}")
    elif plan.launchable:
        lines.append(f"Launch it: {shlex.join(['trmcloud', 'launch', plan.id, *typed])}")
    return lines


def _run_line(plan: Plan, chosen: Candidate, typed: Sequence[str], *, from_file: bool) -> str:
    """The command that runs a command of the user's own as it is planned."""
    assert plan.spec.command is not None
    lengths = {"--steps": plan.spec.steps, "--hours": plan.spec.hours}
    flags = [(flag, number) for flag, number in lengths.items() if number and flag not in typed]
    steps = [word for flag, number in flags for word in (flag, f"{number:g}")]
    words = ["trmcloud", "launch" if from_file else "run", chosen.hardware, *steps, *typed]
    return mask_tokens(shlex.join(words if from_file else [*words, "--", *plan.spec.command.words]))


def _short(number: float) -> str:
    if number >= 100:
        return f"{number:,.0f}"
    if number >= 1:
        return f"{number:.1f}"
    return f"{number:.2f}" if number >= 0.095 else f"{number:.3f}"


def _dollars(amount: Usd) -> str:
    if amount >= Usd(100):
        return f"${float(amount):,.0f}"
    return f"${float(amount):.{2 if amount >= Usd('0.1') else 3}f}"


def spot_lines(found: SpotBeside | None, *, verbose: bool) -> list[str]:
    """Return the cost of the same run on a spot machine; ``verbose``: with the preemption rate."""
    if found is None:
        return []
    row = found.candidate
    lost = f"{_dollars(found.lost)} for {found.preemptions:.2g} preemptions"
    then = "--spot --bucket …" if row.within_budget else "on demand over the budget"
    lines = [f"spot ({row.provider}): {cost_text(row)}, with {lost}: {then}"]
    if verbose:
        often = rate_words(interruptions_of(row.provider))
        lines.append(f"  {_short(row.hours.p50)} h; lost work and restarts; {often}")
    return lines


def other_lines(others: Sequence[Bought], budget: Usd) -> list[str]:
    """Lines: what else ``budget`` buys."""
    if not others:
        return []
    return [f"{budget} also buys (all: --recipes):", *map(_other_line, others)]


def _other_line(other: Bought) -> str:
    candidate = other.candidate
    hardware = LOCAL if candidate.provider == LOCAL else candidate.hardware
    dollars = "$0" if not candidate.rate else _dollars(candidate.cost_p50)
    hours = f"{_short(candidate.hours.p50)} h"
    return f"  {other.recipe:<12}{hardware:<11}{hours:>7} {dollars:>7}  {other.reached}"


def show_recipes(found: Sequence[Bought], number: int) -> None:
    """A line for each of ``number`` recipes that the limits pay for: hardware, hours, dollars, and
    the quality that it reached."""
    print("  recipe      hardware     hours       $  result")
    print("\n".join(map(_other_line, found)))
    print(f"{len(found)} of {number} recipes; --recipe NAME plans one of them")


def own_lines(own: OwnHardware) -> list[str]:
    """Return lines: the cost on own hardware, and from when on renting is cheaper."""
    made = own.candidate
    power = f"{own.watts:,} W at {own.per_kwh}/kWh"
    lines = [
        f"Your {own.hardware}: {hours_text(made.hours)} h · {made.cost_p50} of power ({power}) · "
        f"{fits_text(made)}"
    ]
    if own.rented is None:
        return [*lines, "  no rented hardware is faster: train on your own"]
    lines.append(
        f"  one hour costs {own.per_hour}; the same training costs {own.rent_per_own_hour} on "
        f"{own.rented.hardware}"
    )
    sooner = f"{own.rented.hardware} is {own.sooner_h:,.1f} h faster"
    if own.dearer.micros <= 0:
        return [*lines, f"  {sooner} and costs no more"]
    lines.append(
        f"  {sooner} for {own.dearer} more: worth it if an hour of your time is worth more than "
        f"{own.worth_from}"
    )
    return lines
