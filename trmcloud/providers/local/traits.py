"""The traits of pods on this machine."""

from __future__ import annotations

from trmcloud.core.catalog import providers as catalog
from trmcloud.core.catalog.hardware import LOCAL

TRAITS = (
    catalog.ProviderTraits(
        name=LOCAL,
        create_settle_s=1.0,
        absence=catalog.AbsenceProof(lists=1),
        kill_latency_s=3.0,
        boot_deadline_s=60.0,
        silence_s=15.0,
        end_grace_s=10.0,
        hang_after_s=catalog.LOCAL_HANG_AFTER_S,
        prices=catalog.PriceTraits(storage=catalog.StoragePrices(0, 0, 0, 0, 0, 0)),
    ),
)
