"""A checkpoint as a folder that ``transformers`` opens."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from model.exporting import card as cards
from model.exporting import tokenizer_files as tf
from model.exporting.custom_code import CODE, custom_layout
from model.exporting.folder import new_folder, size_of, write_json, write_weights
from model.exporting.layouts import Layout, layout_of
from model.exporting.verifying import Verified, verify
from model.training.load import LoadedModel
from trmcloud.core.errors import CheckpointError, NotSupported
from trmcloud.core.spec.settings import CHAT

_ROOM_BYTES = 4_000_000
"""Beside the weights: the tokenizer's files."""
_OPENING = """
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("."{more})
tokenizer = AutoTokenizer.from_pretrained("."{more})
{inputs}
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))
"""
_ASKED = """
messages = [{"role": "user", "content": "Hello"}]
inputs = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
)
""".strip()


@dataclass(frozen=True)
class Exported:
    """A written export, and whether the other software found it equal."""

    folder: Path
    format: str
    architecture: str
    size_bytes: int
    verified: Verified | None
    not_verified: str = ""
    """Why not, and how it is; empty where it was."""


def export(
    loaded: LoadedModel, into: Path, about: cards.Rows = (), *, custom_code: bool = False
) -> Exported:
    """Write ``into`` whole, or nothing. ``custom_code``: with its code, where transformers has no
    architecture that computes what the model does.

    Raises:
        NotSupported: no architecture of transformers computes what the model does.
        CheckpointError: the tokenizer is too large for the model, or the logits differ.
        ConflictError: ``into`` is not empty. DoesNotFit: there is no room for it.
    """
    check_tokenizer(loaded)
    layout, has_code = _layout(loaded, custom_code=custom_code)
    tensors = layout.convert(held_tensors(loaded))
    size = sum(map(size_of, tensors.values())) + _ROOM_BYTES
    with new_folder(into, size) as making:
        write_json(making / "config.json", _config(loaded, layout))
        write_tokenizer(making, loaded)
        write_weights(making, tensors)
        del tensors
        if has_code:
            shutil.copyfile(CODE, making / CODE.name)
        verified = verify(making, loaded, custom_code=has_code)
        _write_card(making, into.name, loaded, about, layout, verified, has_code=has_code)
        written = sum(path.stat().st_size for path in making.rglob("*") if path.is_file())
    why = "" if verified else NOT_INSTALLED
    return Exported(into, "hf", layout.architecture, written, verified, why)


def _layout(loaded: LoadedModel, *, custom_code: bool) -> tuple[Layout, bool]:
    """The layout of an export, and whether code goes with it."""
    try:
        return layout_of(loaded.settings), False
    except NotSupported:
        if not custom_code:
            raise
    return custom_layout(loaded.model, loaded.settings), True


NOT_INSTALLED = (
    "transformers is not installed here: pip install transformers, and export into another "
    "folder to compare the logits"
)


def held_tensors(loaded: LoadedModel) -> Mapping[str, Tensor]:
    """The checkpoint's tensors, on the CPU."""
    return {name: each.detach().cpu() for name, each in loaded.model.state_dict().items()}


def check_tokenizer(loaded: LoadedModel) -> None:
    """
    Raises:
        CheckpointError: it has ids that the model has no embedding for.
    """
    ids, most = loaded.tokenizer.vocab_size, loaded.settings.text_ids
    if ids > most:
        raise CheckpointError(
            f"its tokenizer has {ids:,} ids, but its model {most:,}",
            next_step="fetch it again, or use another checkpoint",
        )


def _config(loaded: LoadedModel, layout: Layout) -> dict[str, Any]:
    return {
        "architectures": [layout.architecture],
        **layout.config,
        **common_config(loaded),
        "use_cache": "auto_map" not in layout.config,
    }


def chats(loaded: LoadedModel) -> bool:
    """Whether it was trained on conversations."""
    return loaded.settings.phase == CHAT


def common_config(loaded: LoadedModel) -> dict[str, Any]:
    """Return the keys of every ``config.json`` beside the architecture's."""
    tokenizer = loaded.tokenizer
    end = tf.special_ids(tokenizer)[tf.end_token(tokenizer, chats=chats(loaded))]
    return {
        "bos_token_id": tokenizer.bos,
        "eos_token_id": end,
        "pad_token_id": None,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def write_tokenizer(folder: Path, loaded: LoadedModel) -> None:
    tokenizer, settings = loaded.tokenizer, loaded.settings
    of = {"chats": chats(loaded)}
    text = tf.tokenizer_json(tokenizer)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    made = tf.tokenizer_config(tokenizer, settings.sequence, **of)
    write_json(folder / "tokenizer_config.json", made)
    write_json(folder / "special_tokens_map.json", tf.special_tokens_map(tokenizer, **of))
    made = tf.generation_config(tokenizer, settings.vocab_size, settings.sequence, **of)
    write_json(folder / "generation_config.json", made)


def _write_card(
    folder: Path,
    title: str,
    loaded: LoadedModel,
    about: cards.Rows,
    layout: Layout,
    verified: Verified | None,
    *,
    has_code: bool,
) -> None:
    found = "not compared; " + NOT_INSTALLED
    if verified is not None:
        found = (
            f"the largest difference of two logits of {verified.tokens:,} tokens from the "
            f"trainer's is {verified.difference:.1g} in float32, by {verified.by}"
        )
    own = [("architecture", layout.architecture), ("compared with the trainer", found)]
    prompt = loaded.tokenizer.decode([0, 1]) if loaded.tokenizer.kind == "char" else "The "
    inputs = _ASKED if chats(loaded) else f'inputs = tokenizer({prompt!r}, return_tensors="pt")'
    more = ", trust_remote_code=True" if has_code else ""
    where = f"transformers {layout.since} or newer has this architecture."
    if has_code:
        where = (
            f"Its architecture is in {CODE.name}, in this folder: read it before you pass "
            "trust_remote_code=True."
        )
    begins = (
        "Each text begins with the tokenizer's special token, as in training; the tokenizer adds "
        "it. Texts are to be no longer than the sequence that it was trained with."
    )
    text = cards.card(
        title,
        [*cards.rows_of(loaded), *about, *own],
        header=(("library_name", "transformers"), ("pipeline_tag", "text-generation")),
        opening=_OPENING.format(inputs=inputs, more=more),
        notes=[where, begins],
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
