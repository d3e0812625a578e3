"""From a run and its plan to what a pod is asked for: lease, jobs, folders."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trmcloud.core.catalog.datasets import parse_data_set
from trmcloud.core.catalog.hardware import GPUS, LOCAL
from trmcloud.core.clock import Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.gate import StopRules
from trmcloud.core.contract.scoring import ScoringJob
from trmcloud.core.contract.trainer_contract import DataJob, PhaseJob
from trmcloud.core.control.actions import is_held
from trmcloud.core.control.boards import slower_boards
from trmcloud.core.control.continuing import hours_left_s
from trmcloud.core.control.renting import make_lease, phases_to_run
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.control.waiting import allows_waiting
from trmcloud.core.errors import ProviderRefused
from trmcloud.core.planner.memory import stored_bytes
from trmcloud.core.spec.plan import Candidate, PhasePlan, Plan
from trmcloud.core.spec.settings import CHAT
from trmcloud.core.spec.spec import DataSource, RunSpec, growing_key
from trmcloud.core.spec.sweep_wish import leased_command
from trmcloud.core.storage import work_gb
from trmcloud.core.values import Value
from trmcloud.operations.context import Context
from trmcloud.operations.sending.staging import (
    CODE_DIR,
    TASKS_DIR,
    WEIGHTS_DIR,
    tokenizer_item,
    weights_for_chat,
)
from trmcloud.ports.bucket import CacheRequest
from trmcloud.ports.compute import PodRequest

SCORING_MARGIN = 1.5
"""Seconds that scoring may take ÷ those that are planned at P50; the landing reserve has as many,
or more."""
SEND_WITHIN_S = 120.0
"""A create that was decided on longer ago is not sent: its controller slept in between, and
another one may have found out by now that there is no pod."""


class LaunchData(Value):
    """A run's training data: a folder that is ready here, or what its machine is to make itself.

    ``folder`` is where it lies or grows on this machine; empty where it is made elsewhere.
    """

    folder: str = ""
    source: DataSource | None = None
    """The source of data that the machine makes; None: ``folder`` is sent."""
    hosts: str = ""
    """``TRMCLOUD_DATA_HOSTS`` of the launch."""
    code: str = ""
    """The path of a command's ``code.tar`` on this machine; empty for a recipe."""
    here: str = ""
    """The folder that a command was typed in."""
    tasks: str = ""
    """The folder of the files of the tasks that the run's goal is scored on."""
    chat: str = ""
    """The folder of a chat phase's conversations, where another phase trains before it."""

    def to_json(self) -> dict[str, Any] | None:
        """Return the launch note's entry for data that is made there; None for data that is
        sent."""
        if self.source is None:
            return None
        data_set = self.source.data_set
        return {
            "source": self.source.name,
            "data_set": data_set.to_json() if data_set is not None else {},
            "hosts": self.hosts,
        }

    @classmethod
    def of_note(cls, note: Mapping[str, Any]) -> LaunchData:
        """Read a launch note; notes of earlier versions know only data that is sent."""
        made = note.get("data")
        folder = str(note["data_dir"])
        chat, tasks = str(note.get("chat_dir", "")), str(note.get("tasks_dir", ""))
        if not made:
            code, here = str(note.get("code", "")), str(note.get("here", ""))
            return cls(folder, code=code, here=here, chat=chat, tasks=tasks)
        data_set = parse_data_set(made["data_set"], made["source"]) if made["data_set"] else None
        source = DataSource(made["source"], data_set)
        of_sweep = str(note.get("code", ""))
        return cls(folder, source, made["hosts"], code=of_sweep, chat=chat, tasks=tasks)


def write_launch_note(
    context: Context, run_id: str, *, data: LaunchData, initial_weights: str
) -> None:
    """Write the facts beside the plan that a controller needs after a crash: the place of the
    data."""
    note: dict[str, Any] = {"data_dir": data.folder, "initial_weights": initial_weights}
    if made := data.to_json():
        note["data"] = made
    if data.code:
        note |= {"code": data.code, "here": data.here}
    if data.chat:
        note["chat_dir"] = data.chat
    if data.tasks:
        note["tasks_dir"] = data.tasks
    context.notes.put_launch(run_id, note)


def pod_request(
    context: Context,
    run: RunState,
    plan: Plan,
    generation: Generation,
    epoch: int,
    decided: Instant,
) -> PodRequest:
    """All that a provider and the pod's agent need for this generation.

    ``decided`` is when the create was decided on: until ``SEND_WITHIN_S`` later, by a clock that
    is never set, it may be sent, and from then on counts what is granted.
    """
    candidate = plan.candidate(generation.candidate_id)
    phases = phases_to_run(run, candidate)
    note = context.notes.launch(run.run_id)
    first = candidate.phases[0].name if candidate.phases else ""
    rented = candidate.provider != LOCAL
    weights = note["initial_weights"]
    runs_dir = context.home / contract.RUNS_DIR
    if rented:
        runs_dir = Path(contract.POD_ROOT) / contract.RUNS_DIR
        weights = context.pods.folder(WEIGHTS_DIR, Path(weights)) if weights else ""
    data = LaunchData.of_note(note)
    data_dir, making = _data(context, run, candidate, data, weights)
    room_gb = disk_gb(candidate, data)
    volume_gb = min(room_gb, candidate.volume_gb or room_gb)  # no more than its reserved rent
    chat_dir, chat_weights = data.chat, ""
    if rented and chat_dir:
        chat_dir = context.pods.folder(contract.DATA_DIR, Path(chat_dir))
        if trained := weights_for_chat(context.files, run):
            chat_weights = context.pods.folder(WEIGHTS_DIR, Path(trained))
    last = candidate.phases[-1] if candidate.phases else None
    code_dir = data.code
    if rented and code_dir:
        code_dir = context.pods.folder(CODE_DIR, Path(code_dir))
    jobs = tuple(
        PhaseJob(
            run_id=run.run_id,
            phase=phase.name,
            settings=phase.settings.to_json(),
            data_dir=chat_dir if chat_dir and phase.name == CHAT else data_dir,
            out_dir=str(runs_dir / run.run_id / phase.name),
            processes=candidate.gpus,
            initial_weights=(
                weights if phase.name == first else chat_weights if phase.name == CHAT else ""
            ),
            data=None if chat_dir and phase.name == CHAT else making,
            accept_change=run.resumed is not None and run.resumed.accepted is not None,
            command=_job_command(plan.spec),
            code_dir=code_dir,
            scoring=_scoring(context, plan, phase, data.tasks if phase is last else "", rented),
        )
        for phase in phases
    )
    train_s = generation.soft_stop_at - generation.intended_at
    lease = make_lease(
        run,
        candidate,
        generation,
        epoch=epoch,
        granted_at=decided.wall,
        stop=StopRules(plan.spec.patience),
        set_by_hand=[key for key, _ in plan.spec.overrides],
        command=leased_command(plan.spec.command) if plan.spec.sweep else plan.spec.command,
        most_s=_most_s(run, plan),
        # One without phases is rented to be looked at: it stays until its hard stop.
        hold=is_held(run, plan, generation) or not candidate.phases,
        uploads=plan.spec.pod_uploads and bool(candidate.phases) and run.errand is None,
    )
    return PodRequest(
        name=generation.pod_name,
        sku=candidate.sku,
        gpus=candidate.gpus,
        rate=generation.rate,
        lease=lease,
        jobs=jobs,
        region=candidate.region,
        disk_gb=room_gb,
        volume_gb=volume_gb if plan.spec.volume else 0,
        community=plan.spec.community,
        check=pod_check(plan.spec, candidate, train_s, phases) if rented else {},
        require_wanted=lambda: _require_wanted(context, run.run_id, generation, decided),
        nodes=candidate.nodes,
        spot=candidate.spot,
        given=command_variables(plan.spec.command),
        image=plan.spec.command.image if plan.spec.command is not None else "",
        is_waited_for=allows_waiting(run),
    )


def _job_command(spec: RunSpec) -> Command | None:
    """A command, or what makes an agent start a sweep's executor."""
    if spec.sweep is not None and spec.command is None:
        return leased_command(None)
    return spec.command


def _scoring(
    context: Context, plan: Plan, phase: PhasePlan, folder: str, rented: bool
) -> dict[str, Any]:
    """The tasks that a phase's last checkpoint is scored on; empty without files of any."""
    goal = plan.spec.goal
    if goal is None or not goal.suite or not folder:
        return {}
    there = context.pods.folder(TASKS_DIR, Path(folder)) if rented else folder
    within_s = SCORING_MARGIN * phase.parts_s.get("scoring", 0.0)
    return ScoringJob(goal.suite, there, within_s).to_json()


def _most_s(run: RunState, plan: Plan) -> float:
    """Seconds that a command may run from its start; 0: as long as the lease lasts. Earlier
    machines have used up some of its hours."""
    return 0.0 if plan.spec.hours is None else max(1.0, hours_left_s(run, plan))


def command_variables(command: Command | None) -> dict[str, str]:
    """The values that a command is given of this shell's variables, as far as it has them."""
    names = command.env if command is not None else ()
    return {name: os.environ[name] for name in names if name in os.environ}


def _require_wanted(
    context: Context, run_id: str, generation: Generation, decided: Instant
) -> None:
    """
    Raises:
        ProviderRefused: it is too late for this pod to be asked for, another one who drives the run
            has given it up, which is a matter of a second on this machine, or the ledger was
            restored to a copy without the run.
    """
    late_s = context.clock.now().since(decided) - SEND_WITHIN_S
    if late_s > 0:
        raise ProviderRefused(
            f"the request for it was not sent, because it was {late_s:.0f} s too late"
        )
    run = context.ledger.read().runs.get(run_id)
    awaited = run.open_generations if run is not None else ()
    if all(each.number != generation.number for each in awaited):
        raise ProviderRefused("another controller has given it up: nothing was sent")


def tokens_of(context: Context, run: RunState, candidate: Candidate) -> CacheRequest | None:
    """Return the request for the tokens that a rented machine makes and keeps in the run's bucket;
    None where it makes none, or none that are worth keeping."""
    source = LaunchData.of_note(context.notes.launch(run.run_id)).source
    data_set = source.data_set if source is not None else None
    if source is None or data_set is None or not candidate.phases:
        return None
    if not data_set.is_remote or data_set.layout == "gpt2":
        return None  # a formula is quicker, and token files lie at their host as they are
    settings = candidate.phases[0].settings
    return CacheRequest(
        key=growing_key(source, settings),
        folder=f"{contract.POD_ROOT}/{contract.DATA_CACHE_DIR}",
        shards=data_set.shards_for(max(phase.tokens for phase in candidate.phases)),
    )


def _data(
    context: Context, run: RunState, candidate: Candidate, data: LaunchData, weights: str
) -> tuple[str, DataJob | None]:
    """Return the trainer's data folder, and the job that makes it there, if any.

    ``weights`` is the folder, there, that the first phase starts from, if any.
    """
    rented = candidate.provider != LOCAL
    if data.source is None or not candidate.phases:
        # A plan without phases trains on nothing; the empty path would be the working folder.
        if rented and data.folder:
            return context.pods.folder(contract.DATA_DIR, Path(data.folder)), None
        return data.folder, None
    root = Path(contract.POD_ROOT) if rented else context.home
    tokenizer = f"{weights}/{contract.DATA_TOKENIZER_NAME}" if weights else ""
    if rented and not weights:
        # What was trained so far knows its ids alone, and this machine may not have made them.
        item = tokenizer_item(context.files, run)
        tokenizer = f"{item.remote}/{contract.DATA_TOKENIZER_NAME}" if item is not None else ""
    data_set = data.source.data_set
    making = DataJob(
        source=data.source.name,
        tokens=max(phase.tokens for phase in candidate.phases),
        data_set=data_set.to_json() if data_set is not None else {},
        tokenizer=tokenizer,
        hosts=data.hosts,
    )
    settings = candidate.phases[0].settings
    more = [tokenizer] if tokenizer else []
    folder = root / contract.DATA_DIR / growing_key(data.source, settings, *more)
    return str(folder), making


def disk_gb(candidate: Candidate, data: LaunchData) -> int:
    """Return the GB of the work disk: as planned; of an older plan, by the same rule."""
    if candidate.work_gb:
        return candidate.work_gb
    made = 0
    if data.source is not None and data.source.data_set is not None and candidate.phases:
        made = data.source.data_set.disk_bytes(max(phase.tokens for phase in candidate.phases))
    if data.code and data.folder:
        files = (path for path in Path(data.folder).rglob("*") if path.is_file())
        made = sum(path.stat().st_size for path in files)
    return work_gb(stored_bytes(phase.settings for phase in candidate.phases), made)


def pod_check(
    spec: RunSpec, candidate: Candidate, train_s: float, phases: Sequence[PhasePlan]
) -> dict[str, Any]:
    """Return the hardware that the agent must find before it trains: see ``pod.hardware``.
    ``phases`` have ``train_s`` seconds from the pod's creation on."""
    check: dict[str, Any] = {"count": candidate.gpus, "idle": True}
    if spec.command is not None:
        check["keeps_torch"] = True
    gpu = GPUS.get(candidate.sku)
    if gpu is None:
        return check
    check |= {"gpu": _family(candidate.sku), "memory_gb": gpu.memory_gb}
    if phases:  # one that trains nothing may be as slow as it is
        check["board"] = gpu.form
    if slower := slower_boards(candidate, spec, phases, train_s):
        check["slower_boards"] = list(slower)
    return check


def _family(sku: str) -> str:
    """``RTX4090`` → ``*RTX*4090*``, ``A100-80GB-SXM`` → ``*A100*``: how a driver names its form
    and memory differs."""
    family = sku.partition("-")[0]
    return f"*{family.replace('RTX', 'RTX*')}*"
