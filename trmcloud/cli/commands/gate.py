"""``trmcloud gate``: the verdict between fast and extreme."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from trmcloud.cli.views.streams import as_is


def gate(
    run: Annotated[str, typer.Argument(help="A run's id; the newest otherwise.")] = "",
    phase: Annotated[str, typer.Option(help="fast or extreme; the first otherwise.")] = "",
    strict_guide: Annotated[
        bool, typer.Option("--strict-guide", help="The guide's bands block, too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Judge a phase by its metrics: order of the steps, falling loss, finite gradients.

    Exit code 0 where it passes, 22 where it fails.

    Example: trmcloud gate r-1f3a9c
    """
    from trmcloud.app.context import find_run
    from trmcloud.app.run_queries import told_by
    from trmcloud.cli.catching_up import catch_up
    from trmcloud.cli.views.run import show_verdict
    from trmcloud.core.contract.gate import judge
    from trmcloud.core.errors import NotFoundError
    from trmcloud.core.outcome import Outcome
    from trmcloud.wiring import build_context

    context = build_context()
    catch_up(context)
    state = find_run(context, run or None)
    phases = [phase] if phase else list(context.files.phases(state.run_id))
    metrics = context.files.metrics(state.run_id, phases[0]) if phases else []
    if not metrics:
        raise NotFoundError(f"{state.run_id} has no metrics yet", next_step="trmcloud status")
    verdict = judge(phases[0], metrics, strict=strict_guide)
    if as_json:
        print(
            json.dumps(
                {
                    "run": state.run_id,
                    "reported_by": told_by(state, verdict).by,
                    **verdict.to_json(),
                }
            ),
            file=as_is(),
        )
    else:
        print(state.run_id)
        show_verdict(phases[0], told_by(state, verdict.to_json()))
    sys.exit(0 if verdict.passed else Outcome.GATE_FAILED.exit_code)
