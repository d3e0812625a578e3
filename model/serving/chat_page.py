"""The chat page: one file, with nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Mapping

CHAT_PAGE = Path(__file__).with_name("chat.html").read_text(encoding="utf-8")


def _allowed(tag: str) -> str:
    """Return the content security policy's source for the page's one element of that name."""
    [content] = re.findall(f"<{tag}>(.*?)</{tag}>", CHAT_PAGE, re.DOTALL)
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


CHAT_HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        f"default-src 'none'; script-src {_allowed('script')}; style-src {_allowed('style')}; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "cache-control": "no-store",
}
