"""Output streams: their widths, colours and characters; wrapped lines; readers that leave."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import shutil
import signal
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TextIO

from trmcloud.core.text import strip_control

# Lines that are wider than the terminal, wrapped where a reader would: never inside an amount, a
# command to type, or a word.

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


# Output streams: their widths, colours and characters; readers and terminals that leave.

# Colour for what a reader looks for: marks, errors, the next command. It never says anything that
# the words do not.

_GREEN, _RED, _YELLOW, _BOLD = "32", "31", "33", "1"
_BY_MARK = {"✔": _GREEN, "✘": _RED, "!": _YELLOW, "▸": _BOLD}
_MARKED = re.compile(r"^(\s*)(([✔✘!▸]) \S+(?: [^\s:]+)*)")
_ERROR = re.compile(r"^(error:)")
_COMMAND_SHOWN = re.compile(r"^(\s*(?:(?:try|next|fix|Launch it): )?)(trmcloud .*)$")
_CHOSEN = re.compile(r"^(Recommended: .*)$")
_GOOD = ("finished",)
_CUT_SHORT = ("landed", "stopped")
_BAD = ("failed", "lost", "killed", "unfit", "unreported", "quarantine")
_BY_WORD = {
    **dict.fromkeys(_GOOD, _GREEN),
    **dict.fromkeys(_CUT_SHORT, _YELLOW),
    **dict.fromkeys(_BAD, _RED),
}
_OUTCOME = re.compile(
    rf"^(state {{2,}}|r-[0-9a-f]{{4,}} (?:.*?  )?)({'|'.join(_BY_WORD)})(?=:| ·|  |$)"
)
_TOO_MUCH = re.compile(r"\b(over budget|over limits|no: [\d.,–]+ > [\d.,]+ GB)")
_OLD = re.compile(r"\((\d+ d old, \+\d+%)\)")
_POOR_TERMINALS = ("", "dumb", "unknown")


def is_wanted(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """On a terminal that has colours, unless NO_COLOR is set to anything."""
    if environ.get("NO_COLOR") or environ.get("TERM", "") in _POOR_TERMINALS:
        return False
    return stream.isatty()


def paint(line: str) -> str:
    """One line of ours, which holds no escape sequence yet, with those that colour it."""
    for painted in (_MARKED, _OUTCOME):
        if (found := painted.match(line)) is not None:
            head, words = found.group(1), found.group(2)
            style = _BY_MARK[words[0]] if painted is _MARKED else _BY_WORD[words]
            line = f"{head}{_in(style, words)}{line[found.end() :]}"
    line = _TOO_MUCH.sub(lambda found: _in(_RED, found.group(1)), line)
    line = _OLD.sub(lambda found: f"({_in(_YELLOW, found.group(1))})", line)
    line = _ERROR.sub(lambda found: _in(f"{_BOLD};{_RED}", found.group(1)), line)
    line = _COMMAND_SHOWN.sub(lambda found: found.group(1) + _in(_BOLD, found.group(2)), line)
    return _CHOSEN.sub(lambda found: _in(_BOLD, found.group(1)), line)


def _in(style: str, words: str) -> str:
    return f"\x1b[{style}m{words}\x1b[0m"


_PLAIN = {
    "·": "-", "–": "-", "—": "-", "−": "-", "…": "...", "×": "x", "→": "->", "←": "<-", "≤": "<=",
    "≥": ">=", "≈": "~", "ℓ": "loss", "✔": "ok", "✘": "NO", "▸": ">", "●": "o", "♥": "alive",
    "╸": "-", "━": "-", "─": "-", "│": "|", "┤": "|", "└": "`", "┬": "+", "┴": "+", "┼": "+",
    "ₕ": "h", "₀": "0", "₁": "1", "₂": "2", "₃": "3",
}  # fmt: skip


class PlainStream:
    """``stream`` without the control characters in what is written to it: what pods, providers and
    stores say is in most of it. Only what we draw ourselves is written to ``stream`` directly.

    On a terminal lines that are wider than it are wrapped, and what matters is coloured.
    ``outlives``: once its reader has left, what is written is lost, and is no error.
    """

    def __init__(self, stream: TextIO, *, as_is: bool = False) -> None:
        self.stream, self.outlives, self._as_is = stream, False, as_is

    def write(self, text: str) -> int:
        self._try(lambda: self.stream.write(self._laid_out(strip_control(text))))
        return len(text)

    def _laid_out(self, text: str) -> str:
        if not text or self._as_is or not self.stream.isatty():
            return text

        width = columns()
        lines = [piece for line in text.split("\n") for piece in wrap(line, width)]
        return "\n".join(map(paint, lines) if is_wanted(self.stream, os.environ) else lines)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._try(self.stream.flush)

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except BrokenPipeError:
            if not self.outlives:
                raise
            _give_up(self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def as_is() -> TextIO:
    """stdout for data or another program's log: cleaned like all else, and never wrapped."""
    return _as_is(sys.stdout)


def _as_is(stream: Any) -> TextIO:
    if not isinstance(stream, PlainStream):
        return stream  # type: ignore[no-any-return]
    made: Any = PlainStream(stream.stream, as_is=True)
    made.outlives = stream.outlives
    return made  # type: ignore[no-any-return]


_out: list[TextIO] = []
"""The real stdout while it is for JSON documents alone."""


@contextlib.contextmanager
def only_documents() -> Iterator[None]:
    """Keep stdout for JSON documents: what else is printed meanwhile goes to stderr."""
    if _out:
        yield
        return
    _out.append(sys.stdout)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = _out.pop()


def is_for_documents() -> bool:
    """Whether stdout is kept for JSON documents now."""
    return bool(_out)


def documents_out() -> TextIO:
    """Return the stream that JSON documents are written to: stdout, cleaned and never wrapped."""
    return _as_is(_out[-1] if _out else sys.stdout)


def columns() -> int:
    """Return the terminal's width; 100 where there is none."""
    return shutil.get_terminal_size((100, 24)).columns


def drawn_on(stream: TextIO) -> TextIO:
    """Return the stream that a bar is drawn on: cursor movements reach it. The caller cleans its
    text."""
    return stream.stream if isinstance(stream, PlainStream) else stream


def draw(text: str) -> None:
    """On stderr, cursor movements included."""
    print(text, end="", file=drawn_on(sys.stderr), flush=True)


@contextlib.contextmanager
def clear_screen(wanted: bool, title: str) -> Iterator[None]:
    """Show what is printed meanwhile, below ``title``, in place of what the terminal shows;
    where stdout is no terminal, below what was printed before.

    It is held back until it is whole, so that the screen is not empty while it is made.
    """
    if not wanted:
        yield
        return
    made = _Held(sys.stdout)
    with contextlib.redirect_stdout(made):
        yield
    if sys.stdout.isatty():
        drawn_on(sys.stdout).write("\x1b[H\x1b[2J")
    print(f"{title}\n{made.getvalue()}", flush=True)


class _Held(io.StringIO):
    """What is written for ``stream``, which it resembles."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def isatty(self) -> bool:
        return self._stream.isatty()


def forgive_streams() -> None:
    """Let no locale and no closed descriptor turn what is printed into an error, nor what a pod
    says into a command to the terminal."""
    codecs.register_error("trmcloud", _spell)
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the parent process
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="trmcloud")
        if not isinstance(stream, PlainStream):
            setattr(sys, name, PlainStream(stream))


def outlive_the_reader() -> None:
    """Let this command finish its work though the reader of its output has left."""
    for stream in (sys.stdout, sys.stderr, *_out):
        if isinstance(stream, PlainStream):
            stream.outlives = True


def drop_stdout() -> None:
    """Give up what stdout still holds, so that it is not tried again when Python leaves."""
    try:
        sys.stdout.flush()
    except OSError:
        _give_up(sys.stdout)


def _give_up(stream: TextIO) -> None:
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def outlive_the_terminal() -> None:
    """Let this command finish though its window is closed: what it says from then on is lost."""

    def go_on(signum: int, frame: object) -> None:
        with open(os.devnull, "r+b") as nowhere:
            for descriptor in (0, 1, 2):
                os.dup2(nowhere.fileno(), descriptor)

    signal.signal(signal.SIGHUP, go_on)


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = "".join(_PLAIN.get(char, "?") for char in error.object[error.start : error.end])
    return text, error.end
