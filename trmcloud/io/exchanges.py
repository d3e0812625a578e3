"""A bounded record of what was asked of a provider's account and what it answered, without secrets.

For ``trmcloud doctor --bundle``. Each account has two files below ``requests/`` in the home: what
changes something (``….calls.jsonl``), and what only reads (``….reads.jsonl``), so that days of
polling do not push out the answer to a create. Each has at most two generations of
``MOST_BYTES``. An answer that equals the one before it is counted and not written again.

Headers of requests are never recorded. What is recorded is redacted before it is written.
"""

from __future__ import annotations

import io
import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from email.message import Message
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from trmcloud.io.network import send
from trmcloud.io.redaction import Redactor, is_secret_name, secrets_of

FOLDER = "requests"
"""Below the home."""
MOST_BYTES = 1 << 20
"""Of one generation of one file."""
_MOST_LINE_BYTES = 1 << 16
_MOST_ANSWER_BYTES = 1 << 18
_MOST_ERROR_BYTES = 1 << 16
_KINDS = ("calls", "reads")
_HEADERS = ("content-type", "retry-after", "ratelimit", "ratelimit-policy", "date", "link")
"""Headers of answers that are recorded; all others may name the account."""


class ExchangeLog:
    """The record of one account. Nothing that goes wrong with it is an error of its caller's."""

    def __init__(self, stem: Path, redactor: Redactor, now: Callable[[], float]) -> None:
        self._stem, self._redactor, self._now = stem, redactor, now
        self._last: dict[tuple[str, str], tuple[str, int]] = {}
        self._lock = threading.Lock()

    def record(
        self,
        method: str,
        url: str,
        *,
        body: Any = None,
        status: int = 0,
        headers: Mapping[str, str] | None = None,
        answer: bytes | str = b"",
        error: BaseException | None = None,
        took_s: float = 0.0,
    ) -> None:
        """Add one exchange. ``status`` 0: no answer came, and ``error`` says why."""
        raw = answer.encode() if isinstance(answer, str) else answer
        with suppress(OSError, ValueError, TypeError, RecursionError, MemoryError):
            known = f"{status}:{sha256(raw).hexdigest()}:{type(error).__name__}"
            with self._lock:
                before, repeats = self._last.get((method, url), ("", 0))
                if method == "GET" and before == known:
                    self._last[method, url] = known, repeats + 1
                    return
                self._last[method, url] = known, 0
            target = _target(url, self._redactor)
            made: dict[str, Any] = {
                "at": round(self._now() - took_s, 3),
                "took_s": round(took_s, 3),
                "method": method,
                "url": target,
                "status": status,
            }
            if repeats:
                made["same_before"] = repeats
            if body is not None:
                made["request"] = self._redactor.json(body)
            if headers:
                made["headers"] = {
                    name.lower(): self._redactor.text(text)
                    for name, text in headers.items()
                    if name.lower() in _HEADERS
                }
            if error is not None:
                made["error"] = self._redactor.text(f"{type(error).__name__}: {error}")
            if len(raw) > _MOST_ANSWER_BYTES:
                made["cut"] = f"{len(raw)} bytes"
            else:
                made["answer"] = self._redactor.document(raw)
            self._append("reads" if method == "GET" else "calls", made)

    def _append(self, kind: str, made: dict[str, Any]) -> None:
        line = _line(made)
        if len(line) > _MOST_LINE_BYTES:
            made["cut"] = f"{len(line)} bytes"
            made.pop("answer", None)
            line = _line(made)
            if len(line) > _MOST_LINE_BYTES:
                made.pop("request", None)
                line = _line(made)
        path = Path(f"{self._stem}.{kind}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(FileNotFoundError):
            if path.stat().st_size + len(line) > MOST_BYTES:
                path.replace(f"{path}.1")
        file = os.open(path, flags, 0o600)
        try:
            os.write(file, line)
        finally:
            os.close(file)


def exchange_log(
    home: Path,
    provider: str,
    key: str,
    environ: Mapping[str, str],
    now: Callable[[], float],
) -> ExchangeLog:
    """The record of the account of ``key``; its files are named by the key's hash, which opens
    nothing."""
    name = f"{provider}-{sha256(key.encode()).hexdigest()[:12]}"
    return ExchangeLog(home / FOLDER / name, Redactor({key, *secrets_of(environ)}), now)


def recorded_exchanges(home: Path, provider: str = "") -> list[dict[str, Any]]:
    """All exchanges that this home has, by their time; of one provider, where it is named."""
    found: list[dict[str, Any]] = []
    for kind in _KINDS:
        for path in sorted((home / FOLDER).glob(f"{provider or '*'}-*.{kind}.jsonl*")):
            for made in _lines(path):
                found.append({"provider": path.name.rpartition("-")[0], "kind": kind, **made})
    return sorted(found, key=lambda made: float(made["at"]))


def send_recorded(
    log: ExchangeLog | None,
    request: urllib.request.Request,
    timeout_s: float,
    most_bytes: int,
    now: Callable[[], float],
) -> tuple[bytes, Message]:
    """Send a request by ``io.requests.send``, and record it; returns the answer's start, of
    ``most_bytes``, and its headers.

    Raises:
        urllib.error.HTTPError: an answer other than 2xx; it can still be read.
        OSError, http.client.HTTPException, ValueError: there was none.
    """
    if log is None:
        with send(request, timeout_s) as answer:
            return answer.read(most_bytes), answer.headers
    method, url, began = request.get_method(), request.full_url, now()
    body = request.data
    asked = json.loads(body) if isinstance(body, bytes) and body[:1] in b"{[" else None
    try:
        with send(request, timeout_s) as answer:
            content, headers, status = answer.read(most_bytes), answer.headers, answer.status
    except urllib.error.HTTPError as error:
        with error:
            try:
                content = error.read(_MOST_ERROR_BYTES)
            except (OSError, HTTPException):
                content = b""
        log.record(
            method, url, body=asked, status=error.code, headers=dict(error.headers.items()),
            answer=content, took_s=now() - began,
        )  # fmt: skip
        again = io.BytesIO(content)
        raise urllib.error.HTTPError(url, error.code, error.reason, error.headers, again) from None
    except Exception as error:
        log.record(method, url, body=asked, error=error, took_s=now() - began)
        raise
    log.record(
        method, url, body=asked, status=status, headers=dict(headers.items()), answer=content,
        took_s=now() - began,
    )  # fmt: skip
    return content, headers


def _target(url: str, redactor: Redactor) -> str:
    """The address without host and user; a parameter that is secret by its name has no value."""
    parts = urlsplit(url)
    pairs = [
        (name, "[removed]" if is_secret_name(name) else redactor.text(value))
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
    ]
    path = redactor.text(parts.path)
    return f"{path}?{urlencode(pairs)}" if pairs else path


def _line(made: Mapping[str, Any]) -> bytes:
    return json.dumps(made, separators=(",", ":")).encode() + b"\n"


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_bytes()
    except OSError:
        return
    for line in text.splitlines():
        with suppress(ValueError, RecursionError):  # a line that was cut by a full disk
            made = json.loads(line)
            if isinstance(made, dict) and isinstance(made.get("at"), (int, float)):
                yield made
