"""A checkpoint in another format: ``python -m model.export --checkpoint DIR --into DIR``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Sequence

from model.command import run_command

if TYPE_CHECKING:
    from model.exporting.hf import Exported

FORMATS, NUMBERS = ("hf", "gguf"), ("float32", "float16")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m model.export",
        description=__doc__.partition("\n")[0],
        epilog="example: python -m model.export --checkpoint step-00000120 --to hf --into my-model",
    )
    parser.add_argument("--checkpoint", required=True, help="a checkpoint folder")
    parser.add_argument(
        "--to",
        choices=FORMATS,
        default="hf",
        help="hf: a folder that transformers opens; gguf: a file that llama.cpp opens",
    )
    parser.add_argument(
        "--numbers", choices=NUMBERS, default=NUMBERS[0], help="of a GGUF file's matrices"
    )
    parser.add_argument("--into", required=True, help="the folder to write, new or empty")
    parser.add_argument(
        "--custom-code",
        action="store_true",
        help="of a model that transformers does not know, write its code beside it",
    )
    parser.add_argument("--about", default="", help="JSON with rows for the model card")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(arguments)

    def command() -> None:
        made = _export(chosen)
        print(json.dumps(to_json(made)) if chosen.json else as_text(made))

    return run_command(command)


def _export(chosen: argparse.Namespace) -> Exported:
    from model.exporting import gguf_file, hf
    from model.exporting.card import read_about
    from model.training.load import load_model

    about = read_about(Path(chosen.about) if chosen.about else None)
    loaded, into = load_model(Path(chosen.checkpoint)), Path(chosen.into).absolute()
    if chosen.to == "gguf":
        return gguf_file.export(loaded, into, about, chosen.numbers)
    return hf.export(loaded, into, about, custom_code=chosen.custom_code)


def to_json(made: Exported) -> dict[str, Any]:
    verified = made.verified
    return {
        "folder": str(made.folder),
        "format": made.format,
        "architecture": made.architecture,
        "size_bytes": made.size_bytes,
        "verified_by": verified.by if verified else None,
        "largest_difference": verified.difference if verified else None,
        "not_verified": made.not_verified or None,
    }


def as_text(made: Exported) -> str:
    lines = [f"exported as {made.architecture}: {made.size_bytes / 1e6:,.1f} MB in {made.folder}"]
    if made.verified is not None:
        lines.append(
            f"verified by {made.verified.by}: largest difference {made.verified.difference:.1g} "
            f"between the logits of {made.verified.tokens:,} tokens"
        )
    else:
        lines.append(f"not verified: {made.not_verified}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
