"""The shipped table of offers, dated snapshots under the user's home, and the user's own file.

Later ones override: a snapshot replaces everything known of the providers it covers; the user's own
file (contract prices, own machines) replaces offer by offer.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable, Mapping, NamedTuple, Sequence

from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd
from trmcloud.core.offers import Offer, parse_offers

SHIPPED = Path(__file__).resolve().parent / "data" / "offers.csv"
USER_FILE = "offers.csv"
SNAPSHOTS_DIR = "prices"
COLUMNS = (
    "sku", "gpus", "provider", "region", "instance", "usd_per_hour", "spot_usd_per_hour", "as_of",
    "source", "vcpus", "ram_gb", "note",
)  # fmt: skip


Source = Callable[[float], tuple[list[dict[str, str]], list[str]]]
"""Live prices at an instant (epoch s): rows by the names of ``COLUMNS``, and notes."""


class Refreshed(NamedTuple):
    """A refresh's outcome; ``path`` is None where nothing could be read."""

    path: Path | None
    offers: int
    notes: list[str]


def load_offers(
    now: float,
    home: Path | None = None,
    user_file: Path | None = None,
    *,
    upto: int | None = None,
    live: Sequence[Offer] = (),
) -> list[Offer]:
    """Every known offer at ``now`` (epoch s): shipped, snapshots (the first ``upto`` of them),
    ``live`` ones that were just asked for, then ``user_file`` or ``<home>/offers.csv``.

    Raises:
        UsageError: a table is malformed, by line.
    """
    offers = _read(SHIPPED, now, where="shipped offers")
    for path in snapshots(home)[:upto] if home is not None else ():
        offers = _superseded(offers, _read(path, now, where=str(path)))
    offers = _superseded(offers, live)
    own = user_file
    if own is None and home is not None and (home / USER_FILE).exists():
        own = home / USER_FILE
    if own is not None:
        offers = override(offers, _read(own, now, where=str(own), own=True))
    return offers


def _superseded(offers: list[Offer], newer: Sequence[Offer]) -> list[Offer]:
    covered = {offer.provider for offer in newer}
    return [offer for offer in offers if offer.provider not in covered] + list(newer)


def override(offers: list[Offer], newer: list[Offer]) -> list[Offer]:
    """``offers`` with those that ``newer`` prices again replaced."""
    replaced = {_identity(offer) for offer in newer}
    return [offer for offer in offers if _identity(offer) not in replaced] + newer


def snapshots(home: Path) -> list[Path]:
    """Snapshots of prices under ``home``, oldest first."""
    folder = home / SNAPSHOTS_DIR
    return sorted(folder.glob("*.csv")) if folder.is_dir() else []


def refresh(home: Path, now: float, sources: Sequence[Source]) -> Refreshed:
    """Reads live prices into a new snapshot; keeps the old ones where nothing can be read.

    Where two sources know a provider, the first one counts.
    """
    rows: list[Mapping[str, str]] = []
    notes: list[str] = []
    for source in sources:
        found, said = source(now)
        known = {row["provider"] for row in rows}
        rows += [row for row in found if row["provider"] not in known]
        notes += said
    if not rows:
        return Refreshed(None, 0, notes)
    import time

    lines = [",".join(_cell(row.get(name, "")) for name in COLUMNS) for row in rows]
    text = "\n".join((",".join(COLUMNS), *lines, ""))
    offers = parse_offers(text, "live prices", now)
    folder = home / SNAPSHOTS_DIR
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / time.strftime("%Y-%m-%dT%H%M%S.csv", time.gmtime(now))
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)
    return Refreshed(path, len(offers), notes)


def moves(before: list[Offer], after: list[Offer]) -> list[tuple[Offer, Usd | None]]:
    """Offers of ``after`` that are new (None) or cost something else (the old rate)."""
    old = {_identity(offer): offer.rate for offer in before}
    return [
        (offer, old.get(_identity(offer)))
        for offer in after
        if old.get(_identity(offer)) != offer.rate
    ]


def _cell(text: str) -> str:
    return text.replace(",", ";").replace('"', "").replace("\n", " ")


def _identity(offer: Offer) -> tuple[object, ...]:
    return offer.provider, offer.region, offer.instance, offer.sku, offer.gpus, offer.spot


def _read(path: Path, now: float, *, where: str, own: bool = False) -> list[Offer]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the offers cannot be read: {error}", where=where) from None
    return parse_offers(text, where, now, own=own)
