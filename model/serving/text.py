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
