"""Observations of the outside world, and values that a pod reported. Pure."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

from trmcloud.core.money import ZERO, Usd
from trmcloud.core.values import dataclass

if TYPE_CHECKING:
    from trmcloud.core.clock import Instant, Maybe
    from trmcloud.core.contract.pod_contract import AgentReport
    from trmcloud.core.control.events import ActionKey

# Values that a pod reported, which no screen can show as facts. Pure.

T = TypeVar("T")
R = TypeVar("R")
BY_POD = "by the pod's report"
PODS = "pod's"
POD = "pod"
"""``reported_by`` in JSON and in facts of notices."""
MARK = "*"


class ReportedValue(Generic[T]):
    """A value of which this machine knows only that a pod said so.

    It has no text of its own and is no number: a view shows it with ``as_reported``, which says
    whose word it is, and a fact is made of it by ``checked`` alone, from code that looks at bytes
    on this machine. ``here``: the trainer ran on this machine, and its word is not a stranger's.
    """

    __slots__ = ("_told", "here")

    def __init__(self, told: T, *, here: bool = False) -> None:
        self._told, self.here = told, here

    def as_reported(self, words: Callable[[T], str]) -> str:
        """Its words, with whose report they are; of a run on this machine the words alone."""
        said = words(self._told)
        return said if self.here else f"{said} {BY_POD}"

    def as_marked(self, words: Callable[[T], str]) -> str:
        """In a table, below which ``MARK`` is explained."""
        said = words(self._told)
        return said if self.here else f"{said}{MARK}"

    def as_pods(self, words: Callable[[T], str]) -> str:
        """In a line that has room for little: ``pod's bpb 2.31``."""
        said = words(self._told)
        return said if self.here else f"{PODS} {said}"

    @property
    def source(self) -> str | None:
        """The source of the figure, for programs; None where this machine measured it."""
        return None if self.here else POD

    def checked(self, judge: Callable[[T], R]) -> R:
        """The result of ``judge``, which holds the value against bytes on this machine."""
        return judge(self._told)

    def __str__(self) -> str:
        return "(a pod's report)"

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return str(self)

    def __bool__(self) -> bool:
        raise TypeError("a pod's report is no answer to a question of ours")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReportedValue) and (self._told, self.here) == (
            other._told,
            other.here,
        )

    def __hash__(self) -> int:
        return hash((ReportedValue, self.here))


# What can be seen of the outside world: pods in a list, bills, an agent's report.


class PodStatus(str, Enum):
    """A pod's status at its provider."""

    CREATING = "creating"
    RUNNING = "running"
    STOPPED = "stopped"
    """For good: nothing runs on it any more, and its disk is billed until it is deleted."""
    GONE = "gone"
    UNKNOWN = "unknown"
    """Counts as spending."""


@dataclass(frozen=True)
class PodSeen:
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


@dataclass(frozen=True)
class Bill:
    """The cost of a pod by its provider's account; ``final`` once it will not change."""

    pod_id: str
    amount: Usd
    final: bool


@dataclass(frozen=True)
class BootTrouble:
    """The trouble of a booting pod in the provider's own log, in its words: one line.

    ``fatal``: by what is known of such lines, the pod will not come up. It is a reason to end a
    boot of which nothing was heard, and proves nothing else.
    """

    text: str
    fatal: bool = False


@dataclass(frozen=True)
class Observation:
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
