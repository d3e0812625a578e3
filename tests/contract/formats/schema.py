"""What is written for good, as text: names and declared types of every field."""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from trmcloud.adapters.ledger.records import SCHEMA as TABLES
from trmcloud.adapters.ledger.records import VERSION
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.manifest import MANIFEST_VERSION, CheckpointManifest
from trmcloud.core.contract.trainer_contract import Heartbeat, PhaseJob
from trmcloud.core.control.events import EVENT_TYPES
from trmcloud.core.control.reason import FACTS, Reason, ReasonKind
from trmcloud.core.spec.plan import PLAN_VERSION, Candidate, Interval, PhasePlan, Plan
from trmcloud.core.spec.settings import FAMILIES, CommandSettings
from trmcloud.core.spec.spec import RunSpec

SCHEMA = Path(__file__).with_name("schema.json")
#: What a checked type is in JSON: narrowing what is accepted changes nothing that is written.
_PLAIN = {"Label": "str", "Instant": "float", "Restarts": "int", "FailureKind": "str"}

_KINDS: dict[str, tuple[int, tuple[type[Any], ...]]] = {
    "ledger": (VERSION, (*EVENT_TYPES.values(), Reason)),
    "plan": (PLAN_VERSION, (Plan, Candidate, PhasePlan, Interval, RunSpec)),
    "pod": (
        contract.CONTRACT_VERSION,
        (
            PhaseJob,
            Heartbeat,
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
                kind.__name__: {item.name: _declared(item) for item in fields(kind)}
                for kind in kinds
            },
        }
        for room, (version, kinds) in _KINDS.items()
    }
    made["plan"]["records"]["PhaseRecipe"] = {
        item.name: _declared(item)
        for kind in (*FAMILIES.values(), CommandSettings)
        for item in fields(kind)
    }
    made["ledger"]["tables"] = TABLES.split()
    made["ledger"]["reasons"] = {
        kind.value: {name: fact.__name__ for name, fact in FACTS[kind].items()}
        for kind in ReasonKind
    }
    return made


def _declared(item: Field[Any]) -> str:
    words = [_PLAIN.get(word, word) for word in str(item.type).split()]
    optional = item.default is not MISSING or item.default_factory is not MISSING
    return " ".join(words) + (" = …" if optional else "")


def schema_text() -> str:
    return json.dumps(schema(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
