"""``trmcloud sample``: let a checkpoint write."""

from __future__ import annotations

from typing import Annotated

import typer


def sample(
    checkpoint: Annotated[
        str, typer.Argument(help="A fetched folder, or a run's id (its best checkpoint).")
    ] = "",
    prompt: Annotated[
        str, typer.Option(help="Text to go on from (default: a document's beginning).")
    ] = "",
    max_tokens: Annotated[int, typer.Option(help="How many tokens to write.")] = 120,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest.")] = 0.8,
    top_k: Annotated[int, typer.Option(help="Choose among the K likeliest.")] = 50,
    top_p: Annotated[
        float, typer.Option(help="Choose among the likeliest that come to P together.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the choice.")] = 0,
) -> None:
    """Print a text that a checkpoint writes, with as many refinement steps as in training.

    Example: trmcloud sample r-1f3a9c --prompt "import "
    """
    from trmcloud.cli.trainer_command import checkpoint_folder, run_trainer_command
    from trmcloud.core.errors import UsageError
    from trmcloud.wiring import build_context

    if not 1 <= max_tokens <= 4096 or not 0 <= temperature <= 10 or top_k < 1:
        raise UsageError("--max-tokens 1–4096, --temperature 0–10, --top-k at least 1")
    if not 0 < top_p <= 1:
        raise UsageError("--top-p lies above 0 and up to 1")
    folder = checkpoint_folder(build_context(), checkpoint)
    run_trainer_command(
        "model.sample",
        [
            *("--checkpoint", folder, "--prompt", prompt, "--max-tokens", str(max_tokens)),
            *("--temperature", str(temperature), "--top-k", str(top_k)),
            *("--top-p", str(top_p), "--seed", str(seed)),
        ],
    )
