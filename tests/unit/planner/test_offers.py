from __future__ import annotations

from pathlib import Path

import pytest

from trmcloud.adapters.prices.tables import load_offers, override
from trmcloud.core.catalog.hardware import GPUS
from trmcloud.core.catalog.offers import DAY_S, Offer, parse_offers
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd

HEADER = "sku,gpus,provider,usd_per_hour,as_of,currency\n"
NOW = 1_795_000_000.0


def parse(body: str, header: str = HEADER) -> list[Offer]:
    return parse_offers(header + body, "mine.csv", NOW)


def test_a_row_becomes_an_offer() -> None:
    (offer,) = parse("H100-SXM,8,runpod,31.92,2026-11-09,USD\n")
    assert (offer.sku, offer.gpus, offer.rate) == ("H100-SXM", 8, Usd("31.92"))
    assert offer.age_days(NOW) == 9


def test_spot_and_on_demand_are_two_offers(offers: list[Offer]) -> None:
    aws = [offer for offer in offers if offer.provider == "aws"]
    assert [(offer.spot, offer.rate) for offer in aws] == [
        (False, Usd("55.04")),
        (True, Usd("14.5")),
    ]


def test_quoted_cells_are_read() -> None:
    (offer,) = parse('H100-SXM,8,"a, b",31.92,2026-11-09,USD\n')
    assert offer.provider == "a, b"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("H100-SXM,8,x,-3,2026-11-09,USD", "negative"),
        ("H100-SXM,8,x,9000,2026-11-09,USD", "absurd"),
        ("H100-SXM,8,x,0.001,2026-11-09,USD", "absurd"),
        ("H100-SXM,8,x,0,2026-11-09,USD", "absurd"),
        ("H100-SXM,8,x,nan,2026-11-09,USD", "no price"),
        ("H100-SXM,8,x,cheap,2026-11-09,USD", "no price"),
        ("H100-SXM,8,x,,2026-11-09,USD", "no price"),
        ("H100-SXM,8,x,3,2026-11-09,EUR", "EUR"),
        ("H100-SXM,8,x,3,2027-11-09,USD", "future"),
        ("H100-SXM,8,x,3,yesterday,USD", "no date"),
        ("H100-SXM,none,x,3,2026-11-09,USD", "count of GPUs"),
        ("H100,8,x,3,2026-11-09,USD", "unknown GPU"),
        ("H100-SXM,8,,3,2026-11-09,USD", "provider"),
        ("H100-SXM,8,x,3,2026-11-09", "cells"),
        ("H100-SXM,8,x,3,2026-11-09,USD\nH100-SXM,8,x,4,2026-11-09,USD", "twice"),
    ],
)
def test_bad_rows_are_refused_by_line(body: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(body + "\n")
    assert says in caught.value.what
    assert "mine.csv, line" in caught.value.where


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


def test_a_byte_order_mark_is_no_part_of_the_header() -> None:
    assert parse_offers("\ufeff" + HEADER + "L4,1,x,1,2026-11-09,USD\n", "mine.csv", NOW)


def test_missing_and_unknown_columns_are_named() -> None:
    with pytest.raises(UsageError, match="'as_of'"):
        parse("", "sku,gpus,provider,usd_per_hour\n")
    with pytest.raises(UsageError, match="'colour'"):
        parse("", HEADER.strip() + ",colour\n")
    with pytest.raises(UsageError, match="empty"):
        parse("", "# nothing\n")


def test_own_machines_may_be_free() -> None:
    text = HEADER + "RTX3090,1,own,0,2026-11-09,USD\n"
    (offer,) = parse_offers(text, "mine.csv", NOW, own=True)
    assert not offer.rate


def test_old_quotes_are_planned_dearer_by_their_age() -> None:
    (offer,) = parse("H100-SXM,8,x,10,2026-05-01,USD\n")
    at = offer.priced_at
    for days, rate in ((0, "10"), (30, "10"), (31, "13"), (120, "13"), (121, "16"), (900, "16")):
        assert offer.planned_rate(at + days * DAY_S) == Usd(rate)
        assert offer.is_stale(at + days * DAY_S) == (days > 30)


def test_the_users_own_prices_are_taken_at_their_word() -> None:
    (offer,) = parse_offers(HEADER + "H100-SXM,8,x,10,2026-01-01,USD\n", "mine.csv", NOW, own=True)
    assert offer.planned_rate(NOW) == Usd(10)
    assert not offer.is_stale(NOW)


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
