"""Text to ids and back, whatever the text; and no character is ever dropped."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.data.tokenizers import BOS, BpeTokenizer, CharTokenizer, TextTokenizer, load_tokenizer
from trmcloud.core.errors import DataError

CORPUS = "the cat sat on the mat, the dog sat on the log: été, 漢字 🙂\n" * 20
BPE = BpeTokenizer.train([CORPUS], 300)
CHAR = CharTokenizer.train([CORPUS], 300)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@settings(deadline=None)
@given(texts)
def test_bpe_writes_any_text(text: str) -> None:
    [ids] = BPE.encode([text], [""])
    assert BPE.decode(ids) == text
    assert BPE.byte_lengths()[ids].sum() == len(text.encode())
    assert BPE.bos not in ids


@given(st.text(st.sampled_from(sorted(set(CORPUS))), max_size=60))
def test_characters_come_back(text: str) -> None:
    [ids] = CHAR.encode([text], [""])
    assert CHAR.decode(ids) == text
    assert CHAR.byte_lengths()[ids].sum() == len(text.encode())


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_an_unknown_character_is_named_with_its_place(text: str) -> None:
    known = set(CORPUS)
    unknown = next((at for at, each in enumerate(text) if each not in known), None)
    if unknown is None:
        [ids] = CHAR.encode([text], [""])
        assert CHAR.decode(ids) == text
        return
    with pytest.raises(DataError) as caught:
        CHAR.encode([text], ["file.txt"])
    assert repr(text[unknown]) in caught.value.what
    assert f"character {unknown}," in caught.value.what
    assert caught.value.where == "file.txt"


def test_line_and_column_of_an_unknown_character() -> None:
    with pytest.raises(DataError, match=r"U\+0051.*character 10, line 3, column 3"):
        CHAR.encode(["cat\nsat\ncaQ"], [""])


def test_a_spelled_out_special_token_is_plain_text() -> None:
    for tokenizer in (BPE, load_tokenizer(BPE.to_json(), "")):
        [ids] = tokenizer.encode([f"a {BOS} b"], [""])
        assert tokenizer.bos not in ids
        assert tokenizer.decode(ids) == f"a {BOS} b"


@pytest.mark.parametrize("tokenizer", [BPE, CHAR])
def test_a_file_gives_the_same_tokenizer(tokenizer: TextTokenizer) -> None:
    again = load_tokenizer(tokenizer.to_json(), "")
    assert again.kind == tokenizer.kind
    assert (again.vocab_size, again.bos) == (tokenizer.vocab_size, tokenizer.bos)
    assert (again.byte_lengths() == tokenizer.byte_lengths()).all()
    [before], [after] = (each.encode([CORPUS], [""]) for each in (tokenizer, again))
    assert (before == after).all()
    assert again.to_json() == tokenizer.to_json()


def test_training_twice_gives_the_same_file() -> None:
    assert BpeTokenizer.train([CORPUS], 300).to_json() == BPE.to_json()
    assert CharTokenizer.train([CORPUS[::-1]], 300).to_json() == CHAR.to_json()


def test_bpe_has_the_size_asked_for_where_the_text_allows() -> None:
    assert BpeTokenizer.train([CORPUS], 275).vocab_size == 275
    assert BpeTokenizer.train(["ab"], 5000).vocab_size == 256 + 1 + 1  # bytes, bos, "ab"


def test_special_ids_have_no_bytes() -> None:
    for tokenizer in (BPE, CHAR):
        lengths = tokenizer.byte_lengths()
        assert lengths[tokenizer.bos] == 0
        assert (lengths == 0).sum() == 1
        assert len(lengths) == tokenizer.vocab_size


def test_too_many_characters_are_refused_with_the_size_that_would_do() -> None:
    with pytest.raises(DataError) as caught:
        CharTokenizer.train(["abcdef"], 4)
    assert caught.value.next_step.startswith("--set vocab_size=7")


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "nonsense", json.dumps({"kind": "trmcloud-char", "characters": "aa"})]
)
def test_what_is_no_tokenizer_is_refused(text: str) -> None:
    with pytest.raises(DataError) as caught:
        load_tokenizer(text, "somewhere")
    assert caught.value.where == "somewhere"
