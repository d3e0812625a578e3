"""A checkpoint behind HTTP: ``python -m model.serve --checkpoint DIR --port 8000``.

One process, one thread for the model. Requests that come together share its passes.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Sequence

from model.command import run_command
from trmcloud.core.errors import CannotListen, UsageError
from trmcloud.core.spec.settings import CHAT
from trmcloud.core.text import one_line
from trmcloud.io.web_guard import LOOPBACK, names_of
from trmcloud.io.web_server import listening, silent_server

if TYPE_CHECKING:
    from model.serving.app import ServedModel
    from model.serving.openai import Fresh
    from model.training.load import LoadedModel

HOST = "127.0.0.1"
PORT = 8000
BATCH = 8
QUEUE = 64
_LEAVE_WITHIN_S = 2
_TOKEN_BYTES = 24
_SPARE_CONNECTIONS = 64
"""Beside those whose requests are drawn or wait."""
_KILL_AFTER_S = 5
_NUMBER_BITS = 63


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m model.serve",
        description=__doc__.partition("\n")[0],
        epilog="example: python -m model.serve --checkpoint step-00000120 --port 8000",
    )
    parser.add_argument("--checkpoint", required=True, help="a checkpoint folder")
    parser.add_argument("--host", default=HOST, help="address to listen on")
    parser.add_argument("--port", type=int, default=PORT, help="0: any free port")
    parser.add_argument(
        "--batch", type=int, default=BATCH, help="requests that are generated at the same time"
    )
    parser.add_argument(
        "--queue", type=int, default=QUEUE, help="requests that may wait in the queue"
    )
    parser.add_argument("--with-stdin", action="store_true", help="end when standard input closes")
    chosen = parser.parse_args(arguments)

    def command() -> None:
        _check(chosen)
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.default_int_handler)
        if chosen.with_stdin:
            threading.Thread(target=_end_with_stdin, name="stdin", daemon=True).start()
        try:
            _serve(chosen)
        except KeyboardInterrupt:
            print("ended", flush=True)

    return run_command(command)


def make_served_model(loaded: LoadedModel, *, batch: int, queue: int) -> ServedModel:
    """A loaded checkpoint with an engine of its own, which is not started yet."""
    from model.data.chat import ChatTokens
    from model.families.drawing import is_batched, make_sampler
    from model.serving.active import TextSource
    from model.serving.app import ServedModel
    from model.serving.engine import Engine
    from model.serving.messages import MAX_BODY_BYTES, Info

    def report(line: str) -> None:
        print(f"warning: {line}", flush=True)

    def warn(line: str) -> None:
        print(f"warning: {line}", file=sys.stderr, flush=True)

    def report_pass(error: Exception) -> None:
        failed = one_line(f"{type(error).__name__}: {error}")
        report(f"a step for several requests failed; each was tried separately: {failed}")

    model, manifest = loaded.model, loaded.manifest
    engine = Engine(
        make_sampler(model, batch, loaded.device, report_pass),
        rows=batch,
        waiting=queue,
        report=report,
    )
    info = Info(
        model=loaded.settings.recipe or loaded.settings.family,
        created=int(manifest.created_at),
        family=loaded.settings.family,
        recipe=loaded.settings.recipe,
        run_id=manifest.run_id,
        phase=manifest.phase,
        step=manifest.step,
        sha256=manifest.sha256,
        parameters=sum(each.numel() for each in model.parameters()),
        vocab_size=loaded.tokenizer.vocab_size,
        sequence=model.sequence,
        device=str(loaded.device),
        batched=is_batched(model),
        batch=batch,
        queue=queue,
        max_body_bytes=MAX_BODY_BYTES,
    )
    chat = ChatTokens.of(loaded.tokenizer) if manifest.phase == CHAT else None
    source = TextSource(
        engine, loaded.tokenizer, model.most_given, chat=chat, least_given=model.least_given
    )
    return ServedModel(source, info, _version(), fresh(), warn)


def fresh() -> Fresh:
    """This machine's clock and random numbers."""
    from model.serving.openai import Fresh

    return Fresh(time.time, lambda: secrets.randbits(_NUMBER_BITS))


def server(what: ServedModel, host: str = HOST, token: str = "") -> Any:
    """uvicorn's server of it, silent; ``run(sockets=[…])`` serves until it is told to end.

    Args:
        host: where it listens; it may be called by that name.
        token: what every request has to bring; empty: nothing.
    """
    from model.serving.app import application
    from model.serving.guard import Guard

    requests = what.info.batch + what.info.queue + _SPARE_CONNECTIONS
    return silent_server(
        Guard(application(what), names_of(host), token),
        leave_within_s=_LEAVE_WITHIN_S,
        requests=requests,
    )


def new_token(host: str) -> str:
    """Return a new token for requests to a server at ``host``: empty at loopback."""
    return "" if host in LOOPBACK else secrets.token_urlsafe(_TOKEN_BYTES)


def open_socket(host: str, port: int) -> socket.socket:
    """
    Raises:
        CannotListen: the port is taken, or there is no such address.
    """
    try:
        return listening(host, port)
    except OSError as error:
        raise CannotListen(host, port, error, next_step="use another --port") from None


def _end_with_stdin() -> None:
    """End this process once standard input is closed: its parent holds the other end, which is
    closed whenever the parent ends, even if it was killed."""
    with suppress(OSError):
        while os.read(0, 1 << 12):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_LEAVE_WITHIN_S + _KILL_AFTER_S)
    os._exit(1)


def _serve(chosen: argparse.Namespace) -> None:
    import uvicorn  # noqa: F401  # told before a checkpoint is read, where it is missing

    from model.serving.memory import check_room, free_bytes
    from model.training.load import has_gpu, load_model, settings_of

    # Bound first: what is in the way is told at once, and not after the weights are read.
    with open_socket(chosen.host, chosen.port) as sock:
        on_gpu = has_gpu()
        settings = settings_of(Path(chosen.checkpoint))
        check_room(settings, chosen.batch, free_bytes(on_gpu=on_gpu), on_gpu=on_gpu)
        loaded = load_model(Path(chosen.checkpoint))
        what = make_served_model(loaded, batch=chosen.batch, queue=chosen.queue)
        token = new_token(chosen.host)
        made = server(what, chosen.host, token)
        host = f"[{chosen.host}]" if ":" in chosen.host else chosen.host
        print(
            f"{what.info.phase}/step {what.info.step}, {what.info.family}, "
            f"{what.info.parameters:,} parameters, on "
            f"{what.info.device}\nhttp://{host}:{sock.getsockname()[1]}  (stop with Ctrl-C)  chat "
            f"page at /, OpenAI's API at /v1 with model {what.info.model!r}"
            + (f"\nAuthorization: Bearer {token}  (required in every request)" if token else ""),
            flush=True,
        )
        made.run(sockets=[sock])


def _check(chosen: argparse.Namespace) -> None:
    if not 0 <= chosen.port <= 65535:
        raise UsageError("--port must be from 0 to 65535")
    if not 1 <= chosen.batch <= 256:
        raise UsageError("--batch must be from 1 to 256")
    if not 0 <= chosen.queue <= 100_000:
        raise UsageError("--queue must be from 0 to 100000")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("trmcloud")
    except PackageNotFoundError:  # a bundle on another machine
        return "0"


if __name__ == "__main__":
    sys.exit(main())
