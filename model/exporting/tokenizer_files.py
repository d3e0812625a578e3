"""A tokenizer in the files that transformers reads: the same ids for every text.

It begins each text with the special id that stands before every document, as training does. Where
a tokenizer has the special tokens of a conversation, its configuration brings the template by
which a conversation was written in training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.data.tokenizers import BOS, END_OF_TEXT, CharTokenizer, TextTokenizer

ASSISTANT_END = "<|assistant_end|>"
CHAT_TOKENS = ("<|user_start|>", "<|user_end|>", "<|assistant_start|>", ASSISTANT_END)
_CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
"""A conversation as nanochat writes it: a system's message stands before the first one of the
user, and an assistant's may be in parts, of which some are Python and what that printed."""


def tokenizer_json(tokenizer: TextTokenizer) -> str:
    """Return it as a ``tokenizer.json`` of the ``tokenizers`` library."""
    if isinstance(tokenizer, CharTokenizer):
        content = _of_characters(tokenizer)
    else:
        content = json.loads(tokenizer.to_json())
    bos = bos_token(tokenizer)
    begins = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": _sequence("A")}],
        "pair": [
            {"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": _sequence("A")},
            {"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": _sequence("B")},
        ],
        "special_tokens": {bos: {"id": bos, "ids": [tokenizer.bos], "tokens": [bos]}},
    }  # fmt: skip
    before = content.get("post_processor")
    if before is not None:
        begins = {"type": "Sequence", "processors": [before, begins]}
    content["post_processor"] = begins
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _sequence(name: str) -> dict[str, Any]:
    return {"id": name, "type_id": 0}


def _of_characters(tokenizer: CharTokenizer) -> dict[str, Any]:
    """One token a character: a text with another one is refused, as it is in training."""
    vocab = {each: number for number, each in enumerate(tokenizer.characters)} | {
        BOS: tokenizer.bos
    }
    special = {
        "id": tokenizer.bos, "content": BOS, "single_word": False, "lstrip": False,
        "rstrip": False, "normalized": False, "special": True,
    }  # fmt: skip
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": r"[\s\S]"},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        # No token is its unknown one, so that a character which the vocabulary lacks is an error.
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unknown>"},
    }


def bos_token(tokenizer: TextTokenizer) -> str:
    """The special token that stands before every document, as text."""
    return BOS if special_ids(tokenizer).get(BOS) == tokenizer.bos else END_OF_TEXT


def special_ids(tokenizer: TextTokenizer) -> Mapping[str, int]:
    """Special tokens and their ids."""
    if isinstance(tokenizer, CharTokenizer):
        return {BOS: tokenizer.bos}
    added = json.loads(tokenizer.to_json())["added_tokens"]
    return {each["content"]: each["id"] for each in added if each["special"]}


def end_token(tokenizer: TextTokenizer, *, chats: bool) -> str:
    """The special token that ends what a model writes. ``chats``: it was trained on conversations;
    a tokenizer may have their tokens before that."""
    return ASSISTANT_END if chats else bos_token(tokenizer)


def tokenizer_config(tokenizer: TextTokenizer, sequence: int, *, chats: bool) -> dict[str, Any]:
    """Return ``tokenizer_config.json``."""
    made: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special_tokens_map(tokenizer, chats=chats),
        "model_max_length": sequence,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    if chats:
        made["chat_template"] = _CHAT_TEMPLATE.read_text(encoding="utf-8").strip()
    return made


def special_tokens_map(tokenizer: TextTokenizer, *, chats: bool) -> dict[str, Any]:
    """Return ``special_tokens_map.json``."""
    bos, end = bos_token(tokenizer), end_token(tokenizer, chats=chats)
    others = [each for each in special_ids(tokenizer) if each not in (bos, end)]
    made: dict[str, Any] = {"bos_token": bos, "eos_token": end}
    return made | ({"additional_special_tokens": others} if others else {})


def generation_config(
    tokenizer: TextTokenizer, vocab_size: int, sequence: int, *, chats: bool
) -> dict[str, Any]:
    """Return ``generation_config.json``; ids beyond the tokenizer's, which no text has, are never
    drawn."""
    ends = sorted({tokenizer.bos, special_ids(tokenizer)[end_token(tokenizer, chats=chats)]})
    made: dict[str, Any] = {
        "bos_token_id": tokenizer.bos,
        "eos_token_id": ends[0] if len(ends) == 1 else ends,
        "do_sample": True,
        "temperature": 0.8,
        "top_k": 50,
        "max_length": sequence,
    }
    if unused := list(range(tokenizer.vocab_size, vocab_size)):
        made["suppress_tokens"] = unused
    return made
