"""Notices to the user, and their derivation from an agent's report. Pure.

The same fact has the same id, be it told by controller, reaper or the agent on its pod, and
however often: a receiver that keeps the ids it has seen drops what comes twice.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from hashlib import sha256

from trmcloud.core.contract.pod_contract import AgentReport, parse_pod_name
from trmcloud.core.contract.records import ContractError, Label, dump, load
from trmcloud.core.contract.recovery import SKIPPED, Recovery
from trmcloud.core.values import Value

WEBHOOK_VERSION = 1
WEBHOOK_NAME = "webhook.json"
"""Beside a pod's lease, for its own user's eyes alone: whom its agent's notices go to."""
SENT_NAME = "notices.json"
"""The ids of those that were taken."""
UNFIT = "unfit"
TROUBLE_PATH = "trouble"
_SECRET_PREFIX = "whsec_"

Fact = str | int | float | bool


class NoticeKind(str, Enum):
    """The kind of a notice; its value is the word in JSON and in ``--only``."""

    STARTED = "started"
    GATE = "gate"
    CAP = "cap"
    ENDED = "ended"
    TROUBLE = "trouble"
    LOST = "lost"
    PRICE = "price"
    ORPHAN = "orphan"
    REAPER = "reaper"
    BALANCE = "balance"
    APPROVAL = "approval"
    TEST = "test"


class Notice(Value):
    """``id`` is the fact's own; ``run_id`` is empty where it is about no run. ``at`` is epoch
    seconds; ``facts`` are numbers and names whose units are in theirs, money as text."""

    id: str
    kind: NoticeKind
    run_id: str
    at: float
    facts: Mapping[str, Fact] = field(default_factory=dict)


class Webhook(Value):
    """``webhook.json``. ``only``: kinds that are wanted; none: all. Nothing of an account's is in
    it."""

    url: str
    secret: str
    only: tuple[Label, ...] = ()
    version: int = WEBHOOK_VERSION

    def __repr__(self) -> str:
        return "Webhook(…)"


def load_webhook(text: str | bytes) -> Webhook:
    return load(Webhook, WEBHOOK_VERSION, text)


def is_wanted(notice: Notice, only: tuple[str, ...]) -> bool:
    return not only or notice.kind.value in only or notice.kind is NoticeKind.TEST


def run_fact_id(ledger_id: str, run_id: str, generation: int, path: str) -> str:
    """The id of a fact about one machine of a run."""
    return f"{ledger_id}/{run_id}/g{generation}/{path}"


def recovery_path(phase: str, row: Recovery) -> str:
    """The end of the id of a phase's recovery. Skipped steps have one: a log has each of them."""
    times = 1 if row.rung == SKIPPED else row.times
    return f"{TROUBLE_PATH}/{phase}/{row.what}/{row.rung}/{_changes(row) or times}"


def _changes(row: Recovery) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(row.changed.items()))


def notices_of(report: AgentReport) -> tuple[Notice, ...]:
    """All that an agent's report tells of so far, in its order. It may be hostile, as its pod may
    be: what it says of another pod than its own is the reader's to refuse."""
    name = parse_pod_name(report.pod_name)
    if name is None or not report.phases:  # one without phases was rented to be looked at
        return ()
    run_id = report.run_id

    def made(kind: NoticeKind, path: str, at: float, /, **facts: Fact) -> Notice:
        fact_id = run_fact_id(name.ledger, run_id, name.generation, path)
        return Notice(fact_id, kind, run_id, at, facts)

    found: list[Notice] = []
    begun = [phase for phase in report.phases if phase.started_at is not None and phase.attempts]
    if begun:
        first = begun[0]
        found.append(
            made(NoticeKind.STARTED, "started", first.started_at or report.at, phase=first.name)
        )
    for phase in report.phases:
        for row in phase.recoveries:
            found.append(
                made(
                    NoticeKind.TROUBLE,
                    recovery_path(phase.name, row),
                    row.at,
                    phase=phase.name,
                    what=row.what,
                    by=row.rung,
                    step=row.step,
                    changed=_changes(row),
                    lost_steps=row.lost_steps,
                    lost_s=row.lost_s,
                    mended=True,
                )
            )
        if phase.gate is not None:
            at = phase.ended_at or report.at
            passed = phase.gate.passed
            found.append(
                made(NoticeKind.GATE, f"gate/{phase.name}", at, phase=phase.name, passed=passed)
            )
    if report.result == UNFIT:
        found.append(made(NoticeKind.TROUBLE, UNFIT, report.at, what=UNFIT, mended=False))
    elif report.result is not None:
        last = begun[-1] if begun else None
        facts: dict[str, Fact] = {"outcome": report.result}
        if last is not None and last.step is not None:
            facts |= {"phase": last.name, "step": last.step}
        if last is not None and last.val_bpb is not None:
            facts["val_bpb"] = last.val_bpb
        found.append(made(NoticeKind.ENDED, "ended", report.at, **facts))
    return tuple(found)


# -- on the wire --------------------------------------------------------------------------------
def body_of(notice: Notice, told: Mapping[str, str] | None = None) -> str:
    """The JSON that a webhook is sent; ``told``: the same in words, a title and a text."""
    data = {"version": WEBHOOK_VERSION, "id": notice.id, "kind": notice.kind.value}
    data |= {"run": notice.run_id, "at": notice.at, "facts": dict(notice.facts), **(told or {})}
    return dump(data)


def headers_of(notice_id: str, body: str, secret: str, at: float) -> dict[str, str]:
    """A webhook's headers: signed as the Standard Webhooks specification 1.0 has it,
    ``base64(HMAC-SHA256(secret, "id.timestamp.body"))``, so that any of its libraries checks it.

    Raises:
        ContractError: the secret is none.
    """
    stamp = str(int(at))
    signed = f"{notice_id}.{stamp}.{body}".encode()
    digest = hmac.new(_key(secret), signed, sha256).digest()
    return {
        "content-type": "application/json",
        "user-agent": "trmcloud",
        "webhook-id": notice_id,
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def secret_of(random: bytes) -> str:
    """A webhook's secret, of 24 to 64 random bytes."""
    return _SECRET_PREFIX + base64.b64encode(random).decode()


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except ValueError:
        raise ContractError("a webhook's secret must be base64 after whsec_") from None
    if not 24 <= len(key) <= 64:
        raise ContractError("a webhook's secret must have 24 to 64 bytes")
    return key
