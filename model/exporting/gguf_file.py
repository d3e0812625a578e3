"""A checkpoint as a GGUF file, which llama.cpp opens.

The tensors are those that transformers would get, under llama.cpp's names. Of Llama's queries and
keys llama.cpp turns neighbours, where transformers turns one half against the other: their rows
are put in that order. A tokenizer is written where it splits text as GPT-2's does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.data.tokenizers import TextTokenizer
from model.exporting import card as cards
from model.exporting import hf
from model.exporting import tokenizer_files as tf
from model.exporting.folder import new_folder, size_of
from model.exporting.layouts import Layout, layout_of
from model.exporting.verifying import TEXTS, Verified, test_tokens, trainer_logits
from model.training.load import LoadedModel
from trmcloud.core.errors import CheckpointError, MissingExtra, NotSupported
from trmcloud.core.spec.settings import CHAT
from trmcloud.io.installation import install_command

_MOST_DIFFERENCE = {"float32": 1e-3, "float16": 1e-1}
_OF_GPT2 = {"float32": 2e-2, "float16": 1e-1}
"""Between two logits. llama.cpp looks GELU up in a table of float16."""
_ARCHITECTURES = {"llama": "llama", "qwen3": "qwen3", "arcee": "arcee", "gpt2": "gpt2"}
_SPLIT = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5
_LLAMA = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
_GPT2 = {
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "lm_head": "output",
    "transformer.ln_f": "output_norm", "ln_1": "attn_norm", "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}  # fmt: skip
_OPENING = """
from llama_cpp import Llama

model = Llama("{name}", n_ctx={sequence})
print(model("The ", max_tokens=50)["choices"][0]["text"])
"""


def export(loaded: LoadedModel, into: Path, about: cards.Rows, numbers: str) -> hf.Exported:
    """Write ``into`` with one file, or nothing. ``numbers``: float32 or float16, of matrices.

    Raises:
        MissingExtra: the gguf package is not installed.
        NotSupported: llama.cpp does not compute what the model does, or has no such tokenizer.
        CheckpointError: the tokenizer is too large for the model, or the logits differ.
        ConflictError: ``into`` is not empty. DoesNotFit: there is no room for it.
    """
    hf.check_tokenizer(loaded)
    layout = _layout(loaded)
    _check(layout, loaded.tokenizer)
    gguf = _package()
    tensors = named_tensors(layout, layout.convert(hf.held_tensors(loaded)))
    if numbers == "float16":
        tensors = {name: each.half() if each.dim() > 1 else each for name, each in tensors.items()}
    size = sum(map(size_of, tensors.values())) + 4_000_000
    name = f"model-{numbers}.gguf"
    with new_folder(into, size) as making:
        writer = gguf.GGUFWriter(making / name, _ARCHITECTURES[layout.model_type])
        _describe(gguf, writer, layout, loaded, numbers, into.name)
        for key, tensor in tensors.items():
            writer.add_tensor(key, np.ascontiguousarray(tensor.numpy()))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        del tensors
        most = most_difference(layout.model_type, numbers)
        verified = _verify(making / name, loaded, most)
        _write_card(making, name, loaded, about, into.name, numbers, verified, most)
        written = sum(path.stat().st_size for path in making.iterdir())
    why = "" if verified else _NOT_INSTALLED
    return hf.Exported(into, "gguf", _ARCHITECTURES[layout.model_type], written, verified, why)


def most_difference(model_type: str, numbers: str) -> float:
    """The largest difference of two logits that is allowed."""
    return (_OF_GPT2 if model_type == "gpt2" else _MOST_DIFFERENCE)[numbers]


_NOT_INSTALLED = (
    "llama-cpp-python is not installed here: pip install llama-cpp-python, and export into another "
    "folder to compare the logits"
)


def _layout(loaded: LoadedModel) -> Layout:
    try:
        return layout_of(loaded.settings)
    except NotSupported as error:
        what = error.what.replace("it needs code of its own", "llama.cpp has no such model")
        raise NotSupported(what, next_step="--to hf --custom-code") from None


def _package() -> Any:
    try:
        import gguf
    except ImportError:
        raise MissingExtra("writing a GGUF file", "gguf", install_command("gguf")) from None
    return gguf


def _check(layout: Layout, tokenizer: TextTokenizer) -> None:
    config = layout.config
    activation = str(config.get("hidden_act", config.get("activation_function")))
    known = {"llama": "silu", "qwen3": "silu", "arcee": "relu2", "gpt2": "gelu_new"}
    if known.get(layout.model_type) != activation:
        raise NotSupported(
            f"llama.cpp does not compute {layout.architecture} with {activation}",
            next_step="--to hf",
        )
    if tokenizer.kind != "bpe":
        raise NotSupported(
            "llama.cpp has no tokenizer of one token a character", next_step="--to hf"
        )
    split = json.loads(tokenizer.to_json()).get("pre_tokenizer") or {}
    if {name: split.get(name) for name in _SPLIT} != _SPLIT:
        raise NotSupported(
            "its tokenizer does not split text as GPT-2's does, and llama.cpp knows splits by name",
            next_step="--to hf",
        )


def named_tensors(layout: Layout, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a layout under llama.cpp's names, rows in its order."""
    is_gpt2 = layout.model_type == "gpt2"
    names, prefix = (_GPT2, "transformer.h.") if is_gpt2 else (_LLAMA, "model.layers.")
    made = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        before = ""
        if stem.startswith(prefix):
            number, _, stem = stem.removeprefix(prefix).partition(".")
            before = f"blk.{number}."
        if is_gpt2 and kind == "weight" and tensor.dim() == 2 and before:
            tensor = tensor.T
        if layout.model_type in ("llama", "arcee") and stem.endswith(("q_proj", "k_proj")):
            tensor = _neighbours(tensor, int(layout.config["head_dim"]))
        made[f"{before}{names[stem]}.{kind}"] = tensor
    return made


def _neighbours(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of halves, each one of the first half beside its own of the second."""
    return rows.view(-1, 2, head_dim // 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def _describe(
    gguf: Any, writer: Any, layout: Layout, loaded: LoadedModel, numbers: str, title: str
) -> None:
    settings, config, tokenizer = loaded.settings, layout.config, loaded.tokenizer
    writer.add_name(title)
    writer.add_description(f"trmcloud {settings.recipe}, SHA-256 {loaded.manifest.sha256}")
    writer.add_context_length(settings.sequence)
    writer.add_embedding_length(settings.width)
    writer.add_block_count(settings.depth)
    writer.add_feed_forward_length(int(config.get("intermediate_size", config.get("n_inner"))))
    writer.add_head_count(settings.heads)
    writer.add_vocab_size(settings.vocab_size)
    f16 = numbers == "float16"
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if f16 else gguf.LlamaFileType.ALL_F32)
    if layout.model_type == "gpt2":
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    else:
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
        writer.add_rope_dimension_count(config["head_dim"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    is_chat = settings.phase == CHAT
    _describe_tokenizer(writer, tokenizer, settings.vocab_size, chats=is_chat)


def _describe_tokenizer(
    writer: Any, tokenizer: TextTokenizer, vocab_size: int, *, chats: bool
) -> None:
    content = json.loads(tokenizer.to_json())
    special = tf.special_ids(tokenizer)
    tokens = [f"<|unused_{number}|>" for number in range(vocab_size)]
    types = [_UNUSED] * vocab_size
    for token, number in {**content["model"]["vocab"], **special}.items():
        tokens[number] = token
        types[number] = _CONTROL if token in special else _NORMAL
    merges = content["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    writer.add_bos_token_id(tokenizer.bos)
    writer.add_eos_token_id(special[tf.end_token(tokenizer, chats=chats)])
    writer.add_add_bos_token(True)
    template = tf.tokenizer_config(tokenizer, 0, chats=chats).get("chat_template")
    if template:
        writer.add_chat_template(template)


def _verify(path: Path, loaded: LoadedModel, most: float) -> Verified | None:
    """Compare llama.cpp's logits and ids with the trainer's; None: it is not installed.

    Raises:
        CheckpointError: they differ, or llama.cpp cannot open the file.
    """
    try:
        import llama_cpp
    except ImportError:
        return None
    ids = test_tokens(loaded)[:1]
    sequence = loaded.settings.sequence
    whole = 0  # ggml's number for float32
    try:
        model = llama_cpp.Llama(
            str(path), n_ctx=sequence, n_batch=sequence, logits_all=True, verbose=False,
            type_k=whole, type_v=whole,
        )  # fmt: skip
        model.eval(ids[0].tolist())
    except Exception as error:
        raise CheckpointError(f"llama.cpp cannot open the export: {error}"[:300]) from None
    theirs = torch.from_numpy(np.array(model.scores[: ids.shape[1]], dtype=np.float32))
    difference = float((theirs - trainer_logits(loaded, ids)[0]).abs().max())
    if not difference <= most:
        raise CheckpointError(
            f"llama.cpp's logits differ from the trainer's by up to {difference:.2g}, and "
            f"{most:g} is allowed",
            next_step="nothing was written; please report this with the settings in manifest.json",
        )
    for text in TEXTS:
        [wanted] = loaded.tokenizer.encode([text], ["the test text"])
        made = model.tokenize(text.encode(), add_bos=True, special=False)
        if list(made) != [loaded.tokenizer.bos, *map(int, wanted)]:
            raise CheckpointError(f"llama.cpp's tokenizer gives other ids for {text[:40]!r}")
    return Verified(f"llama-cpp-python {llama_cpp.__version__}", difference, ids.numel())


def _write_card(
    folder: Path,
    name: str,
    loaded: LoadedModel,
    about: cards.Rows,
    title: str,
    numbers: str,
    verified: Verified | None,
    most: float,
) -> None:
    found = "not compared; " + _NOT_INSTALLED
    if verified is not None:
        found = (
            f"the largest difference of two logits of {verified.tokens:,} tokens from the "
            f"trainer's is {verified.difference:.1g}, by {verified.by}"
        )
    text = cards.card(
        title,
        [*cards.rows_of(loaded), *about, ("numbers", numbers), ("compared", found)],
        header=(("library_name", "gguf"), ("pipeline_tag", "text-generation")),
        opening=_OPENING.format(name=name, sequence=loaded.settings.sequence),
        notes=[
            f"Its logits may differ from the trainer's by up to {most:g}: llama.cpp computes in "
            "its own precision."
        ],
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
