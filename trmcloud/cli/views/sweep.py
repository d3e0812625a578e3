"""What a sweep is planned to do, and what its trials have come to."""

from __future__ import annotations

from trmcloud.core.money import Usd
from trmcloud.core.sweep.space import format_point
from trmcloud.core.sweep.terms import SweepTerms


def terms_lines(terms: SweepTerms) -> list[str]:
    """The lines below a sweep's plan: its slots, rungs, reservations, and how many trials they
    are expected to start."""
    rungs = " · ".join(amount(terms, each) for each in terms.rungs)
    kept = f"{amount(terms, terms.winner_usd)} for the winner"
    if terms.confirm_usd:
        kept += f", {amount(terms, terms.confirm_usd)} for repetitions with other seeds"
    rows = [
        ("space", " ".join(str(each) for each in terms.space.parameters)),
        ("first trial", format_point(terms.default)),
        ("slots", f"{terms.slots}, {amount(terms, terms.slot_rate)}/h each"),
        ("rungs", f"{rungs} per trial; 1 of {terms.eta} is continued"),
        ("reserved", kept),
        ("trials", f"about {expected_trials(terms)} for {amount(terms, terms.usd)}"),
    ]
    if terms.unit == "s":
        rows.append(("currency", "seconds of a slot, since this machine has no --rate"))
    if terms.space.is_one_point:
        rows.append(("one point", "there is nothing to choose: one training, then it ends"))
    width = max(len(name) for name, _ in rows)
    return ["  Sweep", *(f"    {name:<{width}}  {text}" for name, text in rows)]


def amount(terms: SweepTerms, value: Usd) -> str:
    """An amount in the sweep's currency."""
    return str(value) if terms.unit == "usd" else f"{float(value):,.0f} s"


def expected_trials(terms: SweepTerms) -> int:
    """Return how many trials are begun where every rung takes its share and nothing more."""
    left = terms.usd - terms.winner_usd - terms.confirm_usd
    each = 0.0
    for rung in range(terms.last + 1):
        step = terms.train_usd(rung - 1, rung) + terms.restart_usd
        each += float(step) / terms.eta**rung
    found = int(float(left) / each) if each else 1
    count = terms.space.count
    return max(1, min(found, int(count) if count < 1e9 else found))
