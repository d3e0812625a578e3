"""Downloads of a data set's files, and what can go wrong with them."""

from __future__ import annotations

import email.utils
import errno
import hashlib
import http.client
import json
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trmcloud.core.catalog import datasets
from trmcloud.core.catalog.datasets import ENV_HOSTS, TOKEN_OF_HOST, parse_hosts, rehosted
from trmcloud.core.errors import DataError
from trmcloud.io.hashing import file_sha256

# How a preparation can end that the same command goes on from.


class TransientError(DataError):
    """An error that the same command may overcome later, with nothing changed but time or room."""

    again = True


class DamagedFile(DataError):
    """A download that does not match its name: ``where`` must be fetched again."""


class PreparationStopped(Exception):
    """Told to stop; what is done stays."""


# Files from a web host: resumed where they stopped, checked, patient with a busy host.
#
# A download lies in ``<name>.part`` until it is whole; beside it stands what the host called that
# version of the file, so that the rest is only added to the very same one (``If-Range``). A
# host's token goes to that host alone. Time is passed in, and so is the pause between two tries.

PATIENCE_S = 600.0
_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_BUSY = frozenset((408, 425, 429, 500, 502, 503, 504))
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class FetchedFile:
    """A whole file and what is in it."""

    path: Path
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class RetryClock:
    """The clock between two tries. ``sleep`` may raise, to end a wait."""

    sleep: Callable[[float], None]
    monotonic: Callable[[], float]
    epoch: Callable[[], float]
    jitter: Callable[[], float]
    """From 0 to 1: tries of many machines shall not fall together."""


_TOLD_FROM_TRY = 2
"""One answer that does not come is no news."""


class Fetcher:
    """Downloads; safe in several threads at once."""

    def __init__(
        self,
        environment: Mapping[str, str],
        pauses: RetryClock,
        *,
        patience_s: float = PATIENCE_S,
        waits: Callable[[str], None] = lambda why: None,
    ) -> None:
        """
        Args:
            patience_s: how long a host may give not one byte before it is given up.
            waits: is called with what is waited for, where a host has given nothing repeatedly.
        """
        self._hosts = parse_hosts(environment.get(ENV_HOSTS, ""))
        self._tokens = {
            host: environment[name] for host, name in TOKEN_OF_HOST.items() if environment.get(name)
        }
        self._pauses, self._patience_s, self._waits = pauses, patience_s, waits

    def fetch(
        self,
        address: str,
        target: Path,
        *,
        sha256: str = "",
        told: Callable[[int, int], None] = lambda done, total: None,
    ) -> FetchedFile:
        """``target`` with what stands at ``address``; what is there already is not asked for again.

        Args:
            sha256: what it must be, where that is known.
            told: is called with the bytes that are here, and all of them (0: not known).

        Raises:
            DataError: it is not there, is not what was expected, or may not be read.
            PassingError: the host stayed away, or the disk is full.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        record = target.with_name(target.name + ".json")
        if (whole := _whole(target, record, address, sha256)) is not None:
            told(whole.size_bytes, whole.size_bytes)
            return whole
        part = _Part(target, address)
        heard_at, tries = self._pauses.monotonic(), 0
        while True:
            before = part.size
            try:
                expected = self._receive(address, part, told)
                break
            except _HostBusy as busy:
                if part.size > before:
                    heard_at, tries = self._pauses.monotonic(), 0
                self._bear_with(address, busy, heard_at, tries)
                tries += 1
        digest = part.digest()
        wanted = sha256 or expected
        if wanted and digest != wanted:
            part.discard()
            raise DataError(
                f"{target.name} has SHA-256 {digest[:16]}…, not {wanted[:16]}…",
                where=address,
                next_step="run it again; if this happens again, the host has changed the file",
            )
        made = FetchedFile(target, digest, part.size)
        part.finish(record, digest)
        return made

    def pages(self, address: str) -> Iterator[Any]:
        """A list of Hugging Face's API, page by page.

        Raises:
            DataError: it is none, or may not be read. PassingError: the host stayed away.
        """
        for _ in range(datasets.MOST_PAGES):
            heard_at, tries = self._pauses.monotonic(), 0
            while True:
                try:
                    page, address = self._page(address)
                    break
                except _HostBusy as busy:
                    self._bear_with(address, busy, heard_at, tries)
                    tries += 1
            yield page
            if not address:
                return
        raise DataError("the host's list of files does not end", where=address)

    def _page(self, address: str) -> tuple[Any, str]:
        """A page, and the address of the next one."""
        redirects = _Redirects(self._authorization(address))
        opener = urllib.request.build_opener(redirects)
        request = urllib.request.Request(
            rehosted(address, self._hosts), headers={"User-Agent": "trmcloud"}
        )
        redirects.authorize(request)
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as response:
                text = response.read(datasets.MAX_ANSWER_BYTES)
                return json.loads(text), datasets.next_page(response.headers.get("Link") or "")
        except urllib.error.HTTPError as error:
            with error:
                if error.code in _BUSY:
                    raise _HostBusy(
                        f"it answered {error.code}", self._retry_after(error.headers)
                    ) from None
                raise DataError(
                    f"the hashes of the files cannot be downloaded: the host answered {error.code}",
                    where=address,
                ) from None
        except (OSError, http.client.HTTPException) as error:
            raise _HostBusy(str(getattr(error, "reason", error))) from None
        except (ValueError, RecursionError):
            raise DataError("the host's list of files is not JSON", where=address) from None

    # -- one try -------------------------------------------------------------------------------

    def _receive(self, address: str, part: _Part, told: Callable[[int, int], None]) -> str:
        """Adds what is missing to ``part``; returns the SHA-256 the host states, where it does."""
        redirects = _Redirects(self._authorization(address))
        opener = urllib.request.build_opener(redirects)
        request = urllib.request.Request(
            rehosted(address, self._hosts),
            headers={"User-Agent": "trmcloud", "Accept-Encoding": "identity"},
        )
        redirects.authorize(request)
        if part.size and part.validator:
            request.add_header("Range", f"bytes={part.size}-")
            request.add_header("If-Range", part.validator)
        elif part.size:
            part.restart()
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as response:
                total = self._begin(response, address, part)
                told(part.size, total)
                part.append(response, lambda size: told(size, total))
        except urllib.error.HTTPError as error:
            with error:
                raise self._judged(error, address, part) from None
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                raise TransientError(
                    f"the disk is full: {part.size:,} of {part.path.name} bytes were downloaded",
                    where=str(part.path.parent),
                    next_step="free some disk space and run the same command again: it "
                    "continues from there",
                ) from None
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise DataError(f"the host's certificate: {reason}", where=address) from None
            raise _HostBusy(str(reason) or type(reason).__name__) from None
        if total and part.size < total:
            raise _HostBusy(f"the connection ended after {part.size:,} of {total:,} bytes")
        return redirects.linked_sha256

    def _begin(self, response: Any, address: str, part: _Part) -> int:
        """Looks at the answer's head; the file's whole length, 0 where it is not told."""
        headers = response.headers
        if headers.get_content_type() == "text/html":
            raise DataError(
                f"the host answered with a web page instead of {part.target.name}",
                where=address,
                next_step="open the address in a browser: it may need a login, have a limit, or "
                "have moved",
            )
        length = int(headers.get("Content-Length") or 0)
        if response.status == 206:
            start, total = _range_of(headers.get("Content-Range", ""))
            if start != part.size:
                part.restart()
                raise _HostBusy("the host sent another part of the file than the one requested")
            return total
        part.restart()
        part.note(headers.get("ETag"), headers.get("Last-Modified"))
        return length

    def _judged(self, error: urllib.error.HTTPError, address: str, part: _Part) -> Exception:
        code = error.code
        if code in _BUSY:
            return _HostBusy(f"it answered {code}", self._retry_after(error.headers))
        if code == 416:
            part.restart()
            return _HostBusy("the downloaded part does not match the host's file")
        named = part.target.name
        host = urlsplit(address).netloc
        if code in (401, 403):
            variable = TOKEN_OF_HOST.get(host)
            return DataError(
                f"the host does not give access to {named}: it answered {code}",
                where=address,
                next_step=f"export {variable}=…" if variable else "",
            )
        return DataError(
            f"{named} was not found: the host answered {code}",
            where=address,
            next_step="see the data set's page for the present names of its files",
        )

    def _bear_with(self, address: str, busy: _HostBusy, heard_at: float, tries: int) -> None:
        """Pauses, or gives up.

        Raises:
            PassingError: the host has given nothing for too long, or asks for too long a pause.
        """
        pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(tries, 10))
        pause *= 0.5 + 0.5 * self._pauses.jitter()
        pause = max(pause, busy.retry_after_s)
        if self._pauses.monotonic() + pause - heard_at > self._patience_s:
            waited = self._pauses.monotonic() - heard_at
            raise TransientError(
                f"the host sent nothing for {waited:,.0f} s: {busy}",
                where=address,
                next_step="run the same command again later: it continues where it stopped",
            )
        if tries >= _TOLD_FROM_TRY:
            host, minutes = urlsplit(address).netloc, self._patience_s / 60
            self._waits(f"waiting for {host} ({busy}), at most {minutes:,.0f} min")
        self._pauses.sleep(pause)

    def _retry_after(self, headers: Any) -> float:
        """Seconds that ``Retry-After`` asks for, given as such or as a date."""
        text = (headers.get("Retry-After") or "").strip()
        if text.isdigit():
            return float(text)
        try:
            return max(
                0.0, email.utils.parsedate_to_datetime(text).timestamp() - self._pauses.epoch()
            )
        except (TypeError, ValueError):
            return 0.0

    def _authorization(self, address: str) -> str:
        host = urlsplit(address).netloc.lower()
        token = self._tokens.get(host, "")
        parts = urlsplit(rehosted(address, self._hosts))
        safe = parts.scheme == "https" or parts.hostname in ("127.0.0.1", "::1", "localhost")
        return f"Bearer {token}" if token and safe else ""


class _HostBusy(Exception):
    """The host, or the line to it, cannot at the moment."""

    def __init__(self, what: str, retry_after_s: float = 0.0) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects; the authorization goes to the first host alone.

    Hugging Face's redirect to its CDN names the file's SHA-256 in ``X-Linked-ETag``.
    """

    def __init__(self, authorization: str) -> None:
        self._authorization = authorization
        self._origin: tuple[str, str] | None = None
        self.linked_sha256 = ""

    def authorize(self, request: urllib.request.Request) -> None:
        origin = _origin(request.full_url)
        if self._origin is None:
            self._origin = origin
        if self._authorization and origin == self._origin:
            request.add_unredirected_header("Authorization", self._authorization)

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        linked = (headers.get("X-Linked-ETag") or "").strip('"')
        if _SHA256.fullmatch(linked):
            self.linked_sha256 = linked
        if _origin(req.full_url)[0] == "https" and _origin(newurl)[0] != "https":
            raise DataError("the host redirects to an address without encryption", where=newurl)
        request = urllib.request.Request(newurl, headers=dict(req.headers))
        self.authorize(request)
        return request

    # Python 3.10 does not know 308.
    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302


class _Part:
    """The beginning of a file that is being downloaded."""

    def __init__(self, target: Path, address: str) -> None:
        self.target, self._address = target, address
        self.path = target.with_name(target.name + ".part")
        self._note = target.with_name(target.name + ".part.json")
        self._hash = hashlib.sha256()
        self.size = 0
        self.validator = ""
        self._take_up()

    def _take_up(self) -> None:
        try:
            said = json.loads(self._note.read_text())
            if said["address"] != self._address:
                raise ValueError
            self.validator = str(said["validator"])
            with open(self.path, "rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    self._hash.update(chunk)
                    self.size += len(chunk)
        except (OSError, ValueError, KeyError, TypeError):
            self.restart()

    def restart(self) -> None:
        self._hash, self.size, self.validator = hashlib.sha256(), 0, ""
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def note(self, etag: str | None, modified: str | None) -> None:
        """Keeps what tells this version from another; a weak ETag does not."""
        strong = etag if etag and not etag.startswith("W/") else None
        self.validator = strong or modified or ""
        self._note.write_text(json.dumps({"address": self._address, "validator": self.validator}))

    def append(self, response: Any, told: Callable[[int], None]) -> None:
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        with open(self.path, "ab") as file:
            # What a crash left unaccounted is not believed to follow on.
            file.truncate(self.size)
            while size := response.readinto(buffer):
                file.write(buffer[:size])
                self._hash.update(buffer[:size])
                self.size += size
                told(self.size)

    def digest(self) -> str:
        return self._hash.hexdigest()

    def discard(self) -> None:
        self.restart()

    def finish(self, record: Path, digest: str) -> None:
        if not self.path.exists():
            self.path.touch()  # an empty file
        handle = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        record.write_text(
            json.dumps({"address": self._address, "sha256": digest, "bytes": self.size})
        )
        os.replace(self.path, self.target)
        self._note.unlink(missing_ok=True)


def _whole(target: Path, record: Path, address: str, sha256: str) -> FetchedFile | None:
    """Return the earlier download, if it is unchanged."""
    try:
        said = json.loads(record.read_text())
        if said["address"] != address or target.stat().st_size != said["bytes"]:
            return None
        digest = file_sha256(target)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if digest != said["sha256"] or (sha256 and digest != sha256):
        return None
    return FetchedFile(target, digest, int(said["bytes"]))


def _range_of(text: str) -> tuple[int, int]:
    """(start, total) of a ``Content-Range``; total 0 where it is not told."""
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", text.strip())
    if match is None:
        return -1, 0
    return int(match[1]), 0 if match[2] == "*" else int(match[2])


def _origin(address: str) -> tuple[str, str]:
    parts = urlsplit(address)
    return parts.scheme, parts.netloc
