"""Text from any author that steers no terminal."""

from __future__ import annotations

import re

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
