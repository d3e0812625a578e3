"""What an action is called: its text is in every ledger, and is read as it was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trmcloud.core.control.action_key import ActionKey
from trmcloud.core.control.pending_pulls import pulled_of

words = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8)
items = st.just("") | st.from_regex(r"[A-Za-z0-9._-]{1,40}", fullmatch=True)


@given(st.builds(ActionKey, words, st.integers(0, 9999), words, st.integers(0, 999), items))
def test_a_key_is_read_as_it_was_written(key: ActionKey) -> None:
    assert ActionKey.parse(str(key)) == key


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("r-b56243/g1/create/1", ActionKey("r-b56243", 1, "create", 1)),
        ("r1/g12/save-2/3", ActionKey("r1", 12, "save", 3, "2")),
        (
            "r1/g1/pull-fast-80-bbbbbbbb/1",
            ActionKey("r1", 1, "pull", 1, "fast-80-bbbbbbbb"),
        ),
    ],
)
def test_the_text_is_that_of_ledgers_before(text: str, key: ActionKey) -> None:
    assert (str(key), ActionKey.parse(text)) == (text, key)


@pytest.mark.parametrize(
    "text",
    ["", "a", "r1/create/1", "r1/g1/create", "r1/gx/create/1", "r1/g1//1", "r/1/g1/create/1"],
)
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="names no action"):
        ActionKey.parse(text)


def test_a_pull_says_which_checkpoint() -> None:
    assert pulled_of("fast-80-bbbbbbbb") == ("fast", 80)
    assert pulled_of("warm-up-80-bbbbbbbb") == ("warm-up", 80)
    assert pulled_of("grant") is None
