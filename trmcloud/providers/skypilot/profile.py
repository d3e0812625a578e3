"""The profile in the simulator of a cloud rented through SkyPilot."""

from __future__ import annotations

from trmcloud.sim.world.provider_profiles import ProviderProfile

PROFILES = (
    ProviderProfile(
        provider="skypilot", boot_s=(120.0, 600.0), delete_s=(5.0, 45.0),
        lists_new_after_s=(0.0, 5.0), least_billed_s=60.0, self_ends="api", restarts=False,
        idle_stop_s=300.0, lists_gone=False, reports_survive=True, disk_survives=True,
        ignores_timer=False, prepaid=False,
        joins_machines=True, shares=1, stands_for_others=True,
    ),
    ProviderProfile(
        provider="aws", boot_s=(60.0, 300.0), delete_s=(5.0, 40.0), lists_new_after_s=(0.0, 5.0),
        least_billed_s=60.0, self_ends="shutdown", restarts=False, idle_stop_s=0.0,
        lists_gone=True, reports_survive=True, disk_survives=True, ignores_timer=False,
        prepaid=False,
        joins_machines=True, shares=1,
    ),
)  # fmt: skip
