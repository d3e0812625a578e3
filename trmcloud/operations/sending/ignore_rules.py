"""Rules of an ignore file, as gitignore(5) has them: which files are left out.

The file may be another party's. A rule is matched in time that grows with the length of the name
times that of the rule; one that takes long even so is named, and no longer used.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from trmcloud.core.errors import DataError

IGNORE_NAME = ".trmcloudignore"
_MOST_RULE_S, _MOST_S = 1.0, 20.0
"""Of the processor, for one rule and for all of them."""
_MOST_CHARS = 2000
_WITHIN = "(?=/|\\Z)"


class _Rule(NamedTuple):
    line: str
    pattern: re.Pattern[str]
    only_folders: bool
    leaves_in: bool


class IgnoreRules:
    """The lines of an ignore file: the last that matches decides.

    Args:
        cpu_time: the processor's seconds that this thread has used.
    """

    def __init__(
        self, lines: Iterable[str], cpu_time: Callable[[], float] = time.thread_time
    ) -> None:
        lines = tuple(lines)
        self._cpu_time = cpu_time
        self._sent = {line.rstrip()[1:].lstrip("/") for line in lines if line.startswith("!")}
        self._rules = [rule for line in reversed(lines) if (rule := _rule(line)) is not None]
        self._folders: dict[str, bool] = {"": False}
        self._used_s = 0.0
        self._used_by: dict[str, float] = {}
        self.skipped = [line for line in lines if len(line) > _MOST_CHARS]
        """Rules that are not used, since they took too long or are too long."""

    def sends(self, name: str) -> bool:
        """Whether a line of its own, ``!`` and the whole name without a wildcard, has the file sent
        though it looks like a key."""
        return name in self._sent

    def leaves_out(self, name: str) -> bool:
        """Whether a file is left out: it, or a folder that it is in.

        Raises:
            DataError: all the rules together take too long.
        """
        begun = self._cpu_time()
        out = self._folder_is_out(name.rpartition("/")[0]) or self._decide(name, is_folder=False)
        self._used_s += self._cpu_time() - begun
        if self._used_s > _MOST_S:
            raise DataError(
                f"the rules of {IGNORE_NAME} take more than {_MOST_S:.0f} s",
                next_step=f"shorten {IGNORE_NAME}",
            )
        return out

    def _folder_is_out(self, folder: str) -> bool:
        waiting = []
        while folder not in self._folders:
            waiting.append(folder)
            folder = folder.rpartition("/")[0]
        out = self._folders[folder]
        for each in reversed(waiting):
            out = out or self._decide(each, is_folder=True)
            self._folders[each] = out
        return out

    def _decide(self, path: str, *, is_folder: bool) -> bool:
        rules = self._rules if self._used_s <= _MOST_RULE_S else self._timed()
        for rule in rules:
            if (is_folder or not rule.only_folders) and rule.pattern.fullmatch(path):
                return not rule.leaves_in
        return False

    def _timed(self) -> Iterable[_Rule]:
        """Each rule; one that has taken too long while it was with the caller is dropped."""
        for rule in tuple(self._rules):
            begun = self._cpu_time()
            try:
                yield rule
            finally:
                used = self._used_by.get(rule.line, 0.0) + self._cpu_time() - begun
                self._used_by[rule.line] = used
                if used > _MOST_RULE_S:
                    self._rules.remove(rule)
                    self.skipped.append(rule.line)


def _rule(line: str) -> _Rule | None:
    """The rule of a line; None for a comment, and for what can match no name."""
    text = line.rstrip()
    if not text or text.startswith("#") or len(text) > _MOST_CHARS:
        return None
    leaves_in = text.startswith("!")
    text = text[1:] if leaves_in else text
    only_folders = text.endswith("/")
    text = text.rstrip("/")
    parts = text.lstrip("/").split("/")
    try:
        pattern = re.compile(_of_path(parts if "/" in text else ["**", *parts]), re.DOTALL)
    except re.error:  # a range from the higher to the lower character
        return None
    return _Rule(line, pattern, only_folders, leaves_in)


def _of_path(parts: list[str]) -> str:
    """A pattern that never tries again what it has settled: of the folders that ``**`` may stand
    for the fewest are taken up to the next part, as is right for all that follows."""
    pieces: list[list[str]] = [[]]
    for part in parts:
        if part == "**":
            pieces.append([])
        else:
            pieces[-1].append(_of_name(part))
    first, *others = ("/".join(piece) for piece in pieces)
    if not others:
        return first
    made = first + "/" * bool(first)
    for piece in others[:-1]:
        made += f"(?>(?:[^/]+/)*?{piece}/)" if piece else ""
    return made + (f"(?:[^/]+/)*{others[-1]}" if others[-1] else ".+")


def _of_name(part: str) -> str:
    """The same for one name: the fewest characters for each ``*`` but the last."""
    chunks = [""]
    at = 0
    while at < len(part):
        char, length = part[at], 1
        if char == "*":
            chunks += [""] if chunks[-1] or len(chunks) == 1 else []
        elif char == "?":
            chunks[-1] += "[^/]"
        elif char == "[" and (end := part.find("]", at + 2 + (part[at + 1 : at + 2] in "!^"))) > 0:
            chunks[-1] += _of_class(part[at + 1 : end])
            length = end + 1 - at
        elif char == "\\" and at + 1 < len(part):
            chunks[-1] += re.escape(part[at + 1])
            length = 2
        else:
            chunks[-1] += re.escape(char)
        at += length
    if len(chunks) == 1:
        return f"{chunks[0]}{_WITHIN}"
    first, *middle, last = chunks
    settled = "".join(f"(?>[^/]*?{chunk})" for chunk in middle)
    return f"(?>{first}{settled}[^/]*{last}{_WITHIN})"


def _of_class(content: str) -> str:
    is_not = content[0] in "!^"
    kept = "".join(
        char if char == "-" else re.escape(char) for char in content[is_not:].replace("\\", "")
    )
    return f"(?!/)[{'^' * is_not}{kept}]"
