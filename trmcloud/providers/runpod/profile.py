"""RunPod's profile in the simulator."""

from __future__ import annotations

from trmcloud.sim.world.provider_profiles import ProviderProfile

PROFILES = (
    ProviderProfile(
        provider="runpod", boot_s=(20.0, 400.0), delete_s=(1.0, 15.0),
        lists_new_after_s=(0.0, 10.0), least_billed_s=1.0, self_ends="api", restarts=True,
        idle_stop_s=0.0, lists_gone=False, reports_survive=True, disk_survives=True,
        ignores_timer=True, prepaid=True,
        shows_boot_log=True, shares=3,
    ),
)  # fmt: skip
