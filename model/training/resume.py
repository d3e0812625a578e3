"""How a training goes on from a checkpoint, on one rank or many."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.data.folder import PreparedData
from model.families.protocol import LanguageModel
from model.machine.distributed import World
from model.machine.precision import LossScale
from model.machine.telemetry import Metrics
from model.machine.tensors import StoredTensor, local, rows_of, span_of, whole_of
from model.training.checkpoint import (
    CheckpointFolder,
    FoundCheckpoint,
    read_manifest,
    read_text,
    stored_tensors,
    verify,
)
from model.training.landing import Landing
from model.training.optim import Average, Optimizer, restore_trained
from model.training.progress import Progress, restore_generators, row_from_json
from model.training.reporting import say
from model.training.saver import CARRIED, TALLIES, TrainingState
from model.training.soundness import Soundness
from trmcloud.core.contract.manifest import MANIFEST_NAME, step_dir_name
from trmcloud.core.contract.trainer_contract import ENV_ACCEPT_CHANGE, PhaseJob
from trmcloud.core.errors import CheckpointError, DataError
from trmcloud.core.spec.overrides import decisive_changes
from trmcloud.core.spec.settings import PhaseRecipe

# Several machines, and a checkpoint on the disk of the first: the others are sent it.

_CHUNK_BYTES = 1 << 26


def share(folder: Path, world: World) -> None:
    """Copy the checkpoint that rank 0 has in ``folder`` to each machine that lacks it: its first
    rank writes it there, verified. A collective call.

    Raises:
        CheckpointError: what arrived is not what its manifest says.
    """
    lacks = not (folder / MANIFEST_NAME).exists()
    if not world.largest([int(lacks)])[0]:
        return
    writes = lacks and world.local_rank == 0
    names: list[str] = []
    if world.is_main:
        manifest = read_manifest(folder)
        names = [*(file.name for file in manifest.files), MANIFEST_NAME]
    names = json.loads(world.told(json.dumps(names).encode()))
    part = folder.with_name(f".part-{folder.name}")
    if writes:
        part.mkdir(parents=True, exist_ok=True)
    for name in names:
        _send(folder / name, part / name if writes else None, world)
    if writes:
        verify(part, read_manifest(part))
        # What has no manifest is no checkpoint.
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(part, folder)
    world.part()


def _send(source: Path, target: Path | None, world: World) -> None:
    """One file from rank 0 to wherever ``target`` is given, in pieces; an empty one ends it."""
    reader = open(source, "rb") if world.is_main else None  # noqa: SIM115
    writer = open(target, "wb") if target is not None else None  # noqa: SIM115
    try:
        while piece := world.told(reader.read(_CHUNK_BYTES) if reader is not None else b""):
            if writer is not None:
                writer.write(piece)
    finally:
        for file in (reader, writer):
            if file is not None:
                file.close()


# Where a training begins: at its latest sound checkpoint, at given weights, or fresh.
#
# Where the latest was saved in a cooldown, and the run has been given so much more that it may
# train at the full rate, it goes on from what was saved before that cooldown.

_NONE, _ALL_DAMAGED = -1, -2


def begin(
    job: PhaseJob,
    trained: TrainingState,
    settings: PhaseRecipe,
    world: World,
    data: PreparedData,
    landing: Landing,
    checkpoints: CheckpointFolder,
    metrics: Metrics,
    *,
    now: float,
    accept_change: bool = False,
) -> TrainingState:
    """Brings ``trained`` to where this attempt starts, and the metrics file with it.

    Every rank reads the checkpoint that rank 0 has verified; other machines are sent it.

    Args:
        now: epoch seconds.
        accept_change: go on though decisive settings differ from the checkpoint's.

    Raises:
        CheckpointError: all checkpoints are damaged, or do not fit the settings.
        DataError: the checkpoint was trained on other data.
    """
    found = _agree_on_latest(checkpoints, world)
    if found is not None:
        if not (accept_change or job.accept_change):
            _refuse_changes(found, settings, world)
        before = _agree_on_what_was_before(found, landing, checkpoints, world, now)
        _resume(found, before, trained, settings, world, data, landing)
    elif job.initial_weights:
        _start_from(Path(job.initial_weights), trained, data)
        if trained.average is not None:
            trained.average.restart()
    if world.is_main:
        cooldown = trained.progress.cooldown
        metrics.rewind(
            trained.progress.step if found is not None else None,
            cooldown.start if cooldown is not None else None,
        )
    return trained


def load_weights(folder: Path, manifest: Any, model: Any) -> None:
    """Takes up a checkpoint's weights.

    Raises:
        CheckpointError: they are those of another shape.
    """
    tensors = stored_tensors(folder, manifest, "weights")
    own: Mapping[str, Tensor] = model.state_dict()
    if {n: tuple(t.shape) for n, t in own.items()} != {n: t.shape for n, t in tensors.items()}:
        raise CheckpointError(
            "the shape of the checkpoint's weights does not match the settings",
            where=str(folder),
            next_step="use the settings in its manifest.json, or another folder",
        )
    with torch.no_grad():
        for name, tensor in own.items():
            local(tensor).copy_(rows_of(tensors[name], span_of(tensor)))


def carried_in(tensors: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
    """Return what the model carried from step to step when these were saved."""
    return {
        name.removeprefix(CARRIED): whole_of(each)
        for name, each in tensors.items()
        if name.startswith(CARRIED)
    }


def _agree_on_latest(checkpoints: CheckpointFolder, world: World) -> FoundCheckpoint | None:
    step, problem = _NONE, None
    if world.is_main:
        checkpoints.clean()
        try:
            latest = checkpoints.latest_sound(say)
            step = _NONE if latest is None else latest.manifest.step
        except CheckpointError as error:
            step, problem = _ALL_DAMAGED, error
    # The largest of both: where one is told apart from none, the other ranks give the least.
    [step] = world.largest([step if world.is_main else _ALL_DAMAGED])
    if step == _ALL_DAMAGED:
        raise problem or CheckpointError("every checkpoint is damaged")
    if step == _NONE:
        return None
    folder = checkpoints.root / step_dir_name(step)
    share(folder, world)
    return FoundCheckpoint(folder, read_manifest(folder))


def _agree_on_what_was_before(
    found: FoundCheckpoint,
    landing: Landing,
    checkpoints: CheckpointFolder,
    world: World,
    now: float,
) -> FoundCheckpoint | None:
    """The checkpoint from before the cooldown that ``found`` was saved in, where that cooldown
    does not hold any more, and no other is due."""
    step = _NONE
    if world.is_main:
        # What cannot be used is told of by all ranks, where they read the latest.
        with suppress(CheckpointError):
            step = _step_before(found, landing, checkpoints, now)
    [step] = world.largest([step])
    if step == _NONE:
        return None
    folder = checkpoints.root / step_dir_name(step)
    share(folder, world)
    return FoundCheckpoint(folder, read_manifest(folder))


def _step_before(
    found: FoundCheckpoint, landing: Landing, checkpoints: CheckpointFolder, now: float
) -> int:
    first, cooldown = found.manifest.cooldown_from, _progress(found).cooldown
    steps_before = PhaseRecipe.from_json(found.manifest.settings).steps
    if not first or (cooldown is not None and landing.keeps(cooldown, steps_before)):
        return _NONE
    folder = checkpoints.root / step_dir_name(first)
    before = checkpoints.sound(folder, say) if (folder / MANIFEST_NAME).exists() else None
    if before is None or not any(file.kind == "optimizer" for file in before.manifest.files):
        return _NONE
    elapsed_s = _progress(before).trained_s
    further = landing.may_stay_at_full_rate(found.manifest.step, now=now, elapsed_s=elapsed_s)
    return first if further else _NONE


def _refuse_changes(found: FoundCheckpoint, settings: PhaseRecipe, world: World) -> None:
    """
    Raises:
        CheckpointError: naming what differs between the checkpoint's settings and these.
    """
    changed = decisive_changes(
        PhaseRecipe.from_json(found.manifest.settings),
        settings,
        world_before=found.manifest.world_size,
        world_after=world.size,
    )
    if changed:
        raise CheckpointError(
            f"the checkpoint was trained with other settings: {', '.join(map(str, changed))}",
            where=str(found.folder),
            next_step="use those settings, or start a new run from its weights; to continue "
            f"anyway: resume --accept-change, or {ENV_ACCEPT_CHANGE}=1 for a script",
        )


def _resume(
    latest: FoundCheckpoint,
    before_cooldown: FoundCheckpoint | None,
    trained: TrainingState,
    settings: PhaseRecipe,
    world: World,
    data: PreparedData,
    landing: Landing,
) -> None:
    found = before_cooldown or latest
    folder, manifest = found.folder, found.manifest
    if manifest.tokenizer_sha256 != data.tokenizer_sha256:
        raise DataError(
            "the checkpoint was trained with another tokenizer",
            where=str(folder),
            next_step="use the data it was trained on",
        )
    if manifest.data_sha256 != data.source_sha256:
        raise DataError(
            "the checkpoint was trained on other data",
            where=str(folder),
            next_step="use the data it was trained on, or start a new run from its weights",
        )
    load_weights(folder, manifest, trained.model)
    before = PhaseRecipe.from_json(manifest.settings)
    same_rule = (before.optimizer, before.normuon) == (settings.optimizer, settings.normuon)
    try:
        tensors = stored_tensors(folder, manifest, "optimizer")
        if trained.average is not None:
            trained.average.restart()
        if before.ema:  # its weights are the average
            restore_trained(trained.model, tensors)
        if same_rule:
            trained.optimizer.load_state(tensors)
        elif world.is_main:
            say("note: another update rule; its averages of gradients start from zero")
        if manifest.world_size == world.size == 1:
            trained.carried = carried_in(tensors)
        state = _state(found)
        trained.progress = progress = _progress(found)
        trained.loss_scale.load_json(state["loss_scale"])
        if tallies := manifest.extra.get(TALLIES):
            trained.model.adapt([float(each) for each in tallies])
        rows = [row_from_json(text) for text in state["generators"]]
        trained.shards = tuple(str(each) for each in state.get("shards", ()))
        if "soundness" in state:
            trained.soundness = Soundness.from_json(state["soundness"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the checkpoint's state cannot be used: {error!r}", where=str(folder)
        ) from None
    if world.rank < len(rows):
        restore_generators(rows[world.rank], world.device)
    if before_cooldown is not None:
        trained.went_back_to = progress.step
        progress.counted_on(_progress(latest))
    elif progress.cooldown is not None and not landing.keeps(progress.cooldown, before.steps):
        if progress.step > progress.cooldown.first:
            progress.warm_from = progress.step
        progress.cooldown = None
    if settings.steps > before.steps:  # it was given more, whatever its patience had come to
        progress.since_best = 0
    if world.is_main:
        say(f"resumed from step {progress.step}")
        if trained.went_back_to is not None:
            say(
                f"from its state at step {trained.went_back_to}, before the cooldown: the run has "
                "more budget, and trains at the full rate again"
            )
        if manifest.world_size != world.size:
            say(
                f"note: {manifest.world_size} processes saved it, {world.size} continue; the order "
                "of the data stays the same, results differ slightly"
            )


def _state(found: FoundCheckpoint) -> Mapping[str, Any]:
    state: Mapping[str, Any] = json.loads(read_text(found.folder, found.manifest, "state"))
    return state


def _progress(found: FoundCheckpoint) -> Progress:
    """
    Raises:
        CheckpointError: it cannot be used.
    """
    manifest = found.manifest
    try:
        progress = Progress.from_json(_state(found)["progress"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the checkpoint's state cannot be used: {error!r}", where=str(found.folder)
        ) from None
    if manifest.val_bpb is not None and not progress.is_evaluated:
        # It was saved before it was evaluated, and the metric came to its manifest alone.
        warmup_steps = PhaseRecipe.from_json(manifest.settings).warmup_steps
        is_on_curve = manifest.cooldown_from is None and progress.updates > warmup_steps
        progress.note_metric(manifest.val_bpb, manifest.step_losses, is_on_curve=is_on_curve)
    return progress


def _start_from(folder: Path, trained: TrainingState, data: PreparedData) -> None:
    manifest = read_manifest(folder)
    verify(folder, manifest)
    if manifest.tokenizer_sha256 != data.tokenizer_sha256:
        raise CheckpointError(
            "the weights to start from were trained with another tokenizer", where=str(folder)
        )
    load_weights(folder, manifest, trained.model)


def make_fresh_state(
    model: LanguageModel, optimizer: Optimizer, settings: PhaseRecipe
) -> TrainingState:
    average = Average(model, settings.ema_decay) if settings.ema else None
    return TrainingState(
        model, optimizer, LossScale.of(settings.dtype), Progress(), average=average
    )
