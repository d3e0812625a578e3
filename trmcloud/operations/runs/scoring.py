"""Scoring a checkpoint: which one, on which text or tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trmcloud.core.catalog.eval_tasks import suite_of, task_names
from trmcloud.core.errors import DataError, UsageError
from trmcloud.core.nearest import suggest_name
from trmcloud.core.spec.settings import CHAT, PhaseRecipe
from trmcloud.core.values import replace
from trmcloud.operations.checkpoints import fetching
from trmcloud.operations.checkpoints.fetching import read_manifest, sound_file
from trmcloud.operations.context import Context, find_run
from trmcloud.operations.plans.preparing import pinned_source, ready_data
from trmcloud.operations.pod_request import LaunchData
from trmcloud.operations.sending.data import prepare_data, prepared_from, resolve_source
from trmcloud.ports.machine import PlanInputs

GSM8K = "gsm8k"
_SCORED = 0.95


def checkpoint_folder(context: Context, named: str) -> str:
    """A checkpoint folder: the one named, or the best checkpoint of the run named (or newest)."""
    folder = Path(named).expanduser() if named else None
    if folder is not None and folder.is_dir():
        fetching.read_manifest(folder)
        return str(folder.absolute())
    run = find_run(context, named or None)
    return context.files.folder_of(fetching.choose(context, run))


def require_suite(task: str, data: str) -> None:
    """
    Raises:
        UsageError: no suite and no task has this name, or ``data`` is no folder.
    """
    if task not in (known := [GSM8K, *task_names()]):
        try:
            suite_of(task)
        except UsageError as error:
            near = suggest_name(task, known)
            raise UsageError(error.what, where="--task", next_step=near) from None
    if data and not Path(data).expanduser().is_dir():
        raise UsageError(
            f"no folder {data!r}",
            next_step="--data FOLDER, with the files of the task; without it they are downloaded",
        )


def prepared_text(
    context: Context,
    inputs: PlanInputs,
    folder: Path,
    data: str,
    progress: Callable[[str, int, int], None],
) -> str:
    """Return the folder of prepared text to score a checkpoint on: its run's own, or ``data`` in
    the checkpoint's tokens.

    Raises:
        DataError: the text that the run was validated on is not here, and no other is named.
    """
    manifest = read_manifest(folder)
    try:
        own = LaunchData.of_note(context.notes.launch(manifest.run_id))
    except DataError:
        own = LaunchData()
    own_folder = own.chat if own.chat and manifest.phase == CHAT else own.folder
    own_source = prepared_from(Path(own_folder)) if own_folder else ""
    if not data:
        if own_source:
            return own_folder
        named = own.source.name if own.source is not None else "PATH"
        raise DataError(
            f"the text that {manifest.run_id} was validated on is not on this machine",
            next_step=f"give a text to score on: --data {named}",
        )
    settings = PhaseRecipe.from_json(manifest.settings)
    source = inputs.data_source(resolve_source(data, settings))
    if source.name == own_source:
        return own_folder  # not the part of it that was trained on
    source = pinned_source(context, inputs, source, progress)
    tokenizer = sound_file(folder, "tokenizer")
    if source.made_there:
        # Its validation file is made whatever else is; of the rest a batch will do.
        small = replace(settings, batch=1)
        wanted, tokens = small, small.sequence + 1
    else:
        # Nothing is trained here: all of the text but one batch is scored.
        wanted, tokens = replace(settings, validation_fraction=_SCORED, batch=1), 0
    if manifest.phase == CHAT:
        # Conversations are written in the checkpoint's tokens where they are scored.
        made, _ = prepare_data(context.home, source, wanted, context.pods.trainer_path(), progress)
    else:
        made, _, _ = ready_data(
            context, source, wanted, progress, tokenizer=tokenizer, tokens=tokens
        )
    return str(made)
