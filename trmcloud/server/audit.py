"""The audit log as the page shows it: the newest acts first, a page at a time."""

from __future__ import annotations

import re
from typing import Any

from trmcloud.core.money import Usd
from trmcloud.core.text import one_line
from trmcloud.ports.team import AuditRecord, Team, broken_at

MOST_ACTS = 200
_NUMBER = re.compile(r"[0-9]{1,15}")


def audit_json(team: Team, person: str = "", before: str = "") -> dict[str, Any]:
    """Return the answer of ``GET /api/audit``; its fields are described in the reference.

    Args:
        person: only that person's acts; empty: all.
        before: only records before this number; anything else: the newest.
    """
    records = team.acts()
    broken = broken_at(records)
    end = int(before) if _NUMBER.fullmatch(before) else None
    found = [
        record
        for record in records
        if (not person or record.act.person == person) and (end is None or record.seq < end)
    ]
    return {
        "broken_at": broken,
        "people": sorted({one_line(record.act.person) for record in records}),
        "more": max(0, len(found) - MOST_ACTS),
        "acts": [_act_json(record) for record in reversed(found[-MOST_ACTS:])],
    }


def _act_json(record: AuditRecord) -> dict[str, Any]:
    act = record.act
    runs = act.facts.get("runs")
    return {
        "number": record.seq,
        "at": act.at,
        "person": one_line(act.person),
        "role": act.role,
        "token": act.token,
        "address": one_line(act.address),
        "what": one_line(act.what),
        "decision": act.decision,
        "exit_code": act.facts.get("exit_code"),
        "why": one_line(str(act.facts.get("why") or "")),
        "runs": [
            {
                "run": str(run),
                "cap": _dollars(usd, "cap_usd"),
                "spent": _dollars(usd, "settled_usd"),
            }
            for run, usd in (runs.items() if isinstance(runs, dict) else ())
        ],
        "raise": str(act.facts.get("raise_id") or ""),
    }


def _dollars(facts: Any, key: str) -> str:
    try:
        return str(Usd(facts[key]))
    except (KeyError, TypeError, ValueError):
        return "–"
