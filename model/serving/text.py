"""Text out of ids that come one by one, given on as soon as it cannot change any more."""

from __future__ import annotations

from typing import Protocol, Sequence

_UNFINISHED = "\ufffd"
PARTED = "\n\n"


class TokenDecoder(Protocol):
    def decode(self, ids: Sequence[int]) -> str: ...


class TextStream:
    """The text of a stream of ids. A character that is spread over several ids is held back until
    it is whole, or until the end."""

    def __init__(self, tokenizer: TokenDecoder, stop: int | None = None) -> None:
        """
        Args:
            stop: the id that stands between the parts of an answer; it is told as an empty line.
        """
        self._tokenizer, self._stop = tokenizer, stop
        self._held: list[int] = []

    def add(self, token: int) -> str:
        """Return the text that has become certain with this id."""
        if token == self._stop:
            return self.end() + PARTED
        self._held.append(token)
        text = self._tokenizer.decode(self._held)
        if text.endswith(_UNFINISHED):
            return ""
        self._held = []
        return text

    def end(self) -> str:
        """Return the text that was held back."""
        text = self._tokenizer.decode(self._held)
        self._held = []
        return text


class StopStrings:
    """Ends a text before the one of ``stops`` that is complete first, however the text comes in
    pieces. What may be the beginning of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.found = False

    def add(self, piece: str) -> str:
        """Return the text that has become certain with this piece; nothing once one is found."""
        if not self._stops:
            return piece
        if self.found:
            return ""
        text = self._held + piece
        places = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)[1]]
        keep = next(
            (
                size
                for size in range(min(len(text), self._longest - 1), 0, -1)
                if any(stop.startswith(text[-size:]) for stop in self._stops)
            ),
            0,
        )
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def end(self) -> str:
        """Return the text that was held back."""
        held, self._held = self._held, ""
        return held
