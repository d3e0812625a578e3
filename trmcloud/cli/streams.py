"""Output that reaches any terminal: a plain spelling where a character cannot be shown."""

from __future__ import annotations

import codecs
import io
import os
import signal
import sys

_PLAIN = {
    "·": "-", "–": "-", "—": "-", "−": "-", "…": "...", "×": "x", "→": "->", "←": "<-", "≤": "<=",
    "≥": ">=", "≈": "~", "ℓ": "loss", "✔": "ok", "✘": "NO", "▸": ">", "●": "o", "♥": "alive",
    "╸": "-", "━": "-", "─": "-", "│": "|", "┤": "|", "└": "`", "┬": "+", "┴": "+", "┼": "+",
    "ₕ": "h", "₀": "0", "₁": "1", "₂": "2", "₃": "3",
}  # fmt: skip


def forgive_streams() -> None:
    """Let no locale and no closed descriptor turn what is printed into an error."""
    codecs.register_error("trmcloud", _spell)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="trmcloud")


def drop_stdout() -> None:
    """Give up what stdout still holds, so that it is not tried again when Python leaves."""
    try:
        sys.stdout.flush()
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


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
