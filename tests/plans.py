"""Plans as a ledger has them: whole ones, small, of which a test says what it is about."""

from __future__ import annotations

from typing import Any

from tests.settings import settings_of
from trmcloud.core.control.run_state import Generation
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import (
    Candidate,
    Interval,
    PhasePlan,
    Plan,
    RecordedPlan,
    candidate_to_json,
    plan_to_json,
)
from trmcloud.core.spec.spec import RunSpec

_NONE = Interval(0.0, 0.0, 0.0)


def a_candidate(name: str = "c1", **changes: Any) -> Candidate:
    values: dict[str, Any] = {
        "id": name, "hardware": "1xH100", "sku": "H100", "gpus": 1, "provider": "runpod",
        "region": "any", "rate": Usd(1), "spot": False, "priced_at": 1_790_000_000.0,
        "source": "test", "startup_s": _NONE, "phases": (), "hours": _NONE, "cost_p10": Usd(0),
        "cost_p50": Usd(0), "cost_p90": Usd(0), "memory_need_gb": 1.0, "memory_gb": 80.0,
        "fits_memory": True, "within_budget": True, "soft_stop_s": 3000.0, "hard_stop_s": 3600.0,
        "landing_s": 100.0, "worst_case": Usd(1), "reasons": (), "planned_rate": Usd(1),
    }  # fmt: skip
    return Candidate(**{**values, **changes})


def small_recipe(**changes: Any) -> Any:
    """A TRM that trains almost nothing, on a processor."""
    values: dict[str, Any] = {
        "depth": 1, "width": 32,
        "head_dim": 16, "supervision_steps": 3, "loops": 1, "vocab_size": 300, "sequence": 16,
        "validation_fraction": 0.1, "batch": 2, "steps": 12, "matrix_lr": 5e-3,
        "embedding_lr": 5e-2, "warmup_steps": 3, "dtype": "float32", "compile": False,
        "log_every": 1, "eval_every": 10, "eval_tokens": 128, "save_every": 20,
    }  # fmt: skip
    return settings_of("trm", **{**values, **changes})


def a_generation(**changes: Any) -> Generation:
    values: dict[str, Any] = {
        "number": 1, "pod_name": "trmc-abcd1234-r1-g1-1790003000", "provider": "runpod",
        "candidate_id": "c1", "rate": Usd(1), "soft_stop_at": 1.0, "hard_stop_at": 2.0,
        "intended_at": 0.0,
    }  # fmt: skip
    return Generation(**{**values, **changes})


def a_phase(name: str = "fast", **parts_s: float) -> PhasePlan:
    settings = settings_of("trm", name, recipe="trm")
    return PhasePlan(name, settings, 0, 0.0, _NONE, _NONE, parts_s)


def a_plan(*candidates: Candidate, **spec: Any) -> Plan:
    """``spec``: what the run's wish says beyond its recipe."""
    return Plan(
        id="p-0001",
        created_at=1_790_000_000.0,
        expires_at=1_790_003_600.0,
        spec=RunSpec(**{"recipe": "trm", "phases": ("fast", "extreme"), **spec}),
        cap=Usd(10),
        candidates=candidates,
        launchable=tuple(candidate.id for candidate in candidates),
        recommended_id=candidates[0].id if candidates else None,
        reservation=Usd(1),
        survives="this machine's disk",
        limits={"z": "1", "a": "2"},
    )


def plan_json(*candidates: Candidate, **spec: Any) -> dict[str, Any]:
    return plan_to_json(a_plan(*candidates, **spec))


def recorded(*candidates: Candidate, **spec: Any) -> RecordedPlan:
    return RecordedPlan(plan_json(*candidates, **spec))


def errand_json(**changes: Any) -> dict[str, Any]:
    """A machine from which a volume's checkpoints are brought home."""
    return candidate_to_json(a_candidate("fetch1", **changes))
