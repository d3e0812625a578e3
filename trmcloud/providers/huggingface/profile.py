"""Hugging Face's profile in the simulator."""

from __future__ import annotations

from trmcloud.sim.world.provider_profiles import ProviderProfile

PROFILES = (
    ProviderProfile(
        provider="huggingface", boot_s=(10.0, 600.0), delete_s=(1.0, 20.0),
        lists_new_after_s=(0.0, 5.0), least_billed_s=60.0, self_ends="shutdown", restarts=False,
        idle_stop_s=0.0, lists_gone=False, reports_survive=True, disk_survives=True,
        ignores_timer=False, prepaid=False, shares=1,
    ),
)  # fmt: skip
