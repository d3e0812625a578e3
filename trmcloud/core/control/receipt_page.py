"""A page that carries a receipt: the receipt as data, between parts that are drawn from it. Pure.

What the parts look like is the business of whoever draws them. Drawn again, a page has the same
bytes: so a byte that is changed shows, and its part is named.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trmcloud.core.contract.records import parse
from trmcloud.core.control.receipt import MOST_BYTES, Receipt, canonical
from trmcloud.core.errors import ReceiptError
from trmcloud.core.values import Value

PAGE_VERSION = 5
"""Of how pages are drawn: raised with any change of what a receipt's page looks like."""
DATA, END = "data", "end"
_OPENS = f'<script type="application/json" id="{DATA}" data-page="{PAGE_VERSION}">'
_ANY_OPENS = re.compile(rb'<script type="application/json" id="data"(?: data-page="(\d{1,9})")?>')
_CLOSES = "</script>\n"
_LAST = "</body>\n</html>\n"


class OpenedPage(Value):
    """``data``: the receipt's JSON; ``version``: see ``PAGE_VERSION``, 0 of a page that does not
    say it: up to the fourth they had a seal in its place."""

    data: bytes
    version: int


def page_with(parts: Sequence[tuple[str, str]], receipt: Receipt) -> str:
    """Return the whole page: (name, HTML) of each part in their order, then the data."""
    return "".join(text for _, text in _whole(parts, receipt))


def changed_part(content: bytes, parts: Sequence[tuple[str, str]], receipt: Receipt) -> str:
    """Return the name of the first part of a page that is not as it is drawn; '' where each is."""
    at = 0
    for name, text in _whole(parts, receipt):
        drawn = text.encode()
        if content[at : at + len(drawn)] != drawn:
            return name
        at += len(drawn)
    return "" if at == len(content) else END


def _whole(parts: Sequence[tuple[str, str]], receipt: Receipt) -> list[tuple[str, str]]:
    data = f"{_OPENS}{_inert(canonical(receipt.data))}{_CLOSES}"
    return [*parts, (DATA, data), (END, _LAST)]


def open_page(content: bytes) -> OpenedPage:
    """
    Raises:
        ReceiptError: it carries no receipt.
    """
    if len(content) > 2 * MOST_BYTES:
        raise ReceiptError("this is not a receipt: it is too large")
    begins = _ANY_OPENS.search(content)
    ends = content.find(_CLOSES.encode(), begins.end()) if begins is not None else -1
    if begins is None or ends < 0:
        raise ReceiptError("this is not a receipt: it has no data")
    return OpenedPage(content[begins.end() : ends], int(begins[1] or 0))


def _inert(text: str) -> str:
    """JSON that no reader of HTML takes for a tag."""
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def is_page(content: bytes) -> bool:
    return content[:1] == b"<"


def json_is_exact(content: bytes) -> int | None:
    """The first byte that differs from how a receipt is written as JSON; None where none does.

    Raises:
        ContractError: it is no JSON.
    """
    exact = (canonical(parse(content, MOST_BYTES, 1 << 17)) + "\n").encode()
    if exact == content:
        return None
    same = (one == other for one, other in zip(exact, content, strict=False))
    return next((n for n, equal in enumerate(same) if not equal), min(len(exact), len(content)))
