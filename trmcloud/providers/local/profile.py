"""This machine's profile as a provider in the simulator."""

from __future__ import annotations

from trmcloud.sim.world.provider_profiles import ProviderProfile

PROFILES = (
    ProviderProfile(
        provider="local", boot_s=(0.2, 2.0), delete_s=(0.0, 1.0), lists_new_after_s=(0.0, 0.0),
        least_billed_s=1.0, self_ends="exit", restarts=False, idle_stop_s=0.0, lists_gone=True,
        reports_survive=True, disk_survives=True, ignores_timer=False, prepaid=False,
        shares=1,
    ),
)  # fmt: skip
