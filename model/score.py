"""The score of a checkpoint: ``python -m model.score --checkpoint DIR --data PREPARED``."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from model.command import run_command
from trmcloud.core.errors import DataError, UsageError
from trmcloud.core.spec.settings import CHAT, SEGMENTS

if TYPE_CHECKING:
    from model.data.folder import PreparedData
    from model.training.load import LoadedModel
    from trmcloud.core.spec.settings import PhaseRecipe

WORSE_BY = 0.02
"""Worse than a model of one step by more: then refinement was bought (the guides' bound)."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m model.score",
        description=__doc__,
        epilog="example: python -m model.score --checkpoint step-00000120 --data data/ --json",
    )
    parser.add_argument("--checkpoint", required=True, help="a checkpoint folder")
    parser.add_argument("--data", required=True, help="a folder made by model.prepare")
    parser.add_argument(
        "--tokens",
        type=int,
        default=0,
        help="number of validation tokens (default: as in training)",
    )
    parser.add_argument(
        "--control",
        default="",
        help="a checkpoint trained with supervision_steps=1, to compare step 0 with",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(arguments)

    def command() -> None:
        if chosen.tokens < 0:
            raise UsageError("--tokens cannot be negative")
        result = score(Path(chosen.checkpoint), Path(chosen.data), chosen.tokens)
        if chosen.control:
            control = score(Path(chosen.control), Path(chosen.data), chosen.tokens)
            result |= compare_with_control(result, control)
        print(json.dumps(result) if chosen.json else _as_text(result))

    return run_command(command)


def score(checkpoint: Path, data_dir: Path, eval_tokens: int = 0) -> dict[str, Any]:
    """The validation loss (nats/token) after every pass and the last one's bits per byte.

    Raises:
        CheckpointError: the checkpoint is damaged or incomplete.
        DataError: the data is damaged, or was prepared with another tokenizer.
    """
    from model.data.folder import open_data
    from model.preparing.chat_ids import are_conversations, tokenize_conversations
    from model.training.checkpoint import read_text
    from model.training.load import load_model

    loaded = load_model(checkpoint)
    manifest = loaded.manifest
    if are_conversations(data_dir):
        with tempfile.TemporaryDirectory() as made:
            text = read_text(checkpoint, manifest, "tokenizer")
            data_dir = tokenize_conversations(data_dir, text, Path(made, "ids"))
            return _score(checkpoint, loaded, open_data(data_dir), eval_tokens)
    return _score(checkpoint, loaded, open_data(data_dir), eval_tokens)


def _score(
    checkpoint: Path, loaded: LoadedModel, data: PreparedData, eval_tokens: int
) -> dict[str, Any]:
    from model.machine.distributed import World
    from model.machine.precision import autocast
    from model.training.evaluate import evaluate

    settings, manifest = loaded.settings, loaded.manifest
    if data.tokenizer_sha256 != manifest.tokenizer_sha256:
        raise DataError(
            "the data was not prepared with the checkpoint's tokenizer",
            where=str(data.folder),
            next_step=f"python -m model.prepare --tokenizer {checkpoint / 'tokenizer.json'} …",
        )
    result = evaluate(
        loaded.model,
        data,
        data.validation_rows(settings),
        World(0, 1, loaded.device),
        batch=settings.batch,
        eval_tokens=eval_tokens or settings.eval_tokens,
        autocast=autocast("float32", loaded.device),
    )
    return {
        "checkpoint": str(checkpoint),
        "run_id": manifest.run_id,
        "phase": manifest.phase,
        "step": manifest.step,
        "sha256": manifest.sha256,
        "val_bpb": result.bits_per_byte,
        "bits_per_token": result.step_losses[-1] / math.log(2),
        "perplexity": math.exp(min(result.step_losses[-1], 700.0)),
        "token_unigram_bits": token_unigram_bits(data, settings),
        "val_step_losses": list(result.step_losses),
        **loaded.model.scores(result.tallies),
        "tokens": result.tokens,
        "bytes": result.bytes,
        "byte_unigram_bits": data.meta["byte_unigram_bits"],
        "byte_bigram_bits": data.meta["byte_bigram_bits"],
        "trained_on_this_text": manifest.data_sha256 == data.source_sha256,
    }


def token_unigram_bits(data: PreparedData, settings: PhaseRecipe) -> float:
    """Shannon entropy of a validation token by its own counts, in bits; special ids and what is
    given are left out."""
    import numpy as np

    lengths = data.tokenizer.byte_lengths()
    tokens = data.validation
    if settings.rows in (SEGMENTS, CHAT):
        rows = data.validation_rows(settings)
        every = rows.read(range(rows.count))[:, 1:]
        tokens = every[every >= 0]
    counts = np.bincount(tokens, minlength=len(lengths))[: len(lengths)]
    shares = counts[(lengths > 0) & (counts > 0)].astype(float)
    shares /= shares.sum()
    return float(-(shares * np.log2(shares)).sum())


def compare_with_control(result: Mapping[str, Any], control: Mapping[str, Any]) -> dict[str, Any]:
    """Compare a recursive model's first step with a model that has only one.

    Refinement can be bought by making the first step worse: then it says nothing of the last.

    Raises:
        UsageError: the control is judged more than once.
    """
    losses = control["val_step_losses"]
    if len(losses) != 1:
        raise UsageError(
            f"the control has {len(losses)} supervision steps, not one",
            where=control["checkpoint"],
            next_step="train it with --set supervision_steps=1",
        )
    worse = result["val_step_losses"][0] / losses[0] - 1.0
    return {"control_loss": losses[0], "first_step_worse": worse}


def _as_text(result: dict[str, Any]) -> str:
    every = result["val_step_losses"]
    losses = [
        f"  after supervision step {number}: {loss:.4f} nats/token"
        if len(every) > 1
        else f"  loss: {loss:.4f} nats/token"
        for number, loss in enumerate(every)
    ]
    beside = []
    if "exact_accuracy" in result:
        beside.append(
            f"solved:        {result['exact_accuracy']:.1%} of the puzzles, "
            f"{result['cell_accuracy']:.2%} of the cells"
        )
    if "control_loss" in result:
        worse = result["first_step_worse"]
        beside.append(
            f"control (N = 1): {result['control_loss']:.4f} nats/token; step 0 is "
            f"{abs(worse):.1%} {'worse' if worse > 0 else 'better'}"
        )
        if worse > WORSE_BY:
            beside.append(
                f"warning: more than {WORSE_BY:.0%}: the refinement comes from a worse first step"
            )
    return "\n".join(
        [
            f"{result['phase']}/step {result['step']} on {result['tokens']:,} tokens "
            f"({result['bytes']:,} bytes)",
            *losses,
            *beside,
            f"per token:     {result['bits_per_token']:.4f} bits, perplexity "
            f"{result['perplexity']:.2f}; unigrams {result['token_unigram_bits']:.4f} bits",
            f"final step:    {result['val_bpb']:.4f} bits/byte",
            f"byte unigrams: {result['byte_unigram_bits']:.4f} bits/byte",
            f"byte bigrams:  {result['byte_bigram_bits']:.4f} bits/byte",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
