"""A run's receipt: what a ledger, its checkpoints and its metrics say of it, and the account that
follows from them. Pure.

``sources`` are what was written while the run went on. ``account`` follows from them alone, so that
whoever has a receipt can reckon it again. Each part has a hash, and the whole one more, the seal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trmcloud.core.contract.records import (
    ContractError,
    Instant,
    Label,
    Sha256,
    finite,
    parse,
    record_of,
)
from trmcloud.core.control.chain import text_sha256
from trmcloud.core.control.receipt_account import account_of
from trmcloud.core.control.receipt_sources import Sources
from trmcloud.core.errors import ReceiptError
from trmcloud.core.values import dataclass

RECEIPT_VERSION = 1
"""Of its form and of the account's arithmetic: raised with either."""
MOST_BYTES = 64 << 20
_MOST_ITEMS = 1 << 17
SOURCES = ("ledger", "checkpoints", "curves", "mended")


@dataclass(frozen=True)
class Receipt:
    """What a file holds. ``data`` is its JSON; ``sources`` the part that all follows from."""

    run_id: str
    made_at: float
    made_by: str
    sources: Sources
    data: Mapping[str, Any]

    @property
    def account(self) -> Mapping[str, Any]:
        account: Mapping[str, Any] = self.data["account"]
        return account

    @property
    def text(self) -> str:
        """As a file of its own."""
        return canonical(self.data) + "\n"


def make_receipt(run_id: str, sources: Sources, made_at: float, made_by: str) -> Receipt:
    """The receipt of a run at ``made_at`` (epoch s), sealed.

    Raises:
        ValueError: the sources are not those of one run.
    """
    said = finite(sources)
    data = {
        "receipt": RECEIPT_VERSION,
        "run": run_id,
        "made_at": made_at,
        "made_by": made_by,
        "account": account_of(run_id, sources, made_at),
        "sources": said,
    }
    data["sha256"] = _hashes(data)
    data["seal"] = seal_of(data)
    return Receipt(run_id, made_at, made_by, sources, data)


def read_receipt(text: str | bytes) -> Receipt:
    """What a file's JSON stands for; nothing of it has been checked yet.

    Raises:
        ReceiptError: it is no receipt, or one of a newer version.
    """
    try:
        data = parse(text, MOST_BYTES, _MOST_ITEMS)
        version = data.get("receipt") if isinstance(data, dict) else None
        if type(version) is not int:
            raise ContractError("it does not say that it is one")
        if version > RECEIPT_VERSION:
            raise ReceiptError(
                f"this receipt's version is {version}, and {RECEIPT_VERSION} is the newest known",
                next_step="pip install --upgrade trmcloud",
            )
        head = record_of(_Head, data)
        sources = record_of(Sources, data["sources"])
        return Receipt(head.run, head.made_at, head.made_by, sources, data)
    except (ContractError, KeyError) as error:
        raise ReceiptError(f"this is no receipt: {error}") from None


@dataclass(frozen=True)
class _Head:
    run: Label
    made_at: Instant
    made_by: str
    account: Mapping[str, Any]
    sha256: Mapping[str, str]
    seal: Sha256


def canonical(data: Any) -> str:
    """The one text of some JSON, its keys in their order: records are hashed in theirs."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def seal_of(data: Mapping[str, Any]) -> str:
    return text_sha256(canonical({key: value for key, value in data.items() if key != "seal"}))


def changed_parts(receipt: Receipt) -> tuple[str, ...]:
    """Parts that are not what their hash says; the seal itself last."""
    said = receipt.data["sha256"]
    now = _hashes(receipt.data)
    parts = [name for name in dict.fromkeys((*now, *said)) if said.get(name) != now.get(name)]
    if not parts and receipt.data["seal"] != seal_of(receipt.data):
        parts.append("seal")
    return tuple(parts)


def _hashes(data: Mapping[str, Any]) -> dict[str, str]:
    parts = {"account": data["account"]} | {name: data["sources"][name] for name in SOURCES}
    return {name: text_sha256(canonical(part)) for name, part in parts.items()}
