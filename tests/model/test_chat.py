"""Conversations as ids: nanochat's format, its judged tokens, and what is refused.

Tests against nanochat need its checkout (92d63d4): ``TRMCLOUD_NANOCHAT=PATH``.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.data import chat
from model.data.batch import ids_and_targets
from model.data.chat import SPECIAL_TOKENS, ChatTokens, render_conversation, render_for_completion
from model.data.folder import open_data
from model.data.packing import GIVEN, PAD
from model.data.stream import RowLayout, rows_of
from model.data.tokenizers import BOS, BpeTokenizer, CharTokenizer, is_as_trained, load_tokenizer
from model.families.dense import Dense, Shape
from model.preparing import questions
from model.preparing.chat_ids import are_conversations, tokenize_conversations
from model.preparing.conversations import prepare_conversations
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
    with_system: list[dict[str, Any]] = [{"role": "system", "content": "on the mat"}, *rest]
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
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "the"},
        {"role": "assistant", "content": content},
    ]
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


# -- Rows ---------------------------------------------------------------------------------------


def conversation(words: int, number: int) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": f"the {number}"},
        {"role": "assistant", "content": "cat " * words},
    ]


def tokens_of(many: list[list[dict[str, Any]]]) -> np.ndarray[Any, Any]:
    return np.concatenate(chat.render_all(TOKENIZER, many, [""] * len(many))).astype(np.uint16)


def rows_of_chat(tokens: np.ndarray[Any, Any], sequence: int) -> np.ndarray[Any, Any]:
    layout = RowLayout("chat", sequence, TOKENIZER.bos, chat=ChatTokens.of(TOKENIZER))
    rows = rows_of(tokens, layout)
    return rows.read(range(rows.count))


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(24, 60))
def test_rows_hold_every_conversation_once_cropped_to_the_sequence(
    lengths: list[int], sequence: int
) -> None:
    many = [conversation(words, number) for number, words in enumerate(lengths)]
    rows = rows_of_chat(tokens_of(many), sequence)
    wanted = []
    for messages in many:
        ids, mask = render_conversation(TOKENIZER, messages)
        wanted.append((tuple(ids[:sequence]), tuple(mask[:sequence])))
    found = []
    for row in rows:
        assert row[0] == GIVEN - TOKENIZER.bos  # each row begins with a conversation
        filled = row[row != PAD]
        assert (row[len(filled) :] == PAD).all()
        ids = np.where(filled <= GIVEN, GIVEN - filled, filled)
        begins = [*np.flatnonzero(ids == TOKENIZER.bos), len(ids)]
        for begin, end in itertools.pairwise(begins):
            judged = tuple(int(each >= 0) for each in filled[begin:end])
            found.append((tuple(int(each) for each in ids[begin:end]), judged))
    assert sorted(found) == sorted(wanted)


def test_a_row_takes_the_longest_conversation_that_fits() -> None:
    lengths = [8, 3, 5]
    many = [conversation(words, number) for number, words in enumerate(lengths)]
    sizes = [len(render_conversation(TOKENIZER, each)[0]) for each in many]
    rows = rows_of_chat(tokens_of(many), sizes[0] + sizes[1])
    first = [int(each) for each in rows[0] if each != PAD]
    assert len(first) == sizes[0] + sizes[1]  # the third is longer than what the first leaves
    assert sum(1 for each in rows[1] if each != PAD) == sizes[2]


def test_a_model_is_given_every_id_and_judged_on_the_answers() -> None:
    many = [conversation(3, 0), conversation(5, 1)]
    [row] = rows_of_chat(tokens_of(many), 60)
    ids, targets = ids_and_targets(torch.from_numpy(row[None]), is_chat=True)
    flat, mask = [], []
    for messages in sorted(many, key=lambda each: -len(each[1]["content"])):
        one, of_one = render_conversation(TOKENIZER, messages)
        flat += one
        mask += of_one
    assert ids[0, : len(flat)].tolist() == flat
    assert targets[0, : len(flat) - 1].tolist() == [
        token if is_judged else PAD for token, is_judged in zip(flat[1:], mask[1:], strict=True)
    ]
    assert (targets[0, len(flat) - 1 :] == PAD).all()


def test_padding_changes_neither_loss_nor_gradients() -> None:
    shape = Shape(vocab_size=320, depth=2, width=32, head_dim=16, sequence=60)
    model = Dense(shape)
    model.initialise(3)
    for parameter in model.parameters():
        parameter.data.add_(0.1)
    tokens = torch.from_numpy(rows_of_chat(tokens_of([conversation(9, 0)]), 60))
    ids, targets = ids_and_targets(tokens, is_chat=True)
    count = int((targets >= 0).sum())
    end = int((targets[0] >= 0).nonzero()[-1]) + 1

    def gradients(ids: torch.Tensor, targets: torch.Tensor) -> tuple[float, list[torch.Tensor]]:
        model.zero_grad()
        loss = model.loss(ids, targets).loss
        loss.backward()
        return float(loss.detach()), [
            p.grad.clone() for p in model.parameters() if p.grad is not None
        ]

    padded, of_padded = gradients(ids, targets)
    cut, of_cut = gradients(ids[:, :end], targets[:, :end])
    nats = model.evaluate(ids, targets)[0]
    assert padded == pytest.approx(float(nats.detach().sum()) / count, rel=1e-5)
    assert padded == pytest.approx(cut, rel=1e-5)
    for one, other in zip(of_padded, of_cut, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


# -- Files of conversations ---------------------------------------------------------------------


def write_lines(path: Path, *lines: Any) -> Path:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    path.write_text("".join(f"{each}\n" for each in texts), encoding="utf-8")
    return path


def test_a_file_is_divided_by_the_hashes_of_its_conversations(tmp_path: Path) -> None:
    many = [conversation(number % 7 + 1, number) for number in range(300)]
    lines = [{"messages": each} if number % 2 else each for number, each in enumerate(many)]
    file = write_lines(tmp_path / "chat.jsonl", *lines, "", many[0])
    meta = prepare_conversations(str(file), tmp_path / "made", 0.2)
    read = {
        name: [
            json.loads(line)["messages"]
            for line in (tmp_path / "made" / name).read_text().splitlines()
        ]
        for name in ("train.jsonl", "validation.jsonl")
    }
    assert (len(read["train.jsonl"]), len(read["validation.jsonl"])) == (
        meta["conversations"],
        meta["validation_conversations"],
    )
    assert 30 < meta["validation_conversations"] < 90
    assert sum(map(len, read.values())) == 301
    # Equal ones are on one side.
    assert not [each for each in read["train.jsonl"] if each in read["validation.jsonl"]]
    again = prepare_conversations(str(file), tmp_path / "again", 0.2)
    assert again == meta


def test_two_conversations_are_enough(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "chat.jsonl", conversation(1, 0), conversation(1, 1))
    for fraction in (1e-9, 0.5, 0.999):
        meta = prepare_conversations(str(file), tmp_path / "made", fraction)
        assert (meta["conversations"], meta["validation_conversations"]) == (1, 1)


@pytest.mark.parametrize(
    ("lines", "what", "where"),
    [
        (["{"], "the line is not JSON", ", line 3"),
        (["7"], "a list of messages", ", line 3"),
        ([{"text": "the cat"}], "the line has no messages", ", line 3"),
        ([[USER]], "no message of the assistant", ", line 3"),
        ([[USER, USER]], "message 2 is from 'user'", ", line 3"),
        ([[USER, {"role": "assistant", "content": ""}]], "message 2 is empty", ", line 3"),
        (['[{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "a"}]'],
         "half of a surrogate pair", ", line 3"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_conversation_is_named(
    tmp_path: Path, lines: list[Any], what: str, where: str
) -> None:
    file = write_lines(tmp_path / "chat.jsonl", [USER, ANSWER], "", *lines)
    with pytest.raises(DataError) as caught:
        prepare_conversations(str(file), tmp_path / "made", 0.1)
    assert what in caught.value.what
    assert caught.value.where == f"{file}{where}"
    assert not (tmp_path / "made").exists()


def test_a_file_without_conversations_is_refused(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "chat.jsonl", "", "")
    with pytest.raises(DataError, match="it has no conversations"):
        prepare_conversations(str(file), tmp_path / "made", 0.1)
    write_lines(file, [USER, ANSWER], [USER, ANSWER])
    with pytest.raises(DataError, match="all its conversations are the same"):
        prepare_conversations(str(file), tmp_path / "made", 0.1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no \.jsonl file"):
        prepare_conversations(str(tmp_path / "empty"), tmp_path / "made", 0.1)


def test_conversations_become_ids_of_a_tokenizer(tmp_path: Path) -> None:
    many = [conversation(number % 5 + 1, number) for number in range(40)]
    file = write_lines(tmp_path / "chat.jsonl", *many)
    prepare_conversations(str(file), tmp_path / "text", 0.2)
    made = tokenize_conversations(tmp_path / "text", TOKENIZER.to_json(), tmp_path / "ids")
    data = open_data(made)
    held_out = [
        json.loads(line)["messages"]
        for line in (tmp_path / "text" / "validation.jsonl").read_text().splitlines()
    ]
    assert data.validation.tolist() == tokens_of(held_out).tolist()
    answers = "".join(each[1]["content"] for each in held_out)
    assert data.meta["validation_bytes"] == len(answers.encode())
    assert are_conversations(tmp_path / "text")
    assert not are_conversations(made)
    stamp = (made / "meta.json").stat().st_mtime_ns
    tokenize_conversations(tmp_path / "text", TOKENIZER.to_json(), made)
    assert (made / "meta.json").stat().st_mtime_ns == stamp  # the same are kept
    plain = BpeTokenizer.train([CORPUS], 320)
    with pytest.raises(DataError, match="cannot write conversations"):
        tokenize_conversations(tmp_path / "text", plain.to_json(), tmp_path / "other")


def test_questions_by_formula_are_each_asked_once() -> None:
    asked = [
        (messages[at]["content"], messages[at + 1]["content"])
        for messages in questions.conversations()
        for at in range(0, len(messages), 2)
    ]
    assert sorted(asked) == sorted(questions.turns())
    assert len(set(asked)) == len(asked) == 1374
    for messages in questions.conversations():
        chat.check_messages(messages, "", is_trained_on=True)


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
