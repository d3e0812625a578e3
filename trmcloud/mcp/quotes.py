"""Quotes and launches on record: what an agent was offered, and which launch used it.

A quote is a saved plan with the arguments that made it. It belongs to one grant. A launch claims
its idempotency key in a file before its process starts; the ledger has the key, too, and decides.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any

from trmcloud.core import codec
from trmcloud.core.errors import ConflictError, NotFoundError, UsageError
from trmcloud.core.money import Usd
from trmcloud.core.values import Value
from trmcloud.io.files import read_small, write_atomic

FOLDER = "mcp"
_ID = re.compile(r"p-[0-9a-f]{4,32}")
_KEY = re.compile(r"[\x21-\x7e]{1,100}")
_MOST_QUOTES = 500
MOST_CLAIMS = 100
"""Of one grant, before those are removed that are over."""


class Quote(Value):
    """``id`` is the plan's. ``words`` are a command's, empty for a recipe; ``folder`` is the one it
    is started in, absolute; ``wish`` are the plan's options; instants are epoch seconds. ``space``
    has the settings of a sweep; empty: it is none."""

    id: str
    grant: str
    made_at: float
    expires_at: float
    reservation: Usd = field(metadata=codec.kept_as("reservation_usd"))
    words: tuple[str, ...]
    folder: str
    wish: Mapping[str, Any]
    space: tuple[str, ...] = ()


class Quotes:
    """The quotes below ``home`` of one ``grant``."""

    def __init__(self, home: Path, grant: str) -> None:
        self._folder, self._grant = home / FOLDER / "quotes" / _digest(grant), grant

    def keep(self, quote: Quote) -> None:
        make_private(self._folder)
        path = self._folder / f"{quote.id}.json"
        write_atomic(path, json.dumps(codec.to_json(quote)), durable=False, mode=0o600)
        _prune(self._folder.glob("p-*.json"), _MOST_QUOTES)

    def find(self, quote_id: str) -> Quote:
        """
        Raises:
            NotFoundError: this grant has no such quote.
        """
        found = _read(self._folder / f"{quote_id}.json") if _ID.fullmatch(quote_id) else None
        if found is None or found.get("grant") != self._grant:
            raise NotFoundError(
                f"this grant has no quote {quote_id[:40]!r}", next_step="call plan for a quote"
            )
        return codec.from_json(Quote, found)


class Launches:
    """The launches below ``home`` of one ``grant``, by the keys that their client chose."""

    def __init__(self, home: Path, grant: str) -> None:
        self._folder, self._grant = home / FOLDER / "launches", grant

    def find(self, key: str, quote: Quote, labels: Mapping[str, Any]) -> Claim | None:
        """Return the claim of ``key``; None where it has launched nothing yet.

        Raises:
            UsageError: it is no key. ConflictError: it launched another quote, or with other
                labels.
        """
        if not _KEY.fullmatch(key):
            raise UsageError(
                "idempotency_key takes 1 to 100 visible ASCII characters",
                next_step='idempotency_key: "first-try"; the same one again returns the same run',
            )
        path = self._path(key)
        first = _read(path)
        if first is None:
            return None
        if first["quote"]["id"] != quote.id or first["labels"] != dict(labels):
            raise ConflictError(
                f"the idempotency key {key!r} launched another quote, or with another name",
                next_step="use a new key for a new launch; status shows the run of the first one",
            )
        return Claim(path, self.ledger_key(key))

    def ledger_key(self, key: str) -> str:
        return f"mcp:{self._grant}:{key}"

    def prune(self, now: float, is_over: Callable[[Path, str], bool]) -> None:
        """Remove claims whose quote has expired at ``now`` (epoch s) and which ``is_over``, asked
        with the claim's file and its key in the ledger, says to be of no use. The ledger keeps the
        key: it starts no second run."""
        paths = list(self._folder.glob("*.json"))
        if len(paths) <= MOST_CLAIMS:
            return
        for path in paths:
            first = _read(path)
            if first is None or first["quote"]["grant"] != self._grant:
                continue
            if first["quote"]["expires_at"] < now and is_over(path, self.ledger_key(first["key"])):
                for suffix in (".result", ".log", ".json"):
                    path.with_suffix(suffix).unlink(missing_ok=True)

    def claim(self, key: str, quote: Quote, labels: Mapping[str, Any]) -> Claim:
        """Record that ``key`` launches ``quote``, for good.

        Raises:
            UsageError, ConflictError: as in ``find``.
        """
        make_private(self._folder)
        path = self._path(key)
        claimed = {"key": key, "quote": codec.to_json(quote), "labels": dict(labels)}
        making = self._folder / f".{path.stem}.{os.urandom(8).hex()}"
        making.write_text(json.dumps(claimed))
        try:
            with suppress(FileExistsError):
                os.link(making, path)  # whole, or not there; never in the place of another
        finally:
            making.unlink()
        made = self.find(key, quote, labels)
        assert made is not None
        return made

    def _path(self, key: str) -> Path:
        return self._folder / (_digest(f"{self._grant}\0{key}") + ".json")


class Claim(Value):
    """A launch's file. ``ledger_key`` is the key in the ledger, apart from keys of other grants."""

    path: Path
    ledger_key: str

    @property
    def result_path(self) -> Path:
        return self.path.with_suffix(".result")

    def forget_result(self) -> None:
        self.result_path.unlink(missing_ok=True)

    def result(self) -> Mapping[str, Any] | None:
        """Return what the launch's process left: ``run``, or ``error`` and ``next``."""
        return _read(self.result_path)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        text = read_small(path)
        found = json.loads(text) if text is not None else None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _prune(paths: Iterable[Path], most: int) -> None:
    dated = []
    for path in paths:
        with suppress(OSError):
            dated.append((path.stat().st_mtime, path))
    if len(dated) > most + most // 4:
        for _, path in sorted(dated)[: len(dated) - most]:
            path.unlink(missing_ok=True)
