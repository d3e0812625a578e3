"""``trmcloud prices``: the offers plans are made from, their sources and ages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.views.json_output import print_document
from trmcloud.core.catalog.hardware import GPUS, find_gpu
from trmcloud.core.catalog.offers import FRESH_DAYS, Offer, moves
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd
from trmcloud.core.nearest import suggest_name
from trmcloud.core.spec.guides import SOURCE
from trmcloud.operations import views
from trmcloud.operations.views import filled, note
from trmcloud.wiring_plans import guides, known_offers, price_tables

MOVES_SHOWN = 20
"""Moved prices that a refresh tells of; ``diff`` tells of all."""

app = options.make_group(
    "Show and refresh the table of offers used for plans.",
    "trmcloud prices show H100-SXM",
)


@app.command("list")
def list_offers(
    provider: Annotated[str, typer.Option(help="Only this provider.")] = "",
    guides: Annotated[
        bool, typer.Option("--guides", help="Show the guides' historic prices.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """List the cheapest offer of each GPU and count, fresh prices first.

    Example: trmcloud prices list --provider runpod
    """
    if guides and as_json:
        print_document(_guide_prices())
        return
    if guides:
        _print_guides()
        return
    now = time.time()
    known = known_offers(now)
    offers = [o for o in known if not provider or o.provider == provider]
    if provider and not offers:
        raise UsageError(
            f"--provider: no offers of {provider!r:.40}",
            next_step=suggest_name(provider, sorted({offer.provider for offer in known})),
        )
    if as_json:
        print_document(_offers(offers, now))
        return
    best: dict[tuple[str, int], tuple[bool, Usd, Offer]] = {}
    for offer in offers:
        key = (offer.sku, offer.gpus)
        found = (offer.is_stale(now), offer.rate, offer)
        if not offer.spot and (key not in best or found < best[key]):
            best[key] = found
    order = list(GPUS)
    for key in sorted(best, key=lambda k: (best[k][0], order.index(k[0]), k[1])):
        print(_line(best[key][2], now))
    print(f"{len(offers)} offers · {_freshness(offers, now)}")


@app.command()
def show(
    sku: Annotated[str, typer.Argument(help="H100-SXM, RTX3090, …")],
    as_json: options.Json = False,
) -> None:
    """List all offers of one GPU, the cheapest per GPU first, with source and age.

    Example: trmcloud prices show A100-80GB-SXM
    """
    gpu = find_gpu(sku)
    now = time.time()
    offers = [offer for offer in known_offers(now) if offer.sku == gpu.sku]
    if as_json:
        print_document(_offers(offers, now, gpu.sku))
        return
    print(
        f"{gpu.sku}: {gpu.bf16_tflops:,.0f} dense bf16 TFLOP/s, {gpu.memory_gb:g} GB at"
        f" {gpu.memory_gb_s:,.0f} GB/s ({gpu.source})"
    )
    for offer in sorted(offers, key=lambda o: (o.rate.micros / o.gpus, o.gpus)):
        print(f"{_line(offer, now)}  {offer.source}")
    print(f"{len(offers)} offers · {_freshness(offers, now)}")


@app.command()
def refresh(as_json: options.Json = False) -> None:
    """Download today's prices of RunPod and eight clouds into a dated snapshot. No key is needed.

    Example: trmcloud prices refresh
    """
    now, tables = time.time(), price_tables()
    before = tables.offers(now)
    outcome = tables.refresh(now)
    if as_json:
        after = tables.offers(now) if outcome.path is not None else before
        said = [note("source", text) for text in outcome.notes]
        print_document(_moves(before, after, str(outcome.path or ""), outcome.offers, said))
        raise typer.Exit(0 if outcome.path is not None else 11)
    for text in outcome.notes:
        print(text)
    if outcome.path is None:
        print(f"kept the old offers: {_freshness(before, now)}")
        raise typer.Exit(11)
    print(f"{outcome.offers} offers written to {outcome.path}")
    _print_moves(before, tables.offers(now), most=MOVES_SHOWN)


@app.command()
def diff(as_json: options.Json = False) -> None:
    """Show the changes between the newest snapshot and the one before it, or the shipped table.

    Example: trmcloud prices diff
    """
    now, tables = time.time(), price_tables()
    snapshots = tables.snapshots()
    if as_json:
        offers = tables.offers(now)
        before = tables.offers(now, upto=len(snapshots) - 1) if snapshots else offers
        path = str(snapshots[-1]) if snapshots else ""
        print_document(_moves(before, offers, path, len(offers), ()))
        return
    if not snapshots:
        print("no snapshot yet: trmcloud prices refresh")
        return
    before = tables.offers(now, upto=len(snapshots) - 1)
    print(f"{snapshots[-1].stem} against {snapshots[-2].stem if snapshots[1:] else 'shipped'}")
    _print_moves(before, tables.offers(now))


def _line(offer: Offer, now: float) -> str:
    where = f"{offer.provider} {offer.region}".removesuffix(" any")
    kind = "spot " if offer.spot else "     "
    old = " (stale)" if offer.is_stale(now) else ""
    return (
        f"{offer.gpus:>2} × {offer.sku:<15}{float(offer.rate):>9.2f} $/h {kind}{where:<30}"
        f"{offer.age_days(now):>4} days{old}"
    )


def _freshness(offers: list[Offer], now: float) -> str:
    if not offers:
        return "no prices"
    ages = sorted(offer.age_days(now) for offer in offers)
    stale = sum(offer.is_stale(now) for offer in offers)
    text = f"prices {ages[0]} to {ages[-1]} days old"
    if stale:
        text += (
            f" · {stale} older than {FRESH_DAYS} days are planned with a surcharge: trmcloud "
            "prices refresh"
        )
    return text


def _print_moves(before: list[Offer], after: list[Offer], *, most: int | None = None) -> None:
    """Those that moved furthest first, then new ones."""
    moved = sorted(moves(before, after), key=_how_far)
    for offer, old in moved[:most]:
        where = f"{offer.gpus} × {offer.sku} {offer.provider} {offer.region} {offer.instance}"
        if old is None:
            print(f"  new   {where}: {offer.rate}/h")
        else:
            change = offer.rate.micros / max(1, old.micros) - 1
            print(f"  {change:+.0%}  {where}: {old}/h → {offer.rate}/h")
    if not moved:
        print("nothing moved")
    elif most is not None and len(moved) > most:
        print(f"  and {len(moved) - most:,} more: trmcloud prices diff")


def _how_far(move: tuple[Offer, Usd | None]) -> tuple[bool, float]:
    offer, old = move
    return old is None, -abs(offer.rate.micros / max(1, old.micros) - 1) if old else 0.0


def _print_guides() -> None:
    print(f"{SOURCE}; not used for plans")
    for claim in (claim for guide in guides() for claim in guide.rows):
        low, high = claim.minutes
        print(
            f"{claim.hardware:<8}{claim.phase:<9}{float(claim.rate):>7.2f} $/h"
            f"  {claim.batch:>3} × {claim.accumulation}  {claim.steps:,} steps"
            f"  {low:g}–{high:g} min  ${claim.cost_usd[0]:g}–{claim.cost_usd[1]:g}"
        )


def _offers(offers: Sequence[Offer], now: float, gpu: str = "") -> views.Offers:
    return views.Offers(
        gpu=gpu or None,
        offers=tuple(
            filled(views.OfferRow, offer, stale=offer.is_stale(now), community=offer.is_community)
            for offer in offers
        ),
    )


def _moves(
    before: list[Offer],
    after: list[Offer],
    path: str,
    number: int,
    notes: Sequence[views.Note],
) -> views.PriceMoves:
    return views.PriceMoves(
        path=path or None,
        offers=number,
        moved=tuple(
            filled(views.PriceMove, offer, before_per_hour_usd=old)
            for offer, old in sorted(moves(before, after), key=_how_far)
        ),
        notes=tuple(notes),
    )


def _guide_prices() -> views.GuidePrices:
    return views.GuidePrices(
        prices=tuple(
            filled(
                views.GuidePrice,
                claim,
                least_s=claim.minutes[0] * 60.0,
                most_s=claim.minutes[1] * 60.0,
                least_usd=claim.cost_usd[0],
                most_usd=claim.cost_usd[1],
            )
            for claim in (claim for guide in guides() for claim in guide.rows)
        )
    )
