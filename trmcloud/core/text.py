"""Text from any author that steers no terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNSEEN = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_CONTROL = re.compile(rf"\x1b\[[0-9;?]*[A-Za-z]|[{_UNSEEN}]")
CONTROL = re.compile(rf"[\t\n{_UNSEEN}]")
"""Every character that no name of a file may have, the newline and the tab among them."""


def strip_control(text: str) -> str:
    """Text from anywhere, fit for a terminal: without control characters (tab and newline stay),
    those that turn the direction of what is read, halves of characters and invisible ones."""
    return _CONTROL.sub("", spell_bytes(text))


def spell_bytes(text: str) -> str:
    """Text in which each byte of a name that is not UTF-8 is written like ``%E9``: everywhere, so
    that what is shown, kept and fetched has the same name."""
    return _NOT_UTF8.sub(lambda found: f"%{ord(found[0]) & 0xFF:02X}", text)


def one_line(text: str) -> str:
    """Likewise, where a line of its own would pass for one of ours."""
    return strip_control(text).replace("\n", " ").replace("\t", " ")


def first_of(names: Sequence[str], most: int = 3) -> str:
    """``a, b and 3 more``: ``most`` of the names."""
    told = ", ".join(one_line(name)[:160] for name in names[:most])
    return f"{told} and {len(names) - most} more" if len(names) > most else told


def size_text(size_bytes: int) -> str:
    """``1.5 GB``, ``20.0 kB`` or ``512 bytes``."""
    for unit, each in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= each:
            return f"{size_bytes / each:.1f} {unit}"
    return f"{size_bytes} bytes"
