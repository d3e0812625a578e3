"""Checkpoints of many shapes with random weights, to be exported; also as a program of its own.

``python -m tests.model.exports OUT SHAPE…`` exports each and prints what the command prints, in an
environment that has transformers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from model import export
from model.data.tokenizers import TextTokenizer, train_tokenizer
from model.exporting import layouts
from model.families import registry
from model.training.checkpoint import CheckpointFolder, Contents
from tests.checkpoints import a_manifest
from tests.settings import settings_of

TEXT = "First Citizen:\nSpeak, speak.\n  def f(x): return x * 2\né 漢字 hear me speak. " * 20
_SMALL = {
    "depth": 3, "width": 64, "head_dim": 16, "hidden": 96, "vocab_size": 320, "sequence": 128,
    "tokenizer": "bpe", "dtype": "float32", "compile": False, "data": "python-stdlib",
}  # fmt: skip
_GPT2 = {"norm": "layer", "positions": "learned", "norm_embedding": False}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"family": "gpt"},
    "llama-tied": {"family": "gpt", "tied": True},
    "llama-grouped": {"family": "gpt", "kv_heads": 2},
    "llama-plain": {"family": "gpt", "norm_embedding": False, "tied": True},
    "qwen3": {"family": "gpt", "qk_norm": True, "kv_heads": 2},
    "arcee": {"family": "gpt", "mlp": "relu2"},
    "nanochat": {"family": "nanochat"},
    "nanochat-tied": {"family": "gpt", "mlp": "gelu-tanh", "qk_norm": True, "tied": True},
    "nanochat-char": {"family": "gpt", "mlp": "relu2", "qk_norm": True, "tokenizer": "char"},
    "gpt2": {"family": "gpt", **_GPT2, "mlp": "gelu-tanh", "tied": True},
    "gpt2-untied": {"family": "gpt", **_GPT2, "mlp": "gelu"},
}
"""That transformers knows."""
ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "arcee": "ArceeForCausalLM",
    "nanochat": "NanoChatForCausalLM", "gpt2": "GPT2LMHeadModel",
}  # fmt: skip


def settings_of_shape(name: str) -> Any:
    values = {**_SMALL, **SHAPES[name]}
    return settings_of(values.pop("family"), "train", **values)


def make_checkpoint(root: Path, settings: Any, tokenizer: TextTokenizer | None = None) -> Path:
    """A checkpoint of step 10 with weights that say something everywhere."""
    model = registry.build(settings, torch.device("cpu"))
    model.initialise(3)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    if tokenizer is None:
        tokenizer = train_tokenizer(settings.tokenizer, [TEXT], settings.text_ids)
    contents = Contents.of(model.state_dict(), {}, {}, tokenizer.to_json())
    manifest = a_manifest(
        10, 1.25, run_id="r-0001", phase=settings.phase, recipe="test", settings=settings.to_json()
    )
    return CheckpointFolder(root).save(contents, manifest).folder


def main(words: list[str]) -> int:
    registry.provide_families()
    out = Path(words[0])
    for name in words[1:] or SHAPES:
        folder = make_checkpoint(out / name, settings_of_shape(name))
        assert export.main(["--checkpoint", str(folder), "--into", f"{folder}-hf", "--json"]) == 0
    if not words[1:]:
        _with_a_mistake(out)
    return 0


def _with_a_mistake(out: Path) -> None:
    """An export whose rotation is of the other direction."""
    with patch.object(layouts, "_swapped", lambda rows, head_dim: rows):
        folder = make_checkpoint(out / "mistaken", settings_of_shape("llama"))
        code = export.main(["--checkpoint", str(folder), "--into", str(out / "mistaken-hf")])
    print(json.dumps({"code": code, "written": (out / "mistaken-hf").exists()}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
