"""What may be known of a run's pod without asking it anything: whoever drives the run asks."""

from __future__ import annotations

from dataclasses import dataclass

from trmcloud.app.world import World
from trmcloud.core import pod_contract as contract
from trmcloud.core import waiting
from trmcloud.core.actions import TERMINATE
from trmcloud.core.bucket import as_told
from trmcloud.core.clock import Seen, Unknown
from trmcloud.core.errors import HostKeyChanged, LinkError, NoAddress
from trmcloud.core.hardware import LOCAL
from trmcloud.core.manifest import CheckpointManifest
from trmcloud.core.plain_text import one_line
from trmcloud.core.pod_contract import AgentReport, Heartbeat, Kept
from trmcloud.core.providers import traits_of
from trmcloud.core.run_state import GRANT, STAGE, RunState, State
from trmcloud.core.waiting import Waiting
from trmcloud.pod.files import read_small
from trmcloud.ports.link import TroubledLink

BOOT_PATIENCE_S = 30.0
"""For so long a pod that boots may be out of reach before that is told."""


@dataclass(frozen=True)
class Errand:
    """What a worker of this process carries now. ``what`` is stage, grant or a checkpoint's label;
    ``size`` is 0 while it is not known."""

    key: str
    what: str
    done: int
    size: int


def is_rented(run: RunState) -> bool:
    """Whether the run's present pod is somebody else's machine."""
    return run.generation is not None and run.generation.provider != LOCAL


def last_report(world: World, run: RunState) -> AgentReport | None:
    """What the present pod's agent last said to any process of this home."""
    generation = run.generation
    if generation is None:
        return None
    path = world.home / contract.PODS_DIR / generation.pod_name / contract.REPORT_NAME
    try:
        text = read_small(path)
        return contract.load_report(text) if text is not None else None
    except ValueError:
        return None


def data_told(world: World, run: RunState) -> str:
    """How far the present pod is with the data that it makes, in its agent's words; empty where it
    makes none."""
    report = last_report(world, run)
    return one_line(report.notes.get(contract.DATA_NOTE, "")) if report is not None else ""


def waits_for_data(run: RunState, beat: Heartbeat | None) -> bool:
    """Whether nothing is trained now because the data for it is still being made."""
    return run.state is State.RUNNING and (
        beat is None or beat.state == "waiting" or (beat.state == "starting" and not beat.step)
    )


def told_uploaded(world: World, run: RunState) -> tuple[CheckpointManifest, ...]:
    """What the run's agents have told to be in its bucket, as this home heard it last: the bucket
    itself is not asked."""
    if not run.bucket:
        return ()
    found: dict[tuple[str, int, str], Kept] = {}
    for generation in run.generations:
        path = world.home / contract.PODS_DIR / generation.pod_name / contract.REPORT_NAME
        try:
            text = read_small(path)
            report = contract.load_report(text) if text is not None else None
        except ValueError:
            report = None
        for kept in report.uploaded if report is not None else ():
            found[(kept.phase, kept.step, kept.sha256)] = kept
    return tuple(as_told(run.run_id, kept) for kept in found.values())


def last_beat(world: World, run: RunState) -> Heartbeat | None:
    """The present pod's newest heartbeat, as this home has it; an earlier pod's is none."""
    generation = run.generation
    if generation is None:
        return None
    phases = world.files.phases(run.run_id)
    beats = [world.files.heartbeat(run.run_id, phase) for phase in phases]
    newest = max((b for b in beats if b is not None), key=lambda b: b.at, default=None)
    report = last_report(world, run)
    # The pod's own clock, where it has told it: ours may differ.
    since = report.started_at if report is not None else generation.intended_at
    return newest if newest is not None and newest.at >= since else None


def errands(world: World, run: RunState) -> tuple[Errand, ...]:
    found = []
    for key in sorted(world.workers.running()):
        run_id, _, name, *_ = [*key.split("/"), "", "", ""]
        if run_id == run.run_id:
            done, size = world.workers.progress(key) or (0, 0)
            what = name if name in (STAGE, GRANT) else _label(name)
            found.append(Errand(key, what, done, size))
    return tuple(found)


def link_trouble(world: World, run: RunState) -> LinkError | None:
    """Why the run's pod does not answer, where it should: it is up, and nobody has ended it. For
    the first half minute of its boot it need not, nor before it has an address; whatever does must
    be it."""
    generation = run.generation
    if generation is None or generation.provider == LOCAL or generation.missed_at is not None:
        return None
    if generation.provider in world.unasked:
        return None
    if run.state not in (State.BOOTING, State.RUNNING, State.ENDING) or ending_was_asked(run):
        return None
    link = world.links[generation.provider]
    trouble = link.trouble(generation.pod_name) if isinstance(link, TroubledLink) else None
    if run.state is not State.BOOTING or isinstance(trouble, HostKeyChanged):
        return trouble
    up_at = generation.up_at or generation.intended_at
    early = world.wall() - up_at < BOOT_PATIENCE_S
    return None if early or isinstance(trouble, NoAddress) else trouble


def answers(world: World, run: RunState) -> bool:
    """Whether the run's pod let itself be asked last time: one that is missed, or that somebody
    is ending, is in no trouble either, and does not answer."""
    generation = run.generation
    if generation is None or generation.missed_at is not None or ending_was_asked(run):
        return False
    link = world.links[generation.provider]
    return not isinstance(link, TroubledLink) or link.trouble(generation.pod_name) is None


def is_listed_as_running(world: World, run: RunState) -> bool:
    """Whether the provider's list showed the run's pod as running, when it was last asked for."""
    generation = run.generation
    pods = world.listed.get(generation.provider) if generation is not None else None
    if generation is None or not isinstance(pods, Seen):
        return False
    return any(p.name == generation.pod_name and p.status == "running" for p in pods.value)


def bucket_trouble(world: World, run: RunState) -> str:
    """Why checkpoints do not reach the run's bucket now; '' where they do, or it has none."""
    generation = run.generation
    if not run.bucket or not run.live or generation is None:
        return ""
    start = f"{run.run_id}/g{generation.number}/{GRANT}/"
    grants = [action for name, action in run.actions.items() if name.startswith(start)]
    last = max(grants, key=lambda action: action.started_at, default=None)
    if last is not None and last.failed_kind:
        return f"uploads could not be granted: {last.error}"
    report = last_report(world, run)
    return f"not uploaded: {report.trouble}" if report is not None and report.trouble else ""


def waits_for(world: World, run: RunState) -> Waiting | None:
    """What a live run waits for, by what its provider said last to this process."""
    generation = run.generation
    if generation is None or not run.live:
        return None
    pods = world.listed.get(generation.provider)
    if pods is None:
        pods = Unknown(world.wall())
    return waiting.waits_for(run, traits_of(generation.provider), pods)


def ending_was_asked(run: RunState) -> bool:
    """Whether the provider was told to end the run's present pod."""
    number = run.generation.number if run.generation is not None else 0
    return any(f"/g{number}/{TERMINATE}/" in action_id for action_id in run.actions)


def _label(name: str) -> str:
    """``fast step 40`` of the action that is called ``pull-fast-40-1f3a9c00``."""
    _, phase, step, *_ = [*name.split("-"), "", "", ""]
    return f"{phase} step {int(step):,}" if step.isdigit() else name
