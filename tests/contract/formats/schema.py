"""What is written for good, as text: names and declared types of every field."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from trmcloud.adapters.ledger_records import SCHEMA as TABLES
from trmcloud.adapters.ledger_records import VERSION
from trmcloud.core import pod_contract as contract
from trmcloud.core.events import EVENT_TYPES
from trmcloud.core.manifest import MANIFEST_VERSION, CheckpointManifest
from trmcloud.core.plan import PLAN_VERSION, Candidate, Interval, PhasePlan, Plan
from trmcloud.core.recipe import PhaseRecipe
from trmcloud.core.spec import RunSpec

SCHEMA = Path(__file__).with_name("schema.json")

_KINDS: dict[str, tuple[int, tuple[type[Any], ...]]] = {
    "ledger": (VERSION, tuple(EVENT_TYPES.values())),
    "plan": (PLAN_VERSION, (Plan, Candidate, PhasePlan, Interval, RunSpec, PhaseRecipe)),
    "pod": (
        contract.CONTRACT_VERSION,
        (
            contract.PhaseJob,
            contract.Heartbeat,
            contract.Lease,
            contract.PhaseLease,
            contract.Orders,
            contract.AgentReport,
        ),
    ),
    "manifest": (MANIFEST_VERSION, (CheckpointManifest,)),
}


def schema() -> dict[str, Any]:
    made: dict[str, Any] = {
        room: {
            "version": version,
            "records": {
                kind.__name__: {item.name: str(item.type) for item in fields(kind)}
                for kind in kinds
            },
        }
        for room, (version, kinds) in _KINDS.items()
    }
    made["ledger"]["tables"] = TABLES.split()
    return made


def schema_text() -> str:
    return json.dumps(schema(), indent=1, sort_keys=True) + "\n"
