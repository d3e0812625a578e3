"""A run that makes no step, or whose GPUs compute nothing: since when, by its pod's clock. Pure.

Any process that looks at a run may keep what it saw and compare it with what the next one sees:
the rule needs no process that stays. Both instants are of the pod's clock, so that no clock of
this machine can end a run. A pod that is silent is judged by other rules.
"""

from __future__ import annotations

from trmcloud.core.contract.pod_contract import GPU_NOTE, AgentReport, PhaseState, window_from
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.values import Value


class SeenProgress(Value):
    """What a pod had done when it was seen: ``mark`` is equal for as long as it does nothing new;
    ``since`` is when that was seen first, epoch s of the pod's clock."""

    pod_name: str
    mark: str
    since: float


def idle_limit_s(ledger: LedgerState, run: RunState) -> float:
    """Return for how long a run may make no step; 0: for any time. Its own plan may say so, and a
    grant for its runs: the shorter time counts."""
    grant = ledger.grants.get(run.payer.principal) if run.payer.principal else None
    of_grant = grant.terms.idle_s if grant is not None and grant.payer == run.payer else 0.0
    limits = [each for each in (of_grant, run.spec.idle_s if run.recorded_plan else 0.0) if each]
    return min(limits, default=0.0)


def progress_of(before: SeenProgress | None, report: AgentReport) -> SeenProgress:
    """Return the progress that ``report`` shows: ``before`` itself where nothing is new."""
    mark = _mark(report)
    if before is not None and (before.pod_name, before.mark) == (report.pod_name, mark):
        return before
    return SeenProgress(report.pod_name, mark, report.at)


def _mark(report: AgentReport) -> str:
    phases = (
        f"{p.name}:{p.state.value}:{p.step}:{p.attempts}:{p.saved_step}:{p.val_bpb}"
        for p in report.phases
    )
    notes = report.notes.get("data", "")
    return "|".join((report.waiting, str(len(report.uploaded)), notes, *phases))


def why_idle(
    run: RunState, progress: SeenProgress, report: AgentReport, limit_s: float
) -> Reason | None:
    """Why a run is to end that has made no step for ``limit_s``; None where it goes on.

    A command whose log names no step is judged by its GPUs, where its pod reports their use, and
    else by its own rule alone, see ``Command.silent_s``.
    """
    if not limit_s or run.state is not State.RUNNING or run.stop is not None or report.landing:
        return None
    now = [phase for phase in report.phases if phase.state is PhaseState.RUNNING]
    if run.spec.command is not None and now and now[-1].step is None:
        window = window_from(report.notes.get(GPU_NOTE, ""))
        kind, idle_s = ReasonKind.GPUS_IDLE, window.idle_s if window is not None else None
    else:
        kind, idle_s = ReasonKind.IDLE, report.at - progress.since
    if idle_s is None or idle_s < limit_s:
        return None
    return make_reason(kind, idle_s=float(round(idle_s)), limit_s=float(limit_s))
