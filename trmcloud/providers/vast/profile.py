"""vast.ai's profile in the simulator."""

from __future__ import annotations

from trmcloud.sim.world.provider_profiles import ProviderProfile

PROFILES = (
    ProviderProfile(
        provider="vast", boot_s=(30.0, 900.0), delete_s=(1.0, 30.0),
        lists_new_after_s=(0.0, 10.0), least_billed_s=1.0, self_ends="api", restarts=True,
        idle_stop_s=0.0, lists_gone=False, reports_survive=True, disk_survives=True,
        ignores_timer=True, prepaid=True,
        shows_boot_log=True, stops=True, shares=1,
    ),
)  # fmt: skip
