"""The traits of Hugging Face Jobs, rented by its own API."""

from __future__ import annotations

from trmcloud.core.catalog import providers as catalog

NAME = "huggingface"

TRAITS = (
    catalog.ProviderTraits(
        name=NAME,
        create_settle_s=600.0,
        # Of a list and of a 404 to its id; a terminal stage proves it at once (huggingface_hub
        # 2.4.0, TERMINAL_JOB_STAGES).
        absence=catalog.AbsenceProof(lists=3, missing_s=300.0, deleted_s=30.0),
        # A job that was cancelled ends within a minute, and a begun minute is billed whole.
        kill_latency_s=120.0,
        # Jobs were seen in SCHEDULING for hours: huggingface_hub #4376.
        boot_deadline_s=1200.0,
        silence_s=120.0,
        end_grace_s=60.0,
        # Half of it is the time in which a job may wait for its machine.
        smoke_minutes=12.0,
        title="Hugging Face",
        layers=catalog.KillLayers(("timeout",), ("agent", "timeout", "guard-elsewhere")),
        machines=catalog.MachineTraits(takes_image=True),
        # The disk belongs to the hardware and is in its price.
        prices=catalog.PriceTraits(storage=catalog.StoragePrices(0, 10, 0, 0, 0, 0), live=True),
        # A free user's (docs/hub/rate-limits, 2026-11-26); each answer says the account's own.
        request_limits=(catalog.RequestLimit(1000, 300.0),),
    ),
)
