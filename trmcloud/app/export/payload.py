"""The sources that an exported script carries: the agent's, and the trainer's. An allow-list."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trmcloud.app.packing import agent_sources, pack, sources
from trmcloud.core.errors import DataError

PACKAGE = Path(__file__).resolve().parents[2]
_LINE_CHARS = 100


@dataclass(frozen=True)
class Payload:
    """A tar.gz of ``trmcloud/`` and ``model/``; the same sources give the same bytes."""

    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def lines(self) -> Iterator[str]:
        """Base64 in lines of 100 characters."""
        text = base64.b64encode(self.content).decode("ascii")
        for at in range(0, len(text), _LINE_CHARS):
            yield text[at : at + _LINE_CHARS]


def make_payload(trainer: Path, package: Path = PACKAGE) -> Payload:
    """``trainer`` is the trainer's package, ``package`` trmcloud's own.

    Raises:
        DataError: the trainer's package holds no sources, or cannot be read.
    """
    files = agent_sources(package)
    own = sources(trainer, "model")
    if not own:
        raise DataError("the trainer's package holds no sources", where=str(trainer))
    try:
        return Payload(pack({**files, **own}))
    except OSError as error:
        raise DataError(f"it cannot be read: {error.strerror}", where=str(trainer)) from None
