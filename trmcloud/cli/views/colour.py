"""Colour for what a reader looks for: marks, errors, the next command. It never says anything that
the words do not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TextIO

_GREEN, _RED, _YELLOW, _BOLD = "32", "31", "33", "1"
_BY_MARK = {"✔": _GREEN, "✘": _RED, "!": _YELLOW, "▸": _BOLD}
_MARKED = re.compile(r"^(\s*)(([✔✘!▸]) \S+(?: [^\s:]+)*)")
_ERROR = re.compile(r"^(error:)")
_COMMAND = re.compile(r"^(\s*(?:(?:try|next|fix|Launch it): )?)(trmcloud .*)$")
_CHOSEN = re.compile(r"^(Recommended: .*)$")
_POOR_TERMINALS = ("", "dumb", "unknown")


def is_wanted(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """On a terminal that has colours, unless NO_COLOR is set to anything."""
    if environ.get("NO_COLOR") or environ.get("TERM", "") in _POOR_TERMINALS:
        return False
    return stream.isatty()


def paint(line: str) -> str:
    """One line of ours, which holds no escape sequence yet, with those that colour it."""
    if (marked := _MARKED.match(line)) is not None:
        indent, words, mark = marked.groups()
        return f"{indent}{_in(_BY_MARK[mark], words)}{line[marked.end() :]}"
    line = _ERROR.sub(lambda found: _in(f"{_BOLD};{_RED}", found.group(1)), line)
    line = _COMMAND.sub(lambda found: found.group(1) + _in(_BOLD, found.group(2)), line)
    return _CHOSEN.sub(lambda found: _in(_BOLD, found.group(1)), line)


def _in(style: str, words: str) -> str:
    return f"\x1b[{style}m{words}\x1b[0m"
