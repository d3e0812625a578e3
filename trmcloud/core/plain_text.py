"""Text that steers no terminal, whoever wrote it."""

from __future__ import annotations

import re

_CONTROL = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|"
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def strip_control(text: str) -> str:
    """Text from anywhere, fit for a terminal: without control characters (tab and newline stay),
    those that turn the direction of what is read, halves of characters and invisible ones."""
    return _CONTROL.sub("", text)


def one_line(text: str) -> str:
    """Likewise, where a line of its own would pass for one of ours."""
    return strip_control(text).replace("\n", " ").replace("\t", " ")


CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Every character that no name of a file may have, the newline and the tab among them."""
