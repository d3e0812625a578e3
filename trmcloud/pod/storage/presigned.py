"""Presigned requests: objects stored or fetched in ranges, and whole folders verified."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.client
import os
import re
import shutil
import ssl
import urllib.parse
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

from trmcloud.core.contract.bucket import FileGet, FolderGet
from trmcloud.core.contract.bucket_layout import Piece, pieces_of
from trmcloud.io.transfer import DamagedFile, Lane, Way, receive

# Objects of a store by presigned requests: one PUT or one ranged GET, checked, never logged
# whole.
#
# A presigned URL is a right in itself. An error shows the status, the store's own code
# and the object's name; the query, which holds the signature, appears nowhere.

_BLOCK = 1 << 20
_TIMEOUT_S = 30.0
_MAX_ANSWER_BYTES = 65_536
_MOST_REDIRECTS = 3
_MD5 = re.compile(r"[0-9a-f]{32}")
_CODE = re.compile(rb"<Code>([A-Za-z0-9]{1,60})</Code>")


class StoreError(Exception):
    """A request that was not carried out. ``refused``: the same one fails again, until there are
    other grants."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class ObjectExists(StoreError):
    """The object is there already, and may not be written over."""


def may_pass(error: Exception) -> bool:
    """Whether the same request may be carried out later."""
    return isinstance(error, StoreError) and not error.refused


class Objects:
    """Requests of one thread, over connections that are kept open."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], http.client.HTTPConnection] = {}

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def put(
        self,
        url: str,
        length: int,
        md5: bytes,
        read: Callable[[int, int], bytes],
        moved: Callable[[int], None] = lambda sent: None,
    ) -> None:
        """Store ``length`` bytes that ``read(offset, count)`` gives; ``moved`` hears of each block.

        Raises:
            StoreError: the store did not take them, or did not get what was sent; ``Exists``:
                it has the object, and the request was granted for a new one.
        """
        headers = {"Content-Length": str(length), "Content-MD5": b64encode(md5).decode("ascii")}
        if "if-none-match" in url:
            headers["If-None-Match"] = "*"
        connection, path = self._connection(url)
        try:
            connection.putrequest("PUT", path, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            sent_all = False
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.endheaders()
                sent = 0
                while sent < length:
                    block = read(sent, min(_BLOCK, length - sent))
                    if not block:
                        raise StoreError(f"{_name(url)}: its file was cut while it was read")
                    connection.send(block)
                    sent += len(block)
                    moved(sent)
                sent_all = True
            # A store that refuses may say so, and hang up, before it has read everything.
            response = connection.getresponse()
            answer = response.read(_MAX_ANSWER_BYTES)
            etag = (response.getheader("ETag") or "").strip('"')
            sealed = response.getheader("x-amz-server-side-encryption") or ""
        except (OSError, http.client.HTTPException, StoreError) as error:
            raise self._failure(url, error) from None
        if response.status != 200 or not sent_all:
            self._drop(url)
            raise _refusal(url, response.status, answer)
        if "kms" not in sealed and _MD5.fullmatch(etag) and bytes.fromhex(etag) != md5:
            raise StoreError(f"{_name(url)}: the store has other bytes than were sent")

    def put_bytes(self, url: str, content: bytes) -> None:
        """Likewise, of a small object."""
        md5 = hashlib.md5(content).digest()
        self.put(url, len(content), md5, lambda at, count: content[at : at + count])

    def get(self, url: str, start: int, end: int, write: Callable[[bytes], None]) -> None:
        """``write`` bytes ``start`` to ``end`` of an object, block by block.

        Raises:
            StoreError: they could not be had, or not all of them.
        """
        if start == end:
            return
        try:
            for _ in range(_MOST_REDIRECTS):
                connection, path = self._connection(url)
                connection.request("GET", path, headers={"Range": f"bytes={start}-{end - 1}"})
                response = connection.getresponse()
                if response.status not in (302, 307):
                    break
                # A store may name a cache that has the bytes. Its address is a right of its own:
                # nothing of this request goes there, and the bytes are held against their hash.
                response.read(_MAX_ANSWER_BYTES)
                url = _redirected(url, response.getheader("Location") or "")
            if response.status not in (200, 206) or (response.status == 200 and start):
                raise _refusal(url, response.status, response.read(_MAX_ANSWER_BYTES))
            at = start
            while at < end:
                block = response.read(min(_BLOCK, end - at))
                if not block:
                    raise StoreError(f"{_name(url)}: cut off at byte {at}")
                write(block)
                at += len(block)
            if not response.isclosed():
                response.read(1)
        except (OSError, http.client.HTTPException, StoreError) as error:
            raise self._failure(url, error) from None

    def _connection(self, url: str) -> tuple[http.client.HTTPConnection, str]:
        parts = urllib.parse.urlsplit(url)
        key = (parts.scheme, parts.netloc)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StoreError("a grant is no http address", refused=True)
        if key not in self._open:
            if parts.scheme == "https":
                self._open[key] = http.client.HTTPSConnection(
                    parts.netloc, timeout=_TIMEOUT_S, context=_tls()
                )
            else:
                self._open[key] = http.client.HTTPConnection(parts.netloc, timeout=_TIMEOUT_S)
        path = parts.path or "/"
        return self._open[key], f"{path}?{parts.query}" if parts.query else path

    def _failure(self, url: str, error: Exception) -> StoreError:
        """The error to raise, once the connection is dropped."""
        self._drop(url)
        if isinstance(error, StoreError):
            return error
        return StoreError(f"{_name(url)}: {getattr(error, 'strerror', '') or type(error).__name__}")

    def _drop(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        connection = self._open.pop((parts.scheme, parts.netloc), None)
        if connection is not None:
            connection.close()


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _name(url: str) -> str:
    """The last three parts of an object's name, without the query."""
    path = urllib.parse.unquote(urllib.parse.urlsplit(url).path)
    return "/".join(path.split("/")[-3:])[:200]


def _redirected(url: str, location: str) -> str:
    """
    Raises:
        StoreError: the answer names no address, or one that is read by others on the way.
    """
    target = urllib.parse.urljoin(url, location)
    if not location or url.partition(":")[0] != target.partition(":")[0]:
        raise StoreError(f"{_name(url)}: redirected to an invalid address", refused=True)
    return target


def _refusal(url: str, status: int, answer: bytes) -> StoreError:
    found = _CODE.search(answer)
    code = found.group(1).decode("ascii") if found else ""
    passing = status >= 500 or status in (408, 429) or code in ("BadDigest", "RequestTimeout")
    said = " ".join(filter(None, (str(status), code)))
    if status == 412:
        return ObjectExists(f"{_name(url)}: {said}", refused=True)
    return StoreError(f"{_name(url)}: {said}", refused=not passing)


# A folder that a pod brings from a bucket: ranges side by side, verified, renamed last.

RANGE_BYTES = 64 << 20
LANES = 4


class DamagedObject(StoreError):
    """An object that does not match its hash."""


def fetch_folder(root: Path, folder: FolderGet, moved: Callable[[], None]) -> None:
    """Bring ``folder``, which lies below ``root``; nothing where it is there already.

    Raises: see ``fetch_file``.
    """
    target = Path(folder.folder)
    if not os.path.realpath(target).startswith(os.path.realpath(root) + os.sep):
        raise StoreError(f"{folder.folder} is not below {root}", refused=True)
    if target.is_dir():
        return
    making = target.with_name(f".{target.name}.fetch")
    for file in folder.files:
        fetch_file(making, file, moved)
    with contextlib.suppress(OSError):  # another pod on this volume was quicker
        os.rename(making, target)
    shutil.rmtree(making, ignore_errors=True)
    if not target.is_dir():
        raise OSError(0, f"{target} could not be put in place")


def fetch_file(target: Path, file: FileGet, moved: Callable[[], None]) -> None:
    """Bring a file into the folder ``target``. ``moved`` is called after bytes have come.

    Raises:
        StoreError: it could not be had; ``DamagedObject``: it is not what was promised.
        OSError: it cannot be kept here.
    """
    granted = _objects(file)
    best = -1

    def serve(lane: Lane) -> None:
        with contextlib.closing(Objects()) as objects:
            for part in lane:
                while part.start < part.end:
                    piece, url = next(each for each in granted if each[0].end > part.start)
                    upto = min(part.end, piece.end)
                    objects.get(url, part.start - piece.start, upto - piece.start, lane.write)

    def tell(done: int, whole: int) -> None:
        nonlocal best
        if done > best >= 0:
            moved()
        best = max(best, done)

    way = Way(serve, LANES, RANGE_BYTES, may_pass)
    target.mkdir(parents=True, exist_ok=True)
    try:
        receive(target, [file], way, tell)
    except DamagedFile as damaged:
        raise DamagedObject(f"{damaged} came damaged: its hash differs") from None


def _objects(file: FileGet) -> list[tuple[Piece, str]]:
    """Which bytes of the file each of its objects is.

    Raises:
        StoreError: there are not as many as it is cut into.
    """
    if len(file.urls) == 1:
        return [(Piece(file.name, 0, file.size_bytes), file.urls[0])]
    try:
        return list(zip(pieces_of(file.name, file.size_bytes), file.urls, strict=True))
    except ValueError:
        raise StoreError(f"{file.name} is granted in part", refused=True) from None
