"""Lines that are wider than the terminal, wrapped where a reader would: never inside an amount, a
command to type, or a word."""

from __future__ import annotations

import re
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


def wrap(line: str, columns: int) -> list[str]:
    """``line`` in pieces of at most ``columns`` characters; what follows the first is indented,
    below the text where a name stands before that. A word that is wider than that (a path, a
    hash) stays whole, on a line of its own."""
    if len(line) <= columns:
        return [line]
    if not line.strip():
        return [""]
    indent = line[: len(line) - len(line.lstrip())]
    named = _NAMED.match(line)
    if named is not None and len(named.group(0)) > columns - _LEAST_TEXT:
        named = None  # too narrow for columns of any kind
    head = named.group(0) if named is not None else indent
    words = list(_words(line[len(head) :], columns))
    longest = max(map(len, words))
    if named is None and len(indent) + longest > columns:
        head = indent = " " * max(0, columns - longest - 2)
    hang = " " * len(head)
    if named is None or len(head) > columns // 2 or len(head) + longest > columns:
        hang = indent + "  "
    lines: list[str] = []
    now = head
    for word in words:
        space = " " if lines or now != head else ""
        if len(now) + len(space) + len(word) <= columns:
            now += space + word
        else:
            lines += [now.rstrip()] if now.strip() else []
            now = hang + word if len(hang) + len(word) <= columns else word
    return [text.replace(_GLUE, " ") for text in (*lines, now)]


def _words(text: str, columns: int) -> Iterator[str]:
    """The words of ``text``; several as one where they belong together and fit a line."""
    glued = text
    for kept in (_QUANTITY, _ASIDE, _COMMAND):
        glued = kept.sub(lambda found: found.group(0).replace(" ", _GLUE), glued)
    for word in glued.replace(" · ", f"{_GLUE}· ").split():
        if len(word) <= columns:
            yield word
        else:
            yield from word.replace(f"{_GLUE}·", "·").split(_GLUE)
