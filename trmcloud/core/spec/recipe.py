"""A recipe file's content, and its conversion into the settings of one phase.

``parse_recipe`` reads the mapping of a ``model/recipes/*.toml`` file. ``Recipe.resolve`` joins
shape, phase and hardware tables and the user's ``--set`` into one ``PhaseRecipe``. A ``[small]``
table makes a second recipe of it, for two CPU cores: ``NAME-small``.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any, Mapping, NamedTuple

from trmcloud.core.catalog.hardware import parse_hardware
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import CHAT as CHAT
from trmcloud.core.spec.settings import (
    FAMILIES,
    OFF,
    RATES,
    ROWS_OF_TEXTS,
    check_choice,
    check_foreign,
    checked_table,
    kind_of,
    scaled,
    suggest_word,
)
from trmcloud.core.spec.settings import PHASE_NAMES as PHASE_NAMES
from trmcloud.core.spec.settings import PHASES as PHASES
from trmcloud.core.spec.settings import SINGLE_PHASE as SINGLE_PHASE
from trmcloud.core.spec.settings import PhaseRecipe as PhaseRecipe
from trmcloud.core.spec.settings import parse_setting as parse_setting
from trmcloud.core.values import Value, replace

SMALL = "-small"
"""The suffix of a name that means a recipe's ``[small]`` table."""


class Report(NamedTuple):
    """A published wall-clock time of a whole training."""

    hours: float
    source: str


class Recipe(Value):
    """One recipe file: shared settings, and what each phase and each hardware changes."""

    name: str
    family: str
    title: str
    shared: Mapping[str, Any]
    phases: Mapping[str, Mapping[str, Any]]
    hardware: Mapping[str, Mapping[str, Mapping[str, Any]]]
    """``hardware[name][phase]``: the settings of the guide's row for that hardware."""
    reference_hardware: str = ""
    """The hardware whose global batch every hardware without a row of its own keeps."""
    aspect_ratio: int = 0
    """The ratio of width to depth where the user sets a depth and no width, rounded up to whole
    heads; 0: the two are set apart."""
    small: Mapping[str, Any] = field(default_factory=dict)
    """The tables that replace all else in ``in_small``."""
    rates: Mapping[int, float] = field(default_factory=dict)
    """Sequences a step → the learning rate that goes with them: see ``rates``."""
    data_tokens: int = 0
    """Tokens of the data the recipe was written for; 0 where it leaves that open."""
    published: Mapping[str, Report] = field(default_factory=dict)
    """By hardware, the time that others reported of this training."""
    test_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings put over every row for a test: a plan made of it is not the recipe's."""

    @property
    def has_trainer(self) -> bool:
        return kind_of(self.family).has_trainer

    @property
    def usual_phases(self) -> tuple[str, ...]:
        """Those that run where none is asked for: a chat phase only if the recipe has conversations
        for it."""
        return tuple(
            phase for phase, table in self.phases.items() if phase != CHAT or table.get("data")
        )

    def data_of(self, phase: str) -> str:
        """The name of the data set that a phase is trained on; empty where it names none."""
        return str({**self.shared, **self.phases.get(phase, {})}.get("data", ""))

    def resolve(
        self,
        phase: str,
        *,
        hardware: str,
        gpus: int,
        overrides: Mapping[str, Any] | None = None,
    ) -> PhaseRecipe:
        """Settings of ``phase`` on ``gpus`` GPUs of the hardware named like ``8xH100``.

        Hardware without a row keeps the reference row's global batch: the reference micro-batch
        where it divides, else the largest divisor below it, with accumulation making up the rest.

        Raises:
            UsageError: unknown phase, or settings that cannot go together.
        """
        if phase not in self.phases:
            raise UsageError(
                f"recipe {self.name} has no phase {phase!r}",
                next_step=f"phases: {', '.join(self.phases)}",
            )
        kind = kind_of(self.family)
        settings: dict[str, Any] = {**self.shared, **self.phases[phase]}
        row = self.hardware.get(hardware, {}).get(phase)
        if row is not None:
            settings.update(row)
        else:
            settings.update(self._batch_like_reference(phase, gpus))
        chosen = dict(overrides or {})
        check_foreign(self.family, chosen, f"recipe {self.name}")
        settings.update(kind.implied({**settings, **chosen}))
        settings.update(chosen)
        if self.aspect_ratio and "depth" in chosen and "width" not in chosen:
            heads = math.ceil(self.aspect_ratio * settings["depth"] / settings["head_dim"])
            settings["width"] = heads * settings["head_dim"]
        settings.update(recipe=self.name, family=self.family, phase=phase)
        resolved = kind(**settings)
        resolved.check()
        return self._scaled(resolved, gpus, chosen) if resolved.scale_lr != OFF else resolved

    def _scaled(self, settings: PhaseRecipe, gpus: int, chosen: Mapping[str, Any]) -> PhaseRecipe:
        if by_hand := next((key for key in RATES if key in chosen), ""):
            raise UsageError(
                f"{by_hand} is set, but scale_lr={settings.scale_lr} would change it",
                where="--set",
                next_step="use only one of them",
            )
        rates = {key: getattr(settings, key) for key in RATES}
        whole = settings.global_batch(gpus)
        where = f"recipe {self.name}"
        changed: dict[str, Any] = scaled(rates, whole, settings.scale_lr, self.rates, where)
        return replace(settings, **changed)

    def in_small(self) -> Recipe:
        """The recipe that its ``[small]`` table makes of it, under a name of its own: in that
        table's settings, and otherwise in its own, those of the hardware apart. It has no chat
        phase.

        Raises:
            UsageError: there is no such table.
        """
        if not self.small:
            raise UsageError(f"recipe {self.name} has no [small] table")
        return replace(
            self,
            name=self.name + SMALL,
            title=f"{self.title}, in small",
            shared={**self.shared, **self.small},
            phases={
                phase: {**table, **self.small}
                for phase, table in self.phases.items()
                if phase != CHAT
            },
            hardware={},
            reference_hardware="",
            small={},
            rates={},
            data_tokens=self._tokens_in_small(),
            published={},
        )

    def shrunk(self, settings: Mapping[str, Any], where: str) -> Recipe:
        """This recipe with ``settings`` in place of its own in every phase and on all hardware.

        Raises:
            UsageError: naming the key at fault and the nearest one that exists.
        """
        put = checked_table(settings, where)
        check_foreign(self.family, put, where)
        rows = {
            name: {phase: {**row, **put} for phase, row in tables.items()}
            for name, tables in self.hardware.items()
        }
        phases = {phase: {**table, **put} for phase, table in self.phases.items()}
        return replace(
            self,
            shared={**self.shared, **put},
            phases=phases,
            hardware=rows,
            published={},
            test_settings=put,
        )

    def _tokens_in_small(self) -> int:
        if "data" in self.small:
            return 0
        if self.shared.get("rows", kind_of(self.family).rows) not in ROWS_OF_TEXTS:
            return self.data_tokens
        sequence = int(self.shared["sequence"])
        return self.data_tokens // sequence * int(self.small.get("sequence", sequence))

    def _batch_like_reference(self, phase: str, gpus: int) -> dict[str, int]:
        row = self.hardware.get(self.reference_hardware, {}).get(phase)
        if row is None:
            return {}
        reference_gpus = int(self.reference_hardware.partition("x")[0])
        whole = int(row["batch"]) * int(row["accumulation"]) * reference_gpus
        per_gpu = math.ceil(whole / gpus)
        batch = next((size for size in range(int(row["batch"]), 0, -1) if per_gpu % size == 0), 1)
        return {"batch": batch, "accumulation": per_gpu // batch}


def parse_recipe(content: Mapping[str, Any], where: str) -> Recipe:
    """A recipe from the mapping of its TOML file.

    Raises:
        UsageError: naming the key at fault and the nearest one that exists.
    """
    known = {
        "name", "family", "title", "settings", "phases", "hardware", "reference_hardware", "small",
        "aspect_ratio", "data_tokens", "rates", "published",
    }  # fmt: skip
    for key in content:
        if key not in known:
            raise UsageError(
                f"unknown table {key!r}", where=where, next_step=suggest_word(key, known)
            )
    for key in ("name", "family", "phases"):
        if key not in content:
            raise UsageError(f"the recipe has no {key!r}", where=where)
    family = content["family"]
    check_choice("family", family, FAMILIES, where)

    def table_of(table: Mapping[str, Any], name: str) -> dict[str, Any]:
        checked = checked_table(table, f"{where} [{name}]")
        check_foreign(family, checked, f"{where} [{name}]")
        return checked

    shared = table_of(content.get("settings", {}), "settings")
    phases = {
        phase: table_of(table, f"phases.{phase}") for phase, table in content["phases"].items()
    }
    if not phases:
        raise UsageError("the recipe has no phase", where=where, next_step="[phases.train]")
    for phase in phases:
        if phase not in PHASE_NAMES:
            raise UsageError(f"unknown phase {phase!r}", where=where)
    hardware = {
        name: {
            phase: table_of(table, f"hardware.{name}.{phase}") for phase, table in tables.items()
        }
        for name, tables in content.get("hardware", {}).items()
    }
    return Recipe(
        name=content["name"],
        family=family,
        title=content.get("title", content["name"]),
        shared=shared,
        phases=phases,
        hardware=hardware,
        reference_hardware=content.get("reference_hardware", ""),
        aspect_ratio=_typed_count("aspect_ratio", content, where),
        small=table_of(content.get("small", {}), "small"),
        data_tokens=_typed_count("data_tokens", content, where),
        rates=_typed_rates(content.get("rates", {}), f"{where} [rates]"),
        published={
            parse_hardware(name).text: _typed_report(table, f"{where} [published.{name}]")
            for name, table in content.get("published", {}).items()
        },
    )


def _typed_count(key: str, content: Mapping[str, Any], where: str) -> int:
    value = content.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{key} takes a whole number, not {value!r}", where=where)
    return value


def _typed_report(table: Mapping[str, Any], where: str) -> Report:
    hours, source = table.get("hours"), table.get("source")
    if isinstance(hours, bool) or not isinstance(hours, (int, float)) or not 0 < hours < math.inf:
        hours = 0.0
    if not hours or not isinstance(source, str) or len(table) != 2:
        raise UsageError("a report has hours above 0 and a source", where=where)
    return Report(float(hours), source)


def _typed_rates(table: Any, where: str) -> dict[int, float]:
    try:
        rates = {int(key): float(value) for key, value in table.items()}
    except (AttributeError, TypeError, ValueError):
        rates = {0: 0.0}
    if any(key <= 0 or not 0 < value < math.inf for key, value in rates.items()):
        raise UsageError("rates need sequences per step, both above zero", where=where)
    return rates
