"""Conversations as token ids: nanochat's format.

A conversation is ``<|bos|>``, and each message between its role's start and end:
``<|user_start|>…<|user_end|>``, ``<|assistant_start|>…<|assistant_end|>``. In a message of the
assistant ``<|python_start|>…<|python_end|>`` is a call of a tool, and its result is between
``<|output_start|>`` and ``<|output_end|>``. Special ids come from no text, so which ids are judged
follows from the ids: those of an assistant's message behind its start, its end included, results
of tools left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model.data.tokenizers import CHAT_TOKENS, TextTokenizer
from trmcloud.core.errors import DataError

(
    _,
    USER_START,
    USER_END,
    ASSISTANT_START,
    ASSISTANT_END,
    PYTHON_START,
    PYTHON_END,
    OUTPUT_START,
    OUTPUT_END,
) = SPECIAL_TOKENS = CHAT_TOKENS
"""nanochat's names, in its order."""

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"
TEXT, PYTHON, PYTHON_OUTPUT = "text", "python", "python_output"
"""The types of the parts of an assistant's message."""
_AROUND: Mapping[str, tuple[str, str]] = {
    TEXT: ("", ""),
    PYTHON: (PYTHON_START, PYTHON_END),
    PYTHON_OUTPUT: (OUTPUT_START, OUTPUT_END),
}

Messages = Sequence[Mapping[str, Any]]
"""Each with ``role`` and ``content``: a text, or of an assistant a list of parts with ``type`` and
``text``."""


@dataclass(frozen=True)
class ChatTokens:
    """The special ids of a tokenizer for conversations."""

    bos: int
    user_start: int
    user_end: int
    assistant_start: int
    assistant_end: int
    python_start: int
    python_end: int
    output_start: int
    output_end: int

    @classmethod
    def of(cls, tokenizer: TextTokenizer, where: str = "") -> ChatTokens:
        """
        Raises:
            DataError: the tokenizer lacks one.
        """
        ids = {name: tokenizer.special_id(name) for name in SPECIAL_TOKENS}
        lacking = [name for name, found in ids.items() if found is None]
        if lacking:
            raise DataError(
                f"the tokenizer has no {lacking[0]} token, so it cannot write conversations",
                where=where,
                next_step="train the first phase with --set tokenizer=bpe-chat",
            )
        return cls(*(found for found in ids.values() if found is not None))


def has_chat_tokens(tokenizer: TextTokenizer) -> bool:
    return all(tokenizer.special_id(name) is not None for name in SPECIAL_TOKENS)


def render_conversation(
    tokenizer: TextTokenizer, messages: Messages, where: str = ""
) -> tuple[list[int], list[int]]:
    """Return a conversation's ids, and for each id 1 where it is judged, else 0.

    A system message goes before the first user's, two line feeds between.

    Raises:
        DataError: the messages do not make a conversation, or the tokenizer lacks a special token.
    """
    tokens = ChatTokens.of(tokenizer, where)
    [ids] = render_all(tokenizer, [messages], [where])
    return ids.tolist(), judged(ids, tokens).astype(int).tolist()


def render_for_completion(
    tokenizer: TextTokenizer, messages: Messages, where: str = ""
) -> list[int]:
    """Return the ids after which the assistant's next message follows. The last message is the
    user's.

    Raises:
        DataError: the messages do not make a conversation, or the tokenizer lacks a special token.
    """
    tokens = ChatTokens.of(tokenizer, where)
    given = _checked(messages, where)
    if given[-1]["role"] != USER:
        raise DataError(
            "the last message is the assistant's, so there is nothing to answer", where=where
        )
    [ids] = render_all(tokenizer, [given], [where])
    return [*ids.tolist(), tokens.assistant_start]


def render_all(
    tokenizer: TextTokenizer, conversations: Sequence[Messages], places: Sequence[str]
) -> list[npt.NDArray[np.uint32]]:
    """Return the ids of each conversation; all texts are tokenized together.

    Raises:
        DataError: the messages do not make a conversation, or the tokenizer lacks a special token.
    """
    tokens = ChatTokens.of(tokenizer, places[0] if places else "")
    special = dict(zip(SPECIAL_TOKENS, astuple(tokens), strict=True))
    pieces = [
        list(_pieces(_checked(messages, place)))
        for messages, place in zip(conversations, places, strict=True)
    ]
    texts = [
        (text, place)
        for row, place in zip(pieces, places, strict=True)
        for text, is_special in row
        if not is_special
    ]
    encoded = iter(tokenizer.encode([text for text, _ in texts], [place for _, place in texts]))
    made = []
    for row in pieces:
        parts = [
            np.array([special[text]], np.uint32) if is_special else next(encoded)
            for text, is_special in row
        ]
        made.append(np.concatenate(parts))
    return made


def judged(ids: npt.NDArray[Any], tokens: ChatTokens) -> npt.NDArray[np.bool_]:
    """Return which ids of one conversation a loss is held to: each one in an assistant's message
    behind its start, its end included, but for a tool's result and the two ids around that."""
    inside = _between(ids, tokens.assistant_start, tokens.assistant_end)
    inside[ids == tokens.assistant_start] = False
    return inside & ~_between(ids, tokens.output_start, tokens.output_end)


def check_messages(messages: Any, where: str, *, is_trained_on: bool = False) -> None:
    """
    Args:
        is_trained_on: a message of the assistant must be there.

    Raises:
        DataError: they do not make a conversation.
    """
    given = _checked(messages, where)
    if is_trained_on and len(given) < 2:
        raise DataError(
            "the conversation has no message of the assistant: there is nothing to learn",
            where=where,
        )


def _between(ids: npt.NDArray[Any], start: int, end: int) -> npt.NDArray[np.bool_]:
    """From each ``start`` up to and with the next ``end``; to the last id where there is none."""
    opened = np.cumsum(ids == start)
    closed = np.cumsum(ids == end)
    before: npt.NDArray[Any] = np.concatenate([np.zeros(1, closed.dtype), closed[:-1]])
    inside: npt.NDArray[np.bool_] = opened > before[: len(ids)]
    return inside


def _pieces(messages: Messages) -> Iterator[tuple[str, bool]]:
    """(text, False) and (name of a special token, True), in order."""
    yield SPECIAL_TOKENS[0], True
    for message in messages:
        content = message["content"]
        if message["role"] == USER:
            yield USER_START, True
            yield content, False
            yield USER_END, True
            continue
        yield ASSISTANT_START, True
        for part in [{"type": TEXT, "text": content}] if isinstance(content, str) else content:
            start, end = _AROUND[part["type"]]
            if start:
                yield start, True
            yield part["text"], False
            if end:
                yield end, True
        yield ASSISTANT_END, True


def _checked(messages: Any, where: str) -> Messages:
    """The messages, a system's merged into the first user's.

    Raises:
        DataError: they do not make a conversation.
    """

    def refuse(what: str, next_step: str = "") -> DataError:
        return DataError(what, where=where, next_step=next_step)

    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise refuse("a conversation is a list of messages")
    given = list(messages)
    for number, message in enumerate(given, 1):
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise refuse(f"message {number} has no role and content")
    if given and given[0]["role"] == SYSTEM:
        first, *given = given
        if not given or given[0]["role"] != USER:
            raise refuse("the system message is not followed by one of the user")
        for number, message in ((1, first), (2, given[0])):
            if not isinstance(message["content"], str):
                raise refuse(f"message {number} has content that is not a text")
        merged = f"{first['content']}\n\n{given[0]['content']}"
        given[0] = {"role": USER, "content": merged}
        skipped = 1
    else:
        skipped = 0
    if not given:
        raise refuse("the conversation has no message")
    for number, message in enumerate(given):
        at = number + 1 + skipped
        wanted = ASSISTANT if number % 2 else USER
        if message["role"] != wanted:
            raise refuse(
                f"message {at} is from {message['role']!r:.40}, not from {wanted}",
                "user and assistant take turns, the user first",
            )
        if problem := _content_problem(message["content"], wanted):
            raise refuse(f"message {at} {problem}")
    return given


def _content_problem(content: Any, role: str) -> str:
    """Why it is no content of that role's; empty where it is."""
    if isinstance(content, str):
        return "" if content else "is empty"
    if role == USER:
        return "is from the user, and its content is not a text"
    if not isinstance(content, list) or not content:
        return "has content that is neither a text nor a list of parts"
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(kind, str) or kind not in _AROUND:
            return f"has a part of type {kind!r:.40}, not one of {', '.join(_AROUND)}"
        if not isinstance(part.get("text"), str):
            return "has a part without a text"
    return "" if any(part["text"] for part in content) else "is empty"
