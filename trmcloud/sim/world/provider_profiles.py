"""A provider's habits as data: how it answers, bills, forgets and fails.

The rows are in each provider's own folder; ``wiring`` puts them into ``PROFILES``.
"""

from __future__ import annotations

from trmcloud.core.values import Value

STALE_LIST_S = 240.0
"""The time after its creation in which a flickering list may still omit a pod."""


class ProviderProfile(Value):
    """Seconds throughout; pairs are (shortest, longest).

    ``boot_s``: from the create call until the container runs. ``delete_s``: from an accepted
    delete until nothing is billed. ``lists_new_after_s``: how long a list may omit a new pod.
    ``least_billed_s`` is the billing quantum. ``self_ends``: how the pod's own guard can end it:
    ``exit`` (its processes are the pod), ``api`` (a key of the pod's own), ``shutdown`` (the
    machine ends with its operating system), or ``never``. ``restarts``: a container whose command
    exits is started again while billing goes on. ``idle_stop_s``: the provider's own timer ends an
    idle pod after that long (0: none). ``reports_survive``: the agent's last report can be read
    when the pod is gone. ``disk_survives``: so can its checkpoints. ``ignores_timer``: a deadline
    given at creation is accepted and forgotten. ``shows_boot_log``: the log of a pod that boots can
    be read. ``stops``: its hosts may stop a pod for good, whose disk is billed until it is deleted.
    ``joins_machines``: several machines can be one pod. ``shares``: how often a drawn
    scenario takes it, as against others. ``stands_for_others``: a rehearsal plays it in the place
    of a provider that has no profile.
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
    shows_boot_log: bool = False
    stops: bool = False
    joins_machines: bool = False
    shares: int = 0
    stands_for_others: bool = False


PROFILES: dict[str, ProviderProfile] = {}
"""By name, in the order of the registry of providers."""
