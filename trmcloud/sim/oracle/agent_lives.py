"""What has befallen a pod and its agents: by it, one may be late, or do a thing twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trmcloud.sim.world.pod import SimPod
    from trmcloud.sim.world.world import SimWorld

_FOR_EVER_S = 1e9


class AgentLives:
    """The pods of one world that began anew, and the agents that each has had."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.restarted: set[SimPod] = set()
        self._since: dict[SimPod, float] = {}
        self._agents: dict[SimPod, int] = {}

    def agent_started(self, pod: SimPod) -> None:
        self._since[pod] = self.world.queue.now
        self._agents[pod] = self._agents.get(pod, 0) + 1

    def since(self, pod: SimPod) -> float:
        """When its present agent was started; without one yet, or with one that is stopped: now."""
        if pod.agent_stopped:
            return self.world.queue.now
        return self._since.get(pod, self.world.queue.now)

    def agents(self, pod: SimPod) -> int:
        return self._agents.get(pod, 0)

    def late_s(self, pod: SimPod) -> float:
        """How late its processes may be, where clocks were wrong; see ``Exposure``.

        After a restart the boot clock starts anew, and a wall clock that is wrong is all there is.
        """
        if pod in self.restarted and pod.machine.offset_s:
            return _FOR_EVER_S
        return self.world.check.exposure.late_s(pod.rented)

    def early_s(self, pod: SimPod) -> float:
        """How early its processes may stop: what its clock, or the one that its lease was granted
        by, takes from the time between grant and boot."""
        return max(self.late_s(pod), pod.machine.offset_s, -pod.rented.granted_ahead_s)

    def clock_wrong(self, pod: SimPod) -> bool:
        return self.late_s(pod) > 5.0 or bool(pod.machine.offset_s)
