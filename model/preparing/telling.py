"""What a preparation says of itself: on stdout as it goes, and in ``progress.json``."""

from __future__ import annotations

from collections.abc import Callable

from model.preparing.folder import GrowingFolder
from model.preparing.work import Made

Told = Callable[[str, int, int], None]
"""A stage, how much of it is done, and of how much; a line of its own has neither."""


class Telling:
    """Counts what was downloaded; the rest is the folder's own account."""

    def __init__(self, folder: GrowingFolder, told: Told, wanted_tokens: int) -> None:
        self._folder, self._told, self._wanted = folder, told, wanted_tokens
        self._bytes: dict[str, tuple[int, int]] = {}

    def expects(self, name: str, size: int) -> None:
        """A file of about so many bytes will be downloaded."""
        self._bytes.setdefault(name, (0, size))

    def downloaded(self, name: str, done: int, total: int) -> None:
        self._bytes[name] = (done, total or done)

    def damaged(self, name: str) -> None:
        """Tokens of that file were kept, and are not what they were."""
        self._note(f"{name} in the cache is damaged: it is made anew")

    def refused(self, name: str) -> None:
        """Tokens of that file, which others made, are not those of its text."""
        self._note(f"{name} in the cache is not what its text says: it is made anew")

    def refused_tokenizer(self) -> None:
        """The tokenizer that others trained is not of the form that is trained here."""
        self._note("the tokenizer in the cache is not one that loses no text: it is trained anew")

    def _note(self, note: str) -> None:
        self._told(note, 0, 0)
        self._folder.tell(note=note, at_once=True)

    def trains_a_tokenizer(self) -> None:
        self._folder.tell(stage="tokenizer", at_once=True)
        self._told("tokenizer", 0, 1)

    def trained_a_tokenizer(self, text_bytes: int, peak_bytes: int) -> None:
        self._told("tokenizer", text_bytes, text_bytes)
        self._folder.tell(peaks={**self._folder.now.peaks, "tokenizer": peak_bytes})

    def made(self, made: Made) -> None:
        """A worker's own figures."""
        peaks = self._folder.now.peaks
        largest = max(made.peak_bytes, int(peaks.get("worker", 0)))
        self._folder.tell(peaks={**peaks, "worker": largest})

    def now(self, *, may_begin: bool, encodes: bool, planned_shards: int) -> None:
        """How far it is."""
        done = sum(each[0] for each in self._bytes.values())
        total = sum(each[1] for each in self._bytes.values())
        self._told("download", done, total)
        if may_begin:
            self._told("ready", 1, 1)
        if encodes:
            self._told("encode", self._folder.now.tokens, self._wanted)
        self._folder.tell(
            wanted_tokens=self._wanted,
            downloaded_bytes=done,
            download_bytes=total,
            planned_shards=planned_shards,
            stage=self._folder.now.stage or "download",
        )
