"""The shipped table of offers, newer snapshots under the user's home, and the user's own file."""

from __future__ import annotations

from pathlib import Path

from trmcloud.core.errors import UsageError
from trmcloud.core.offers import Offer, parse_offers

SHIPPED = Path(__file__).resolve().parent / "data" / "offers.csv"
USER_FILE = "offers.csv"


def load_offers(now: float, home: Path | None = None, user_file: Path | None = None) -> list[Offer]:
    """Every known offer at ``now`` (epoch s); later tables override earlier ones.

    The order is: shipped, then ``<home>/offers.csv`` or ``user_file`` (contract prices, own
    machines).

    Raises:
        UsageError: a table is malformed, by line.
    """
    offers = _read(SHIPPED, now, where="shipped offers")
    own = user_file
    if own is None and home is not None and (home / USER_FILE).exists():
        own = home / USER_FILE
    if own is not None:
        offers = override(offers, _read(own, now, where=str(own), allow_free=True))
    return offers


def override(offers: list[Offer], newer: list[Offer]) -> list[Offer]:
    """``offers`` with those that ``newer`` prices again replaced."""
    replaced = {_identity(offer) for offer in newer}
    return [offer for offer in offers if _identity(offer) not in replaced] + newer


def _identity(offer: Offer) -> tuple[object, ...]:
    return offer.provider, offer.region, offer.instance, offer.sku, offer.gpus, offer.spot


def _read(path: Path, now: float, *, where: str, allow_free: bool = False) -> list[Offer]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the offers cannot be read: {error}", where=where) from None
    return parse_offers(text, where, now, allow_free=allow_free)
