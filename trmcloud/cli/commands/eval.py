"""``trmcloud eval``: score a checkpoint on validation text, or on questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from trmcloud.app.context import Context

_SCORED = 0.95
_TASKS = ("gsm8k",)


def eval(
    checkpoint: Annotated[
        str, typer.Argument(help="A fetched folder, or a run's id (its best checkpoint).")
    ] = "",
    data: Annotated[
        str,
        typer.Option(
            help="Text to score on (default: the checkpoint's own), or a task's questions: JSONL."
        ),
    ] = "",
    control: Annotated[
        str,
        typer.Option(help="A model trained with supervision_steps=1, to hold the first step to."),
    ] = "",
    task: Annotated[
        str, typer.Option(help="Questions to answer instead: gsm8k, by the number behind ####.")
    ] = "",
    limit: Annotated[
        int, typer.Option(help="With --task: the first N questions (0: all).", min=0)
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Bits per byte and every supervision step's loss, beside what counting bytes alone gives.

    Example: trmcloud eval r-1f3a9c
    """
    from pathlib import Path

    from trmcloud.app.data.prepare import need_training_extra
    from trmcloud.cli.trainer_command import checkpoint_folder, run_trainer_command
    from trmcloud.wiring import build_context

    _check(data, control, task, limit)
    context = build_context()
    need_training_extra()
    folder = checkpoint_folder(context, checkpoint)
    if task:
        items = str(Path(data).expanduser().absolute())
        arguments = ["--checkpoint", folder, "--items", items, "--limit", str(limit)]
        run_trainer_command("model.solve", [*arguments, *(["--json"] if as_json else [])])
        return
    prepared = _prepared(context, Path(folder), data)
    arguments = ["--checkpoint", folder, "--data", prepared]
    if control:
        arguments += ["--control", checkpoint_folder(context, control)]
    run_trainer_command("model.score", [*arguments, *(["--json"] if as_json else [])])


def _check(data: str, control: str, task: str, limit: int) -> None:
    """
    Raises:
        UsageError: options that do not go together, or a task that is not known.
    """
    from pathlib import Path

    from trmcloud.core.errors import UsageError

    if task and task not in _TASKS:
        raise UsageError(f"no task {task!r}", next_step=f"tasks: {', '.join(_TASKS)}")
    if task and control:
        raise UsageError("--control is for validation text, not for a task")
    if limit and not task:
        raise UsageError("--limit is for a task", next_step="--task gsm8k")
    if task and not Path(data).expanduser().is_file():
        what = f"no file {data!r}" if data else "a task needs its questions"
        raise UsageError(
            what, next_step="--data with a JSONL file, a question and an answer on each line"
        )


def _prepared(context: Context, folder: Path, data: str) -> str:
    """The folder of prepared text to score on: the run's own, or ``data`` in the checkpoint's
    tokens."""
    from dataclasses import replace
    from pathlib import Path

    from trmcloud.app.checkpoints.fetching import read_manifest, sound_file
    from trmcloud.app.data.prepare import prepared_from
    from trmcloud.app.data.sources import resolve_source
    from trmcloud.app.pod_request import LaunchData, read_launch_note
    from trmcloud.app.preparing import pinned_source, ready_data
    from trmcloud.cli.views.data_progress import DataProgress
    from trmcloud.core.errors import DataError
    from trmcloud.core.spec.settings import PhaseRecipe
    from trmcloud.wiring_plans import build_planner

    manifest = read_manifest(folder)
    try:
        own = LaunchData.of_note(read_launch_note(context.home, manifest.run_id))
    except DataError:
        own = LaunchData()
    own_source = prepared_from(Path(own.folder)) if own.folder else ""
    if not data:
        if own_source:
            return own.folder
        named = own.source.name if own.source is not None else "PATH"
        raise DataError(
            f"the text that {manifest.run_id} was validated on is not on this machine",
            next_step=f"name one to score on: --data {named}",
        )
    settings = PhaseRecipe.from_json(manifest.settings)
    inputs = build_planner().inputs
    source = inputs.data_source(resolve_source(data, settings))
    if source.name == own_source:
        return own.folder  # not the part of it that was trained on
    progress = DataProgress()
    source = pinned_source(context, inputs, source, progress)
    tokenizer = sound_file(folder, "tokenizer")
    if source.made_there:
        # Its validation file is made whatever else is; of the rest a batch will do.
        small = replace(settings, batch=1)
        wanted, tokens = small, small.sequence + 1
    else:
        # Nothing is trained here: all of the text but one batch is scored.
        wanted, tokens = replace(settings, validation_fraction=_SCORED, batch=1), 0
    made, _, _ = ready_data(context, source, wanted, progress, tokenizer=tokenizer, tokens=tokens)
    return str(made)
