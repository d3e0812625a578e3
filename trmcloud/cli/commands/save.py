"""``trmcloud save``: a checkpoint now, without stopping."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from trmcloud.cli.views.streams import as_is

if TYPE_CHECKING:
    from trmcloud.app.checkpoints.saving import Asked, Place
    from trmcloud.app.context import Context
    from trmcloud.core.control.run_state import RunState


def command(
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
    from trmcloud.app.checkpoints.saving import request_save
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
    waiting = _Waiting(context, asked, wait)
    state = follow_or_drive(context, asked.run_id, waiting.is_over, lambda state: None)
    _show(waiting.place(state), asked, as_json=as_json)


class _Waiting:
    """For the pod's answer, then for the copy; for each no longer than ``wait_s``."""

    def __init__(self, context: Context, asked: Asked, wait_s: float) -> None:
        self._context, self._asked, self._wait_s = context, asked, wait_s
        self._began = context.wall()
        self._answered = False

    def is_over(self, run: RunState) -> bool:
        from trmcloud.app.checkpoints.saving import find_saved

        answer = self._asked.answer(self._context, run)
        if answer is not None and not self._answered:
            self._answered, self._began = True, self._context.wall()
        if answer is not None and answer.why:
            return True
        place = find_saved(self._context, run, answer) if answer is not None else None
        late = not 0 <= self._context.wall() - self._began < self._wait_s
        return late or not run.live or (place is not None and place.final)

    def place(self, run: RunState) -> Place:
        """
        Raises:
            NotSupported: the trainer cannot save when it is asked to. ConflictError: the run ended
                before it did. LinkError: its pod has not said that it did.
        """
        from trmcloud.app.checkpoints.saving import find_saved
        from trmcloud.core.errors import ConflictError, LinkError, NotSupported

        answer = self._asked.answer(self._context, run)
        if answer is not None and answer.why:
            raise NotSupported(
                f"{run.run_id} was not saved: {answer.why}",
                next_step=f"trmcloud stop {run.run_id} saves; resume goes on from there",
            )
        place = find_saved(self._context, run, answer) if answer is not None else None
        if place is not None:
            return place
        if not run.live:
            ended = run.outcome.value if run.outcome else run.state.value
            raise ConflictError(
                f"{run.run_id} ended before it was saved once more: {ended}",
                next_step=f"trmcloud fetch-best {run.run_id}",
            )
        raise LinkError(
            f"it could not be confirmed within {self._wait_s:.0f} s that {run.run_id} has saved",
            next_step=f"trmcloud status {run.run_id}; it may still, or its pod be of an earlier "
            "trmcloud",
        )


def _show(place: Place, asked: Asked, *, as_json: bool) -> None:
    from trmcloud.cli.views.text import bpb, fields

    kept = place.kept
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
                    "safe": place.final,
                }
            ),
            file=as_is(),
        )
        return
    metric = bpb(kept.val_bpb) if kept.val_bpb is not None else "not evaluated yet"
    print(f"{asked.run_id} {place.label}: saved, {kept.size_bytes / 1e6:,.1f} MB; it goes on")
    rows = [("final-step bpb", metric), ("weights", f"sha256 {kept.sha256}")]
    print("\n".join(fields([*rows, ("lies in" if place.final else "on", place.words)], "  ")))
