"""A store that keeps to AWS's published rules of presigned requests and to little else: it takes a
PUT only where the signature is right for the headers that really came, as S3 and MinIO do and as
moto and s3rver, which check none, do not. Its lists are empty.

The signature is worked out here from the rules (Signature Version 4, query parameters); that
botocore's own requests pass shows that both read them alike.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, quote, urlsplit

SECRET = "CANARY-secret-key"
_EMPTY = b'<?xml version="1.0"?><ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>'
_REFUSED = b"<Error><Code>SignatureDoesNotMatch</Code></Error>"


def is_signed(method: str, target: str, headers: Mapping[str, str], secret: str = SECRET) -> bool:
    """Whether a presigned request is the one that was signed. ``headers`` have lower-case names."""
    parts = urlsplit(target)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    claimed = query.pop("X-Amz-Signature", "")
    names = query.get("X-Amz-SignedHeaders", "").split(";")
    if "host" not in names or any(name not in headers for name in names):
        return False
    pairs = sorted((quote(k, safe="-_.~"), quote(v, safe="-_.~")) for k, v in query.items())
    canonical = "\n".join(
        (
            method,
            parts.path,
            "&".join(f"{key}={value}" for key, value in pairs),
            "".join(f"{name}:{headers[name].strip()}\n" for name in names),
            ";".join(names),
            "UNSIGNED-PAYLOAD",
        )
    )
    scope = query["X-Amz-Credential"].partition("/")[2]
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join((query["X-Amz-Algorithm"], query["X-Amz-Date"], scope, digest))
    key = f"AWS4{secret}".encode()
    for word in scope.split("/"):
        key = hmac.digest(key, word.encode(), "sha256")
    return hmac.compare_digest(hmac.digest(key, text.encode(), "sha256").hex(), claimed)


@dataclass
class StrictStore:
    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)


@contextlib.contextmanager
def strict_store() -> Iterator[StrictStore]:
    store = StrictStore()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            if not is_signed("PUT", self.path, headers):
                self._answer(403, _REFUSED)
                return
            store.objects[urlsplit(self.path).path] = body
            self._answer(200, b"")

        def do_GET(self) -> None:
            self._answer(200, _EMPTY)

        do_HEAD = do_GET

        def _answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        store.url = f"http://127.0.0.1:{server.server_port}"
        yield store
    finally:
        server.shutdown()
        server.server_close()
