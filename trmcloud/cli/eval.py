"""``trmcloud eval``: score a checkpoint on validation text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from trmcloud.app.world import World

_SCORED = 0.95


def command(
    checkpoint: Annotated[
        str, typer.Argument(help="A fetched folder, or a run's id (its best checkpoint).")
    ] = "",
    data: Annotated[
        str, typer.Option(help="Text to score on; the checkpoint's own data otherwise.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Bits per byte and every supervision step's loss, beside what counting bytes alone gives.

    Example: trmcloud eval r-1f3a9c
    """
    from pathlib import Path

    from trmcloud.app.data import need_training_extra
    from trmcloud.cli.trainer_command import checkpoint_folder, run_trainer_command
    from trmcloud.wiring import build_world

    world = build_world()
    need_training_extra()
    folder = checkpoint_folder(world, checkpoint)
    prepared = _prepared(world, Path(folder), data)
    arguments = ["--checkpoint", folder, "--data", prepared]
    run_trainer_command("model.score", [*arguments, *(["--json"] if as_json else [])])


def _prepared(world: World, folder: Path, data: str) -> str:
    """The folder of prepared text to score on: the run's own, or ``data`` in the checkpoint's
    tokens."""
    from dataclasses import replace
    from pathlib import Path

    from trmcloud.app.checkpoints import read_manifest, sound_file
    from trmcloud.app.data import prepared_from, resolve_source
    from trmcloud.app.jobs import read_launch_note
    from trmcloud.cli.launch_steps import ready_data
    from trmcloud.core.errors import DataError
    from trmcloud.core.recipe import PhaseRecipe

    manifest = read_manifest(folder)
    try:
        own = Path(str(read_launch_note(world.home, manifest.run_id)["data_dir"]))
        own_source = prepared_from(own)
    except DataError:
        own_source = ""
    if not data:
        if not own_source:
            raise DataError(
                f"the text that {manifest.run_id} was validated on is not on this machine",
                next_step="name one to score on: --data PATH",
            )
        return str(own)
    settings = PhaseRecipe.from_json(manifest.settings)
    source = resolve_source(data, settings)
    if source == own_source:
        return str(own)  # not the part of it that was trained on
    # Nothing is trained here: all of the text but one batch is scored.
    whole = replace(settings, validation_fraction=_SCORED, batch=1)
    return str(ready_data(world, source, whole, sound_file(folder, "tokenizer"))[0])
