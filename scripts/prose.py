"""Check the English of what a user reads: help, messages, the page, README and guides.

``make check`` runs it. It reads string literals of the product (docstrings of commands too, since
they are help) and Markdown outside of code blocks, and reports each phrase that a plainer one
replaces, each term that the glossary replaces, and each sentence that is too long. Exit code 1 and
one line for each finding: file, line, phrase, advice.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Pages that a user reads. Decisions, the log and the changelog are records of their day.
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "ci/README.md",
    "sky/README.md",
    "docs/index.md",
    "docs/api/*.md",
    "docs/json/README.md",
    "docs/architecture.md",
    "docs/commands.md",
    "docs/contract.md",
    "docs/glossary.md",
    "docs/invariants.md",
    "docs/screens/README.md",
    "docs/guide/*.md",
    "docs/design/*.md",
    "docs/reference/*.md",
)
# Code whose strings reach a user. The simulation's are for its developers, apart from faults that
# ``rehearse`` prints.
SOURCES = ("trmcloud/**/*.py", "model/**/*.py")
STATIC = ("trmcloud/cli/static/*.html", "trmcloud/cli/static/*.js")
NOT_READ = ("trmcloud/sim/world/", "trmcloud/sim/oracle/")

MOST_WORDS = {"page": 40, "message": 32}

# Phrase (a regular expression, matched in any case at word boundaries) and what to write instead.
PHRASES = {
    r"nobody|no one": "name who or what: 'no command', 'you', 'no process'; or use the passive",
    r"whoever|whomever|whom": "name the person or program: 'the sender', 'a command that …'",
    r"somebody|someone": "name who: 'you', 'another command', 'another process'",
    r"everybody|anybody": "name who: 'everyone', 'your users'",
    r"(?:go|goes|going|went|gone) on": "continue(s), continued",
    r"(?:is|are|was|were|be|been) told": "notify, ask, report: name who does it",
    r"tell(?:s)? (?:it|them|you) (?:to|of)": "ask, or notify",
    r"told (?:to|of|apart)": "asked to; reported",
    r"(?:lies?|lay|lying) (?:in|on|at|here|there|below|beside|outside|within|far|between|above)": (
        "is in, is on, is at"
    ),
    r"by (?:it|them)sel(?:f|ves)": "automatically; on its own",
    r"with (?:its|their) own eyes": "checks",
    r"all the same": "anyway; still",
    r"for ever": "forever; or say until when",
    r"hereby|thereby|whereby|therein|thereof": "a short sentence of its own",
    r"made ready|make ready|makes ready|making [a-z]+ ready": "prepare",
    r"(?:brings?|brought|comes?|came) home": "fetch, download; 'on your disk'",
    r"(?:its|their|his) word": "report, answer",
    r"no word|a word|without a word": "no report",
    r"reckon(?:s|ed)?": "compute, count",
    r"it is no [a-z]+": "it is not a …",
    r"(?:is|are) none": "say what is missing",
    r"as (?:it|they) stands?": "unchanged",
    r"stands? (?:for itself|beside|in the way)": "is next to; blocks",
    r"look(?:s|ed)? (?:on|at it again)": "watch; check again",
    r"there and back": "uploaded and downloaded",
    r"mend(?:s|ed|ing)?": "fix, repair",
    r"begun anew|anew": "again; from the start",
    r"likewise|henceforth|hitherto|lest|albeit": "also; from now on; so that … not",
    r"what is not (?:told|said|known|seen)": "say which thing",
    r"cannot be told": "is not known",
    r"had rather|would rather": "prefer",
    r"of that kind|of the kind": "such",
    r"is (?:about|for) [a-z-]+ alone|[a-z]+ alone": "only X",
    r"beyond it|beyond that": "above that; after that",
    r"it took the request": "the provider accepted the request",
    r"in no list": "not listed",
    r"(?:can|cannot|could|to) be had|(?:is|are|was|were) had": "is available",
    r"dearer": "more expensive; planned with a surcharge",
    r"in the clear": "without encryption",
    r"likeliest": "most likely",
    r"(?:is|are) reached from elsewhere": "can be reached from other machines",
    r"brings? (?:it|them) here": "fetch",
    r"comes? to nothing": "fail",
    r"hold(?:s)? (?:it|them) (?:to|against)": "compare with",
    r"(?:a day|a month) less": "saves … a day",
    r"not (?:looked at|heard of) (?:any more|yet)": "not checked; no report yet",
}


@dataclass(frozen=True, slots=True)
class Text:
    """Prose of one place: its kind sets how long a sentence may be."""

    path: str
    line: int
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class Finding:
    path: str
    line: int
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}: {self.advice}"


def page_texts(path: str, source: str) -> Iterator[Text]:
    """Yield the paragraphs of a Markdown page, without code blocks, code spans and addresses.

    The last column of the glossary is left out too: it lists the words that a term replaces.
    """
    fence = ""
    held: list[str] = []
    start = 0

    def paragraph() -> Iterator[Text]:
        if held:
            text = re.sub(r"``[^`]*``|`[^`]*`", "CODE", " ".join(held))
            text = re.sub(r"\]\([^)]*\)", "]", text)
            yield Text(path, start, "page", re.sub(r"[*_\[\]]|<!--.*?-->", "", text))
            held.clear()

    for number, line in enumerate(source.splitlines(), 1):
        bare = line.strip()
        if mark := re.match(r"(?:`{3,}|~{3,})", bare):
            yield from paragraph()
            # A fence ends with a line of nothing but as many marks; a shorter one is inside it.
            if not fence:
                fence = mark.group()
            elif bare.startswith(fence) and not bare.strip(fence[0]):
                fence = ""
            continue
        if fence or not bare or bare.startswith("<!--"):
            yield from paragraph()
            continue
        if re.match(r"(?:#|[-*] |\d+\. |\|)", bare):
            yield from paragraph()
        if not held:
            start = number
        if bare.startswith("|"):
            cells = bare.strip("|").split("|")
            for cell in cells[:3] if path == "docs/glossary.md" else cells:
                held.append(cell.strip())
                yield from paragraph()
                start = number
        else:
            held.append(re.sub(r"^(?:#+|[-*]|\d+\.) ", "", bare))
    yield from paragraph()


def message_texts(path: str, source: str, *, help_in_docstrings: bool) -> Iterator[Text]:
    """Yield the string literals of a module that read as prose: two words or more."""
    tree = ast.parse(source)
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else ():
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                command = isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
                if not (help_in_docstrings and command):
                    docstrings.add(id(child.value))
    parts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts.update(id(value) for value in node.values)
            words = "".join(
                str(value.value) if isinstance(value, ast.Constant) else "X"
                for value in node.values
            )
            yield from _as_prose(path, node.lineno, words)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in docstrings | parts:
            continue
        if isinstance(node.value, str):
            yield from _as_prose(path, node.lineno, node.value)


def _as_prose(path: str, line: int, words: str) -> Iterator[Text]:
    if len(re.findall(r"[A-Za-z]{2,}", words)) < 2 or " " not in words.strip():
        return
    if re.search(r"\(\?|\\[wsdb]|[{};]\n|</?[a-z]+[ >]|\bSELECT\b|\bimport ", words):
        return  # a pattern, a program, markup or a query
    for paragraph in re.split(r"\n\s*\n", words):
        yield Text(path, line, "message", " ".join(paragraph.split()))


def static_texts(path: str, source: str) -> Iterator[Text]:
    """Yield quoted strings and the text between tags of a page's own files."""
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith(("//", "*", "/*")):
            continue
        for found in re.findall(r"\"([^\"]+)\"|'([^']+)'|`([^`]+)`|>([^<>{}]+)<", line):
            words = next(filter(None, found))
            if len(re.findall(r"[A-Za-z]{2,}", words)) >= 2 and not re.search(r"[{};=]", words):
                yield Text(path, number, "message", words)


# A single word that the glossary replaces may be right in another sense ("look"); these are not.
ONE_WORD = {"guardian", "hazard", "stray"}


def glossary_terms(page: str) -> dict[str, str]:
    """Return the words that the glossary replaces, each with its term."""
    terms = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and cells[3] and cells[3] != "instead of" and set(cells[3]) != {"-"}:
            for words in cells[3].split(","):
                if " " in words.strip() or words.strip() in ONE_WORD:
                    terms[re.escape(words.strip())] = cells[0]
    return terms


def findings(texts: Iterator[Text], terms: dict[str, str]) -> Iterator[Finding]:
    phrases = [
        (re.compile(rf"(?<![\w-])(?:{words})(?![\w-])", re.IGNORECASE), advice)
        for words, advice in (PHRASES | terms).items()
    ]
    for text in texts:
        for pattern, advice in phrases:
            if found := pattern.search(text.words):
                yield Finding(text.path, text.line, f"'{found.group()}'", advice)
        for sentence in re.split(r"(?<=[.!?:;])\s+(?=[A-Z`\"'(])|: | · |; ", text.words):
            count = len(sentence.split())
            if count > MOST_WORDS[text.kind]:
                advice = (
                    f"at most {MOST_WORDS[text.kind]} words: {' '.join(sentence.split()[:8])} …"
                )
                yield Finding(text.path, text.line, f"a sentence of {count} words", advice)


def all_texts(root: Path) -> Iterator[Text]:
    def read(patterns: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for pattern in patterns:
            for path in sorted(root.glob(pattern)):
                name = path.relative_to(root).as_posix()
                if not name.startswith(NOT_READ):
                    yield name, path.read_text(encoding="utf-8")

    for name, source in read(PAGES):
        yield from page_texts(name, source)
    for name, source in read(SOURCES):
        commands = name.startswith("trmcloud/cli/commands/")
        yield from message_texts(name, source, help_in_docstrings=commands)
    for name, source in read(STATIC):
        yield from static_texts(name, source)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("only", nargs="*", help="findings below these paths, no others")
    only = tuple(parser.parse_args(arguments).only)
    glossary = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    found = [
        finding
        for finding in findings(all_texts(ROOT), glossary_terms(glossary))
        if not only or finding.path.startswith(only)
    ]
    for finding in found:
        print(finding)
    print(f"{len(found)} findings", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
