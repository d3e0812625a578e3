"""The traits of vast.ai, rented by its own API."""

from __future__ import annotations

from trmcloud.core.catalog import providers as catalog

NAME = "vast"

STORAGE = catalog.StoragePrices(20, 10, 200_000, 400_000, 70_000, 50_000, traffic=5_000)
"""Each host sets its own prices. These are the most that we accept: ``offers`` and every search
before a create leave out hosts that ask more, so that a plan's disks and traffic are never below
the bill's. A stopped disk may cost more than a running one (vast.ai, guides/instances/pricing)."""

TRAITS = (
    catalog.ProviderTraits(
        name=NAME,
        create_settle_s=600.0,
        # Of a list and of the instance's own answer: {"instances": null}, or 404 (vastai 1.9.1).
        absence=catalog.AbsenceProof(lists=3, missing_s=300.0, deleted_s=30.0),
        kill_latency_s=60.0,
        # A host pulls the image itself, and most have not got it.
        boot_deadline_s=1200.0,
        silence_s=120.0,
        end_grace_s=60.0,
        smoke_minutes=20.0,
        title="vast.ai",
        # Its credit is no layer: some accounts may go below zero ("debit mode"), and the API does
        # not say which (docs.vast.ai, billing).
        layers=catalog.KillLayers(independent=("agent", "guard-elsewhere")),
        machines=catalog.MachineTraits(takes_image=True),
        prices=catalog.PriceTraits(storage=STORAGE, live=True),
        route=catalog.Route(
            beware="a host can read everything on its machine; it gets a key that can only end "
            "this instance",
        ),
        # It has a shortest interval for each endpoint and publishes no number
        # (api-reference/rate-limits-and-errors, 2026-11-26): this one is ours.
        request_limits=(catalog.RequestLimit(120, 60.0),),
    ),
)
