"""``trmcloud serve``: a checkpoint behind HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PACKAGES = ("pydantic", "starlette", "uvicorn")


def serve(
    checkpoint: Annotated[
        str, typer.Argument(help="A fetched folder, or a run's id (its best checkpoint).")
    ] = "",
    host: Annotated[
        str, typer.Option(help="Address to listen at; any but loopback needs a token.")
    ] = _LOOPBACK[0],
    port: Annotated[int, typer.Option(help="Port; 0: one that is free.", min=0, max=65535)] = 8000,
    batch: Annotated[
        int, typer.Option(help="Requests that share the model's passes.", min=1, max=256)
    ] = 8,
    queue: Annotated[
        int, typer.Option(help="Requests that may wait beside them.", min=0, max=100_000)
    ] = 64,
) -> None:
    """Answer requests with what a checkpoint writes, on this machine alone, until Ctrl-C.

    Example: trmcloud serve r-1f3a9c
    """
    import importlib.util
    import sys

    from trmcloud.app.data.prepare import need_training_extra
    from trmcloud.cli.trainer_command import checkpoint_folder, run_trainer_command
    from trmcloud.core.errors import MissingExtra
    from trmcloud.wiring import build_context

    need_training_extra()
    if any(importlib.util.find_spec(name) is None for name in _PACKAGES):
        raise MissingExtra("a server", "serve")
    folder = checkpoint_folder(build_context(), checkpoint)
    if host not in _LOOPBACK:
        print(
            f"warning: {host} is reached from elsewhere, in plain text: who sees the token on its "
            "way can ask the model",
            file=sys.stderr,
            flush=True,
        )
    arguments = ["--checkpoint", folder, "--host", host, "--port", str(port)]
    arguments += ["--batch", str(batch), "--queue", str(queue), "--with-stdin"]
    run_trainer_command("model.serve", arguments, until_interrupted=True)
