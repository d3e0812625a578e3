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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlsplit

from tests.standins.loopback import Handler, serving_at

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

    class Storing(Handler):
        def do_PUT(self) -> None:
            body = self.read_body()
            headers = {name.lower(): value for name, value in self.headers.items()}
            if is_signed("PUT", self.path, headers):
                store.objects[urlsplit(self.path).path] = body
                self.answer(200)
            else:
                self.answer(403, _REFUSED)

        def do_GET(self) -> None:
            self.answer(200, _EMPTY)

        do_HEAD = do_GET

    with serving_at(Storing) as port:
        store.url = f"http://127.0.0.1:{port}"
        yield store
