"""The only excuses of judges: what no controller could have known, and what has befallen a pod."""

from __future__ import annotations

from math import inf

from trmcloud.sim.oracle.promises import Promises
from trmcloud.sim.world.account import Pod, RentedMachine, World

_CLOCKS_AGREE_S = 0.5
_FOR_EVER_S = 1e9


STOPPED = frozenset({"7", "9", "14", "61"})
"""With these a controller may wake up in the middle of a call and go on with it."""


class Uncertainty:
    """Things that no controller could have known, since the provider or a clock lied beyond what
    ``core.providers`` says that it may."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.clocks_moved = False

    def look(self) -> None:
        if self._world.laptop.offset_s or self._world.server.offset_s:
            self.clocks_moved = True

    def absence(self, rented: RentedMachine | None) -> bool:
        """Whether a pod's absence may have been misjudged: by a clock that was set meanwhile, or
        since the pod came later than its provider's longest delay, or was in no list for longer
        than its provider's lists may be late, without a report of its agent."""
        if self.clocks_moved or rented is None:
            return self.clocks_moved
        return rented.came_too_late or self.is_unseen(rented)

    def is_unseen(self, rented: RentedMachine) -> bool:
        """Whether lists lacked the pod for longer than they may be late, and its agent never
        reported."""
        return rented.hidden_for_long and not rented.heard

    @property
    def woken(self) -> bool:
        """Whether some controller may have gone on in the middle of a call."""
        return bool(STOPPED & self._world.fired.keys())

    @property
    def is_time_odd(self) -> bool:
        """Whether a controller's time is not to be trusted."""
        return self.woken or self.clocks_moved


class AgentLives:
    """The pods of one world that began anew, and the agents that each has had."""

    def __init__(self, check: Promises) -> None:
        self.world, self._check = check.world, check
        self.restarted: set[Pod] = set()
        self._since: dict[Pod, float] = {}
        self._agents: dict[Pod, int] = {}

    def on_agent_start(self, pod: Pod) -> None:
        self._since[pod] = self.world.queue.now
        self._agents[pod] = self._agents.get(pod, 0) + 1

    def since(self, pod: Pod) -> float:
        """When its present agent was started; without one yet, or with one that is stopped: now."""
        if pod.agent_stopped:
            return self.world.queue.now
        return self._since.get(pod, self.world.queue.now)

    def agents(self, pod: Pod) -> int:
        return self._agents.get(pod, 0)

    def late_s(self, pod: Pod) -> float:
        """Return the delay that is allowed to its processes where clocks were wrong; see
        ``Exposure``.

        After a restart the boot clock starts anew, and a wall clock that is wrong is all there is.
        """
        if pod in self.restarted and pod.machine.offset_s:
            return _FOR_EVER_S
        return self._check.exposure.late_s(pod.rented)

    def early_s(self, pod: Pod) -> float:
        """Return the time by which its processes may stop early: its clock, or the one that its
        lease was granted by, may shorten the time between grant and boot."""
        return max(self.late_s(pod), pod.machine.offset_s, -pod.rented.granted_ahead_s)

    def clock_wrong(self, pod: Pod) -> bool:
        return self.late_s(pod) > 5.0 or bool(pod.machine.offset_s)

    def killable_since(self, rented: RentedMachine) -> float:
        """Of a pod on this machine: since when one layer or another could have killed it at once;
        infinite where none could, or where clocks were wrong."""
        pod, laptop, exposure = rented.pod, self.world.laptop, self._check.exposure
        if laptop.offset_s or not laptop.awake or abs(rented.granted_ahead_s) > _CLOCKS_AGREE_S:
            return inf
        since = exposure.able.get(rented.run_id, inf) if rented.unowned_at is None else inf
        if self.world.queue.now < max(rented.refuses_until, rented.undeletable_until):
            since = inf
        if pod.running and exposure.agent_could(rented):
            agent_since = self.since(pod)
            since = min(since, max(agent_since, pod.stopped_until))
        if pod.running and pod.guard is not None and not pod.guard_stopped:
            since = min(since, max(pod.booted_at, pod.stopped_until))
        return since
