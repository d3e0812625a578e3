"""Lines that are wider than the terminal, wrapped where a reader would: never inside an amount, a
command to type, or a word."""

from __future__ import annotations

import re
from collections.abc import Iterator

_GLUE = "\0"
"""Stands for a space at which nothing is wrapped."""
_LEAST_TEXT = 16
"""Columns beside a name below which its text goes under the name instead."""
_NAMED = re.compile(r"\s*(?:[▸✔✘!·–✗] )?\S+(?: \S+){0,3}\s{2,}(?=\S)")
_COMMAND = re.compile(r"\btrmcloud(?: (?!·)[^\s;,:()]+)+")
_QUANTITY = re.compile(
    r"\$?\d[\d.,:–]* (?=(?:s|min|h|d|days?|bytes|[KMGT]?B|tokens|steps?|%)(?:\W|$))|"
    r"(?<=\d (?:h|d)) (?=\d)|(?<=\d min) (?=\d)"
)


def wrap(line: str, columns: int) -> list[str]:
    """``line`` in pieces of at most ``columns`` characters; what follows the first is indented,
    below the text where a name stands before that. A word that is wider than that (a path, a
    hash) stays whole, on a line of its own."""
    if len(line) <= columns:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    named = _NAMED.match(line)
    head = named.group(0) if named is not None else indent
    words = list(_words(line[len(head) :], columns))
    if len(head) > columns - _LEAST_TEXT and named is not None:
        head, words = indent, list(_words(line, columns))  # too narrow for columns of any kind
    hang = " " * len(head) if named is not None else indent + "  "
    if len(head) > columns // 2 or any(len(word) + len(hang) > columns for word in words):
        hang = indent + "  "
    lines, now = [], head
    fresh = True
    for word in words:
        if fresh and not now.strip():
            now += word
        elif len(now) + (not fresh) + len(word) <= columns:
            now += word if fresh else f" {word}"
        else:
            lines.append(now.rstrip())
            now = hang + word if len(hang) + len(word) <= columns else word
        fresh = False
    return [text.replace(_GLUE, " ") for text in (*lines, now)]


def _words(text: str, columns: int) -> Iterator[str]:
    """The words of ``text``; several as one where they belong together and fit a line."""
    glued = _QUANTITY.sub(lambda found: found.group(0).replace(" ", _GLUE), text)
    glued = _COMMAND.sub(lambda found: found.group(0).replace(" ", _GLUE), glued)
    for word in glued.replace(" · ", f"{_GLUE}· ").split():
        if len(word) <= columns:
            yield word
        else:
            yield from word.replace(f"{_GLUE}·", "·").split(_GLUE)
