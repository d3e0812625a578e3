"""The traits of RunPod, rented by its own API."""

from __future__ import annotations

from trmcloud.core.catalog import providers as catalog

NAME = "runpod"

TRAITS = (
    catalog.ProviderTraits(
        name=NAME,
        create_settle_s=600.0,
        absence=catalog.AbsenceProof(lists=3, missing_s=300.0, deleted_s=30.0),
        kill_latency_s=60.0,
        boot_deadline_s=900.0,
        silence_s=120.0,
        end_grace_s=60.0,
        title="RunPod",
        layers=catalog.KillLayers(("prepaid",), ("agent", "prepaid", "guard-elsewhere")),
        machines=catalog.MachineTraits(takes_image=True, network_volumes=True),
        # Its documentation, August 2026: pods/pricing, storage/network-volumes.
        prices=catalog.PriceTraits(
            storage=catalog.StoragePrices(20, 10, 100_000, 200_000, 70_000, 50_000), live=True
        ),
        # The example of its documentation (api-reference-v2/rate-limits, 2026-11-26); each answer
        # says which hold for the account.
        request_limits=(catalog.RequestLimit(60, 60.0), catalog.RequestLimit(3000, 3600.0)),
    ),
)
