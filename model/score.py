"""How good a checkpoint is: ``python -m model.score --checkpoint DIR --data PREPARED``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Sequence

from model.command import run_command
from trmcloud.core.errors import DataError, UsageError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m model.score",
        description=__doc__,
        epilog="example: python -m model.score --checkpoint step-00000120 --data data/ --json",
    )
    parser.add_argument("--checkpoint", required=True, help="a checkpoint folder")
    parser.add_argument("--data", required=True, help="a folder made by model.prepare")
    parser.add_argument(
        "--tokens", type=int, default=0, help="validation tokens (default: as in training)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(arguments)

    def command() -> None:
        if chosen.tokens < 0:
            raise UsageError("--tokens cannot be negative")
        result = score(Path(chosen.checkpoint), Path(chosen.data), chosen.tokens)
        print(json.dumps(result) if chosen.json else _as_text(result))

    return run_command(command)


def score(checkpoint: Path, data_dir: Path, eval_tokens: int = 0) -> dict[str, Any]:
    """The validation loss (nats/token) after every pass and the last one's bits per byte.

    Raises:
        CheckpointError: the checkpoint is damaged or incomplete.
        DataError: the data is damaged, or was prepared with another tokenizer.
    """
    from model.data.folder import open_data
    from model.distributed import World
    from model.evaluate import evaluate
    from model.load import load_model
    from model.precision import autocast

    loaded = load_model(checkpoint)
    data = open_data(data_dir)
    settings, manifest = loaded.settings, loaded.manifest
    if data.tokenizer_sha256 != manifest.tokenizer_sha256:
        raise DataError(
            "the data was prepared with another tokenizer than the checkpoint's",
            where=str(data_dir),
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
        "val_step_losses": list(result.step_losses),
        "tokens": result.tokens,
        "bytes": result.bytes,
        "byte_unigram_bits": data.meta["byte_unigram_bits"],
        "byte_bigram_bits": data.meta["byte_bigram_bits"],
        "trained_on_this_text": manifest.data_sha256 == data.source_sha256,
    }


def _as_text(result: dict[str, Any]) -> str:
    every = result["val_step_losses"]
    losses = [
        f"  after supervision step {number}: {loss:.4f} nats/token"
        if len(every) > 1
        else f"  loss: {loss:.4f} nats/token"
        for number, loss in enumerate(every)
    ]
    return "\n".join(
        [
            f"{result['phase']}/step {result['step']} on {result['tokens']:,} tokens "
            f"({result['bytes']:,} bytes)",
            *losses,
            f"final step:    {result['val_bpb']:.4f} bits/byte",
            f"byte unigrams: {result['byte_unigram_bits']:.4f} bits/byte",
            f"byte bigrams:  {result['byte_bigram_bits']:.4f} bits/byte",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
