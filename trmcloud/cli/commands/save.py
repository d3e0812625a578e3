"""``trmcloud save``: a checkpoint now, without stopping."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from trmcloud.cli.views.streams import as_is

if TYPE_CHECKING:
    from trmcloud.app.checkpoints.saving import Asked, Place
    from trmcloud.core.control.run_state import RunState


def save(
    run: Annotated[str, typer.Argument(help="A run's id; the newest otherwise.")] = "",
    detach: Annotated[bool, typer.Option("-d", "--detach", help="Ask, and leave.")] = False,
    wait: Annotated[
        float, typer.Option("--wait", min=1.0, help="Seconds to wait for it, and for its copy.")
    ] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a checkpoint of a run that trains, now; it goes on.

    It is made after the step that is under way, brought to where the run's checkpoints are kept,
    and evaluated like any other.

    Example: trmcloud save r-1f3a9c
    """
    from trmcloud.app.checkpoints.saving import AwaitedSave, request_save
    from trmcloud.app.context import find_run
    from trmcloud.app.launching import follow_or_drive
    from trmcloud.app.out_of_reach import require_reach
    from trmcloud.cli.catching_up import catch_up
    from trmcloud.wiring import build_context

    context = build_context()
    catch_up(context)
    asked = request_save(context, run or None, "trmcloud save")
    if not as_json:
        print(f"{asked.run_id}: asked to save", flush=True)
    if detach:
        catch_up(context)
        return
    state = find_run(context, asked.run_id)
    if state.generation is not None:
        require_reach(context, state.generation.provider)
    waiting = AwaitedSave(context, asked, wait)
    state = follow_or_drive(context, asked.run_id, waiting.is_over, lambda state: None)
    _show(state, waiting.place(state), asked, as_json=as_json)


def _show(state: RunState, place: Place, asked: Asked, *, as_json: bool) -> None:
    from trmcloud.app.checkpoints.shelf import HERE
    from trmcloud.app.run_queries import told_by
    from trmcloud.cli.views.text import bpb, fields
    from trmcloud.core.control.reported import BY_POD

    kept, is_here = place.kept, place.at.kind == HERE
    if as_json:
        print(
            json.dumps(
                {
                    "run": asked.run_id,
                    "checkpoint": place.label,
                    "val_bpb": kept.val_bpb,
                    "sha256": kept.sha256,
                    "size_bytes": kept.size_bytes,
                    "lies_in": place.words,
                    "safe": is_here,
                    "kept": place.final,
                    "reported_by": told_by(state, kept).by,
                }
            ),
            file=as_is(),
        )
        return
    metric = "not evaluated yet"
    if kept.val_bpb is not None:
        metric = told_by(state, kept.val_bpb).as_reported(bpb)
    by = "" if is_here else f" {BY_POD}"
    size = f"{kept.size_bytes / 1e6:,.1f} MB"
    print(f"{asked.run_id} {place.label}: saved{by}, {size}; it goes on")
    rows = [("final-step bpb", metric), ("weights", f"sha256 {kept.sha256}")]
    print("\n".join(fields([*rows, ("lies in" if place.final else "on", place.words)], "  ")))
