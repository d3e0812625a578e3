"""Who is to be told, in ``<home>/notify.json``: addresses and secrets, for their owner alone."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from trmcloud.core import codec
from trmcloud.core.errors import NotifyError
from trmcloud.io.files import read_small, write_atomic
from trmcloud.ports.notices import Destination

NAME = "notify.json"
_VERSION = 1


def read_destinations(home: Path) -> tuple[Destination, ...]:
    """
    Raises:
        NotifyError: the file cannot be read, or is none of ours.
    """
    path = home / NAME
    try:
        text = read_small(path)
        if text is None:
            return ()
        if os.stat(path).st_mode & 0o077:
            os.chmod(path, 0o600)
        data = json.loads(text)
        if data["version"] != _VERSION:
            raise ValueError(f"its version is {data['version']!r:.20}")
        return tuple(codec.from_json(Destination, row) for row in data["destinations"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotifyError(
            f"who is to be told cannot be read: {error}",
            where=str(path),
            next_step=f"remove {path}, and add them anew",
        ) from None


def write_destinations(home: Path, destinations: Sequence[Destination]) -> None:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    rows = [codec.to_json(each) for each in destinations]
    text = json.dumps({"version": _VERSION, "destinations": rows}, indent=1)
    write_atomic(home / NAME, text, mode=0o600)
