"""Offers and quotes: hardware, rate and date of each, and reading a table of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from trmcloud.core.catalog.hardware import GPUS, LOCAL, MAX_GPUS, LocalMachine
from trmcloud.core.errors import UsageError
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.nearest import suggest_name

# Offers: who rents which GPUs at what rate, quoted when; and how a table of them is read.
#
# A table is CSV text with the columns ``sku, gpus, provider, usd_per_hour, as_of`` and, where
# known, ``region, instance, spot_usd_per_hour, source, vcpus, ram_gb, tier, stock, note,
# currency``. Rates are for the whole instance. Lines that begin with ``#`` are comments.

DAY_S = 86_400.0
FRESH_DAYS = 30
"""A quote older than this may be billed above it, by ``AGE_MARGINS``."""
AGE_MARGINS = ((120, 60), (FRESH_DAYS, 30))
"""(older than so many days, by so many percent more at P90, half of that at P50), where no newer
quote is known. Within 100 days of 2026 RunPod's list moved up by 20 to 29 %, Nebius' in 240 by
53 %."""

MAX_USD_PER_GPU_HOUR = 100
MIN_USD_PER_GPU_HOUR = Usd("0.01")
MAX_SIZE = 1e6
"""vCPUs, or GB of memory, of a machine."""

THIS_MACHINE = "this machine"
ANYWHERE = "any"
"""The region of a price that is the same in all of its seller's data centres."""

_MOST_DIGITS = 9

REQUIRED_COLUMNS = ("sku", "gpus", "provider", "usd_per_hour", "as_of")
KNOWN_COLUMNS = (
    *REQUIRED_COLUMNS,
    "region", "instance", "spot_usd_per_hour", "source", "vcpus", "ram_gb", "note", "currency",
    "tier", "stock",
)  # fmt: skip
COMMUNITY = "community"
TIERS = ("secure", COMMUNITY, "data centre")
"""What sellers tell apart: their own machines, and somebody's own host, rented out through a
market: cheaper, and vouched for by no one."""


class Offer(NamedTuple):
    """One rentable machine. ``rate`` is USD/h for all its GPUs; ``priced_at`` is epoch seconds."""

    sku: str
    gpus: int
    provider: str
    region: str
    instance: str
    rate: Usd
    spot: bool
    priced_at: float
    source: str
    vcpus: int = 0
    ram_gb: float = 0.0
    note: str = ""
    tier: str = ""
    """One of ``TIERS``; empty where the seller has one kind alone."""
    stock: str = ""
    """The seller's own word for what is free: ``high``; empty where it is not listed."""
    own: bool = False
    """From the user's own file: taken at its word, whatever its age."""
    ceiling: Usd | None = None
    """USD/h that it is rented at most at, by the user's word; None: no such limit."""
    newer: Usd | None = None
    """USD/h of the dearest newer quote for the same thing, where one is known: ``quotes``."""
    newer_at: float = 0.0
    on_demand: Usd | None = None
    """Of spot: USD/h of the same thing on demand, where that is known: ``quotes``."""

    @property
    def is_community(self) -> bool:
        return self.tier == COMMUNITY

    @property
    def words(self) -> str:
        """What is known of it beside its price: ``secure; stock high``."""
        stock = f"stock {self.stock}" if self.stock else ""
        return "; ".join(filter(None, (self.tier, stock, self.note)))

    def age_days(self, now: float) -> int:
        return max(0, int((now - self.priced_at) // DAY_S))

    def is_stale(self, now: float) -> bool:
        return not self.own and now - self.priced_at > FRESH_DAYS * DAY_S

    @property
    def quoted(self) -> Usd:
        """USD/h by the quotes: its own, or what a newer one for the same asks where that is
        more."""
        return self.rate if self.newer is None else max(self.rate, self.newer)

    def planned_rate(self, now: float) -> Usd:
        """USD/h at P50: the middle of ``quoted`` and ``late_rate``."""
        return Usd.from_micros(self.planned_micros(now))

    def planned_micros(self, now: float) -> int:
        """``planned_rate`` in micro-dollars, as thousands are ranked by it."""
        quoted = self.quoted.micros
        return self._capped((quoted + self._late_micros(quoted, now) + 1) // 2)

    def late_rate(self, now: float) -> Usd:
        """USD/h at P90: ``quoted`` with the margin for the age of the newest quote."""
        return Usd.from_micros(self._capped(self._late_micros(self.quoted.micros, now)))

    def _late_micros(self, quoted: int, now: float) -> int:
        return quoted if self.own else aged(quoted, now - max(self.priced_at, self.newer_at))

    def _capped(self, micros: int) -> int:
        return micros if self.ceiling is None else min(micros, self.ceiling.micros)

    def most_rate(self, now: float) -> Usd | None:
        """USD/h that the provider may bill, as far as quotes can tell: a spot price may rise to the
        one on demand, since no maximum of ours is sent. None where that is not known."""
        if self.ceiling is not None:
            return self.ceiling
        if not self.spot:
            return self.late_rate(now)
        if self.on_demand is None:
            return None
        return max(self.late_rate(now), self.on_demand)

    def on_machines(self, count: int) -> Offer:
        """``count`` machines of it, rented together."""
        if count == 1:
            return self
        newer = self.newer * count if self.newer is not None else None
        on_demand = self.on_demand * count if self.on_demand is not None else None
        return self._replace(rate=self.rate * count, newer=newer, on_demand=on_demand)


def age_margin_percent(age_s: float) -> int:
    """Return the percentage that P90 adds to a quote of this age if no newer one is known."""
    for days, percent in AGE_MARGINS:
        if age_s > days * DAY_S:
            return percent
    return 0


def aged(micros: int, age_s: float) -> int:
    """A quote of this age with its margin."""
    if age_s <= FRESH_DAYS * DAY_S:
        return micros
    return -(-micros * (100 + age_margin_percent(age_s)) // 100)


def local_offer(machine: LocalMachine, processes: int, rate: Usd | None, now: float) -> Offer:
    """This machine as an offer at the user's own rate (USD/h; none means free)."""
    return Offer(
        sku=machine.gpu_sku or machine.name,
        gpus=processes,
        provider=LOCAL,
        region=THIS_MACHINE,
        instance=machine.name,
        rate=rate if rate is not None else ZERO,
        spot=False,
        priced_at=now,
        source="--rate" if rate is not None else "no rate given",
        vcpus=machine.cpus,
        ram_gb=machine.memory_gb,
    )


def parse_offers(text: str, where: str, now: float, *, own: bool = False) -> list[Offer]:
    """Offers of a table, on-demand and spot apart.

    ``own``: the user's own file, whose machines may be free.

    Raises:
        UsageError: by line — a missing or unknown column, a price that is negative, absurd or no
            number, a currency other than USD, an unknown SKU, two rows for one offer, a date that
            is malformed or in the future.
    """
    header: dict[str, int] | None = None
    offers: list[Offer] = []
    first_line: dict[tuple[str, ...], int] = {}
    dates: dict[str, float] = {}
    split = _splitter(text)
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        if not line or line.startswith("#") or line.isspace():
            continue
        if not line.isprintable():
            raise UsageError("a control character", where=f"{where}, line {number}")
        cells = split(line)
        if header is None:
            header = _header(cells, where)
            column = header.get
            c_sku, c_gpus, c_provider = header["sku"], header["gpus"], header["provider"]
            c_rate, c_date = header["usd_per_hour"], header["as_of"]
            c_region, c_instance = column("region", -1), column("instance", -1)
            c_spot, c_source = column("spot_usd_per_hour", -1), column("source", -1)
            c_vcpus, c_ram, c_note = column("vcpus", -1), column("ram_gb", -1), column("note", -1)
            c_currency = column("currency", -1)
            c_tier, c_stock = column("tier", -1), column("stock", -1)
            width = len(cells)
            continue
        line_at = f"{where}, line {number}"
        if len(cells) != width:
            raise UsageError(f"{len(cells)} cells under {width} columns", where=line_at)
        if c_currency >= 0 and cells[c_currency].upper() not in ("USD", ""):
            raise UsageError(
                f"prices in {cells[c_currency]!r} instead of US dollars",
                where=line_at,
                next_step="convert the file to USD",
            )
        sku = cells[c_sku]
        if sku not in GPUS:
            raise UsageError(
                f"unknown GPU {sku[:40]!r}",
                where=line_at,
                next_step=suggest_name(sku, GPUS),
            )
        gpus = _whole(cells[c_gpus], line_at)
        as_of = cells[c_date]
        priced_at = dates.get(as_of)
        if priced_at is None:
            priced_at = dates[as_of] = _instant(as_of, now, line_at)
        provider = cells[c_provider]
        region = cells[c_region] if c_region >= 0 else ""
        instance = cells[c_instance] if c_instance >= 0 else ""
        listed = cells[c_rate]
        spot_text = cells[c_spot] if c_spot >= 0 else ""
        # Spot may stand in a row of its own: it has a day of its own.
        key = (provider, region, instance, sku, cells[c_gpus], "" if listed else "spot")
        seen = first_line.setdefault(key, number)
        if seen != number:
            raise UsageError(
                f"{provider} {instance or sku} {region} has two prices, the first on line {seen}",
                where=line_at,
                next_step="keep the newer row",
            )
        if not provider:
            raise UsageError("the provider is empty", where=line_at)
        note = cells[c_note] if c_note >= 0 else ""
        tier = cells[c_tier] if c_tier >= 0 else ""
        stock = cells[c_stock] if c_stock >= 0 else ""
        if note and c_tier < 0:
            tier, stock, note = _from_note(note)
        common = (
            priced_at,
            cells[c_source] if c_source >= 0 else where,
            int(_size(cells[c_vcpus], "vCPUs", line_at)) if c_vcpus >= 0 else 0,
            _size(cells[c_ram], "GB", line_at) if c_ram >= 0 else 0.0,
            note,
            tier,
            stock,
            own,
        )
        if not listed and not spot_text:
            raise UsageError("no price", where=line_at)
        if listed:
            rate = _rate(listed, gpus, line_at, own)
            offers.append(Offer(sku, gpus, provider, region, instance, rate, False, *common))
        if spot_text:
            rate = _rate(spot_text, gpus, line_at, False)
            offers.append(Offer(sku, gpus, provider, region, instance, rate, True, *common))
    if header is None:
        raise UsageError("the offers table is empty", where=where)
    return offers


def _from_note(note: str) -> tuple[str, str, str]:
    """Return (tier, stock, the rest) of a note in a table that has no column of the tier: tables
    were written so until version 0.5."""
    tier, _, rest = note.partition("; ")
    tier = COMMUNITY if tier.startswith(COMMUNITY) else tier
    if tier not in TIERS:
        return "", "", note
    if rest.startswith("stock "):
        stock, _, rest = rest.removeprefix("stock ").partition("; ")
        return tier, stock, rest
    return tier, "", rest


def _splitter(text: str) -> Callable[[str], list[str]]:
    """Plain commas where the file has no quotes, which is five times as fast as ``csv``."""
    if '"' not in text:
        return lambda line: line.split(",")
    import csv

    def cells(line: str) -> list[str]:
        try:
            return next(csv.reader([line]))
        except csv.Error:
            return []

    return cells


def _header(cells: list[str], where: str) -> dict[str, int]:
    names = [cell.strip() for cell in cells]
    missing = [name for name in REQUIRED_COLUMNS if name not in names]
    if missing:
        raise UsageError(
            f"the offers table has no column {missing[0]!r}",
            where=where,
            next_step=f"needed: {', '.join(REQUIRED_COLUMNS)}",
        )
    for name in names:
        if name not in KNOWN_COLUMNS:
            raise UsageError(f"unknown column {name[:40]!r}", where=where)
        if names.count(name) > 1:
            raise UsageError(f"column {name!r} occurs twice", where=where)
    return {name: index for index, name in enumerate(names)}


def _whole(text: str, where: str) -> int:
    if not text.isdecimal() or len(text) > 4 or not 1 <= int(text) <= MAX_GPUS:
        raise UsageError(f"{text[:40]!r} is not a number of GPUs (1 to {MAX_GPUS})", where=where)
    return int(text)


def _size(text: str, unit: str, where: str) -> float:
    try:
        size = float(text or 0)
    except ValueError:
        size = -1.0
    if not 0 <= size < MAX_SIZE:
        raise UsageError(f"{text[:40]!r} is not a number of {unit}", where=where)
    return size


def _instant(text: str, now: float, where: str) -> float:
    try:
        days = date.fromisoformat(text).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError:
        raise UsageError(
            f"{text[:40]!r} is not a date", where=where, next_step="as_of takes YYYY-MM-DD"
        ) from None
    instant = days * DAY_S
    if instant > now + DAY_S:
        raise UsageError(f"the date {text} is in the future", where=where)
    return instant


def _rate(text: str, gpus: int, where: str, allow_free: bool) -> Usd:
    whole, _, fraction = text.partition(".")
    if (
        whole.isdecimal()
        and len(whole) <= _MOST_DIGITS
        and (fraction.isdecimal() or not fraction)
        and len(fraction) <= 6
    ):
        rate = Usd.from_micros(int(whole) * 1_000_000 + int((fraction or "0").ljust(6, "0")))
    else:
        rate = _odd_rate(text, where)
    per_gpu_micros = rate.micros / gpus
    if per_gpu_micros > MAX_USD_PER_GPU_HOUR * 1_000_000:
        raise UsageError(
            f"{rate} per hour for {gpus} GPUs is not plausible (above ${MAX_USD_PER_GPU_HOUR} "
            "per GPU)",
            where=where,
        )
    if per_gpu_micros < MIN_USD_PER_GPU_HOUR.micros and not (allow_free and not rate):
        raise UsageError(
            f"{rate} per hour for {gpus} GPUs is not plausible (below {MIN_USD_PER_GPU_HOUR} per "
            "GPU)",
            where=where,
        )
    return rate


def _odd_rate(text: str, where: str) -> Usd:
    from decimal import Decimal, InvalidOperation

    try:
        amount = Decimal(text.strip().removeprefix("$"))
        if not amount.is_finite():
            raise InvalidOperation
    except InvalidOperation:
        raise UsageError(f"{text[:40]!r} is not a price in US dollars", where=where) from None
    if amount < 0:
        raise UsageError(f"the price {text[:40]} is negative", where=where)
    if amount and abs(amount.adjusted()) > _MOST_DIGITS:
        raise UsageError(f"the price {text[:40]} is not plausible", where=where)
    return Usd.rounded_up(amount)


def identity(offer: Offer) -> tuple[object, ...]:
    """Return the fields that two prices of one offer have in common."""
    return offer.provider, offer.region, offer.instance, offer.sku, offer.gpus, offer.spot


def moves(before: list[Offer], after: list[Offer]) -> list[tuple[Offer, Usd | None]]:
    """Offers of ``after`` that are new (None) or cost something else (the old rate)."""
    old = {identity(offer): offer.rate for offer in before}
    return [
        (offer, old.get(identity(offer)))
        for offer in after
        if old.get(identity(offer)) != offer.rate
    ]


# What the quotes of one provider say of each other.
#
# A quote holds until a newer one for the same thing is known: the same GPU at the same provider,
# on demand or spot, from the provider itself or from private sellers, in whatever region. Other
# counts are compared by GPU.

_Thing = tuple[str, str, bool, bool]
"""Provider, GPU, spot, whether from private sellers."""
_Key = tuple[str, str, bool, str, float, int]
"""Provider, GPU, spot, tier, when it was quoted, GPUs: what thousands of offers are few of."""
_KEY = attrgetter("provider", "sku", "spot", "tier", "priced_at", "gpus")
_TOLD = Offer._fields.index("newer")
"""The index in an Offer of the first field that is filled in here."""


class _PlannedPrice(NamedTuple):
    """The price per GPU at which a machine of ``gpus`` was planned, in micro-dollars an hour."""

    priced_at: float
    gpus: int
    micros: int


def with_newer_quotes(offers: Sequence[Offer], now: float) -> list[Offer]:
    """``offers`` with the dearest newer quote for the same, and spot with what it costs on demand.

    The user's own offers stay as they are, and tell nothing of others.
    """
    keys: list[_Key] = list(map(_KEY, offers))
    things = {key: _thing(key) for key in set(keys)}
    newest: dict[_Thing, float] = {}
    for key, thing in things.items():
        newest[thing] = max(key[4], newest.get(thing, key[4]))
    older = {key for key, thing in things.items() if key[4] < newest[thing]}
    mixed = {things[key] for key in older}
    mixed |= {(provider, sku, False, tier) for provider, sku, spot, tier in newest if spot}
    if not mixed:
        return list(offers)
    asks = _asks(keys, offers, {key: things[key] for key in things if things[key] in mixed})
    told = {key: _dearest(asks.get(things[key], ()), key[5], key[4]) for key in older}
    informed = [
        Offer._make((*offer[:_TOLD], *told[key], None)) if key in told and not offer.own else offer
        for key, offer in zip(keys, offers, strict=True)
    ]
    if not any(key[2] for key in things):
        return informed
    listed = {_machine(offer): offer.late_rate(now) for offer in informed if not offer.spot}
    return [_with_on_demand(o, listed, asks, now) if o.spot else o for o in informed]


ODD_SHARE = 0.6
"""Of the median of other sellers' lowest prices for a GPU, below which an old quote is odd."""
_OTHERS = 5
"""Sellers whose prices can tell that another one's is odd."""


def without_odd(offers: Sequence[Offer], now: float) -> tuple[list[Offer], list[Offer]]:
    """(``offers`` to plan with, those set aside): a stale quote far below at least five other
    sellers' lowest for the same GPU, on demand or spot, is taken for an error or for gone."""
    lowest: dict[tuple[str, bool], dict[str, float]] = {}
    for offer in offers:
        sellers = lowest.setdefault((offer.sku, offer.spot), {})
        each = offer.quoted.micros / offer.gpus
        sellers[offer.provider] = min(each, sellers.get(offer.provider, each))
    kept: list[Offer] = []
    odd: list[Offer] = []
    floors: dict[tuple[str, bool, str], float] = {}
    for offer in offers:
        sellers, is_odd = lowest[offer.sku, offer.spot], False
        if len(sellers) > _OTHERS and offer.is_stale(now):
            key = (offer.sku, offer.spot, offer.provider)
            if key not in floors:
                others = [price for name, price in sellers.items() if name != offer.provider]
                floors[key] = ODD_SHARE * median(others)
            is_odd = offer.quoted.micros / offer.gpus < floors[key]
        (odd if is_odd else kept).append(offer)
    return kept, odd


def _thing(key: _Key) -> _Thing:
    provider, sku, spot, tier, _, _ = key
    return provider, sku, spot, tier == COMMUNITY


def _asks(
    keys: Sequence[_Key], offers: Sequence[Offer], things: Mapping[_Key, _Thing]
) -> dict[_Thing, list[_PlannedPrice]]:
    """The dearest of each day and count, of what stands in ``things``."""
    dearest: dict[_Key, int] = {}
    for key, offer in zip(keys, offers, strict=True):
        if key in things and offer.rate.micros > dearest.get(key, 0) and not offer.own:
            dearest[key] = offer.rate.micros
    asks: dict[_Thing, list[_PlannedPrice]] = {}
    for key, micros in dearest.items():
        _, _, _, _, at, gpus = key
        asks.setdefault(things[key], []).append(_PlannedPrice(at, gpus, -(-micros // gpus)))
    return asks


def _dearest(asks: Iterable[_PlannedPrice], gpus: int, after: float) -> tuple[Usd | None, float]:
    """(USD/h of ``gpus``, when it was quoted) of those younger than ``after``: of as many GPUs,
    else of other counts."""
    newer = [ask for ask in asks if ask.priced_at > after]
    found = max(
        [ask for ask in newer if ask.gpus == gpus] or newer,
        key=lambda ask: ask.micros,
        default=None,
    )
    if found is None:
        return None, 0.0
    return Usd.from_micros(found.micros * gpus), found.priced_at


def _machine(offer: Offer) -> tuple[object, ...]:
    return offer.provider, offer.region, offer.instance, offer.sku, offer.gpus


def _with_on_demand(
    offer: Offer,
    listed: dict[tuple[object, ...], Usd],
    asks: dict[_Thing, list[_PlannedPrice]],
    now: float,
) -> Offer:
    """By the price of the very machine, else by the dearest of the same that is known."""
    rate = listed.get(_machine(offer))
    if rate is None:
        thing = (offer.provider, offer.sku, False, offer.is_community)
        rate, at = _dearest(asks.get(thing, ()), offer.gpus, float("-inf"))
        rate = Usd.from_micros(aged(rate.micros, now - at)) if rate is not None else None
    return offer._replace(on_demand=rate)
