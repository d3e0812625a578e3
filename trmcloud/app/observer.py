"""What one process sees of a run: pods in a list, its agent's words, its bill."""

from __future__ import annotations

from dataclasses import dataclass, field

from trmcloud.app.bucket_report import BucketReport
from trmcloud.app.context import Context, list_pods
from trmcloud.core.clock import Maybe, Seen, Unknown
from trmcloud.core.contract.pod_contract import AgentReport
from trmcloud.core.control.observation import Bill, BootTrouble, Observation, PodSeen
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.errors import HostKeyChanged, LinkError, ProviderError
from trmcloud.core.spec.plan import Plan


@dataclass
class Observer:
    """``list_age_s``: how old a list that this process has may be."""

    context: Context
    list_age_s: float = 0.0
    _absent_lists: int = 0
    _generation: int = 0
    _stranger_at: float | None = None
    _heard_at: float | None = None
    _word: BucketReport = field(default_factory=BucketReport)

    def look(self, run: RunState, plan: Plan) -> Observation:
        clock = self.context.clock.now()
        now, generation = clock.wall, run.generation
        if generation is None:
            nothing = Unknown(now, "nothing was rented yet")
            return Observation(pods=nothing, report=nothing, bill=nothing)
        pods = list_pods(self.context, generation.provider, self.list_age_s)
        if generation.number != self._generation:
            self._generation, self._absent_lists = generation.number, 0
            self._stranger_at, self._heard_at = None, now
        if isinstance(pods, Seen):
            present = any(pod.name == generation.pod_name for pod in pods.value)
            self._absent_lists = 0 if present else self._absent_lists + 1
        booting = run.state is State.BOOTING
        unknown = Unknown(now)
        report: Maybe[AgentReport] = unknown
        found = self.context.links[generation.provider].report(generation.pod_name)
        trouble = self._trouble(generation) if found is None and booting else None
        if found is not None:
            report = Seen(found, found.at)
        bill: Maybe[Bill] = unknown
        unbilled = False
        if run.state is State.SETTLING or generation.missed_at is not None:
            try:
                compute = self.context.computes[generation.provider]
                billed = compute.bill(generation.pod_id or generation.pod_name)
                bill = Seen(billed, now) if billed is not None else bill
                unbilled = billed is None
            except ProviderError as error:
                bill = Unknown(now, str(error))
        return Observation(
            pods=pods,
            report=report,
            bill=bill,
            absent_lists=self._absent_lists,
            unbilled=unbilled,
            in_flight=self.context.workers.running(),
            clock=clock,
            stranger_s=self._stranger_s(trouble, now),
            line=str(trouble or ""),
            boot_trouble=self._boot_trouble(generation) if booting and found is None else None,
            word=self._left_word(run, plan, generation, pods, found),
        )

    def _left_word(
        self,
        run: RunState,
        plan: Plan,
        generation: Generation,
        pods: Maybe[tuple[PodSeen, ...]],
        found: AgentReport | None,
    ) -> AgentReport | None:
        """What the agent left in the bucket: asked for where it cannot be heard itself."""
        now = self.context.wall()
        if found is not None and found.pod_name == generation.pod_name:
            self._heard_at = now
            return None
        if self._heard_at is None or now < self._heard_at:
            self._heard_at = now  # or the clock was set back
        silent_s = now - self._heard_at
        return self._word.of(
            self.context, run, plan, gone=_is_gone(generation, pods), silent_s=silent_s
        )

    def _trouble(self, generation: Generation) -> LinkError | None:
        link = self.context.links[generation.provider]
        return link.trouble(generation.pod_name)

    def _boot_trouble(self, generation: Generation) -> BootTrouble | None:
        """What the provider's own log says, of a pod whose agent was not heard."""
        if generation.pod_id is None or generation.provider in self.context.unasked:
            return None
        return self.context.computes[generation.provider].boot_trouble(generation.pod_id)

    def _stranger_s(self, trouble: LinkError | None, now: float) -> float:
        """For how long this process has met another machine at a booting pod's address."""
        if not isinstance(trouble, HostKeyChanged):
            self._stranger_at = None
            return 0.0
        if self._stranger_at is None or now < self._stranger_at:
            self._stranger_at = now
        return now - self._stranger_at


def _is_gone(generation: Generation, pods: Maybe[tuple[PodSeen, ...]]) -> bool:
    """Whether the list that was just read holds no pod of the generation that may be at work."""
    if not isinstance(pods, Seen):
        return False
    return not any(
        pod.name == generation.pod_name and not pod.gone and generation.pod_id in (None, pod.pod_id)
        for pod in pods.value
    )
