"""The traits of RunPod, rented by its own API."""

from __future__ import annotations

from trmcloud.core.catalog.providers import OUR_LAYERS, ProviderTraits, RequestLimit, StoragePrices

NAME = "runpod"

TRAITS = (
    ProviderTraits(
        name=NAME,
        create_settle_s=600.0,
        absent_lists=3,
        kill_latency_s=60.0,
        boot_deadline_s=900.0,
        silence_s=120.0,
        end_grace_s=60.0,
        absent_s=300.0,
        absent_deleted_s=30.0,
        kill_layers=(*OUR_LAYERS, "prepaid"),
        independent_layers=("agent", "prepaid", "guard-elsewhere"),
        title="RunPod",
        live_prices=True,
        network_volumes=True,
        takes_image=True,
        # Its documentation, August 2026: pods/pricing, storage/network-volumes.
        storage=StoragePrices(20, 10, 100_000, 200_000, 70_000, 50_000),
        # The example of its documentation (api-reference-v2/rate-limits, 2026-11-26); each answer
        # says which hold for the account.
        request_limits=(RequestLimit(60, 60.0), RequestLimit(3000, 3600.0)),
    ),
)
