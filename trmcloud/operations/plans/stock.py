"""Providers' statements of stock, and the outcome of each create: ``stock.jsonl`` in the home.

A line is one answer to a create: when, whom, what, what the offer had said, and what came of it.
Later plans show it beside their candidates. It is a help for choosing, and no proof: nothing is
lost with it, and what cannot be read of it is passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.spec.plan import Candidate, Plan, Remark, RemarkTopic
from trmcloud.core.values import Value, replace
from trmcloud.io.files import read_small, write_atomic

if TYPE_CHECKING:
    from trmcloud.core.control import events as ev
    from trmcloud.core.control.run_state import Generation, RunState

# A plan reads the stock alone: what notes it is imported where it is used.

STOCK_NAME = "stock.jsonl"
MOST_BYTES = 512 << 10
"""Beyond this the older half goes."""
REFUSED, BOOTED, NEVER_BOOTED = "refused", "booted", "never booted"
_ONE_REFUSAL_S = 3600.0
"""Refusals of the same thing within this time count as one: a run that waits asks often."""
_SAID = re.compile(r"stock ([a-z]+)")


class StockLine(Value):
    """``at`` is epoch s; ``said`` is the provider's word for its stock when it was planned, empty
    where it has none; ``seconds`` are those from the intent to its outcome."""

    at: float
    provider: str
    gpu: str
    count: int
    place: str
    said: str
    outcome: str
    seconds: float


def note_outcomes(
    home: Path, run: RunState | None, happened: Iterable[ev.RunEvent], now: float
) -> None:
    """Write a line for each event that says what came of a create. ``run`` is as it was before."""
    if run is None:
        return
    by_number = {each.number: each for each in run.generations}
    for event in happened:
        generation = by_number.get(getattr(event, "generation", 0), run.generation)
        outcome = _outcome(generation, event) if generation is not None else ""
        candidate = run.candidate(generation.candidate_id) if generation and outcome else None
        if generation is not None and candidate is not None and candidate.provider != LOCAL:
            took_s = max(0.0, now - generation.intended_at)
            _append(home / STOCK_NAME, _line(candidate, now, outcome, took_s))


def read_stock(home: Path) -> tuple[StockLine, ...]:
    """The lines of a home, the oldest first; none where there is no file, or none that can be
    read."""
    found = []
    with suppress(ValueError):
        for text in (read_small(home / STOCK_NAME) or "").splitlines():
            with suppress(ValueError, TypeError):
                found.append(StockLine(**json.loads(text)))
    return tuple(found)


def with_stock(plan: Plan, lines: Sequence[StockLine]) -> Plan:
    """``plan`` with what came of asking for each candidate before, as a remark."""
    if not lines:
        return plan
    told = [_with_remark(candidate, lines) for candidate in plan.candidates]
    return replace(plan, candidates=tuple(told))


def stock_words(lines: Iterable[StockLine]) -> str:
    """``booted 3 of 8: 4 not had, 1 never started``, of lines about one candidate; empty for
    none."""
    outcomes, refused_at = [], -_ONE_REFUSAL_S
    for line in lines:
        if line.outcome == REFUSED and 0 <= line.at - refused_at < _ONE_REFUSAL_S:
            continue
        if line.outcome == REFUSED:
            refused_at = line.at
        outcomes.append(line.outcome)
    if not outcomes:
        return ""
    told = f"booted {outcomes.count(BOOTED)} of {len(outcomes)}"
    others = ((REFUSED, "not had"), (NEVER_BOOTED, "never started"))
    counts = [f"{outcomes.count(name)} {words}" for name, words in others if name in outcomes]
    return f"{told}: {', '.join(counts)}" if counts else told


def _with_remark(candidate: Candidate, lines: Sequence[StockLine]) -> Candidate:
    key = (candidate.provider, candidate.sku, candidate.gpus * candidate.nodes, candidate.region)
    mine = [line for line in lines if (line.provider, line.gpu, line.count, line.place) == key]
    words = stock_words(mine)
    if not words:
        return candidate
    remark = Remark(RemarkTopic.STOCK, f"{words} here before")
    return replace(candidate, reasons=(*candidate.reasons, remark))


def _outcome(generation: Generation, event: ev.RunEvent) -> str:
    from trmcloud.core.control import events as ev
    from trmcloud.core.control.reason import ReasonKind

    if isinstance(event, ev.AgentUp):
        return BOOTED
    if isinstance(event, ev.PodGone):
        return NEVER_BOOTED if generation.agent_at is None else ""
    if isinstance(event, ev.PodNotMade):
        return REFUSED if event.reason.kind is ReasonKind.PROVIDER_SAID else ""
    return ""


def _line(candidate: Candidate, now: float, outcome: str, took_s: float) -> StockLine:
    offers = [text for about, text in candidate.reasons if about is RemarkTopic.OFFER]
    said = next((match[1] for text in offers if (match := _SAID.search(text))), "")
    return StockLine(
        at=round(now, 1),
        provider=candidate.provider,
        gpu=candidate.sku,
        count=candidate.gpus * candidate.nodes,
        place=candidate.region,
        said=said,
        outcome=outcome,
        seconds=round(took_s, 1),
    )


def _append(path: Path, line: StockLine) -> None:
    """Nothing that a run needs: where it cannot be written, it is not."""
    with suppress(OSError, ValueError):
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(line)) + "\n")
        if path.stat().st_size > MOST_BYTES:
            kept = (read_small(path) or "").splitlines()
            write_atomic(path, "\n".join(kept[len(kept) // 2 :]) + "\n", durable=False)
