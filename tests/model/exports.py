"""Checkpoints of many shapes with random weights, to be exported; also as a program of its own.

``python -m tests.model.exports OUT SHAPE…`` exports each and prints what the command prints, in an
environment that has transformers; with ``--gguf`` before OUT, in one that has llama.cpp.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from model import export
from model.data.tokenizers import TextTokenizer, train_tokenizer
from model.exporting import gguf_file, hf, layouts
from model.exporting.folder import write_weights
from model.families import registry
from model.families.protocol import Sampling
from model.training.checkpoint import CheckpointFolder, Contents
from model.training.load import load_model
from tests.checkpoints import a_manifest
from tests.model.models import shaken
from tests.settings import settings_of
from trmcloud.core.spec.settings import FAMILIES

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
CUSTOM: dict[str, dict[str, Any]] = {
    "trm": {"family": "trm", "supervision_steps": 2, "loops": 2},
    "control": {"family": "trm", "supervision_steps": 2, "loops": 1, "control": True},
    "nanochat-2026": {
        "family": "nanochat", "architecture": "nanochat-2026", "value_embeddings": True,
        "windows": "SSL", "kv_heads": 2,
    },
    "speedrun": {"family": "nanochat", "value_embeddings": True, "windows": "SL"},
    "layer-rope": {"family": "gpt", "norm": "layer", "tied": True, "mlp": "gelu"},
    "gpt2-norm": {"family": "gpt", "norm": "layer", "positions": "learned"},
}  # fmt: skip
"""That it needs code for."""
GGUF = ("llama", "llama-tied", "llama-grouped", "llama-plain", "qwen3", "arcee", "gpt2")
"""That llama.cpp knows, too."""
GENERATED = ("llama-tied", "nanochat-char", "gpt2", "trm")
ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "arcee": "ArceeForCausalLM",
    "nanochat": "NanoChatForCausalLM", "gpt2": "GPT2LMHeadModel",
}  # fmt: skip


def settings_of_shape(name: str) -> Any:
    values = {**_SMALL, **{**SHAPES, **CUSTOM}[name]}
    family = values.pop("family")
    known = {field.name for field in dataclasses.fields(FAMILIES[family])}
    return settings_of(
        family, "train", **{key: value for key, value in values.items() if key in known}
    )


def make_checkpoint(root: Path, settings: Any, tokenizer: TextTokenizer | None = None) -> Path:
    """A checkpoint of step 10 with weights that say something everywhere."""
    model = shaken(registry.build(settings, torch.device("cpu")))
    if tokenizer is None:
        tokenizer = train_tokenizer(settings.tokenizer, [TEXT], settings.text_ids)
    contents = Contents.of(model.state_dict(), {}, {}, tokenizer.to_json())
    manifest = a_manifest(
        10, 1.25, run_id="r-0001", phase=settings.phase, recipe="test", settings=settings.to_json()
    )
    return CheckpointFolder(root).save(contents, manifest).folder


def main(words: list[str]) -> int:
    registry.provide_families()
    if words[0] == "--gguf":
        return _as_gguf(Path(words[1]))
    out = Path(words[0])
    for name in words[1:] or (*SHAPES, *CUSTOM):
        folder = make_checkpoint(out / name, settings_of_shape(name))
        more = ["--custom-code"] if name in CUSTOM else []
        made = ["--checkpoint", str(folder), "--into", f"{folder}-hf", "--json", *more]
        assert export.main(made) == 0
        if name in GENERATED:
            _generate(folder, Path(f"{folder}-hf"), has_code=name in CUSTOM)
    if not words[1:]:
        _in_several_files(out)
        _with_a_mistake(out)
    return 0


def _as_gguf(out: Path) -> int:
    for name in GGUF:
        for numbers in ("float32", "float16"):
            folder = make_checkpoint(out / name / numbers, settings_of_shape(name))
            words = ["--checkpoint", str(folder), "--into", f"{folder}-gguf", "--to", "gguf"]
            assert export.main([*words, "--numbers", numbers, "--json"]) == 0
    with patch.object(gguf_file, "_neighbours", lambda rows, head_dim: rows):
        folder = make_checkpoint(out / "mistaken", settings_of_shape("llama"))
        into = out / "mistaken-gguf"
        code = export.main(["--checkpoint", str(folder), "--into", str(into), "--to", "gguf"])
    print(json.dumps({"code": code, "written": into.exists()}))
    return 0


def _generate(folder: Path, exported: Path, *, has_code: bool) -> None:
    """The likeliest ids after a text, by the lines of the model card and by the trainer."""
    import transformers

    loaded = load_model(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(exported, trust_remote_code=has_code)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported, trust_remote_code=has_code)
    inputs = tokenizer("Speak, ", return_tensors="pt")
    theirs = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0].tolist()
    start = inputs["input_ids"][0].tolist()
    ids = loaded.tokenizer.vocab_size
    sampling = Sampling(12, 0.0, 0, 1.0, 0, ids, loaded.tokenizer.bos)
    ours = [*start, *loaded.model.generate(start, sampling)]
    same = theirs[: len(ours)] == ours and len(ours) > len(start)
    print(json.dumps({"generated": same, "start": start}))


def _in_several_files(out: Path) -> None:
    folder = make_checkpoint(out / "llama", settings_of_shape("llama"))
    into = out / "several"
    with patch.object(hf, "write_weights", partial(write_weights, most_bytes=100_000)):
        assert export.main(["--checkpoint", str(folder), "--into", str(into), "--json"]) == 0
    print(json.dumps({"files": len(list(into.glob("model-*.safetensors")))}))


def _with_a_mistake(out: Path) -> None:
    """An export whose rotation is of the other direction."""
    with patch.object(layouts, "_swapped", lambda rows, head_dim: rows):
        folder = make_checkpoint(out / "mistaken", settings_of_shape("llama"))
        code = export.main(["--checkpoint", str(folder), "--into", str(out / "mistaken-hf")])
    print(json.dumps({"code": code, "written": (out / "mistaken-hf").exists()}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
