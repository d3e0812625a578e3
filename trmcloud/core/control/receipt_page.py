"""A page that carries a receipt: named parts, the receipt as data, a seal over every byte. Pure.

What the parts look like is the business of whoever draws them. A byte that is changed shows in the
hash of its part, and the part is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256

from trmcloud.core.contract.records import ContractError, Sha256, parse, record_of
from trmcloud.core.control.receipt import MOST_BYTES, Receipt, canonical
from trmcloud.core.errors import ReceiptError
from trmcloud.core.values import dataclass

PAGE_VERSION = 4
"""Of how pages are drawn: raised with any change of what a receipt's page looks like."""
DATA, SEAL, END = "data", "seal", "end"
_OPENS = {name: f'<script type="application/json" id="{name}">' for name in (DATA, SEAL)}
_CLOSES = "</script>\n"
_LAST = "</body>\n</html>\n"
_SEALED = re.compile(re.escape(_OPENS[SEAL].encode()) + rb"([^<]{1,65536})</script>\n")


@dataclass(frozen=True)
class Part:
    """``size``: its bytes in UTF-8."""

    name: str
    size: int
    sha256: Sha256


@dataclass(frozen=True)
class _Seal:
    page: int
    parts: tuple[Part, ...]
    sha256: Sha256
    """Of the line of all parts."""


@dataclass(frozen=True)
class OpenedPage:
    """``data``: the receipt's JSON; ``changed``: names of parts that are not what was written;
    ``parts``: each one's text, as far as they could be told apart. ``version``: see
    ``PAGE_VERSION``."""

    data: bytes
    parts: Mapping[str, bytes]
    changed: tuple[str, ...]
    version: int


def seal_page(parts: Sequence[tuple[str, str]], receipt: Receipt) -> str:
    """The whole page: (name, HTML) of each part in their order, then the data, then the seal."""
    every = [*parts, (DATA, f"{_OPENS[DATA]}{_inert(canonical(receipt.data))}{_CLOSES}")]
    made = [
        {"name": name, "size": len(text.encode()), "sha256": sha256(text.encode()).hexdigest()}
        for name, text in every
    ]
    sealed = {"page": PAGE_VERSION, "parts": made, "sha256": _sum(made)}
    seal = f"{_OPENS[SEAL]}{_inert(canonical(sealed))}{_CLOSES}"
    return "".join(text for _, text in every) + seal + _LAST


def open_page(content: bytes) -> OpenedPage:
    """
    Raises:
        ReceiptError: it carries no receipt.
    """
    if len(content) > 2 * MOST_BYTES:
        raise ReceiptError("this is not a receipt: it is too large")
    found = list(_SEALED.finditer(content))
    if not found:
        raise ReceiptError("this is not a receipt: it has no seal")
    last = found[-1]
    try:
        seal = record_of(_Seal, parse(last[1]))
    except ContractError as error:
        raise ReceiptError(f"its seal cannot be read: {error}") from None
    changed: list[str] = []
    parts: dict[str, bytes] = {}
    at = 0
    for part in seal.parts:
        text = content[at : at + part.size]
        parts[part.name] = text
        at += part.size
        if sha256(text).hexdigest() != part.sha256:
            changed.append(part.name)
            if sum(each.size for each in seal.parts) != last.start():
                at = last.start()  # where something was put in or taken out, no later part is told
                break
    made = [{"name": p.name, "size": p.size, "sha256": p.sha256} for p in seal.parts]
    sealed = {"page": seal.page, "parts": made, "sha256": _sum(made)}
    exact = f"{_OPENS[SEAL]}{_inert(canonical(sealed))}{_CLOSES}".encode()
    if at != last.start() or last.group(0) != exact:
        changed.append(SEAL)
    if content[last.end() :] != _LAST.encode():
        changed.append(END)
    return OpenedPage(_data_in(content), parts, tuple(changed), seal.page)


def _data_in(content: bytes) -> bytes:
    opens = _OPENS[DATA].encode()
    begins = content.find(opens)
    ends = content.find(_CLOSES.encode(), begins)
    if begins < 0 or ends < 0:
        raise ReceiptError("this is not a receipt: it has no data")
    return content[begins + len(opens) : ends]


def _sum(parts: Sequence[Mapping[str, object]]) -> str:
    return sha256(canonical(list(parts)).encode()).hexdigest()


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
