"""The steps before a launch: the plan, made or loaded and then checked, and its data made ready.

Prices are asked for once, and the plan is made once; where only the data that is made ready here
tells how many tokens there are, it is made anew of the same prices. What was checked of the first
holds for the second as long as that would try the same machines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trmcloud.core.catalog.datasets import ENV_HOSTS, files_at_commit, hub_files
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import direct
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.events import DataPinned
from trmcloud.core.errors import (
    CheckpointError,
    DataError,
    NotFoundError,
    TrmcloudError,
    UsageError,
)
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.core.spec.settings import CHAT, PhaseRecipe
from trmcloud.core.spec.spec import DataSource, RunSpec
from trmcloud.core.text import one_line
from trmcloud.core.values import Value, replace
from trmcloud.operations.checkpoints import fetching
from trmcloud.operations.context import Context, find_run
from trmcloud.operations.plans import planning
from trmcloud.operations.plans.launch_checks import (
    check_account,
    check_account_key,
    check_bucket,
    check_disk,
    check_exposure,
    check_goal,
    check_launchable,
    check_loss,
    check_machine,
    check_trainer,
    first_candidate,
    keep_launchable,
)
from trmcloud.operations.plans.planning import Planner
from trmcloud.operations.pod_request import LaunchData
from trmcloud.operations.sending import data as data_files
from trmcloud.operations.sending.data import resolve_source
from trmcloud.operations.sending.staging import data_items
from trmcloud.options import LaunchRequest, parse_balance_policy, parse_money, refuse_changes
from trmcloud.ports.machine import PlanInputs, Progress

DataProgress = Callable[[str, int, int], None]
"""Told (stage, done, total) while data is made ready."""

_CHAT_TOKEN = "<|assistant_start|>"
"""A special token that every tokenizer for conversations has."""


class PreparedLaunch(Value):
    """A plan that was checked, and what its first phase trains on and starts from."""

    plan: Plan
    data: LaunchData
    initial_weights: str = ""
    """A checkpoint folder of this machine; empty: fresh weights."""


def prepare(
    context: Context,
    planner: Planner,
    request: LaunchRequest,
    progress: DataProgress,
    spec: RunSpec | None = None,
) -> PreparedLaunch:
    """Check everything before the user is asked for money; then make the data ready. ``spec``: the
    wish, where it was made of ``request`` already.

    Raises:
        TrmcloudError: whatever keeps this from being launched, said before any data is touched.
    """
    exposure = parse_money("--accept-exposure", request.accept_exposure)
    plan, source_name, weights = _checked(context, planner, request, exposure, spec)
    conversations = _conversations(context, planner.inputs, plan, request, progress)
    if source_name:
        source = pinned_source(
            context, planner.inputs, planner.inputs.data_source(source_name), progress
        )
        data, tokens = _make_ready(context, plan, source, weights, progress)
        data = replace(data, chat=conversations)
    else:
        data, tokens = LaunchData(conversations), None
    goal = plan.spec.goal
    if goal is not None and goal.suite:
        path = context.pods.trainer_path()
        tasks = data_files.fetch_tasks(context.home, goal.suite, path, progress)
        data = replace(data, tasks=str(tasks))
    if spec is not None or not planning.is_plan_id(request.hardware):
        if tokens is not None:
            checked, plan = plan, planner.plan(plan.spec, tokens_available=tokens)
            if _machines(plan) != _machines(checked):
                check_launch(context, plan, request, exposure)
        planner.save(plan)
    check_disk(context.home, plan)  # the data has taken its part
    return PreparedLaunch(plan, data, weights)


def check_saved(context: Context, planner: Planner, request: LaunchRequest) -> Plan:
    """Return the saved plan that ``request`` names, once it passed all that ``prepare`` checks
    before it touches any data.

    Raises:
        TrmcloudError: whatever keeps this from being launched.
    """
    exposure = parse_money("--accept-exposure", request.accept_exposure)
    return _checked(context, planner, request, exposure)[0]


def _checked(
    context: Context,
    planner: Planner,
    request: LaunchRequest,
    exposure: Usd | None,
    spec: RunSpec | None = None,
) -> tuple[Plan, str, str]:
    """(the plan, the name of its data's source, the folder of the weights that it starts from)"""
    if spec is None and planning.is_plan_id(request.hardware):
        plan = _load(context, request)
        check_trainer(planner.recipe(plan.spec.recipe))
    else:
        spec = spec or planner.spec_to_launch(request)
        check_trainer(planner.recipe(spec.recipe))
        plan = planner.plan(spec)
    source_name = _source_name(plan, request)
    check_launch(context, plan, request, exposure)
    return plan, source_name, _sound_weights(context, plan)


def _source_name(plan: Plan, request: LaunchRequest) -> str:
    """The name of the text to train on; empty where a chat phase alone is trained.

    Raises:
        DataError: there is none, or it does not exist; the same of a chat phase's conversations.
        UsageError: a chat phase without weights to start from.
    """
    first = first_settings(plan)
    if any(phase.name == CHAT for phase in _first(plan).phases):
        _conversations_name(plan, request)
    if first.phase != CHAT:
        return resolve_source(request.data or plan.spec.data, first)
    if not plan.spec.initial_from:
        raise UsageError(
            "without a train phase, the chat phase needs weights to start from",
            next_step="--from RUN; or train both: --phase train,chat",
        )
    return ""


def _conversations_name(plan: Plan, request: LaunchRequest) -> str:
    """
    Raises:
        DataError: there are none, or they do not exist.
    """
    phases = _first(plan).phases
    alone = request.data if phases[0].name == CHAT else ""
    named = alone or plan.spec.chat_data or phases[-1].settings.data
    if not named:
        raise DataError(
            f"recipe {plan.spec.recipe} has no conversations of its own for the chat phase",
            next_step="--chat-data FILE.jsonl",
        )
    return resolve_source(named)


def _conversations(
    context: Context,
    inputs: PlanInputs,
    plan: Plan,
    request: LaunchRequest,
    progress: DataProgress,
) -> str:
    """The folder of a chat phase's conversations, made now if need be; empty without such a phase.

    Raises:
        DataError: a line is no conversation, named with its file and number.
    """
    last = _first(plan).phases[-1]
    if last.name != CHAT:
        return ""
    data_files.need_data_extra()
    source = inputs.data_source(_conversations_name(plan, request))
    folder, meta = data_files.prepare_data(
        context.home, source, last.settings, context.pods.trainer_path(), progress
    )
    told = f"{int(meta['conversations']):,} conversations to train on, "
    progress(f"{told}{int(meta['validation_conversations']):,} for validation", 0, 0)
    return str(folder)


def pinned_source(
    context: Context, inputs: PlanInputs, source: DataSource, progress: DataProgress
) -> DataSource:
    """The source at the revision that its host has now, which goes on record. Where the host does
    not say, the revision that is on record. A revision other than the one on record is a line of
    ``progress``.

    Raises:
        DataError: the host does not say, and none is on record.
    """
    try:
        pinned, found = inputs.pinned_source(source)
    except DataError:
        known = context.ledger.read().data.get(source.name)
        if known is None or source.data_set is None:
            raise
        return replace(
            source, data_set=files_at_commit(source.data_set, known.revision, known.hashes)
        )
    if found is not None:
        state = context.ledger.read()
        before = state.data.get(source.name)
        if before is not None and before.revision != found.revision:
            progress(_changed(context, state, before, found), 0, 0)
        if before != found:
            context.ledger.note(found, context.wall())
    return pinned


def _changed(context: Context, state: LedgerState, before: DataPinned, now: DataPinned) -> str:
    """One line: the data set's files are other ones than the newest run's that trained on it."""
    since = "its last use here"
    for run_id in reversed(tuple(state.runs)):
        with suppress(TrmcloudError, KeyError, TypeError, ValueError):
            used = LaunchData.of_note(context.notes.launch(run_id)).source
            at = used.data_set if used is not None and used.name == before.source else None
            files = hub_files(at) if at is not None else None
            if files is not None and files.revision == before.revision:
                since = run_id
                break
    return (
        f"{one_line(before.source)} changed since {since}: {before.branch} of {before.repository} "
        f"was at commit {before.revision[:12]}, now {now.revision[:12]}"
    )


def dry_run(context: Context, planner: Planner, request: LaunchRequest) -> Plan:
    """The plan that would be launched; nothing is made ready, and no account asked.

    Raises:
        TrmcloudError: there can be no such plan, or what it is to train on is not there.
    """
    parse_money("--accept-exposure", request.accept_exposure)
    saved = planning.is_plan_id(request.hardware)
    if saved:
        plan = _load(context, request)
        local = _first(plan).provider == LOCAL
    else:
        plan = planner.plan(planner.spec_to_launch(request))
        local = plan.spec.hardware == LOCAL
    check_goal(plan)
    named = request.data or plan.spec.data
    chats = any(phase.name == CHAT for phase in _first(plan).phases)
    if local or named or chats:
        _sound_weights(context, plan)
        _source_name(plan, request)
    return plan if saved else planner.save(plan)


def upload_data(context: Context, ready: PreparedLaunch, progress: Progress) -> None:
    """Bring to the bucket what its pod is to fetch from there, before anything is rented."""
    plan = ready.plan
    alone = plan.spec.nodes == 1  # several machines are sent it one by one
    if alone and plan.spec.pod_uploads and first_candidate(plan).provider != LOCAL:
        bucket = context.buckets.at(plan.spec.bucket)
        for item in data_items(ready.data.folder, ready.initial_weights, ready.data.chat):
            bucket.send(item, progress)


def next_best(planner: Planner, plan: Plan) -> str:
    """Suggest a plan, and save it, where none of the plan's hardware could be rented."""
    refused = {candidate.sku for candidate in plan.candidates}
    providers = plan.spec.providers or direct()[:1]
    anything = replace(plan.spec, hardware="", gpus=0, providers=providers)
    for offer in planner.plan(anything).candidates:
        fits = offer.fits_memory and offer.within_budget and offer.provider in providers
        if fits and offer.sku not in refused:
            made = planner.save(planner.plan(replace(anything, hardware=offer.hardware)))
            about = f"{offer.hardware}, {offer.rate}/h, about {offer.cost_p50}"
            return f"trmcloud launch {made.id} ({about})"
    return "trmcloud plan, with a larger budget or in other regions; or try again later"


def first_settings(plan: Plan) -> PhaseRecipe:
    """Those with which the plan's first phase is trained, where it is tried first."""
    return _first(plan).phases[0].settings


def ready_data(
    context: Context,
    source: DataSource,
    settings: PhaseRecipe,
    progress: DataProgress,
    *,
    tokenizer: Path | None = None,
    tokens: int = 0,
) -> tuple[Path, int, int]:
    """(the folder of prepared data, its tokens to train on, and to validate on)

    Raises:
        DataError: the data cannot be had or used, or there is no room for it.
    """
    folder, meta = data_files.prepare_data(
        context.home, source, settings, context.pods.trainer_path(), progress,
        tokenizer=tokenizer, tokens=tokens,
    )  # fmt: skip
    return folder, int(meta["train_tokens"]), int(meta["validation_tokens"])


def _load(context: Context, request: LaunchRequest) -> Plan:
    refuse_changes(request)
    principal = context.caller.principal
    plan = planning.load_plan(context.home, request.hardware, context.wall(), principal)
    if plan.spec.sweep is not None:
        raise UsageError(
            f"plan {plan.id} is for a sweep, and launch trains once",
            next_step="trmcloud sweep, with the options of that plan",
        )
    if plan.spec.command is not None:
        raise UsageError(
            f"plan {plan.id} is for a command, and does not contain its code",
            next_step="run it again in its folder: run HARDWARE … -- COMMAND",
        )
    if "balance" in request.typed:
        policy = parse_balance_policy("--balance", request.balance)
        plan = replace(plan, spec=replace(plan.spec, balance=policy))
    return plan


def check_launch(
    context: Context, plan: Plan, request: LaunchRequest, exposure: Usd | None
) -> None:
    """
    Raises:
        TrmcloudError: what keeps ``plan`` from being launched, whatever it trains.
    """
    check_launchable(context, plan)
    check_goal(plan)
    plan = keep_launchable(context, plan)  # no other is rented
    check_machine(context, plan)
    check_account(context, plan)
    check_bucket(context, plan.spec)
    check_account_key(plan, allowed=request.allow_key)
    check_disk(context.home, plan)
    check_loss(plan, detached=request.detach, accepted=request.accept_loss)
    check_exposure(context, plan, exposure)


def _machines(plan: Plan) -> list[tuple[object, ...]]:
    """Return the facts that checks look at: providers, machines, their order and their rates."""
    tried = [plan.candidate(name) for name in plan.launchable]
    return [
        (c.provider, c.region, c.hardware, c.spot, c.rate, c.reserved_rate, plan.recommended_id)
        for c in tried
    ]


def _first(plan: Plan) -> Candidate:
    return plan.recommended or plan.candidates[0]


def _sound_weights(context: Context, plan: Plan) -> str:
    """The checkpoint folder that ``--from`` means, which the plan's model can start from.

    Raises:
        NotFoundError: there is none. CheckpointError: it is damaged, or of another shape.
    """
    weights = _initial_weights(context, plan.spec.initial_from)
    if weights:
        fetching.check_same_shape(Path(weights), first_settings(plan))
        fetching.sound_file(Path(weights), "weights")
        if first_settings(plan).phase == CHAT:
            _check_chat_tokens(Path(weights))
    return weights


def _check_chat_tokens(weights: Path) -> None:
    """
    Raises:
        CheckpointError: the checkpoint's tokenizer has no tokens for conversations.
    """
    path = fetching.sound_file(weights, "tokenizer")
    try:
        said = json.loads(path.read_text(encoding="utf-8")) if path is not None else {}
        names = {str(each["content"]) for each in said["added_tokens"]}
    except (OSError, ValueError, KeyError, TypeError):
        names = set()
    if _CHAT_TOKEN not in names:
        raise CheckpointError(
            "the tokenizer of these weights has no tokens for conversations",
            where=str(weights),
            next_step="train the first phase with --set tokenizer=bpe-chat",
        )


def _initial_weights(context: Context, named: str) -> str:
    """A folder, or a run's best checkpoint here."""
    if not named:
        return ""
    folder = Path(named).expanduser().absolute()
    if folder.is_dir():
        fetching.read_manifest(folder)
        return str(folder)
    try:
        run = find_run(context, named)
    except NotFoundError:
        raise NotFoundError(
            f"--from {named}: there is no such run or checkpoint folder",
            next_step="list runs with trmcloud status; trmcloud fetch-best makes a folder",
        ) from None
    manifest = fetching.choose(context, run)
    return context.files.folder_of(manifest)


def _make_ready(
    context: Context, plan: Plan, source: DataSource, weights: str, progress: DataProgress
) -> tuple[LaunchData, int | None]:
    """The plan's data, and how many training tokens it has where that is known by now."""
    settings = first_settings(plan)
    local = _first(plan).provider == LOCAL
    tokenizer = fetching.sound_file(Path(weights), "tokenizer") if weights else None
    if local:
        data_files.need_training_extra()
    elif not source.made_there:
        data_files.need_data_extra()
    if source.made_there:
        grows = (
            data_files.growing_folder(context.home, source, settings, tokenizer) if local else ""
        )
        return LaunchData(str(grows), source, os.environ.get(ENV_HOSTS, "")), None
    wanted = max(phase.tokens for phase in _first(plan).phases if phase.name != CHAT)
    folder, tokens, _ = ready_data(
        context, source, settings, progress, tokenizer=tokenizer, tokens=wanted
    )
    return LaunchData(str(folder)), tokens
