"""Facts about a run's pod without a request to it: the driver of the run asks."""

from __future__ import annotations

from typing import TypeVar

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import is_brokered, traits_of
from trmcloud.core.clock import DatedFact, UnknownSince
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.pod_contract import AgentReport, CheckpointRef
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control import controller
from trmcloud.core.control.actions import PULL, TERMINATE, pulled_of
from trmcloud.core.control.controller import WaitState
from trmcloud.core.control.events import ActionKey
from trmcloud.core.control.observation import PodStatus
from trmcloud.core.control.run_state import GRANT, Generation, RunState, State
from trmcloud.core.errors import HostKeyChanged, LinkError, NoAddress
from trmcloud.core.reported import ReportedValue
from trmcloud.core.text import one_line
from trmcloud.core.values import Value
from trmcloud.io.files import read_small
from trmcloud.operations.context import Context
from trmcloud.ports.ledger import Driver

_T = TypeVar("_T")

BOOT_PATIENCE_S = 30.0
"""For so long a pod that boots may be out of reach before that is told."""
SETUP_PATIENCE_S = 600.0
"""Of a cluster: SkyPilot installs itself on it before our agent starts its SSH server."""


class WorkerTransfer(Value):
    """A worker's present transfer in this process. ``what`` is stage, grant or a checkpoint's
    label; ``size`` is 0 while it is not known."""

    key: ActionKey
    what: str
    done: int
    size: int


def is_rented(run: RunState) -> bool:
    """Whether the run's present pod is a rented machine."""
    return run.generation is not None and run.generation.provider != LOCAL


def mark_reported(run: RunState, value: _T) -> ReportedValue[_T]:
    """A value as this run's trainer reported it: from this machine, or from one of its pods."""
    return ReportedValue(value, here=run.trained_here)


def last_report(context: Context, run: RunState) -> AgentReport | None:
    """Return the last report of the present pod's agent to any process of this home."""
    return report_of(context, run.generation) if run.generation is not None else None


def report_of(context: Context, generation: Generation) -> AgentReport | None:
    """Return the last report of a pod's agent to any process of this home."""
    path = context.home / contract.PODS_DIR / generation.pod_name / contract.REPORT_NAME
    try:
        text = read_small(path)
        return contract.load_report(text) if text is not None else None
    except ValueError:
        return None


def data_progress_text(context: Context, run: RunState) -> str:
    """Return the present pod's progress with the data that it makes, in its agent's words; empty
    where it makes none."""
    report = last_report(context, run)
    return one_line(report.notes.get(contract.DATA_NOTE, "")) if report is not None else ""


def waits_for_data(run: RunState, beat: Heartbeat | None) -> bool:
    """Whether nothing is trained now because the data for it is still being made."""
    return run.state is State.RUNNING and (
        beat is None or beat.state == "waiting" or (beat.state == "starting" and not beat.step)
    )


def reported_uploads(context: Context, run: RunState) -> tuple[CheckpointRef, ...]:
    """Return the checkpoints in the run's bucket by its agents' last reports to this home: the
    bucket itself is not asked."""
    if not run.bucket:
        return ()
    reports = [report_of(context, generation) for generation in run.generations]
    uploaded = (ref for report in reports if report is not None for ref in report.uploaded)
    return tuple({ref.bits: ref for ref in uploaded}.values())


def newest_beat(context: Context, run: RunState) -> Heartbeat | None:
    """Return the newest heartbeat of the run that this home has, whichever pod's it is."""
    phases = context.files.phases(run.run_id)
    beats = [context.files.heartbeat(run.run_id, phase) for phase in phases]
    return max((b for b in beats if b is not None), key=lambda b: b.at, default=None)


def last_beat(context: Context, run: RunState) -> Heartbeat | None:
    """The present pod's newest heartbeat, as this home has it; an earlier pod's is none."""
    generation = run.generation
    if generation is None:
        return None
    newest = newest_beat(context, run)
    report = last_report(context, run)
    # The pod's own clock, where it has told it: ours may differ.
    since = report.started_at if report is not None else generation.intended_at
    return newest if newest is not None and newest.at >= since else None


def errands(context: Context, run: RunState) -> tuple[WorkerTransfer, ...]:
    found = []
    mine = (key for key in context.workers.running() if key.run_id == run.run_id)
    for key in sorted(mine, key=lambda key: (key.generation, key.verb, key.attempt, key.item)):
        done, size = context.workers.progress(key) or (0, 0)
        what = _label(key.item) if key.verb == PULL else key.verb
        found.append(WorkerTransfer(key, what, done, size))
    return tuple(found)


def link_trouble(context: Context, run: RunState) -> LinkError | None:
    """Why the run's pod does not answer, where it should: it is up, and was not ended. For
    the first half minute of its boot it need not (a cluster that is set up first: ten minutes), nor
    before it has an address; whatever does must be it."""
    generation = run.generation
    if generation is None or generation.provider == LOCAL or generation.absence is not None:
        return None
    if generation.provider in context.machines.unasked:
        return None
    if run.state not in (State.BOOTING, State.RUNNING, State.ENDING) or ending_was_asked(run):
        return None
    link = context.machines.links[generation.provider]
    trouble = link.trouble(generation.pod_name)
    if run.state is not State.BOOTING or isinstance(trouble, HostKeyChanged):
        return trouble
    up_at = generation.up_at or generation.intended_at
    patience_s = SETUP_PATIENCE_S if traits_of(generation.provider).route.via else BOOT_PATIENCE_S
    early = context.wall() - up_at < patience_s
    return None if early or isinstance(trouble, NoAddress) else trouble


def boot_trouble(context: Context, run: RunState) -> str:
    """Return the trouble of the run's booting pod in the provider's own log, in its words; empty
    where it says nothing, or the pod is being ended."""
    generation = run.generation
    if run.state is not State.BOOTING or generation is None or generation.pod_id is None:
        return ""
    if generation.provider in context.machines.unasked or ending_was_asked(run):
        return ""
    trouble = context.machines.computes[generation.provider].boot_trouble(generation.pod_id)
    return trouble.text if trouble is not None else ""


def has_answered(context: Context, run: RunState) -> bool:
    """Whether the run's pod let itself be asked last time: one that is missed, or is being
    ended, is in no trouble either, and does not answer."""
    generation = run.generation
    if generation is None or generation.absence is not None or ending_was_asked(run):
        return False
    link = context.machines.links[generation.provider]
    return link.trouble(generation.pod_name) is None


def is_listed_as_running(context: Context, run: RunState) -> bool:
    """Whether the provider's list showed the run's pod as running, when it was last asked for."""
    generation = run.generation
    pods = context.machines.lists.last(generation.provider) if generation is not None else None
    if generation is None or not isinstance(pods, DatedFact):
        return False
    return any(p.name == generation.pod_name and p.status is PodStatus.RUNNING for p in pods.value)


def bucket_trouble(context: Context, run: RunState) -> str:
    """Why checkpoints do not reach the run's bucket now; '' where they do, or it has none."""
    generation = run.generation
    if not run.bucket or not run.live or generation is None:
        return ""
    grants = run.tries(generation, GRANT)
    last = max(grants, key=lambda action: action.started_at, default=None)
    if last is not None and last.failed_kind:
        return f"uploads could not be granted: {last.error}"
    report = last_report(context, run)
    return f"not uploaded: {report.trouble}" if report is not None and report.trouble else ""


def waits_for(context: Context, run: RunState) -> WaitState | None:
    """Return the event that a live run waits for, by its provider's last answer to this process."""
    generation, chosen = run.generation, run.chosen
    provider = generation.provider if generation is not None else chosen.provider if chosen else ""
    if not provider or not run.live:
        return None
    pods = context.machines.lists.last(provider)
    if pods is None:
        pods = UnknownSince(context.wall())
    return controller.waits_for(run, traits_of(provider), pods)


def ending_was_asked(run: RunState) -> bool:
    """Whether the provider was told to end the run's present pod."""
    return run.generation is not None and bool(run.tries(run.generation, TERMINATE))


def by_hand(context: Context, run: RunState) -> list[str]:
    """Return commands to type about its present pod, which may be there or be on its way."""
    generation = run.generation
    if generation is None or not generation.open or not is_brokered(generation.provider):
        return []
    return list(context.machines.computes[generation.provider].by_hand(generation.pod_name))


def _label(name: str) -> str:
    """``fast step 40`` of the checkpoint that is called ``fast-40-1f3a9c00``."""
    pulled = pulled_of(name)
    return f"{pulled[0]} step {pulled[1]:,}" if pulled is not None else name


_STALE_DRIVER_S = 120.0


def is_driven(context: Context, driver: Driver | None) -> bool:
    """Whether a live controller drives the run now."""
    if driver is None or driver.controller is None:
        return False
    alive = context.caller.is_alive(driver.controller)
    if alive is None:
        return context.wall() - driver.beat_at < _STALE_DRIVER_S
    return alive
