"""Lines that are wider than the terminal, wrapped where a reader would: never inside an amount, a
command to type, or a word."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_GLUE = "\0"
"""Stands for a space at which nothing is wrapped."""
_LEAST_TEXT = 16
"""Columns beside a name below which its text goes under the name instead."""
_NAMED = re.compile(r"\s*(?:[▸✔✘!·–✗] )?\S+(?: \S+){0,6}\s{2,}(?=\S)")
_COMMAND = re.compile(r"\btrmcloud (?!commands?\b)(?!·)[^\s;,:()]+(?: (?!·)[^\s;,:()]+)*")
_ASIDE = re.compile(r"\([^()]{1,16}\)")
_QUANTITY = re.compile(
    r"\$?\d[\d.,:–]* (?=(?:s|min|h|d|days?|bytes|[KMGT]?B|tokens|steps?|%)(?:\W|$))|"
    r"(?<=\d [hd]) (?=\d)|(?<=\d min) (?=\d)|(?<=\d [smhd]) (?=ago\b)|"
    r"[a-z]\S* (?=[rp]-[0-9a-f]{4,6}\b)"  # a verb and its run
)


def width(text: str) -> int:
    """Return the number of columns that a terminal gives ``text``: two to each wide character
    (Unicode TR 11), none to what is set above or below another."""
    if text.isascii():
        return len(text)
    return sum(
        2 if unicodedata.east_asian_width(each) in "WF" else 0 if unicodedata.combining(each) else 1
        for each in text
    )


def padded(text: str, columns: int) -> str:
    """``text`` and as many spaces as it lacks."""
    return text + " " * (columns - width(text))


def wrap(line: str, columns: int) -> list[str]:
    """``line`` in pieces of at most ``columns``; what follows the first is indented,
    below the text where a name stands before that. A word that is wider than that (a path, a
    hash) stays whole, on a line of its own."""
    if width(line) <= columns:
        return [line]
    if not line.strip():
        return [""]
    indent = line[: len(line) - len(line.lstrip())]
    named = _NAMED.match(line)
    if named is not None and width(named.group(0)) > columns - _LEAST_TEXT:
        named = None  # too narrow for columns of any kind
    head = named.group(0) if named is not None else indent
    words = list(_words(line[len(head) :], columns))
    longest = max(map(width, words))
    if named is None and width(indent) + longest > columns:
        head = indent = " " * max(0, columns - longest - 2)
    hang = " " * width(head)
    if named is None or width(head) > columns // 2 or width(head) + longest > columns:
        hang = indent + "  "
    lines: list[str] = []
    now = head
    for word in words:
        space = " " if lines or now != head else ""
        if width(now) + width(space) + width(word) <= columns:
            now += space + word
        else:
            lines += [now.rstrip()] if now.strip() else []
            now = hang + word if width(hang) + width(word) <= columns else word
    return [text.replace(_GLUE, " ") for text in (*lines, now)]


def _words(text: str, columns: int) -> Iterator[str]:
    """The words of ``text``; several as one where they belong together and fit a line."""
    glued = text
    for kept in (_QUANTITY, _ASIDE, _COMMAND):
        glued = kept.sub(lambda found: found.group(0).replace(" ", _GLUE), glued)
    for word in glued.replace(" · ", f"{_GLUE}· ").split():
        if width(word) <= columns:
            yield word
        else:
            yield from word.replace(f"{_GLUE}·", "·").split(_GLUE)
