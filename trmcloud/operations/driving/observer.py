"""Observations of a run by one process: pods in a list, reports, the bucket's report, bills."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from trmcloud.core.clock import DatedFact, Maybe, UnknownSince
from trmcloud.core.contract.pod_contract import AgentReport, load_report
from trmcloud.core.contract.records import ContractError
from trmcloud.core.control import events as ev
from trmcloud.core.control.billing import awaiting_bill, late_bills
from trmcloud.core.control.observation import Bill, BootTrouble, Observation, PodSeen
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.errors import HostKeyChanged, LinkError, ProviderError, TrmcloudError
from trmcloud.core.spec.plan import Plan
from trmcloud.operations.context import Context

# Final bills of pods that are gone: they come when no command waits for them any more.


def final_bills(context: Context, run: RunState) -> tuple[ev.Billed, ...]:
    """Those that have come since the run was settled by an estimate."""
    bills = {}
    for generation in awaiting_bill(run):
        if generation.provider in context.machines.unasked:
            continue
        with suppress(TrmcloudError):  # what cannot be asked now is asked another time
            compute = context.machines.computes[generation.provider]
            bill = compute.bill(generation.pod_id or generation.pod_name)
            if bill is not None:
                bills[generation.number] = bill
    return late_bills(run, bills)


# What a pod's agent left in the run's bucket, for where it cannot be asked any more.

_ASK_EVERY_S = 20.0
_AFTER_FAILURE_S = 60.0
_SILENT_S = 60.0
"""So long a link may be down before the bucket is asked about a pod that is listed."""


@dataclass
class BucketReport:
    """One process's knowledge of it: asked for now and then, and kept. A bucket in trouble is none
    for the run, which goes on as if there were no word."""

    _generation: int = 0
    _asked_at: float = 0.0
    _pause_s: float = 0.0
    _stage: tuple[bool, bool] = (False, False)
    _text: bytes | None = None
    _word: AgentReport | None = None
    _final: bool = False
    failed: bool = False
    """Whether the bucket did not answer when it was asked last."""

    def of(
        self, context: Context, run: RunState, plan: Plan, *, gone: bool, silent_s: float
    ) -> AgentReport | None:
        """``gone``: the newest list lacks the pod; ``silent_s``: for how long this process has not
        heard the agent."""
        generation = run.generation
        if generation is None or not _is_wanted(run, plan, generation):
            return None
        if run.state is not State.SETTLING and not gone and silent_s < _SILENT_S:
            return None
        if generation.number != self._generation:
            self._generation = generation.number
            self._stage, self._word, self._final = (False, False), None, False
            self._text = None
            self._pause_s = 0.0
            self.failed = False
        stage = (gone, run.state is State.SETTLING)
        if stage != self._stage:
            # What was asked before it was gone may lack what it said at its end.
            self._stage, self._pause_s = stage, 0.0
        if not self._final and not 0 <= context.wall() - self._asked_at < self._pause_s:
            self._ask(context, run, generation)
            self._asked_at = context.wall()
        return self._word

    def _ask(self, context: Context, run: RunState, generation: Generation) -> None:
        try:
            bucket = context.buckets.at(run.bucket)
            text = bucket.last_report(run.run_id, generation.number)
            if text != self._text or text is None:
                self._text, self._word = text, None
                self._word = load_report(text) if text is not None else None
        except ContractError:
            self._word = None
        except TrmcloudError:
            self.failed = True
            self._pause_s = _AFTER_FAILURE_S
            return
        self._pause_s, self.failed = _ASK_EVERY_S, False
        # Once the pod is known to be gone, what it left does not change.
        ended = self._word is not None and self._word.result is not None
        self._final = ended or run.state is State.SETTLING


def _is_wanted(run: RunState, plan: Plan, generation: Generation) -> bool:
    uploads = plan.spec.pod_uploads and run.errand is None and generation.agent_at is not None
    return uploads and run.result is None and run.state in (State.RUNNING, State.SETTLING)


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

    def look(self, run: RunState, plan: Plan, list_age_s: float | None = None) -> Observation:
        """``list_age_s``: this once, in place of its own."""
        clock = self.context.clock.now()
        now, generation = clock.wall, run.generation
        if generation is None:
            nothing = UnknownSince(now, "nothing was rented yet")
            return Observation(pods=nothing, report=nothing, bill=nothing)
        asks = generation.open and generation.provider not in self.context.machines.unasked
        if generation.pod_id is not None and asks:
            self.context.machines.computes[generation.provider].expect(generation.pod_id)
        at_most_s = self.list_age_s if list_age_s is None else list_age_s
        pods = self.context.machines.list_pods(generation.provider, now, at_most_s)
        if generation.number != self._generation:
            self._generation, self._absent_lists = generation.number, 0
            self._stranger_at, self._heard_at = None, now
        if isinstance(pods, DatedFact):
            present = any(pod.name == generation.pod_name for pod in pods.value)
            self._absent_lists = 0 if present else self._absent_lists + 1
        booting = run.state is State.BOOTING
        unknown = UnknownSince(now)
        report: Maybe[AgentReport] = unknown
        link = self.context.machines.links[generation.provider]
        found = link.report(generation.pod_name)
        trouble = link.trouble(generation.pod_name) if found is None and booting else None
        if found is not None:
            report = DatedFact(found, found.at)
            self.context.notes.add_machine(run, found)
        bill: Maybe[Bill] = unknown
        unbilled = False
        if run.state is State.SETTLING or generation.absence is not None:
            try:
                compute = self.context.machines.computes[generation.provider]
                billed = compute.bill(generation.pod_id or generation.pod_name)
                bill = DatedFact(billed, now) if billed is not None else bill
                unbilled = billed is None
            except ProviderError as error:
                bill = UnknownSince(now, str(error))
        word = self._left_word(run, plan, generation, pods, found)
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
            word=word,
            bucket_failed=self._word.failed,
        )

    def _left_word(
        self,
        run: RunState,
        plan: Plan,
        generation: Generation,
        pods: Maybe[tuple[PodSeen, ...]],
        found: AgentReport | None,
    ) -> AgentReport | None:
        """Read the report that the agent left in the bucket, where it cannot be heard itself."""
        now = self.context.wall()
        is_heard = found is not None and found.pod_name == generation.pod_name
        # A pod that is gone is not heard: the report is an old one, or of a twin of its name.
        if is_heard and run.state is not State.SETTLING:
            self._heard_at = now
            return None
        if self._heard_at is None or now < self._heard_at:
            self._heard_at = now  # or the clock was set back
        silent_s = now - self._heard_at
        return self._word.of(
            self.context, run, plan, gone=_is_gone(generation, pods), silent_s=silent_s
        )

    def _boot_trouble(self, generation: Generation) -> BootTrouble | None:
        """Read the provider's own log about a pod whose agent was not heard."""
        if generation.pod_id is None or generation.provider in self.context.machines.unasked:
            return None
        return self.context.machines.computes[generation.provider].boot_trouble(generation.pod_id)

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
    if not isinstance(pods, DatedFact):
        return False
    return not any(
        pod.name == generation.pod_name and not pod.gone and generation.pod_id in (None, pod.pod_id)
        for pod in pods.value
    )
