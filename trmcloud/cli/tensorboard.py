"""``trmcloud tensorboard``: a run's curves, on loopback."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer


def command(
    run: Annotated[str, typer.Argument(help="A run's id.")],
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 6006,
) -> None:
    """Serve a run's curves on this machine alone, until Ctrl-C.

    Example: trmcloud tensorboard r-1f3a9c
    """
    import importlib.util

    from trmcloud.app.world import find_run
    from trmcloud.core.errors import MissingExtra
    from trmcloud.wiring import build_world

    world = build_world()
    state = find_run(world, run)
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingExtra("trmcloud tensorboard", "train")
    folder = world.files.folder(state.run_id)
    print(f"http://127.0.0.1:{port}  (Ctrl-C ends it)", flush=True)
    arguments = ["--logdir", folder, "--host", "127.0.0.1", "--port", str(port)]
    os.execv(sys.executable, [sys.executable, "-m", "tensorboard.main", *arguments])
