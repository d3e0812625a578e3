"""Tokens of grants, for clients over HTTP: each is shown once, and kept as its SHA-256 alone."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from trmcloud.io.files import read_small, write_atomic
from trmcloud.mcp.quotes import FOLDER, make_private

_BYTES = 32
_MOST_CHARS = 200


class Tokens:
    """The tokens below ``home``; each grant has one at most."""

    def __init__(self, home: Path) -> None:
        self._path = home / FOLDER / "tokens.json"

    def make(self, grant: str) -> str:
        """Make a token for ``grant`` in the place of its earlier one, and return it: it cannot be
        had again."""
        token = secrets.token_urlsafe(_BYTES)
        make_private(self._path.parent)
        self._keep({**self._read(), grant: _hash(token)})
        return token

    def remove(self, grant: str) -> bool:
        """Remove a grant's token; return whether it had one."""
        kept = dict(self._read())
        if kept.pop(grant, None) is None:
            return False
        self._keep(kept)
        return True

    def grant_of(self, token: str) -> str | None:
        """Return the grant that ``token`` is of; each is compared in constant time, and all are."""
        given, found = _hash(token[:_MOST_CHARS]), None
        for grant, kept in self._read().items():
            if hmac.compare_digest(given, kept):
                found = grant
        return found

    def _read(self) -> Mapping[str, str]:
        try:
            text = read_small(self._path)
            told = json.loads(text) if text is not None else {}
        except (OSError, ValueError):
            return {}
        return {str(name): str(of) for name, of in told.items()} if isinstance(told, dict) else {}

    def _keep(self, tokens: Mapping[str, str]) -> None:
        write_atomic(self._path, json.dumps(dict(tokens)), mode=0o600)
        os.chmod(self._path, 0o600)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
