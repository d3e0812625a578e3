"""What is left of a simulated pod of several machines once its first one is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.pod_contract import PhaseState
from trmcloud.core.values import replace
from trmcloud.pod.agent.nodes import HEAD_LOOK_EVERY_S, HEAD_LOST_S, HeadWatch

if TYPE_CHECKING:
    from trmcloud.sim.world.pod import SimPod


class OtherMachines:
    """One pod's machines but the first: they come to life when that is lost."""

    def __init__(self, pod: SimPod) -> None:
        self._pod = pod
        self.head_watch: HeadWatch | None = None
        """As they look at the first one, once that is lost."""
        self._head_lost_at = 0.0

    def lose_head(self) -> None:
        """The first of its machines is lost, with its agent, its guard and its disk; the others'
        trainers have failed with it. They are there, and billed, and look for the first."""
        now = self._pod.world.queue.now
        self._pod.stop()
        self._pod.world.files.lose_pod(self._pod.rented.run_id, pod_id=self._pod.rented.pod_id)
        answers = [True, False]
        self.head_watch = HeadWatch(lambda: answers.pop(0) if answers else False, self._boot_s)
        self.head_watch.look()
        self._head_lost_at = now
        self._pod.world.queue.after(HEAD_LOOK_EVERY_S, self._look_for_head)
        self._pod.world.queue.at(now + self._pod.world.check.head_lost_s, self._must_have_ended)

    def _boot_s(self) -> float:
        return self._pod.machine.now().boot

    def _look_for_head(self) -> None:
        watch, rented = self.head_watch, self._pod.rented
        if watch is None or rented.ended or rented.deleting:
            return
        watch.look()
        if watch.is_lost:
            rented.ended_by = rented.ended_by or "another machine"
            rented.account.end_from_inside(rented)
        self._pod.world.queue.after(HEAD_LOOK_EVERY_S, self._look_for_head)

    def _must_have_ended(self) -> None:
        self._pod.world.check.head_was_lost(self._pod.rented)

    def word(self) -> contract.AgentReport | None:
        """What the link makes of another machine's report, once the first was silent for long: see
        ``adapters.ssh.others``."""
        base = self._pod.durable_report or self._pod.report
        if base is None or self._pod.world.queue.now - self._head_lost_at < HEAD_LOST_S:
            return None
        phases = tuple(
            replace(phase, state=PhaseState.ENDED, outcome="crashed")
            if phase.state is PhaseState.RUNNING
            else phase
            for phase in base.phases
        )
        word = replace(
            base, result="failed", message="the first machine is lost", phases=phases, kept=()
        )
        self._pod.said.hear(word)
        return word
