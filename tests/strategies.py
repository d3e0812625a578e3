"""Values as JSON has them, for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st


def json_values(*odd: Any, text: int = 8, leaves: int = 10) -> st.SearchStrategy[Any]:
    """Any JSON value, with the ``odd`` ones among its leaves."""
    leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=text)
    return st.recursive(
        leaf | st.sampled_from(odd) if odd else leaf,
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
        ),
        max_leaves=leaves,
    )
