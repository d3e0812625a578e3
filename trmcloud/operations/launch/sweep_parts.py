"""A sweep on several machines: as many ordinary runs, each with its part of space and money.

Points and money are shared out before anything is rented. So the sum of the runs' caps is the
budget, each run is reserved, driven, resumed and settled like any other, and none waits for
another. A run is found again by its part's idempotency key.
"""

from __future__ import annotations

from collections.abc import Sequence

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd
from trmcloud.core.values import replace
from trmcloud.operations.context import Context
from trmcloud.operations.launch.launch import Wish, run_of_key
from trmcloud.operations.launch.sweeping import divide_words, space_of
from trmcloud.operations.sweeps.sweep_facts import SweepFacts, sweep_of
from trmcloud.options import parse_money, words_of


def parts_of(wish: Wish, machines: int, key: str) -> tuple[Wish, ...]:
    """Return the wishes of as many sweeps as there are machines; ``key`` begins their idempotency
    keys.

    Raises:
        UsageError: there is no budget to share, the space has too few values, or nothing is rented.
    """
    request, asked, search = wish.request, wish.asked, wish.search
    assert asked is not None
    assert search is not None
    if request.hardware.strip().lower() == LOCAL:
        raise UsageError(
            "--machines rents machines, and local is this one",
            next_step="trmcloud sweep 1xH100 --machines 2; on a cluster of your own: --on ray",
        )
    budget = parse_money("--budget", request.budget)
    if budget is None:
        raise UsageError(
            f"{machines} machines share one budget, which was not given", next_step="--budget 20"
        )
    named, command = divide_words(asked.words)
    share = Usd.from_micros(budget.micros // machines).plain()
    made = []
    for number, space in enumerate(space_of(named, search.space, wish.here).divided(machines), 1):
        words = (*(str(each) for each in space.parameters), *command)
        part = replace(
            request,
            budget=share,
            name=f"{request.name}-{number}" if request.name else "",
            idempotency_key=f"{key}.{number}",
            typed=tuple(dict.fromkeys((*request.typed, "budget", "idempotency_key"))),
        )
        searched = tuple(name for name in search.typed if name != "space")
        made.append(
            replace(
                wish,
                request=part,
                asked=replace(asked, words=words),
                search=replace(search, space="", typed=searched),
            )
        )
    return tuple(made)


def command_line(part: Wish) -> list[str]:
    """Return the words that follow ``trmcloud sweep`` where a part is typed by itself."""
    assert part.asked is not None
    space, command = divide_words(part.asked.words)
    words = [part.request.hardware]
    for each in (part.request, part.asked, part.search):
        words += words_of(each, "sweep", getattr(each, "typed", ()))
    return [*words, *space, *(["--", *command] if command else ())]


def found_runs(context: Context, parts: Sequence[Wish]) -> list[tuple[RunState, SweepFacts | None]]:
    """Return the runs of those parts that were launched, with what is known of their trials."""
    runs = [run_of_key(context, part.request.idempotency_key) for part in parts]
    return [(run, sweep_of(context, run)) for run in runs if run is not None]
