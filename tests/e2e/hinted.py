"""Commands that screens, errors and helps tell people to type, taken from the sources.

A hint is a string with ``trmcloud <command>`` in it. What it goes on with is told by the command
line itself: an option's value belongs to it, and so does a word that can only be typed (a
placeholder, an id, a number, an address, a subcommand); the first other word is prose.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trmcloud.cli.main import COMMANDS, load_command

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("trmcloud", "model")
_BEGINS = re.compile(r"(?<![\w./-])trmcloud (?=[a-z][a-z-]*)")
#: Lower-case words that are typed as they stand, of the arguments that take a name.
_TYPED = frozenset(
    {"account", "month", "project", "local", "fineweb-edu", "gsm8k", "all", "webhook"}
)
_TYPABLE = re.compile(
    r"\d[\w.x-]*|[rp]-[0-9a-f]+|[A-Z][A-Z0-9_-]*[A-Z0-9]|[A-Z]|(?:s3|https)://\S+|\.?/\S+|[\w.=-]*⟨\d+⟩\S*"
)
#: What follows our name where we speak of ourselves, and name no command.
_OF_OURSELVES = frozenset(
    {"are", "command", "ledger", "made", "may", "needs", "pods", "probe", "process"}
)
_WORD = re.compile(r'"[^"]*"|\S+')
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")


@dataclass(frozen=True)
class Hint:
    """A command that ``place`` tells people to type; ``⟨n⟩`` in ``text`` stands for the n-th of
    ``values``, which are Python expressions, and capitals for what the reader knows."""

    place: str
    text: str
    values: tuple[str, ...]
    is_named_only: bool = False
    """Whether it is only spoken of: what it needs to be run is not said."""

    def words(self, known: Mapping[str, str]) -> list[str]:
        """As it would be typed, by what each placeholder stands for.

        Raises:
            KeyError: one that ``known`` does not say.
        """

        def value(match: re.Match[str]) -> str:
            return known[self.values[int(match[1])]]

        words = []
        for word in shlex.split(self.text):
            word = known[word] if re.fullmatch(r"[A-Z]+", word) else word
            words.append(re.sub(r"⟨(\d+)⟩", value, word))
        return words


def hints() -> list[Hint]:
    """Every one, in the order of the files."""
    return [hint for path, node in _strings() for hint in _hints_in(path, node)]


def options_in_next_steps() -> Iterator[tuple[str, str]]:
    """(place, option) of every ``--option`` in what an error says to do next."""
    for path, tree in _trees("next_step"):
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "next_step":
                for part in ast.walk(node.value):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        for option in _OPTION.findall(part.value):
                            yield f"{path.relative_to(ROOT)}:{part.lineno}", option


@cache
def command(*names: str) -> Any:
    """The command, or the subcommand, of these names."""
    made = load_command(names[0])
    for name in names[1:]:
        made = made.commands[name]
    return made


def _trees(word: str) -> Iterator[tuple[Path, ast.Module]]:
    """Those of the files in which ``word`` stands."""
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if word in text:
                yield path, ast.parse(text)


def _strings() -> Iterator[tuple[Path, ast.Constant | ast.JoinedStr]]:
    """Strings that a program can print: of docstrings those of commands alone, for ``--help``."""
    for path, tree in _trees("trmcloud "):
        helps = path.parent.name == "cli"
        doc = tree.body[0] if tree.body else None
        passed = {id(doc.value)} if isinstance(doc, ast.Expr) else set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and not helps:
                passed.add(id(node.value))
            if isinstance(node, ast.JoinedStr):
                passed |= {id(part) for part in ast.walk(node) if part is not node}
        for node in ast.walk(tree):
            plain = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if (plain or isinstance(node, ast.JoinedStr)) and id(node) not in passed:
                yield path, node  # type: ignore[misc]


def _hints_in(path: Path, node: ast.Constant | ast.JoinedStr) -> Iterator[Hint]:
    values: list[str] = []
    text = str(node.value) if isinstance(node, ast.Constant) else ""
    for part in node.values if isinstance(node, ast.JoinedStr) else ():
        if isinstance(part, ast.FormattedValue):
            text += f"⟨{len(values)}⟩"
            values.append(ast.unparse(part.value))
        elif isinstance(part, ast.Constant):
            text += str(part.value)
    place = f"{path.relative_to(ROOT)}:{node.lineno}"
    text = text.replace("</code>", " ")
    for match in _BEGINS.finditer(text):
        # ``trmcloud status r-1 · logs -f r-1``: what follows the dot is a command, too.
        first, *others = text[match.end() :].split("\n")[0].split(" · ")
        more = [each for each in others if each.split()[:1] and each.split()[0] in COMMANDS]
        for said in (first, *more):
            found = _command_of(_WORD.findall(said))
            if found[0] not in _OF_OURSELVES:
                yield Hint(place, " ".join(found), tuple(values), _is_named_only(found))


def _is_named_only(found: list[str]) -> bool:
    if len(found) > 1 or found[0] not in COMMANDS:
        return False
    made = command(found[0])
    needs_more = any(option.required for option in made.params)
    return needs_more or (hasattr(made, "commands") and not made.invoke_without_command)


def _command_of(said: list[str]) -> list[str]:
    """The words of a command, up to where prose begins; one word where it is no command."""
    name = said[0].rstrip(".,;:)'`")
    found = [name]
    if name not in COMMANDS:
        return found
    made = command(name)
    ended = said[0] != name
    takes_value = False
    for place, word in enumerate(said[1:], 1):
        if ended:
            break
        if word == "--" and len(found) > 1:
            return [*found, *said[place:]][: len(found) + 2]  # and a command, whatever it is
        plain = word.rstrip(".,;:)'`")
        ended = plain != word
        if takes_value:
            takes_value = False
        elif plain.startswith("-") and plain.strip("-"):
            option = next((p for p in made.params if plain.partition("=")[0] in p.opts), None)
            takes_value = option is not None and not option.is_flag and "=" not in plain
        elif plain in getattr(made, "commands", {}):
            made = made.commands[plain]
        elif plain not in _TYPED and not _TYPABLE.fullmatch(plain):
            break
        found.append(plain)
    return found
