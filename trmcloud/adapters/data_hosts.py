"""Availability of a data set's files: asked of their hosts without downloading them.

A few bytes of each file are asked for, and of the first one so much as shows its columns. A host's
token goes to that host and nowhere else: redirects are followed by hand, without it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from trmcloud.core.catalog import datasets
from trmcloud.core.catalog.datasets import ENV_HOSTS, TOKEN_OF_HOST, DataSet, parse_hosts, rehosted
from trmcloud.core.contract.records import whole
from trmcloud.core.errors import DataError, MissingExtra
from trmcloud.io.installation import install_command
from trmcloud.io.network import send
from trmcloud.operations.sending.data import CheckedFile

_TIMEOUT_S = 20.0
_MOST_REDIRECTS = 5
_HEAD_BYTES = 1 << 16
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_GPT2_MAGIC = 20240520


class _Answer(NamedTuple):
    """Part of a file, and what the host says of the whole."""

    content: bytes
    size: int
    sha256: str
    """As Hugging Face tells it with its redirect; empty where no source says."""


def check_files(
    data_set: DataSet, *, whole: bool = False, environ: Mapping[str, str] = os.environ
) -> Iterator[CheckedFile]:
    """Each file's length and hash, where one is known, and the first one's columns.

    Args:
        whole: every file, not only the first, the last and the one to validate on.
    """
    names = list(data_set.shard_names())
    if not whole and len(names) > 2:
        names = [names[0], names[-1]]
    names += [data_set.validation] if data_set.validation else []
    for number, name in enumerate(names):
        file = _RemoteFile(data_set.address(name), environ)
        try:
            head = file.read_at(0, 1)
            told = [f"{head.size:,} bytes" if head.size else "length not given"]
            known = data_set.sha256.get(name, "")
            if known and head.sha256 and known != head.sha256:
                yield CheckedFile(name, False, f"SHA-256 {head.sha256[:16]}…, not {known[:16]}…")
                continue
            if known:
                told.append("hash as published" if head.sha256 else "no published hash")
            if number == 0:
                told.append(_content(data_set, file, head.size))
            yield CheckedFile(name, True, ", ".join(told))
        except _UnusableFile as problem:
            yield CheckedFile(name, False, str(problem))


class PinnedDataSet(NamedTuple):
    """A data set at one commit, and the repository and branch that it was found by."""

    data_set: DataSet
    repository: str
    branch: str
    revision: str


def pin_to_commit(
    data_set: DataSet, environ: Mapping[str, str] = os.environ
) -> PinnedDataSet | None:
    """The data set at the commit that its branch points to now, with the hash of its files'
    published hashes; None where its host publishes no revisions.

    Raises:
        DataError: the host does not say.
    """
    files = datasets.hub_files(data_set)
    if files is None:
        return None
    address = files.revision_address
    try:
        commit = files.revision
        if not files.is_at_commit:
            commit = datasets.commit_of(_json(_RemoteFile(address, environ))[0])
            if not commit:
                raise _UnusableFile("its answer has no commit")
        there = datasets.HubFiles(files.repository, commit, files.folder)
        hashes: dict[str, str] = {}
        address = there.tree_address
        for _ in range(datasets.MOST_PAGES):
            page, link = _json(_RemoteFile(address, environ))
            hashes |= datasets.hashes_in(page, there.folder)
            address = datasets.next_page(link)
            if not address:
                break
        else:
            raise _UnusableFile("its list of files does not end")
    except _UnusableFile as problem:
        raise DataError(
            f"{data_set.name} cannot be pinned to a commit of {files.repository}: {problem}",
            where=address or files.tree_address,
            next_step="try again; or use files on this machine: --data PATH",
        ) from None
    known = datasets.hub_files_of(data_set, hashes)
    wrong = [name for name, sha256 in data_set.sha256.items() if known.get(name, sha256) != sha256]
    if wrong:
        raise DataError(
            f"{wrong[0]} at commit {commit[:12]} of {files.repository} differs from the file "
            "recorded here",
            where=there.tree_address,
            next_step="check what changed there; --data with an address uses the present file",
        )
    pinned = datasets.files_at_commit(data_set, commit, datasets.listing_sha256(known))
    return PinnedDataSet(pinned, files.repository, files.revision, commit)


def _json(file: _RemoteFile) -> tuple[Any, str]:
    """(what the host answers, its ``Link`` header)

    Raises:
        _Unusable: it is no JSON, or no host answers.
    """
    text, link = file.read_whole(datasets.MAX_ANSWER_BYTES)
    try:
        return json.loads(text), link
    except (ValueError, RecursionError):
        raise _UnusableFile("its answer is not JSON") from None


class _UnusableFile(Exception):
    """Why a file cannot be used, in words."""


class _RemoteFile:
    """A file at an address, read in parts."""

    def __init__(self, address: str, environ: Mapping[str, str]) -> None:
        self._address = address
        self._url = rehosted(address, parse_hosts(environ.get(ENV_HOSTS, "")))
        token = environ.get(TOKEN_OF_HOST.get(urlsplit(address).netloc.lower(), ""), "")
        parts = urlsplit(self._url)
        safe = parts.scheme == "https" or parts.hostname in _LOOPBACK
        self._token = token if safe else ""

    def read_at(self, start: int, count: int) -> _Answer:
        """
        Raises:
            _Unusable: it is not there, or no host answers.
        """
        url, token, sha256, size = self._url, self._token, "", 0
        for _ in range(_MOST_REDIRECTS):
            request = urllib.request.Request(url, headers={"User-Agent": "trmcloud"})
            request.add_header("Range", f"bytes={start}-{start + count - 1}")
            if token:
                request.add_header("Authorization", f"Bearer {token}")
            try:
                with send(request, _TIMEOUT_S) as answer:
                    if answer.headers.get_content_type() == "text/html":
                        raise _UnusableFile("the host answered with a web page")
                    content = answer.read(count)
                    return _Answer(content, _whole(answer.headers) or size, sha256)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code not in (301, 302, 303, 307, 308):
                        raise _UnusableFile(self._refusal(error.code)) from None
                    sha256 = sha256 or (error.headers.get("X-Linked-ETag") or "").strip('"')
                    size = size or _number(error.headers.get("X-Linked-Size"))
                    url, token = _moved(url, error.headers.get("Location") or ""), ""
            except (OSError, HTTPException, ValueError) as error:
                reason = getattr(error, "reason", error)
                raise _UnusableFile(f"no answer: {reason}"[:200]) from None
        raise _UnusableFile("the host redirects without end")

    def read_whole(self, most: int) -> tuple[bytes, str]:
        """(an answer that is no file, its ``Link`` header)

        Raises:
            _Unusable: there is none, it is too long, or it is elsewhere.
        """
        request = urllib.request.Request(self._url, headers={"User-Agent": "trmcloud"})
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with send(request, _TIMEOUT_S) as answer:
                content = answer.read(most + 1)
                if len(content) > most:
                    raise _UnusableFile("its answer is too long")
                return content, answer.headers.get("Link") or ""
        except urllib.error.HTTPError as error:
            with error:
                raise _UnusableFile(self._refusal(error.code)) from None
        except (OSError, HTTPException, ValueError) as error:
            raise _UnusableFile(f"no answer: {getattr(error, 'reason', error)}"[:200]) from None

    def _refusal(self, code: int) -> str:
        variable = TOKEN_OF_HOST.get(urlsplit(self._address).netloc.lower())
        if code in (401, 403) and variable:
            return f"the host answered {code}: export {variable}=…"
        return f"the host answered {code}"


def _moved(url: str, to: str) -> str:
    """Return the target of a redirect: it must be a server, and not a file of this machine."""
    with contextlib.suppress(ValueError):
        address = urljoin(url, to)
        if urlsplit(address).scheme in ("http", "https"):
            return address
    raise _UnusableFile("the host redirects to an invalid address")


def _whole(headers: Any) -> int:
    _, _, length = (headers.get("Content-Range") or "").rpartition("/")
    return _number(length) or _number(headers.get("Content-Length"))


def _number(text: str | None) -> int:
    """A length that a host tells; 0 where it tells none that can be."""
    return whole((text or "").strip()) or 0


def _content(data_set: DataSet, file: _RemoteFile, size: int) -> str:
    """Describe the file's layout by its own header.

    Raises:
        _Unusable: it has another one, or lacks what is trained on.
    """
    if data_set.layout == "parquet":
        return _columns(data_set.column, file, size)
    head = file.read_at(0, _HEAD_BYTES).content
    if data_set.layout == "gpt2":
        words = struct.unpack("<3i", head[:12]) if len(head) >= 12 else ()
        if not words or words[0] != _GPT2_MAGIC:
            raise _UnusableFile("it is not a file of GPT-2 tokens: its first bytes differ")
        return f"{words[2]:,} tokens"
    if data_set.layout != "jsonl":
        return "text"
    try:
        row = json.loads(head.splitlines()[0])
    except (ValueError, IndexError, RecursionError):
        raise _UnusableFile("its first line is not JSON") from None
    if not isinstance(row, dict):
        raise _UnusableFile("its first line is not a JSON object")
    missing = [name for name in data_set.fields if name not in row]
    if missing:
        raise _UnusableFile(f"it has {', '.join(row) or 'nothing'}, not {', '.join(missing)}")
    return f"keys {', '.join(row)}"


def _columns(column: str, file: _RemoteFile, size: int) -> str:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ModuleNotFoundError:
        raise MissingExtra("reading parquet", "data", install_command("data")) from None
    try:
        schema = parquet.read_schema(_Ranges(file, size))
    except pyarrow.ArrowException as error:
        raise _UnusableFile(f"no parquet: {error}"[:200]) from None
    if column not in schema.names:
        raise _UnusableFile(f"it has columns {', '.join(schema.names)}, not {column!r}")
    return f"column {column!r} among {len(schema.names)}"


class _Ranges(io.RawIOBase):
    """A remote file as one that can be sought in."""

    def __init__(self, file: _RemoteFile, size: int) -> None:
        super().__init__()
        self._file, self._size, self._at = file, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        count = self._size - self._at if size < 0 else min(size, self._size - self._at)
        content = self._file.read_at(self._at, count).content if count > 0 else b""
        self._at += len(content)
        return content

    def readinto(self, buffer: Any) -> int:
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)
