"""Commands as people read them: in the README, in the guides, and in what the screens print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs" / "guide"
#: The demo first: its run is the one that others refer to.
DOCUMENTS = tuple(
    dict.fromkeys((GUIDES / "demo.md", ROOT / "README.md", *sorted(GUIDES.glob("*.md"))))
)
#: Each is a simulated run; tests/sim has thousands.
REHEARSED = "25"
_COMMENT = re.compile(r"\s+# .*$")
_RUN, _PLAN = re.compile(r"r-[0-9a-f]{6}"), re.compile(r"p-[0-9a-f]{4}|PLAN")
_REFUSED = re.compile(r"^error: ", re.MULTILINE)


@dataclass(frozen=True)
class Written:
    """One command line of a document. ``refused``: the document shows it ending in an error."""

    document: str
    line: int
    words: tuple[str, ...]
    refused: bool

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def in_world(self, run_id: str, plan_id: str) -> list[str]:
        """Its words with the ids of a world in which it is run, and with fewer rehearsals."""
        words = [_PLAN.sub(plan_id, _RUN.sub(run_id, word)) for word in self.words]
        if "--runs" in words:
            words[words.index("--runs") + 1] = REHEARSED
        return words


def commands() -> Iterator[Written]:
    """Every ``trmcloud …`` in a code block of README and guides, in their order."""
    for document in DOCUMENTS:
        yield from commands_in(document.name, document.read_text(encoding="utf-8"))


def commands_in(name: str, text: str) -> Iterator[Written]:
    lines = text.splitlines()
    fenced = False
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if line.startswith("```"):
            fenced = not fenced
            continue
        is_code = fenced or line.startswith("    ")
        found = line.strip().removeprefix("$ ")
        if not is_code or not found.startswith("trmcloud ") or _is_prose(line, found):
            continue
        began = number
        while found.endswith("\\"):
            found = f"{found[:-1]} {lines[number].strip().removeprefix('> ')}"
            number += 1
        shown = "\n".join(_until_the_next(lines[number:]))
        for part in _COMMENT.sub("", found).split(" && "):
            if part.startswith("trmcloud "):
                words = tuple(shlex.split(part.split(" | ")[0].split(" > ")[0]))[1:]
                yield Written(name, began, words, bool(_REFUSED.search(shown)))


def _is_prose(line: str, found: str) -> bool:
    """Whether it is a line of output that only begins like a command."""
    return not line.strip().startswith("$ ") and (" · " in found or ": " in found)


def _until_the_next(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith(("$ ", "```")):
            return
        yield line
