"""Worlds that once broke something: a JSON file each in ``kept/``. None is replaced by another;
``tests.sim.keep`` adds one.

A file holds the whole scenario and not its seed, because the same seed draws another world as soon
as a fault or a provider is added.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from trmcloud.core import codec
from trmcloud.core.spec.plan import Plan, plan_from_json, plan_to_json
from trmcloud.sim.scenario import Scenario, SimRun
from trmcloud.sim.world.facts import TruePaces
from trmcloud.sim.world.trainer import Shape
from trmcloud.wiring_plans import simulate_providers

simulate_providers()
VERSION = 1
FOLDER = Path(__file__).with_suffix("")
KEEP_IT = """Keep this world before you change the code, which draws its seeds:
python -m tests.sim.keep {seed} --kind {kind} --taught "what it teaches" """
_GONE = {
    ".spec": frozenset({"last_rungs", "stop_at_gain", "strict_gate"}),
    ".plan": frozenset({"version"}),
}
"""By the end of a place: what an earlier version wrote there that a kept world is played without,
and the number of that version."""
_LEVELS = 4
"""Levels of JSON whose objects have a line for each value: down to a run's plan."""


class NotAScenario(ValueError):
    """JSON that this version cannot read as the scenario that was written."""


def to_json(scenario: Scenario) -> dict[str, Any]:
    """Return the JSON object from which ``from_json`` restores an equal scenario."""
    plain = replace(scenario, wishes=(), off=frozenset(), paces={})
    return {
        "version": VERSION,
        **codec.to_json(plain),
        "off": sorted(scenario.off),
        "paces": {run_id: codec.to_json(paces) for run_id, paces in scenario.paces.items()},
        "wishes": [
            {
                **{name: value for name, value in vars(wish).items() if name != "plan"},
                "shapes": [codec.to_json(shape) for shape in wish.shapes.values()],
                "plan": _plan_to_json(wish.plan),
            }
            for wish in scenario.wishes
        ],
    }


def from_json(data: dict[str, Any]) -> Scenario:
    """
    Raises:
        NotAScenario: an unknown version, a missing key, or a value that is not read back as it is
            written here: the world would be another one.
    """
    if data.get("version") != VERSION:
        raise NotAScenario(f"version {data.get('version')!r} is not {VERSION}")
    try:
        wishes = tuple(
            SimRun(
                **{**row, "plan": _plan_from_json(row["plan"]), "shapes": _shapes(row["shapes"])}
            )
            for row in data["wishes"]
        )
        plain = {name: value for name, value in data.items() if name != "version"}
        made = replace(
            codec.from_json(Scenario, {**plain, "wishes": ()}, known=True),
            wishes=wishes,
            off=frozenset(data["off"]),
            paces={run: codec.from_json(TruePaces, row) for run, row in data["paces"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotAScenario(f"{type(error).__name__}: {error}") from error
    if lost := _first_lost(data, json.loads(json.dumps(to_json(made))), "scenario"):
        raise NotAScenario(f"{lost} is not read")
    return made


def _shapes(rows: list[dict[str, Any]]) -> dict[str, Shape]:
    return {row["phase"]: codec.from_json(Shape, row) for row in rows}


def _plan_to_json(plan: Plan) -> dict[str, Any]:
    """A plan's JSON; of all candidates but the first only what differs from it."""
    first, *others = (made := plan_to_json(plan))["candidates"]
    differing = [{k: v for k, v in row.items() if v != first.get(k)} for row in others]
    return {**made, "candidates": [first, *differing]}


def _plan_from_json(data: dict[str, Any]) -> Plan:
    first = data["candidates"][0]
    return plan_from_json({**data, "candidates": [{**first, **row} for row in data["candidates"]]})


def _first_lost(data: Any, written: Any, where: str) -> str:
    """Return where ``data`` has a value that ``written`` has not; "" if everything recurs.

    A key that only ``written`` has is a field that was added since, at its default.
    """
    if isinstance(data, dict) and isinstance(written, dict):
        gone = next((keys for end, keys in _GONE.items() if where.endswith(end)), frozenset())
        kept = ((key, value) for key, value in data.items() if key not in gone)
        inner = ((f"{where}.{key}", value, written.get(key)) for key, value in kept)
    elif isinstance(data, list) and isinstance(written, list) and len(data) == len(written):
        inner = ((f"{where}[{n}]", value, written[n]) for n, value in enumerate(data))
    else:
        return "" if (type(data), data) == (type(written), written) else where
    return next((lost for place, a, b in inner if (lost := _first_lost(a, b, place))), "")


@dataclass(frozen=True)
class Kept:
    """A kept world: its file's name is its seed, after its kind where that is not ``drawn``."""

    name: str
    taught: str
    data: dict[str, Any]

    @cached_property
    def scenario(self) -> Scenario:
        return from_json(self.data)


def read(path: Path) -> Kept:
    """
    Raises:
        NotAScenario: the file lacks what the world teaches, or is not JSON.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Kept(path.stem, data.pop("taught"), data)
    except (KeyError, ValueError, AttributeError) as error:
        raise NotAScenario(f"{path}: {type(error).__name__}: {error}") from error


def write(scenario: Scenario, taught: str, name: str, folder: Path = FOLDER) -> Path:
    """Keep ``scenario`` as ``folder/NAME.json``."""
    path = folder / f"{name}.json"
    data = {"taught": taught, **to_json(scenario)}
    path.write_text(_over_lines(data) + "\n", encoding="utf-8")
    assert read(path).scenario == scenario
    return path


def _over_lines(value: Any, level: int = 0) -> str:
    """JSON with a line for each value of the upper levels."""
    inner = list(value.values()) if isinstance(value, dict) else value
    flat = not isinstance(inner, list) or not any(isinstance(v, dict | list) for v in inner)
    if flat or (isinstance(value, dict) and level >= _LEVELS):
        return json.dumps(value, ensure_ascii=False)
    keys = (
        [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(inner)
    )
    start, end = "{}" if isinstance(value, dict) else "[]"
    space = "\n" + " " * level
    texts = [key + _over_lines(item, level + 1) for key, item in zip(keys, inner, strict=True)]
    return start + ",".join(f"{space} {text}" for text in texts) + space + end


KEPT = tuple(read(path) for path in sorted(FOLDER.glob("*.json"), key=lambda p: (len(p.name), p)))
