"""Offers, and tables of prices cell by cell."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.unit.planner.conftest import NOW
from trmcloud.adapters.prices.tables import load_offers, override
from trmcloud.core.catalog.hardware import GPUS
from trmcloud.core.catalog.offers import DAY_S, KNOWN_COLUMNS, Offer, parse_offers, without_odd
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd

# -- offers -------------------------------------------------------------------------------------


HEADER = "sku,gpus,provider,usd_per_hour,as_of,currency\n"


def parse(body: str, header: str = HEADER) -> list[Offer]:
    return parse_offers(header + body, "mine.csv", NOW)


def test_a_row_becomes_an_offer() -> None:
    (offer,) = parse("H100-SXM,8,runpod,31.92,2026-11-09,USD\n")
    assert (offer.sku, offer.gpus, offer.rate) == ("H100-SXM", 8, Usd("31.92"))
    assert offer.age_days(NOW) == 9


@pytest.mark.parametrize(
    "text",
    [
        HEADER + "H100-SXM,8,x,1e400,2026-11-09,USD\n",
        HEADER + "H100-SXM,8,x,1e-400,2026-11-09,USD\n",
        HEADER + "H100-SXM,8,x," + "9" * 5000 + ",2026-11-09,USD\n",
        HEADER + "H100-SXM,8,x,[31.92],2026-11-09,USD\n",
        HEADER + "H100-SXM,[8],x,31.92,2026-11-09,USD\n",
        HEADER + "H100-SXM," + "9" * 5000 + ",x,31.92,2026-11-09,USD\n",
        HEADER + "H100-SXM,8,\x1b[2Jx,31.92,2026-11-09,USD\n",
        HEADER + 'H100-SXM,8,"' + "x" * 200_000 + ",31.92,2026-11-09,USD\n",
        '<!DOCTYPE html>\n<html><body class="x">502 Bad Gateway</body></html>\n',
        '{"error": "rate limited"}\n',
        "sku,gpus,provider,usd_per_hour,as_of,vcpus\nH100-SXM,8,x,31.92,2026-11-09,1e400\n",
        "sku,gpus,provider,usd_per_hour,as_of,vcpus\nH100-SXM,8,x,31.92,2026-11-09,[26]\n",
        "sku,gpus,provider,usd_per_hour,as_of,ram_gb\nH100-SXM,8,x,31.92,2026-11-09,nan\n",
    ],
)
def test_a_bad_file_is_one_short_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_offers(text, "mine.csv", NOW, own=True)
    told = f"{caught.value.what} {caught.value.where} {caught.value.next_step}"
    assert "\n" not in told
    assert told.isprintable()
    assert len(told) < 300


def test_the_age_of_a_quote_widens_its_range() -> None:
    (offer,) = parse("H100-SXM,8,x,10,2026-05-01,USD\n")
    at = offer.priced_at
    for days, half, rate in (
        (0, "10", "10"), (30, "10", "10"), (31, "11.5", "13"), (120, "11.5", "13"),
        (121, "13", "16"), (900, "13", "16"),
    ):  # fmt: skip
        assert offer.quoted == Usd(10)
        assert offer.planned_rate(at + days * DAY_S) == Usd(half)
        assert offer.late_rate(at + days * DAY_S) == Usd(rate)
        assert offer.is_stale(at + days * DAY_S) == (days > 30)
    own = offer._replace(own=True)
    assert (own.late_rate(at + 900 * DAY_S), own.is_stale(at + 900 * DAY_S)) == (Usd(10), False)


def test_an_old_quote_far_below_five_other_sellers_is_set_aside() -> None:
    def table(price: str, day: str, others: int) -> list[Offer]:
        rows = [f"H100-SXM,1,seller-{n},{3 + n / 10},2026-11-01,USD" for n in range(others)]
        return parse("\n".join([f"H100-SXM,1,odd,{price},{day},USD", *rows, ""]))

    for price, day, others, is_kept in (
        ("1.5", "2026-05-01", 5, False),
        ("2.5", "2026-05-01", 5, True),
        ("1.5", "2026-05-01", 4, True),
        ("1.5", "2026-11-01", 5, True),
    ):
        kept, odd = without_odd(table(price, day, others), NOW)
        assert ("odd" in {offer.provider for offer in kept}) is is_kept, (price, day, others)
        assert len(kept) + len(odd) == others + 1


def test_the_shipped_table_is_sound(now: float) -> None:
    offers = load_offers(now)
    assert len(offers) > 500
    assert (
        {"B200", "H200", "H100-SXM", "A100-80GB-SXM", "RTX3090", "RTX4090", "L40S"}
        <= {offer.sku for offer in offers}
        <= set(GPUS)
    )


def test_the_users_file_overrides(now: float, home: Path) -> None:
    home.mkdir()
    (home / "offers.csv").write_text(
        "sku,gpus,provider,region,instance,usd_per_hour,as_of\n"
        "H100-SXM,8,runpod,any,8x_H100-SXM_SECURE,20.00,2026-11-10\n"
    )
    offers = load_offers(now, home)
    mine = [o for o in offers if o.instance == "8x_H100-SXM_SECURE" and o.region == "any"]
    assert [offer.rate for offer in mine] == [Usd(20)]
    assert len(offers) == len(load_offers(now))
    assert override([], mine) == mine


# -- offer tables -------------------------------------------------------------------------------
# A table of prices, cell by cell: where each stands, what it may be, on which line it is not.


CELLS = {
    "sku": "L4", "gpus": "2", "provider": "aws", "usd_per_hour": "1.5", "as_of": "2026-11-09",
    "region": "us-east-1", "instance": "g6", "spot_usd_per_hour": "0.5", "source": "s",
    "vcpus": "8", "ram_gb": "32.5", "note": "n", "currency": "USD", "tier": "secure",
    "stock": "low",
}  # fmt: skip
REQUIRED = ("sku", "gpus", "provider", "usd_per_hour", "as_of")
PRICED_AT = 1_794_182_400.0
DEMAND = Offer(
    "L4", 2, "aws", "us-east-1", "g6", Usd("1.5"), False, PRICED_AT, "s", 8, 32.5, "n",
    "secure", "low",
)  # fmt: skip


def table(*names: str, **changes: str) -> str:
    cells = {**CELLS, **changes}
    return ",".join(names) + "\n" + ",".join(cells[name] for name in names) + "\n"


def read(*names: str, own: bool = False, **changes: str) -> list[Offer]:
    return parse_offers(table(*(names or KNOWN_COLUMNS), **changes), "where", NOW, own=own)


def one(*names: str, own: bool = False, **changes: str) -> Offer:
    (offer,) = read(*(names or REQUIRED), own=own, **changes)
    return offer


def refused(text: str, own: bool = False) -> tuple[str, str]:
    with pytest.raises(UsageError) as error:
        parse_offers(text, "where", NOW, own=own)
    return error.value.what, error.value.where


def why(*names: str, own: bool = False, **changes: str) -> str:
    what, where = refused(table(*(names or KNOWN_COLUMNS), **changes), own)
    assert where == "where, line 2"
    return what


# -- columns -----------------------------------------------------------------------------------


def test_columns_may_stand_in_any_order() -> None:
    both = [DEMAND, DEMAND._replace(rate=Usd("0.5"), spot=True)]
    for turn in range(len(KNOWN_COLUMNS)):
        names = (*KNOWN_COLUMNS[turn:], *KNOWN_COLUMNS[:turn])
        assert read(*names) == both
        assert read(*reversed(names)) == both


def test_a_column_that_is_not_there_says_nothing() -> None:
    assert one() == Offer(
        "L4", 2, "aws", "", "", Usd("1.5"), False, PRICED_AT, "where", 0, 0.0, "", "", ""
    )
    for extra, field in itertools.product(("region", "note"), ("source", "instance")):
        offer = one(extra, *REQUIRED, field)
        assert (offer.vcpus, offer.ram_gb, offer.spot) == (0, 0.0, False)
        assert getattr(offer, extra) == CELLS[extra]
        assert getattr(offer, field) == CELLS[field]
    assert one("source", *REQUIRED, source="").source == ""


@pytest.mark.parametrize(
    ("note", "tier", "stock", "rest"),
    [("secure; stock high", "secure", "high", ""), ("community", "community", "", ""),
     ("community; check that it exists", "community", "", "check that it exists"),
     ("data centre; 3 hosts; driver 550", "data centre", "", "3 hosts; driver 550"),
     ("secure; stock low; new", "secure", "low", "new"), ("spot; NVLink", "", "", "spot; NVLink")],
)  # fmt: skip
def test_a_table_of_an_earlier_version_has_tier_and_stock_in_its_note(
    note: str, tier: str, stock: str, rest: str
) -> None:
    offer = one(*REQUIRED, "note", note=note)
    assert (offer.tier, offer.stock, offer.note, offer.words) == (tier, stock, rest, note)
    assert one(*REQUIRED, "tier", "note", tier="", note=note).note == note


@pytest.mark.parametrize("missing", REQUIRED)
def test_the_first_column_that_is_missing_is_named(missing: str) -> None:
    names = [name for name in REQUIRED if name != missing]
    assert refused(table(*names)) == (f"the offers table has no column {missing!r}", "where")
    says = "the offers table has no column 'sku'"
    assert refused("note\nx\n") == (says, "where")


def test_a_column_that_is_unknown_or_stands_twice_is_refused() -> None:
    odd = "x" * 50
    says = f"unknown column {odd[:40]!r}"
    assert refused(f"{','.join(REQUIRED)},{odd}\n") == (says, "where")
    says = "column 'note' occurs twice"
    assert refused(f"{','.join(REQUIRED)},note,note\n") == (says, "where")
    assert parse_offers(table(*REQUIRED).replace("sku,", " sku ,"), "where", NOW) == [one()]


def test_lines_without_a_row_are_passed_over_and_counted() -> None:
    text = "\n# a comment\n  \t \n" + table(*REQUIRED, gpus="x")
    assert refused(text) == ("'x' is not a number of GPUs (1 to 64)", "where, line 5")
    assert parse_offers("\n\ufeff#\n"[:0] + "\ufeff" + table(*REQUIRED), "where", NOW) == [one()]
    assert refused("") == ("the offers table is empty", "where")
    assert refused("# only\n\n") == ("the offers table is empty", "where")
    assert parse_offers(",".join(REQUIRED), "where", NOW) == []


def test_quoted_and_plain_cells_are_read_alike() -> None:
    plain = table(*REQUIRED)
    assert parse_offers(plain.replace("L4", '"L4"'), "where", NOW) == [one()]
    assert parse_offers(plain.replace("aws", '"a, b"'), "where", NOW)[0].provider == "a, b"
    assert refused(plain.replace("L4", '"L4'))[0] == "1 cells under 5 columns"
    assert refused(plain + "a,b\n") == ("2 cells under 5 columns", "where, line 3")
    assert refused(plain + "\x1b[2J\n") == ("a control character", "where, line 3")


# -- cells -------------------------------------------------------------------------------------
LONG = "z" * 50
CUT = repr(LONG[:40])


@pytest.mark.parametrize("currency", ["USD", "usd", ""])
def test_prices_are_in_us_dollars(currency: str) -> None:
    for names in (("currency", *REQUIRED), (*REQUIRED, "currency")):
        assert one(*names, currency=currency) == one()
        assert why(*names, currency="EUR") == "prices in 'EUR' instead of US dollars"


def test_a_gpu_must_be_known() -> None:
    assert why(sku=LONG) == f"unknown GPU {CUT}"
    assert why(sku="") == "unknown GPU ''"


@pytest.mark.parametrize("gpus", ["1", "64", "0001", "0064"])
def test_a_count_of_gpus(gpus: str) -> None:
    assert one(gpus=gpus, usd_per_hour="5").gpus == int(gpus)


@pytest.mark.parametrize("gpus", ["0", "65", "-1", "1.0", "", "00001", "²", LONG])
def test_no_count_of_gpus(gpus: str) -> None:
    assert why(gpus=gpus) == f"{gpus[:40]!r} is not a number of GPUs (1 to 64)"


@pytest.mark.parametrize(("cell", "size"), [("", 0), ("0", 0), ("0.5", 0), ("999999", 999_999)])
def test_sizes(cell: str, size: int) -> None:
    offer = one("vcpus", *REQUIRED, "ram_gb", vcpus=cell, ram_gb=cell)
    assert (offer.vcpus, offer.ram_gb) == (size, float(cell or 0))
    offer = one("ram_gb", *REQUIRED, "vcpus", vcpus=cell, ram_gb=cell)
    assert (offer.vcpus, offer.ram_gb) == (size, float(cell or 0))


@pytest.mark.parametrize("cell", ["-1", "-0.5", "1e6", "nan", "inf", LONG, "8 GB"])
def test_no_sizes(cell: str) -> None:
    assert why(vcpus=cell) == f"{cell[:40]!r} is not a number of vCPUs"
    assert why(ram_gb=cell) == f"{cell[:40]!r} is not a number of GB"


def test_days() -> None:
    assert one(as_of="2026-11-19").priced_at == 1_795_046_400.0, "tomorrow, in some time zone"
    assert why(as_of="2026-11-20") == "the date 2026-11-20 is in the future"
    for odd in ("2026-13-01", "yesterday", "", LONG):
        assert why(as_of=odd) == f"{odd[:40]!r} is not a date"
    eve = 1_795_046_400.0 - 86_400.0
    assert parse_offers(table(*REQUIRED, as_of="2026-11-19"), "where", eve)
    with pytest.raises(UsageError, match="is in the future"):
        parse_offers(table(*REQUIRED, as_of="2026-11-19"), "where", eve - 1.0)


@pytest.mark.parametrize(
    ("cell", "rate"),
    [("2", "2"), ("2.", "2"), ("2.000001", "2.000001"), ("2.0000001", "2.000001"),
     ("$2", "2"), (" 2 ", "2"), ("2e0", "2"), ("0000000002", "2"), ("+2.5", "2.5"),
     ("2.5000000", "2.5"), ("2.500000", "2.5"),
     ("200", "200"), ("0.02", "0.02"), ("0.02000000", "0.02")],
)  # fmt: skip
def test_rates(cell: str, rate: str) -> None:
    assert one(usd_per_hour=cell).rate == Usd(rate)
    (spot,) = read(*REQUIRED, "spot_usd_per_hour", usd_per_hour="", spot_usd_per_hour=cell)
    assert (spot.rate, spot.spot) == (Usd(rate), True)


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("200.000001", "per hour for 2 GPUs is not plausible (above $100 per GPU)"),
        ("0.019999", "per hour for 2 GPUs is not plausible (below $0.01 per GPU)"),
        ("0", "$0.00 per hour for 2 GPUs is not plausible (below $0.01 per GPU)"),
        ("-1", "the price -1 is negative"),
        ("-0.5", "the price -0.5 is negative"),
        ("-" + "1" * 50, f"the price -{'1' * 39} is negative"),
        ("1e10", "the price 1e10 is not plausible"),
        ("1e-10", "the price 1e-10 is not plausible"),
        ("1" * 50, f"the price {'1' * 40} is not plausible"),
        ("1e9", "per hour for 2 GPUs is not plausible (above $100 per GPU)"),
        ("nan", "'nan' is not a price in US dollars"),
        ("inf", "'inf' is not a price in US dollars"),
        ("1.x", "'1.x' is not a price in US dollars"),
        ("1..5", "'1..5' is not a price in US dollars"),
        (".", "'.' is not a price in US dollars"),
        (LONG, f"{CUT} is not a price in US dollars"),
    ],
)
def test_no_rates(cell: str, says: str) -> None:
    assert why(usd_per_hour=cell).endswith(says)
    assert why(usd_per_hour="", spot_usd_per_hour=cell).endswith(says)


def test_only_the_users_own_machines_are_free_and_no_spot_is() -> None:
    for cell in ("0", "0.0", "$0", "0e20"):
        assert one(usd_per_hour=cell, own=True).rate == Usd(0)
        assert one(usd_per_hour=cell, own=True).own is True
        assert "below $0.01" in why(usd_per_hour="", spot_usd_per_hour=cell, own=True)
    assert "below $0.01" in why(usd_per_hour="0.001", own=True)


def test_what_has_no_price_or_provider_is_refused() -> None:
    assert why(usd_per_hour="", spot_usd_per_hour="") == "no price"
    assert why(provider="") == "the provider is empty"


# -- rows --------------------------------------------------------------------------------------


def rows(names: tuple[str, ...], *changes: dict[str, Any]) -> str:
    head, first = table(*names).splitlines()
    more = [table(*names, **change).splitlines()[1] for change in changes]
    return "\n".join([head, first, *more, ""])


@pytest.mark.parametrize(
    "change", [{"provider": "gcp"}, {"region": "r"}, {"instance": "i"}, {"sku": "B200"},
               {"gpus": "1"}],
)  # fmt: skip
def test_two_rows_that_differ_in_what_is_sold_are_two_offers(change: dict[str, str]) -> None:
    names = (*REQUIRED, "region", "instance")
    assert len(parse_offers(rows(names, change), "where", NOW)) == 2


def test_one_offer_is_priced_once_on_demand_and_once_as_spot() -> None:
    text = rows(KNOWN_COLUMNS, {"sku": "B200"}, {"usd_per_hour": "1.6"})
    says = "aws g6 us-east-1 has two prices, the first on line 2"
    assert refused(text) == (says, "where, line 4")
    names = (*REQUIRED, "spot_usd_per_hour", "region")
    spot = {"usd_per_hour": "", "spot_usd_per_hour": "0.4"}
    text = rows(names, spot, spot)
    assert refused(text) == (
        "aws L4 us-east-1 has two prices, the first on line 3",
        "where, line 4",
    )
