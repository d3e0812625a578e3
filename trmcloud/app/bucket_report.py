"""What a pod's agent left in the run's bucket, for where it cannot be asked any more."""

from __future__ import annotations

from dataclasses import dataclass

from trmcloud.app.context import Context, bucket_at
from trmcloud.core.contract.pod_contract import AgentReport, load_report
from trmcloud.core.contract.records import ContractError
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.errors import TrmcloudError
from trmcloud.core.spec.plan import Plan

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
            bucket = bucket_at(context, run.bucket)
            text = bucket.last_report(run.run_id, generation.number)
            if text != self._text or text is None:
                self._text, self._word = text, None
                self._word = load_report(text) if text is not None else None
        except ContractError:
            self._word = None
        except TrmcloudError:
            self._pause_s = _AFTER_FAILURE_S
            return
        self._pause_s = _ASK_EVERY_S
        # Once the pod is known to be gone, what it left does not change.
        ended = self._word is not None and self._word.result is not None
        self._final = ended or run.state is State.SETTLING


def _is_wanted(run: RunState, plan: Plan, generation: Generation) -> bool:
    uploads = plan.spec.pod_uploads and run.errand is None and generation.agent_at is not None
    return uploads and run.result is None and run.state in (State.RUNNING, State.SETTLING)
