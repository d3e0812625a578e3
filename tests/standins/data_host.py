"""A host of data sets on loopback: files in the layouts of Hugging Face and GitHub, and its faults.

A real HTTP server. Paths below ``/datasets/`` are answered as huggingface.co answers them: a
redirect to another host (the CDN, a second port) that names the file's SHA-256 and size in
``X-Linked-ETag`` and ``X-Linked-Size``; every other path is served as it is, as
raw.githubusercontent.com does. Of each repository the API says the commit and lists the files, with
the SHA-256 of those that Git LFS keeps, in pages. Ranges, strong ETags and ``If-Range`` work. What
was asked is kept in ``requests``; ``faults`` makes paths misbehave. ``tests/model/test_fetch.py``
and ``tests/unit/test_data_hosts.py`` hold it against Hugging Face's own client.

By itself: ``python -m tests.standins.data_host FOLDER [BYTES_PER_SECOND]``; it prints what to set.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.standins.loopback import Handler, serving_at

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_API = "/api/datasets/"
_CHUNK = 1 << 18
_BURST_S = 0.1


@dataclass
class Fault:
    """What goes wrong with one path. ``times``: how often, counted down; -1 is always."""

    status: int = 0
    """Answered instead of the file."""
    retry_after: str = ""
    html: bool = False
    """A web page with status 200."""
    cut_after: int = -1
    """The connection ends after so many bytes of the body."""
    flip: int = -1
    """This byte of the file is another one."""
    stalls: bool = False
    """Nothing is answered until the host ends."""
    forgets_range: bool = False
    """Ranges are ignored: 200 and the whole file."""
    held: threading.Event | None = None
    """The body waits for it, or for the end of the host."""
    times: int = -1
    after: Callable[[], object] | None = None
    """``status`` is answered only once this holds."""

    def strikes(self) -> bool:
        if self.times == 0:
            return False
        self.times -= self.times > 0
        return True


@dataclass(frozen=True)
class Asked:
    """One request: to which of the two hosts, and what it carried."""

    host: str
    method: str
    path: str
    headers: Mapping[str, str]
    at: str = ""
    """The path as it was asked for: ``path`` has a branch where this has the commit."""


@dataclass
class DataHost:
    """Files by their path; both servers run while the ``serving`` block does."""

    files: dict[str, bytes | Path] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    requests: list[Asked] = field(default_factory=list)
    needs_token: str = ""
    """Paths below /datasets/ are given with this token only."""
    bytes_per_second: float = 0.0
    """Of all connections together; 0: as fast as it goes."""
    commit: str = COMMIT
    """What the branch ``main`` points to."""
    page_size: int = 1000
    """Files that a page of the API lists."""
    without_lfs: frozenset[str] = frozenset()
    """Files that Git itself keeps: no SHA-256 is published of them."""
    hub: str = ""
    cdn: str = ""
    ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _free_at: float = 0.0
    _hashes: dict[str, tuple[bytes, str]] = field(default_factory=dict)

    def put(self, prefix: str, folder: Path) -> None:
        """Every file below ``folder``, under ``prefix``."""
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            self.files[f"{prefix.rstrip('/')}/{path.relative_to(folder).as_posix()}"] = path

    def read(self, path: str) -> bytes | None:
        content = self.files.get(path)
        return content.read_bytes() if isinstance(content, Path) else content

    @property
    def environment(self) -> dict[str, str]:
        """What leads the trainer here instead of to the real hosts."""
        hosts = (
            "huggingface.co",
            "raw.githubusercontent.com",
            "openaipublic.blob.core.windows.net",
        )
        return {"TRMCLOUD_DATA_HOSTS": " ".join(f"{host}={self.hub}" for host in hosts)}

    def asked(self, path: str, host: str = "") -> list[Asked]:
        return [each for each in self.requests if each.path == path and host in ("", each.host)]

    def take_turn(self, size: int) -> None:
        """Waits until ``size`` bytes may go out."""
        if not self.bytes_per_second:
            return
        with self._lock:
            now = time.monotonic()
            # What a moment's lateness left unused may be made up for, as with any real limiter.
            begins = max(now - _BURST_S, self._free_at)
            self._free_at = begins + size / self.bytes_per_second
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)

    def sha256(self, path: str, content: bytes) -> str:
        """Of a file as it is now; counted once."""
        known = self._hashes.get(path)
        if known is None or known[0] is not content:
            self._hashes[path] = known = (content, hashlib.sha256(content).hexdigest())
        return known[1]


@contextmanager
def serving(host: DataHost) -> Iterator[DataHost]:
    with serving_at(_handler(host, "hub")) as hub, serving_at(_handler(host, "cdn")) as cdn:
        host.hub, host.cdn = (f"http://127.0.0.1:{port}" for port in (hub, cdn))
        try:
            yield host
        finally:
            host.ended.set()


def _handler(host: DataHost, name: str) -> type[Handler]:
    class Hosting(Handler):
        server_version = "data-host"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0]
            # A commit's files are those of the branch, which points to it.
            at, path = path, path.replace(f"/resolve/{host.commit}/", "/resolve/main/")
            host.requests.append(Asked(name, self.command, path, dict(self.headers), at))
            content = host.read(path)
            fault = host.faults.get(path)
            struck = fault if fault and (name == "hub" or not _linked(path)) else None
            carrier = name == "cdn" or not _linked(path)
            if struck is not None and struck.status and struck.strikes():
                while struck.after is not None and not struck.after():
                    if host.ended.wait(0.01):
                        return
                extra = {"Retry-After": struck.retry_after} if struck.retry_after else {}
                self.answer(struck.status, b"no\n", headers=extra)
            elif struck is not None and struck.html and struck.strikes():
                self.answer(200, b"<!doctype html><title>Please log in</title>\n", "text/html")
            elif struck is not None and struck.stalls and struck.strikes():
                host.ended.wait()
            elif name == "hub" and _linked(path) and host.needs_token and not self._has_token():
                self.answer(401, b"Invalid credentials\n")
            elif path.startswith(_API):
                self._api(path)
            elif content is None:
                missing = {"X-Error-Code": "EntryNotFound"}
                self.answer(404, b"Entry not found\n", headers=missing)
            elif not carrier:
                self._redirect(path, content)
            else:
                self._file(path, content, fault, body=body)

        def _api(self, path: str) -> None:
            """As huggingface.co answers ``/revision/`` and ``/tree/`` of a data set."""
            repository, _, rest = path.removeprefix(_API).partition("/revision/")
            listed = repository.partition("/tree/")
            repository = listed[0]
            start = f"/datasets/{repository}/resolve/main/"
            revision, _, folder = (listed[2] or rest).partition("/")
            names = sorted(
                each.removeprefix(start) for each in host.files if each.startswith(start)
            )
            if not names or revision not in ("main", host.commit):
                self.answer(404, b'{"error":"Repository not found"}', "application/json")
                return
            if not listed[2]:
                about = {
                    "id": repository, "sha": host.commit, "private": False, "tags": [],
                    "siblings": [{"rfilename": each} for each in names],
                }  # fmt: skip
                self.answer(200, json.dumps(about).encode(), "application/json")
                return
            inside = f"{folder}/" if folder else ""
            names = [n for n in names if n.startswith(inside) and "/" not in n[len(inside) :]]
            query = parse_qs(urlsplit(self.path).query)
            begin = int(query.get("cursor", ["0"])[0])
            more = begin + host.page_size < len(names)
            page = [self._entry(start, each) for each in names[begin : begin + host.page_size]]
            after = f"{host.hub}{path}?cursor={begin + host.page_size}"
            extra = {"Link": f'<{after}>; rel="next"'} if more else {}
            self.answer(200, json.dumps(page).encode(), "application/json", extra)

        def _entry(self, start: str, file: str) -> dict[str, Any]:
            content = host.read(start + file) or b""
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry = {"type": "file", "oid": blob, "size": len(content), "path": file}
            if file in host.without_lfs:
                return entry
            sha256 = hashlib.sha256(content).hexdigest()
            lfs = {"oid": sha256, "size": len(content), "pointerSize": 134}
            return {**entry, "lfs": lfs, "xetHash": sha256[::-1]}

        def _has_token(self) -> bool:
            return self.headers.get("Authorization") == f"Bearer {host.needs_token}"

        def _redirect(self, path: str, content: bytes) -> None:
            extra = {
                "Location": f"{host.cdn}{path}?X-Amz-Signature=of-the-cdn",
                "X-Repo-Commit": host.commit,
                "X-Linked-Size": str(len(content)),
                "X-Linked-ETag": f'"{host.sha256(path, content)}"',
            }
            self.answer(302, b"", headers=extra)

        def _file(self, path: str, content: bytes, fault: Fault | None, *, body: bool) -> None:
            etag = f'"{host.sha256(path, content)[:32]}"'
            if fault is not None and fault.flip >= 0 and fault.strikes():
                flipped = bytearray(content)
                flipped[fault.flip] ^= 0xFF
                content = bytes(flipped)
            start, stop, status = 0, len(content), 200
            wanted = self.headers.get("Range", "")
            same = self.headers.get("If-Range", etag) == etag
            if wanted.startswith("bytes=") and same and not (fault and fault.forgets_range):
                first, _, last = wanted[6:].partition("-")
                start, stop = int(first), min(stop, int(last) + 1 if last else stop)
                if start >= len(content):
                    extra = {"Content-Range": f"bytes */{len(content)}"}
                    self.answer(416, b"", headers=extra)
                    return
                status = 206
            self.send_response(status)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(stop - start))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", etag)
            self.send_header("X-Repo-Commit", host.commit)
            if status == 206:
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
            self.end_headers()
            if not body:
                return
            if fault is not None and fault.held is not None:
                while not fault.held.wait(0.01) and not host.ended.is_set():
                    pass
            cut = fault is not None and fault.cut_after >= 0 and fault.strikes()
            if cut and fault is not None:
                stop = min(stop, start + fault.cut_after)
            try:
                for at in range(start, stop, _CHUNK):
                    piece = memoryview(content)[at : min(stop, at + _CHUNK)]
                    host.take_turn(len(piece))
                    self.wfile.write(piece)
            except OSError:
                cut = True
            if cut:
                self.close_connection = True

    return Hosting


def _linked(path: str) -> bool:
    return path.startswith("/datasets/")


def main() -> None:
    host = DataHost(bytes_per_second=float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
    host.put("", Path(sys.argv[1]))
    host.files = {path: host.read(path) or b"" for path in host.files}
    with serving(host):
        for key, value in host.environment.items():
            print(f'export {key}="{value}"', flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
