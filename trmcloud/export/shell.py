"""Values in a shell script: quoted so that bash takes them for what they are, whatever they are."""

from __future__ import annotations

import os
import re

_PLAIN = re.compile(rb"[A-Za-z0-9_@%+=:,./-]+")


def quote(text: str) -> str:
    """``text`` as one word of bash, in ASCII: bare, 'quoted', or $'escaped' where it must be.

    Bytes of a file's name that are not UTF-8 stay what they are.

    Raises:
        ValueError: a NUL, which no argument can hold.
    """
    content = os.fsencode(text)
    if b"\0" in content:
        raise ValueError("a NUL byte cannot be passed to a command")
    if _PLAIN.fullmatch(content):
        return content.decode("ascii")
    if re.fullmatch(rb"[A-Za-z0-9_@%+=:,./ -]*", content):
        return "'" + content.decode("ascii") + "'"
    return "$'" + "".join(_escaped(byte) for byte in content) + "'"


def _escaped(byte: int) -> str:
    character = chr(byte)
    if character in "'\\":
        return "\\" + character
    return character if 0x20 <= byte < 0x7F else f"\\x{byte:02x}"


def comment(text: str) -> str:
    """``text`` on one line, without what could end a comment or disturb a terminal."""
    shown = os.fsencode(text).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
