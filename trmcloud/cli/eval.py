"""``trmcloud eval``: score a checkpoint on validation text."""

from __future__ import annotations

from typing import Annotated

import typer


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

    from trmcloud.app.checkpoints import read_manifest
    from trmcloud.app.data import need_training_extra, resolve_source
    from trmcloud.app.jobs import read_launch_note
    from trmcloud.cli.launch_steps import ready_data
    from trmcloud.cli.trainer_command import checkpoint_folder, run_trainer_command
    from trmcloud.core.recipe import PhaseRecipe
    from trmcloud.wiring import build_world

    world = build_world()
    need_training_extra()
    folder = checkpoint_folder(world, checkpoint)
    manifest = read_manifest(Path(folder))
    if data:
        settings = PhaseRecipe.from_json(manifest.settings)
        prepared = str(ready_data(world, resolve_source(data, settings), settings)[0])
    else:
        prepared = str(read_launch_note(world.home, manifest.run_id)["data_dir"])
    arguments = ["--checkpoint", folder, "--data", prepared]
    run_trainer_command("model.score", [*arguments, *(["--json"] if as_json else [])])
