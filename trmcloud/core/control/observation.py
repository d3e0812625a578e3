"""Observations of the outside world: pods in a list, bills, an agent's report. Pure."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from trmcloud.core.money import ZERO, Usd
from trmcloud.core.values import Value

if TYPE_CHECKING:
    from trmcloud.core.clock import Instant, Maybe
    from trmcloud.core.contract.pod_contract import AgentReport
    from trmcloud.core.control.events import ActionKey


class PodStatus(str, Enum):
    """A pod's status at its provider."""

    CREATING = "creating"
    RUNNING = "running"
    STOPPED = "stopped"
    """For good: nothing runs on it any more, and its disk is billed until it is deleted."""
    GONE = "gone"
    UNKNOWN = "unknown"
    """Counts as spending."""


class PodSeen(Value):
    """A pod in a provider's list.

    ``host`` and ``port`` are SSH's direct address; empty until the provider has given one.
    ``made_at`` and ``ended_at`` are epoch seconds by the provider's clock. ``region`` is the data
    centre it stands in; empty where the provider does not say.
    """

    pod_id: str
    name: str
    status: PodStatus
    rate: Usd
    ended_at: float | None = None
    host: str = ""
    port: int = 0
    made_at: float | None = None
    region: str = ""
    disk_rate: Usd = ZERO
    """USD/h of its own disks, on top of ``rate``."""
    never_made: str = ""
    """Of one that is gone: why its create, which was taken, came to nothing. Where its rate is zero
    nothing was billed; else some machines of several may have been."""

    @property
    def gone(self) -> bool:
        """Whether it has ended, and costs nothing any more."""
        return self.status is PodStatus.GONE


class Bill(Value):
    """The cost of a pod by its provider's account; ``final`` once it will not change."""

    pod_id: str
    amount: Usd
    final: bool


class BootTrouble(Value):
    """The trouble of a booting pod in the provider's own log, in its words: one line.

    ``fatal``: by what is known of such lines, the pod will not come up. It is a reason to end a
    boot of which nothing was heard, and proves nothing else.
    """

    text: str
    fatal: bool = False


class Observation(Value):
    """An observation of one run. ``absent_lists`` counts the fresh lists in a row that did not hold
    the current generation's pod."""

    pods: Maybe[tuple[PodSeen, ...]]
    report: Maybe[AgentReport]
    bill: Maybe[Bill]
    absent_lists: int = 0
    unbilled: bool = False
    """The provider was asked, and has no bill for the pod."""
    in_flight: frozenset[ActionKey] = frozenset()
    stranger_s: float = 0.0
    """For how long a machine with another host key has answered at the pod's address."""
    line: str = ""
    """Why the pod could not be asked last time, in words."""
    boot_trouble: BootTrouble | None = None
    """Of a pod that boots and has not reported."""
    clock: Instant | None = None
    """Both clocks of the observer at that time."""
    word: AgentReport | None = None
    """The report that the generation's agent left in the bucket, where the agent itself cannot be
    asked any more."""
    bucket_failed: bool = False
    """Whether the bucket did not answer when it was asked for that last."""
