"""Price tables: the shipped one, dated snapshots, the user's own, and how a public one is
downloaded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trmcloud.core.catalog.offers import Offer, identity, parse_offers
from trmcloud.core.clock import utc_day
from trmcloud.core.errors import UsageError
from trmcloud.io.files import write_atomic
from trmcloud.operations.home import make_home

# A public file over HTTP, bounded in bytes and seconds. No key is sent, no redirect followed.

# The shipped table of offers, dated snapshots under the user's home, and the user's own file.
#
# A snapshot holds all that live sources have told so far. It replaces what was known of the
# providers it covers until its prices' day; what is younger stays. The user's own file (contract
# prices, own machines) replaces offer by offer.

SHIPPED = Path(__file__).resolve().parent / "data" / "offers.csv"
USER_FILE = "offers.csv"
SNAPSHOTS_DIR = "prices"
COLUMNS = (
    "sku", "gpus", "provider", "region", "instance", "usd_per_hour", "spot_usd_per_hour", "as_of",
    "source", "vcpus", "ram_gb", "tier", "stock", "note",
)  # fmt: skip


SNAPSHOTS_KEPT = 20
READ_WITHIN_S = 90.0

Told = tuple[list[dict[str, str]], list[str]]
"""Rows by the names of ``COLUMNS``, and lines about them."""


class Source(NamedTuple):
    """A source of live prices. ``read`` takes an instant (epoch s) and raises nothing."""

    name: str
    read: Callable[[float], Told]


class RefreshResult(NamedTuple):
    """A refresh's outcome; ``path`` is None where nothing could be read."""

    path: Path | None
    offers: int
    notes: list[str]


class PriceTables:
    """The offers of one home, and the sources that refresh them."""

    def __init__(self, home: Path, sources: Callable[[], Sequence[Source]]) -> None:
        self._home, self._sources = home, sources

    def offers(self, now: float, *, upto: int | None = None) -> list[Offer]:
        """As ``load_offers`` has them."""
        return load_offers(now, self._home, upto=upto)

    def snapshots(self) -> list[Path]:
        return snapshots(self._home)

    def refresh(self, now: float) -> RefreshResult:
        return refresh(self._home, now, self._sources())


def load_offers(
    now: float,
    home: Path | None = None,
    user_file: Path | None = None,
    *,
    upto: int | None = None,
    live: Sequence[Offer] = (),
) -> list[Offer]:
    """Every known offer at ``now`` (epoch s): shipped, the newest snapshot (of the first ``upto``),
    ``live`` ones that were just asked for, then ``user_file`` or ``<home>/offers.csv``.

    Raises:
        UsageError: a table is malformed, by line.
    """
    offers = _read(SHIPPED, now, where="shipped offers")
    known = snapshots(home)[:upto] if home is not None else []
    for path in known[-1:]:
        offers = _superseded(offers, _read(path, now, where=str(path)))
    offers = _superseded(offers, live)
    own = user_file
    if own is None and home is not None and (home / USER_FILE).exists():
        own = home / USER_FILE
    if own is not None:
        offers = override(offers, _read(own, now, where=str(own), own=True))
    return offers


def _superseded(offers: Iterable[Offer], newer: Sequence[Offer]) -> list[Offer]:
    """``newer`` offers, and the others of providers that they do not cover or of a later day.

    A provider's own hosts and those of its private sellers are covered one by one.
    """
    covered: dict[tuple[str, bool], float] = {}
    for offer in newer:
        key = (offer.provider, offer.is_community)
        covered[key] = max(offer.priced_at, covered.get(key, 0.0))
    stays = [
        offer
        for offer in offers
        if offer.priced_at > covered.get((offer.provider, offer.is_community), 0.0)
    ]
    known = {identity(offer) for offer in stays}
    return [*stays, *(offer for offer in newer if identity(offer) not in known)]


def override(offers: list[Offer], newer: list[Offer]) -> list[Offer]:
    """``offers`` with those that ``newer`` prices again replaced."""
    replaced = {identity(offer) for offer in newer}
    return [offer for offer in offers if identity(offer) not in replaced] + newer


def snapshots(home: Path) -> list[Path]:
    """Snapshots of prices under ``home``, oldest first."""
    folder = home / SNAPSHOTS_DIR
    return sorted(folder.glob("*.csv")) if folder.is_dir() else []


def refresh(
    home: Path, now: float, sources: Sequence[Source], *, within_s: float = READ_WITHIN_S
) -> RefreshResult:
    """Reads live prices, side by side, into a new snapshot; what is not read stays as it was.

    Where two sources know a provider, the first one counts.
    """
    found: list[Offer] = []
    notes: list[str] = []
    for source, told in zip(sources, _read_all(sources, now, within_s), strict=True):
        late = f"{source.name}: not read: no answer within {within_s:.0f} s"
        rows, said = told if told is not None else ([], [late])
        try:
            offers = parse_offers(_table(rows), source.name, now) if rows else []
        except UsageError as error:
            offers, said = [], [f"{source.name}: not read: {error.what}"]
        known = {offer.provider for offer in found}
        taken = [offer for offer in offers if offer.provider not in known]
        found += taken
        notes += said if taken or not offers else []
    if not found:
        return RefreshResult(None, 0, notes)
    before = snapshots(home)[-1:]
    old = [offer for path in before for offer in _read(path, now, where=str(path))]
    folder = home / SNAPSHOTS_DIR
    make_home(home)
    folder.mkdir(exist_ok=True)
    path = folder / time.strftime("%Y-%m-%dT%H%M%S.csv", time.gmtime(now))
    write_atomic(path, _table(map(row_of, _superseded(old, found))))
    for outdated in snapshots(home)[:-SNAPSHOTS_KEPT]:
        outdated.unlink(missing_ok=True)
    return RefreshResult(path, len(found), notes)


def _read_all(sources: Sequence[Source], now: float, within_s: float) -> list[Told | None]:
    """Read every source; None where one took too long: a name that is being looked up has no
    timeout of its own."""
    told: list[Told | None] = [None] * len(sources)

    def read(place: int) -> None:
        told[place] = sources[place].read(now)

    threads = [threading.Thread(target=read, args=(n,), daemon=True) for n in range(len(sources))]
    until = time.monotonic() + within_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return list(told)


def _table(rows: Iterable[Mapping[str, str]]) -> str:
    lines = [",".join(_cell(row.get(name, "")) for name in COLUMNS) for row in rows]
    return "\n".join((",".join(COLUMNS), *lines, ""))


def row_of(offer: Offer) -> dict[str, str]:
    """Return the offer as a row of a table, by the names of ``COLUMNS``."""
    rate = "spot_usd_per_hour" if offer.spot else "usd_per_hour"
    return {
        "sku": offer.sku,
        "gpus": str(offer.gpus),
        "provider": offer.provider,
        "region": offer.region,
        "instance": offer.instance,
        rate: offer.rate.plain(),
        "as_of": utc_day(offer.priced_at),
        "source": offer.source,
        "vcpus": str(offer.vcpus or ""),
        "ram_gb": f"{offer.ram_gb:g}" if offer.ram_gb else "",
        "tier": offer.tier,
        "stock": offer.stock,
        "note": offer.note,
    }


def _cell(text: str) -> str:
    return text.replace(",", ";").replace('"', "").replace("\n", " ")


def _read(path: Path, now: float, *, where: str, own: bool = False) -> list[Offer]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the offers cannot be read: {error}", where=where) from None
    return parse_offers(text, where, now, own=own)
