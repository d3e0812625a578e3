"""Where a training begins: at its latest sound checkpoint, at given weights, or fresh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Mapping

from model.average import Average
from model.checkpoint import (
    CheckpointFolder,
    Found,
    read_manifest,
    read_tensors,
    read_text,
    verify,
)
from model.data.folder import PreparedData
from model.distributed import World
from model.families.protocol import LanguageModel
from model.landing import Landing
from model.optim import Optimizer
from model.precision import LossScale
from model.progress import Progress, restore_generators, row_from_json
from model.reporting import say
from model.saver import Trained
from model.sharing import share
from model.telemetry import Metrics
from trmcloud.core.errors import CheckpointError, DataError
from trmcloud.core.manifest import step_dir_name
from trmcloud.core.pod_contract import PhaseJob
from trmcloud.core.recipe import PhaseRecipe

ENV_ACCEPT_CHANGE = "TRMCLOUD_ACCEPT_CHANGE"
"""Set: resume though settings have changed that decide what is trained."""

_NONE, _ALL_DAMAGED = -1, -2
#: Another value of these makes another training, though the weights may still fit.
_DECISIVE = (
    "family", "depth", "width", "head_dim", "hidden", "tied", "vocab_size", "supervision_steps",
    "loops", "control", "sequence", "seed", "rows", "optimizer", "ema",
)  # fmt: skip


def begin(
    job: PhaseJob,
    trained: Trained,
    world: World,
    data: PreparedData,
    landing: Landing,
    checkpoints: CheckpointFolder,
    metrics: Metrics,
    *,
    accept_change: bool = False,
) -> Trained:
    """Brings ``trained`` to where this attempt starts, and the metrics file with it.

    Every rank reads the checkpoint that rank 0 has verified; other machines are sent it.

    Args:
        accept_change: go on though decisive settings differ from the checkpoint's.

    Raises:
        CheckpointError: all checkpoints are damaged, or do not fit the settings.
        DataError: the checkpoint was trained on other data.
    """
    found = _agree_on_latest(checkpoints, world)
    if found is not None:
        if not accept_change:
            _refuse_changes(found, PhaseRecipe.from_json(job.settings), world)
        _resume(found, trained, world, data, landing)
    elif job.initial_weights:
        _start_from(Path(job.initial_weights), trained, data)
        if trained.average is not None:
            trained.average.restart()
    if world.is_main:
        metrics.rewind(trained.progress.step if found is not None else None)
    return trained


def load_weights(folder: Path, manifest: Any, model: Any) -> None:
    """Takes up a checkpoint's weights.

    Raises:
        CheckpointError: they are those of another shape.
    """
    tensors = read_tensors(folder, manifest, "weights")
    try:
        model.load_state_dict(tensors)
    except RuntimeError:
        raise CheckpointError(
            "the checkpoint's weights have another shape than the settings ask for",
            where=str(folder),
            next_step="use the settings in its manifest.json, or another folder",
        ) from None


def _agree_on_latest(checkpoints: CheckpointFolder, world: World) -> Found | None:
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
    return Found(folder, read_manifest(folder))


def _refuse_changes(found: Found, settings: PhaseRecipe, world: World) -> None:
    """
    Raises:
        CheckpointError: naming what differs between the checkpoint's settings and these.
    """
    before = PhaseRecipe.from_json(found.manifest.settings)
    changed = [
        f"{name} {getattr(before, name)} → {getattr(settings, name)}"
        for name in _DECISIVE
        if getattr(before, name) != getattr(settings, name)
    ]
    rows = [each.global_batch(1) for each in (before, settings)]
    whole = rows[0] * found.manifest.world_size, rows[1] * world.size
    # Another number of GPUs is the machine's doing, and told of; a plan that keeps the whole batch
    # on them may miss it by less than a row each.
    if rows[0] != rows[1] and abs(whole[0] - whole[1]) >= world.size:
        changed.append(f"sequences a step {whole[0]} → {whole[1]}")
    if changed:
        raise CheckpointError(
            f"the checkpoint was trained with other settings: {', '.join(changed)}",
            where=str(found.folder),
            next_step=f"give those, or start a new run from its weights; {ENV_ACCEPT_CHANGE}=1 "
            "goes on all the same",
        )


def _resume(
    found: Found, trained: Trained, world: World, data: PreparedData, landing: Landing
) -> None:
    folder, manifest = found.folder, found.manifest
    if manifest.tokenizer_sha256 != data.tokenizer_sha256:
        raise DataError(
            "the checkpoint was trained with another tokenizer",
            where=str(folder),
            next_step="give the data it was trained on",
        )
    if manifest.data_sha256 != data.source_sha256:
        raise DataError(
            "the checkpoint was trained on other data",
            where=str(folder),
            next_step="give the data it was trained on, or start a new run from its weights",
        )
    load_weights(folder, manifest, trained.model)
    try:
        tensors = read_tensors(folder, manifest, "optimizer")
        trained.optimizer.load_state(tensors)
        if trained.average is not None:
            trained.average.resume(tensors)
        state: Mapping[str, Any] = json.loads(read_text(folder, manifest, "state"))
        trained.progress = progress = Progress.from_json(state["progress"])
        trained.loss_scale.load_json(state["loss_scale"])
        rows = [row_from_json(text) for text in state["generators"]]
        trained.shards = tuple(str(each) for each in state.get("shards", ()))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the checkpoint's state cannot be used: {error!r}", where=str(folder)
        ) from None
    if manifest.val_bpb is not None and not progress.is_evaluated:
        # It was saved before it was evaluated, and the metric came to its manifest alone.
        progress.note_metric(manifest.val_bpb, manifest.step_losses)
    if world.rank < len(rows):
        restore_generators(rows[world.rank], world.device)
    if progress.cooldown is not None and not landing.keeps(progress.cooldown):
        if progress.step > progress.cooldown.start:
            progress.warm_from = progress.step
        progress.cooldown = None
    if world.is_main:
        say(f"resumed from step {progress.step}")
        if manifest.world_size != world.size:
            say(
                f"note: {manifest.world_size} processes saved it, {world.size} go on; "
                "the data's order is kept, but not every bit"
            )


def _start_from(folder: Path, trained: Trained, data: PreparedData) -> None:
    manifest = read_manifest(folder)
    verify(folder, manifest)
    if manifest.tokenizer_sha256 != data.tokenizer_sha256:
        raise CheckpointError(
            "the weights to start from were trained with another tokenizer", where=str(folder)
        )
    load_weights(folder, manifest, trained.model)


def fresh(model: LanguageModel, optimizer: Optimizer, settings: PhaseRecipe) -> Trained:
    average = Average(model) if settings.ema else None
    return Trained(model, optimizer, LossScale.of(settings.dtype), Progress(), average=average)
