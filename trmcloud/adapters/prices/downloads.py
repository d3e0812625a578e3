"""A file behind an address, within a size and a time. A plan reads its tables without any of it."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from trmcloud.io.network import send

CHUNK_BYTES = 1 << 16
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class DownloadError(Exception):
    """Why a file could not be read, in a few words of one line. ``status`` is HTTP's, where one
    came."""

    def __init__(self, why: str, status: int = 0) -> None:
        super().__init__(" ".join(why.split())[:100])
        self.status = status


def fetch(url: str, *, most_bytes: int, within_s: float) -> bytes:
    """The body behind ``url``.

    Raises:
        Unreadable: it is not https (or this machine), it was not had within ``within_s``, it is
            larger than ``most_bytes``, or the answer was an error.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise DownloadError(f"{url} is neither an https address nor on this machine")
    until = time.monotonic() + within_s
    request = urllib.request.Request(url, headers={"User-Agent": "trmcloud"})
    try:
        with send(request, within_s) as answer:
            return _body(answer, most_bytes, until)
    except urllib.error.HTTPError as error:
        raise DownloadError(f"HTTP {error.code}", error.code) from None
    except TimeoutError:
        raise DownloadError(f"no answer within {within_s:.0f} s") from None
    except (OSError, ValueError, HTTPException) as error:
        raise DownloadError(failure_text(error)) from None


def failure_text(error: Exception) -> str:
    """Why a request had no answer, in a few words of one line."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, socket.gaierror):
        return "its address was not found; check the network"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return " ".join(str(reason).split())[:100] or type(error).__name__


def _body(answer: Any, most_bytes: int, until: float) -> bytes:
    said = answer.headers.get("Content-Length", "")
    if said.isdecimal() and int(said) > most_bytes:
        raise DownloadError(f"larger than {most_bytes >> 20} MiB")
    chunks, size = [], 0
    # One read of the socket at a time: a line that drips must not outlast the deadline.
    while chunk := answer.read1(CHUNK_BYTES):
        size += len(chunk)
        if size > most_bytes:
            raise DownloadError(f"larger than {most_bytes >> 20} MiB")
        if time.monotonic() > until:
            raise TimeoutError
        chunks.append(chunk)
    if said.isdecimal() and size < int(said):
        raise DownloadError("the connection ended before the answer was complete")
    return b"".join(chunks)
