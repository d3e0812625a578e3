"""The S3 gateway of Hugging Face's storage buckets, in front of a real S3 server.

As hub-docs' storage-buckets-s3 (commit 3f1c1bef) describes it: buckets are named by a path below
the namespace, ListObjectsV2 alone, no metadata of the user's, no bodies in signed chunks, keys that
are narrower than S3's; a GET by a client that is none of AWS's is sent to a cache, which takes the
address alone. That a presigned request is taken there the page does not say.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from tests.standins.loopback import Handler, serving_at

NAMESPACE = "acme"
_PROXIED = re.compile(r"aws-cli|botocore|aws-sdk-rust", re.IGNORECASE)
_BAD_KEY = re.compile(r"^/|/$|//|\.\./|^\./|\.\.$|[\\\0]")
_HOP = ("connection", "content-length", "date", "host", "keep-alive", "server", "transfer-encoding")


@dataclass
class Gateway:
    """``port`` is the gateway's, ``cache_port`` the cache's; ``url`` is what a client is given."""

    store_port: int
    port: int = 0
    cache_port: int = 0
    redirects: dict[str, str] = field(default_factory=dict)
    """By the token in an address of the cache: the path in the store, with what was signed."""
    cached_gets: int = 0
    refused: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{NAMESPACE}"

    @property
    def ports(self) -> tuple[int, int]:
        return self.port, self.cache_port


class _Through(Handler):
    """One request, taken to the store and back."""

    gateway: Gateway

    def _forward(self, path: str, headers: dict[str, str]) -> None:
        body = self.read_body()
        store = http.client.HTTPConnection("127.0.0.1", self.gateway.store_port, timeout=60)
        try:
            store.request(self.command, path, body=body or None, headers=headers)
            answer = store.getresponse()
            content = answer.read()
        finally:
            store.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP and not name.lower().startswith("x-amz-meta-"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


class _Entrance(_Through):
    def _any(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        _, namespace, bucket, key = (*path.split("/", 3), "", "", "")[:4]
        if namespace != NAMESPACE:
            return self._refuse(404, "NoSuchBucket")
        if key and _BAD_KEY.search(key):
            return self._refuse(400, "InvalidArgument")
        encoding = self.headers.get("Content-Encoding", "")
        if "aws-chunked" in encoding or self.headers.get("X-Amz-Trailer"):
            return self._refuse(400, "InvalidRequest")
        is_list = self.command == "GET" and bucket and not key
        if is_list and query.get("list-type") != ["2"] and not {"uploads", "location"} & set(query):
            return self._refuse(501, "NotImplemented")
        inner = self.path.removeprefix(f"/{NAMESPACE}") or "/"
        is_get = self.command == "GET" and key and "uploadId" not in query
        if is_get and not _PROXIED.search(self.headers.get("User-Agent", "")):
            return self._to_cache(inner)
        self._forward(inner, self._without_metadata())
        return None

    def _without_metadata(self) -> dict[str, str]:
        return {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in _HOP and not name.lower().startswith("x-amz-meta-")
        }

    def _to_cache(self, inner: str) -> None:
        token = secrets.token_hex(8)
        with self.gateway.lock:
            self.gateway.redirects[token] = inner
        target = f"http://127.0.0.1:{self.gateway.cache_port}/o/{token}"
        self.answer(302, headers={"Location": target})

    def _refuse(self, status: int, code: str) -> None:
        self.read_body()
        self.gateway.refused.append(f"{self.command} {urlsplit(self.path).path}: {code}")
        text = f"<Error><Code>{code}</Code></Error>"
        self.answer(status, text.encode(), "application/xml")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _any


class _Cache(_Through):
    """Gives an object to a client that has its address; refuses a signature that is the store's."""

    def do_GET(self) -> None:
        path = self.gateway.redirects.get(self.path.rpartition("/")[2])
        if path is None or "X-Amz-" in self.path or self.headers.get("Authorization"):
            self.gateway.refused.append(f"cache: {self.path}")
            self.answer(403)
            return
        with self.gateway.lock:
            self.gateway.cached_gets += 1
        asked = self.headers.get("Range")
        self._forward(path, {"Range": asked} if asked else {})


@contextlib.contextmanager
def bucket_gateway(store_port: int) -> Iterator[Gateway]:
    """Answers until the block ends."""
    made = Gateway(store_port)
    entrance = type("Entrance", (_Entrance,), {"gateway": made})
    cache = type("Cache", (_Cache,), {"gateway": made})
    with serving_at(entrance) as made.port, serving_at(cache) as made.cache_port:
        yield made
