"""``trmcloud ui``, and a run's curves in TensorBoard and Weights & Biases."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.catch_up import catch_up, caught_up, tell
from trmcloud.cli.views.json_output import print_answer, print_line
from trmcloud.core.errors import ConnectionDropped, UsageError
from trmcloud.operations import views
from trmcloud.operations.checkpoints.sources import live_pod
from trmcloud.operations.context import Context, find_run, run_by_id
from trmcloud.operations.curves.boards import BoardFeed, logs_no_more, need_metrics
from trmcloud.operations.driving.reconciling import look_again
from trmcloud.operations.run_queries import is_driven
from trmcloud.wiring import board_server, build_context, event_files, wandb_run

_LOOK_S = 3.0


def serve_tensorboard(run: str, port: int, *, as_json: bool) -> None:
    """Serve a run's curves on this machine only, until Ctrl-C: from the metrics here, or from
    TensorBoard on its rented pod, through SSH."""
    context = build_context()
    state = find_run(context, run or None)
    if live_pod(state) is not None:
        _require_free(port)
        _from_pod(context, state.run_id, port, as_json=as_json)
        return
    need_metrics(context, state)
    options.require_packages(("tensorboard",), "trmcloud report --to tensorboard", "tensorboard")
    _require_free(port)
    _from_here(context, state.run_id, port, as_json=as_json)


def _from_here(context: Context, run_id: str, port: int, *, as_json: bool) -> None:
    """Until Ctrl-C: what is logged meanwhile is shown, too."""
    with tempfile.TemporaryDirectory(prefix="trmcloud-board-") as folder:
        files = event_files(Path(folder))
        try:
            feed = BoardFeed(context, run_id, files)
            feed.look()
            url = board_server(Path(folder), port)
            if as_json:
                print_line(views.Serving(of="tensorboard", run=run_id, url=url, token=None))
            else:
                print(f"{url}  (stop with Ctrl-C)", flush=True)
            while True:
                context.clock.sleep(_LOOK_S)
                feed.look()
        finally:
            files.close()


def _from_pod(context: Context, run_id: str, port: int, *, as_json: bool) -> None:
    """Until the pod is gone; a connection that drops is made anew."""
    said = ""
    while (pod := live_pod(run_by_id(context, run_id))) is not None:
        link = context.machines.links[pod.provider]
        try:
            with link.tensorboard(pod.pod_name, port) as runs_still:
                if as_json:
                    url = f"http://127.0.0.1:{port}"
                    print_line(views.Serving(of="tensorboard", run=run_id, url=url, token=None))
                said = _say(f"http://127.0.0.1:{port}  on its pod (stop with Ctrl-C)", said)
                while runs_still():
                    context.clock.sleep(_LOOK_S)
        except ConnectionDropped as error:
            said = _say(f"not reachable now, trying again: {error}", said)
        context.clock.sleep(_LOOK_S)
        if not is_driven(context, context.ledger.driver(run_id)):
            catch_up(context)
    print(f"{run_id}: its pod is gone", flush=True)


def _say(text: str, said: str) -> str:
    """Each line once, until another one is due."""
    if text != said:
        print(text, flush=True)
    return text


def _require_free(port: int) -> None:
    """
    Raises:
        UsageError: another program listens at the port.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise UsageError(
                f"port {port} is in use on this machine", next_step="use another --port"
            ) from None


def send_to_wandb(run: str, project: str, entity: str, *, as_json: bool) -> None:
    """Send a run's curves to Weights & Biases from this machine, until the run has ended. The key
    stays here; with WANDB_MODE=offline all data is kept in a folder for "wandb sync"."""
    options.require_packages(("wandb",), "trmcloud report --to wandb", "wandb")
    context = caught_up()
    state = find_run(context, run or None)
    need_metrics(context, state)
    board, where = wandb_run(
        context.home, state, project=project or state.project, entity=entity or None
    )
    told = 0
    try:
        print(f"{state.run_id}: {where}", flush=True)
        feed = BoardFeed(context, state.run_id, board)
        while True:
            state = run_by_id(context, state.run_id)
            # Asked first: what is logged in between is told.
            is_over = logs_no_more(state)
            told += feed.look()
            if is_over:
                break
            look_again(context, state)
    finally:
        board.close()
    sent = views.MetricsSent(run=state.run_id, where=where, lines=told)
    print_answer(sent, [f"{state.run_id}: sent {told:,} lines of metrics"], as_json=as_json)


def ui(
    run: Annotated[
        str,
        typer.Argument(
            help="Run to show first (default: all).", autocompletion=options.complete_run
        ),
    ] = "",
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; anyone with the token can then control the runs."),
    ] = options.LOOPBACK[0],
    port: Annotated[int, typer.Option(help="Port; 0: any free port.", min=0, max=65535)] = 8765,
    live: options.Live = False,
    as_json: options.Json = False,
) -> None:
    """Serve a page on this machine only, until Ctrl-C: runs, money, curves, and buttons to stop,
    save, fetch and raise. Its address has a token; without it nothing is shown.

    Example: trmcloud ui
    """
    options.require_packages(("starlette", "uvicorn"), "trmcloud ui", "ui")
    from trmcloud.cli.page.server import serve

    context = build_context()
    context.ledger.read()  # one that cannot be used is told here, not on the page
    run_id = find_run(context, run).run_id if run else ""
    options.warn_if_exposed(host, "anyone who reads the token on the network can control every run")
    tell(context)  # what is clicked is driven on from here
    serve(None, host, port, run_id=run_id, live=live, as_json=as_json)
