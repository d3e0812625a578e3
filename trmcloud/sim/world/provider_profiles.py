"""Providers' habits as data: how each one answers, bills, forgets and fails."""

from __future__ import annotations

from collections.abc import Mapping

from trmcloud.core.values import dataclass

STALE_LIST_S = 240.0
"""How long after its creation a flickering list may still omit a pod."""


@dataclass(frozen=True)
class ProviderProfile:
    """Seconds throughout; pairs are (shortest, longest).

    ``boot_s``: from the create call until the container runs. ``delete_s``: from an accepted
    delete until nothing is billed. ``lists_new_after_s``: how long a list may omit a new pod.
    ``least_billed_s`` is the billing quantum. ``self_ends``: how the pod's own guard can end it:
    ``exit`` (its processes are the pod), ``api`` (a key of the pod's own), ``shutdown`` (the
    machine ends with its operating system), or ``never``. ``restarts``: a container whose command
    exits is started again while billing goes on. ``idle_stop_s``: the provider's own timer ends an
    idle pod after that long (0: none). ``reports_survive``: the agent's last report can be read
    when the pod is gone. ``disk_survives``: so can its checkpoints. ``ignores_timer``: a deadline
    given at creation is accepted and forgotten.
    """

    provider: str
    boot_s: tuple[float, float]
    delete_s: tuple[float, float]
    lists_new_after_s: tuple[float, float]
    least_billed_s: float
    self_ends: str
    restarts: bool
    idle_stop_s: float
    lists_gone: bool
    reports_survive: bool
    disk_survives: bool
    ignores_timer: bool
    prepaid: bool


PROFILES: Mapping[str, ProviderProfile] = {
    "local": ProviderProfile(
        provider="local", boot_s=(0.2, 2.0), delete_s=(0.0, 1.0), lists_new_after_s=(0.0, 0.0),
        least_billed_s=1.0, self_ends="exit", restarts=False, idle_stop_s=0.0, lists_gone=True,
        reports_survive=True, disk_survives=True, ignores_timer=False, prepaid=False,
    ),
    "runpod": ProviderProfile(
        provider="runpod", boot_s=(20.0, 400.0), delete_s=(1.0, 15.0),
        lists_new_after_s=(0.0, 10.0), least_billed_s=1.0, self_ends="api", restarts=True,
        idle_stop_s=0.0, lists_gone=False, reports_survive=True, disk_survives=True,
        ignores_timer=True, prepaid=True,
    ),
    "skypilot": ProviderProfile(
        provider="skypilot", boot_s=(120.0, 600.0), delete_s=(5.0, 45.0),
        lists_new_after_s=(0.0, 5.0), least_billed_s=60.0, self_ends="api", restarts=False,
        idle_stop_s=300.0, lists_gone=False, reports_survive=True, disk_survives=True,
        ignores_timer=False, prepaid=False,
    ),
    "aws": ProviderProfile(
        provider="aws", boot_s=(60.0, 300.0), delete_s=(5.0, 40.0), lists_new_after_s=(0.0, 5.0),
        least_billed_s=60.0, self_ends="shutdown", restarts=False, idle_stop_s=0.0,
        lists_gone=True, reports_survive=True, disk_survives=True, ignores_timer=False,
        prepaid=False,
    ),
}  # fmt: skip
