"""Conversations as ids: nanochat's format, its judged tokens, and what is refused.

Tests against nanochat need its checkout (92d63d4): ``TRMCLOUD_NANOCHAT=PATH``.
"""

from __future__ import annotations

import os
import random
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.data import chat
from model.data.chat import SPECIAL_TOKENS, ChatTokens, render_conversation, render_for_completion
from model.data.tokenizers import BOS, BpeTokenizer, CharTokenizer, is_as_trained, load_tokenizer
from trmcloud.core.errors import DataError

PEER = os.environ.get("TRMCLOUD_NANOCHAT", "")
CORPUS = "the cat sat on the mat, the dog sat on the log: été, 漢字 🙂\n" * 20
TOKENIZER = BpeTokenizer.train([CORPUS], 320, SPECIAL_TOKENS)
SPECIAL = {name: TOKENIZER.special_id(name) for name in SPECIAL_TOKENS}

texts = st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30
) | st.sampled_from(SPECIAL_TOKENS)
parts = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "python", "python_output"]), "text": texts}
    ),
    min_size=1,
    max_size=4,
)


@st.composite
def conversations(draw: Any) -> list[dict[str, Any]]:
    made = [{"role": "system", "content": draw(texts)}] if draw(st.booleans()) else []
    for number in range(draw(st.integers(1, 5))):
        role = "assistant" if number % 2 else "user"
        made.append({"role": role, "content": draw(texts if number % 2 == 0 else texts | parts)})
    return made


def ids_of(text: str) -> list[int]:
    [ids] = TOKENIZER.encode([text], [""])
    return [int(each) for each in ids]


def spelled(*pieces: str) -> list[int]:
    """Ids of special tokens by their names, and of anything else as text."""
    made: list[int] = []
    for piece in pieces:
        special = SPECIAL.get(piece)
        made += ids_of(piece) if special is None else [special]
    return made


def test_a_conversation_is_messages_between_special_tokens() -> None:
    messages = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    ids, mask = render_conversation(TOKENIZER, messages)
    user = spelled(BOS, "<|user_start|>", "the cat", "<|user_end|>", "<|assistant_start|>")
    answer = spelled("sat", "<|assistant_end|>")
    assert ids == user + answer
    assert mask == [0] * len(user) + [1] * len(answer)


def test_a_system_message_goes_before_the_first_users() -> None:
    rest = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    with_system = [{"role": "system", "content": "on the mat"}, *rest]
    merged = [{"role": "user", "content": "on the mat\n\nthe cat"}, rest[1]]
    assert render_conversation(TOKENIZER, with_system) == render_conversation(TOKENIZER, merged)
    assert with_system[1]["content"] == "the cat"  # the caller's messages stay as they are


def test_a_tools_result_is_given_and_its_call_is_judged() -> None:
    content = [
        {"type": "text", "text": "sat"},
        {"type": "python", "text": "1+1"},
        {"type": "python_output", "text": "2"},
        {"type": "text", "text": "on"},
    ]
    messages = [{"role": "user", "content": "the"}, {"role": "assistant", "content": content}]
    ids, mask = render_conversation(TOKENIZER, messages)
    before = spelled(BOS, "<|user_start|>", "the", "<|user_end|>", "<|assistant_start|>")
    call = spelled("sat", "<|python_start|>", "1+1", "<|python_end|>")
    result = spelled("<|output_start|>", "2", "<|output_end|>")
    rest = spelled("on", "<|assistant_end|>")
    assert ids == before + call + result + rest
    assert mask == [0] * len(before) + [1] * len(call) + [0] * len(result) + [1] * len(rest)


def test_a_completion_begins_behind_the_assistants_start() -> None:
    messages = [
        {"role": "user", "content": "the cat"},
        {"role": "assistant", "content": "sat"},
        {"role": "user", "content": "on"},
    ]
    ids, _ = render_conversation(TOKENIZER, messages)
    assert render_for_completion(TOKENIZER, messages) == ids + spelled("<|assistant_start|>")
    with pytest.raises(DataError, match="nothing to answer"):
        render_for_completion(TOKENIZER, messages[:2])


@settings(deadline=None)
@given(conversations())
def test_no_text_makes_a_special_token(messages: list[dict[str, Any]]) -> None:
    ids, _ = render_conversation(TOKENIZER, messages)
    turns = [each for each in messages if each["role"] != "system"]
    users = sum(each["role"] == "user" for each in turns)
    assert ids.count(SPECIAL[BOS] or 0) == 1
    assert ids.count(SPECIAL["<|user_start|>"] or 0) == users
    assert ids.count(SPECIAL["<|assistant_end|>"] or 0) == len(turns) - users


@settings(deadline=None)
@given(conversations(), st.integers(1, 40))
def test_a_cropped_conversation_is_judged_as_the_whole_one(
    messages: list[dict[str, Any]], stop: int
) -> None:
    ids, mask = render_conversation(TOKENIZER, messages)
    cut = chat.judged(np.array(ids[:stop]), ChatTokens.of(TOKENIZER))
    assert cut.astype(int).tolist() == mask[:stop]


def test_conversations_are_rendered_together_as_alone() -> None:
    random_ = random.Random(3)
    many = [
        [
            {"role": "user", "content": "the cat " * random_.randint(1, 4)},
            {"role": "assistant", "content": "sat " * random_.randint(1, 4)},
        ]
        for _ in range(5)
    ]
    together = chat.render_all(TOKENIZER, many, [""] * len(many))
    alone = [render_conversation(TOKENIZER, each)[0] for each in many]
    assert [each.tolist() for each in together] == alone


def test_the_tokens_are_special_in_the_tokenizers_file() -> None:
    assert [TOKENIZER.special_id(name) for name in SPECIAL_TOKENS] == list(range(9))
    assert TOKENIZER.bos == TOKENIZER.special_id(BOS)
    again = load_tokenizer(TOKENIZER.to_json(), "")
    assert [again.special_id(name) for name in SPECIAL_TOKENS] == list(range(9))
    assert (again.byte_lengths()[:9] == 0).all()
    assert (again.byte_lengths()[9:] > 0).all()
    assert again.decode(spelled("<|user_start|>", "the cat", "<|user_end|>")) == "the cat"
    assert is_as_trained(TOKENIZER.to_json(), "bpe-chat", 320)
    assert not is_as_trained(TOKENIZER.to_json(), "bpe", 320)
    assert not is_as_trained(BpeTokenizer.train([CORPUS], 320).to_json(), "bpe-chat", 320)


@pytest.mark.parametrize(
    "tokenizer", [BpeTokenizer.train([CORPUS], 320), CharTokenizer.train([CORPUS], 320)]
)
def test_a_tokenizer_without_the_tokens_is_refused(tokenizer: Any) -> None:
    assert not chat.has_chat_tokens(tokenizer)
    with pytest.raises(DataError, match=r"no <\|user_start\|> token") as caught:
        render_conversation(tokenizer, [{"role": "user", "content": "the"}], "chat.jsonl, line 3")
    assert caught.value.where == "chat.jsonl, line 3"
    assert "tokenizer=bpe-chat" in caught.value.next_step


USER = {"role": "user", "content": "the"}
ANSWER = {"role": "assistant", "content": "cat"}


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ("the", "a list of messages"),
        ({"role": "user"}, "a list of messages"),
        ([], "no message"),
        ([{"role": "system", "content": "the"}], "not followed by one of the user"),
        ([{"role": "system", "content": "the"}, ANSWER], "not followed by one of the user"),
        ([{"role": "system", "content": 1}, USER], "message 1 has content that is not a text"),
        ([ANSWER], "message 1 is from 'assistant', not from user"),
        ([USER, USER], "message 2 is from 'user', not from assistant"),
        ([{"role": "system", "content": "a"}, USER, USER], "message 3 is from 'user'"),
        ([USER, {"role": "tool", "content": "cat"}], "message 2 is from 'tool'"),
        ([USER, {"role": "assistant"}], "message 2 has no role and content"),
        ([USER, "cat"], "message 2 has no role and content"),
        ([{"role": "user", "content": ""}], "message 1 is empty"),
        ([USER, {"role": "assistant", "content": ""}], "message 2 is empty"),
        ([USER, {"role": "assistant", "content": []}], "neither a text nor a list of parts"),
        ([USER, {"role": "assistant", "content": None}], "neither a text nor a list of parts"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}]}], "is from the user"),
        ([USER, {"role": "assistant", "content": ["cat"]}], "a part of type None"),
        (
            [USER, {"role": "assistant", "content": [{"type": "image", "text": "cat"}]}],
            "a part of type 'image', not one of text, python, python_output",
        ),
        ([USER, {"role": "assistant", "content": [{"type": "text"}]}], "a part without a text"),
        (
            [USER, {"role": "assistant", "content": [{"type": "text", "text": ""}]}],
            "message 2 is empty",
        ),
    ],
)
def test_what_is_no_conversation_is_refused_with_its_place(messages: Any, what: str) -> None:
    with pytest.raises(DataError) as caught:
        render_conversation(TOKENIZER, messages, "chat.jsonl, line 7")
    assert what in caught.value.what
    assert caught.value.where == "chat.jsonl, line 7"


def test_without_an_answer_there_is_nothing_to_learn() -> None:
    chat.check_messages([USER], "")
    chat.check_messages([USER, ANSWER], "", is_trained_on=True)
    with pytest.raises(DataError, match="no message of the assistant"):
        chat.check_messages([USER], "", is_trained_on=True)


# -- Against nanochat ---------------------------------------------------------------------------


class _Encoding:
    """The part of tiktoken's interface that nanochat's tokenizer calls, by our tokenizer."""

    def encode_single_token(self, name: str) -> int:
        found = TOKENIZER.special_id(name)
        assert found is not None
        return found

    def encode_ordinary(self, text: str) -> list[int]:
        return ids_of(text)


@pytest.fixture(scope="module")
def peer() -> Any:
    """nanochat's tokenizer around ours, without the libraries that only its training calls."""
    absent = [name for name in ("rustbpe", "tiktoken") if name not in sys.modules]
    sys.modules.update({name: ModuleType(name) for name in absent})
    sys.path.insert(0, PEER)
    try:
        from nanochat import tokenizer  # type: ignore[import-not-found]
    finally:
        sys.path.remove(PEER)
        for name in absent:
            del sys.modules[name]
    assert tuple(tokenizer.SPECIAL_TOKENS) == SPECIAL_TOKENS
    return tokenizer.RustBPETokenizer(_Encoding(), BOS)


@pytest.mark.skipif(not PEER, reason="opt-in: make nanochat PEER_PATH=…")
@settings(deadline=None, max_examples=300)
@given(conversations())
def test_ids_and_mask_are_nanochats(peer: Any, messages: list[dict[str, Any]]) -> None:
    theirs = peer.render_conversation({"messages": messages}, max_tokens=10**6)
    assert render_conversation(TOKENIZER, messages) == theirs
    if messages[-1]["role"] == "user":
        asked = {"messages": [*messages, ANSWER]}
        assert render_for_completion(TOKENIZER, messages) == peer.render_for_completion(asked)
