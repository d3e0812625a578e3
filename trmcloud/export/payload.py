"""The sources that an exported script carries: the agent's, and the trainer's. An allow-list."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

from trmcloud.app.staging.packing import JOB, PACKAGE, own_sources, pack, self_end_sources, sources
from trmcloud.core.errors import DataError
from trmcloud.core.values import dataclass

_ENTRY = "trmcloud.export.standalone"
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
        DataError: the trainer's package holds no sources, cannot be read, or imports what trmcloud
            does not have.
    """
    own = sources(trainer, "model")
    if not own:
        raise DataError("the trainer's package holds no sources", where=str(trainer))
    try:
        files = own_sources(_ENTRY, trainer=trainer, package=package, later=(JOB,))
        files |= self_end_sources(package=package)
        return Payload(pack(files | {name: path.read_bytes() for name, path in own.items()}))
    except OSError as error:
        raise DataError(f"it cannot be read: {error.strerror}", where=str(trainer)) from None
