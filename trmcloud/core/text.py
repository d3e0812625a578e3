"""Text from any author: control characters removed, and mistyped names corrected."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Text that steers no terminal, from any author.

_UNSEEN = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
_CONTROL = re.compile(rf"\x1b\[[0-9;?]*[A-Za-z]|[{_UNSEEN}]")
CONTROL = re.compile(rf"[\t\n{_UNSEEN}]")
"""Every character that no name of a file may have, the newline and the tab among them."""


def strip_control(text: str) -> str:
    """Text from anywhere, fit for a terminal: without control characters (tab and newline stay),
    those that turn the direction of what is read, halves of characters and invisible ones."""
    return _CONTROL.sub("", text)


def one_line(text: str) -> str:
    """Likewise, where a line of its own would pass for one of ours."""
    return strip_control(text).replace("\n", " ").replace("\t", " ")


# The known name that somebody who mistyped one most likely meant.

_LIKENESS = 0.4
"""Of two texts, from 0 to 1 as difflib counts it: below this a guess would only confuse."""


def nearest(typed: str, known: Iterable[str], *, likeness: float = _LIKENESS) -> str | None:
    """The one of ``known`` that is most like ``typed``, whatever the case; None where none is."""
    import difflib  # for an error alone

    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(typed.lower(), by_lower, n=1, cutoff=likeness)
    return by_lower[near[0]] if near else None


def suggest_name(typed: str, known: Iterable[str]) -> str:
    """Suggest a replacement: the nearest of ``known``, or any of them."""
    names = list(known)
    found = nearest(typed, names)
    return f"did you mean {found}?" if found else f"one of: {', '.join(names)}"
