"""What is trained: a recipe file's content, and the flat settings one phase runs with.

``parse_recipe`` reads the mapping of a ``model/recipes/*.toml`` file. ``Recipe.resolve`` joins
shape, phase and hardware tables and the user's ``--set`` into one ``PhaseRecipe``: the object
that a Plan shows, that the planner computes from, and that the trainer reads as JSON.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from dataclasses import dataclass, field, replace
from typing import Any, Mapping

from trmcloud.core.errors import UsageError

PHASES = ("fast", "extreme")
"""The two phases of the guides' TRM recipes, in running order."""
SINGLE_PHASE = "train"
"""The one phase of a recipe that has no two."""

#: (supervision_weight_base, improvement_reward_scale) of the guides' presets.
PRESETS: Mapping[str, tuple[float, float]] = {
    "moderate": (3.0, 0.5),
    "aggressive": (5.0, 1.0),
    "extreme": (10.0, 2.0),
}

FAMILIES = ("trm", "gpt", "nanochat", "bd3lm", "hdp")
TRAINED_FAMILIES = ("trm",)
"""Families whose trainer exists; the others can be planned, not launched."""
OPTIMIZERS = ("muon", "adamw")
SHARDINGS = ("ddp", "fsdp")
TOKENIZERS = ("bpe", "char", "gpt2")
"""bpe: byte pairs learnt from the text; char: one id a character; gpt2: GPT-2's own byte pairs."""
ROWS = ("stream", "bestfit")
"""stream: the text cut every T tokens; bestfit: whole documents, each row from a beginning."""
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class PhaseRecipe:
    """Every setting one training phase runs with; each field is a key of ``--set``.

    Counts are per optimizer step unless named otherwise; intervals are in optimizer steps.
    """

    recipe: str
    family: str
    phase: str

    # shape
    depth: int = 12
    width: int = 768
    head_dim: int = 128
    supervision_steps: int = 4
    loops: int = 2
    vocab_size: int = 65_536
    sequence: int = 1024
    hidden: int = 0
    """Width of the MLP's hidden layer; 0 is the family's own 4 × width."""
    tied: bool = False
    """Head and embedding share their weights."""
    control: bool = False
    """Train the non-recursive control of equal FLOPs instead (a diagnostic)."""

    # data
    tokenizer: str = "bpe"
    characters: str = ""
    """The alphabet of a char tokenizer, in the order of its ids; empty: learnt from the text."""
    data: str = ""
    """Default source where ``--data`` is not given; empty means the user must name one."""
    rows: str = "stream"
    """How tokens become rows, in training and validation; losses of different ones differ."""
    loader_workers: int = 1
    """Threads that read batches ahead; 0 reads each one when it is needed."""
    validation_fraction: float = 0.01
    seed: int = 1337

    # batch: sequences on one GPU in one forward pass, and passes per optimizer step
    batch: int = 32
    accumulation: int = 1
    steps: int = 1000

    # loss
    preset: str = "aggressive"
    supervision_weight_base: float = 5.0
    improvement_reward_scale: float = 1.0

    # optimizer and schedule
    optimizer: str = "muon"
    """muon: block matrices by Muon, the rest by AdamW; adamw: everything by AdamW."""
    ema: bool = False
    """Keep an exponential moving average of the weights, too."""
    matrix_lr: float = 1e-3
    embedding_lr: float = 1e-2
    head_lr: float = 4e-3
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    warmup_steps: int = 40
    cooldown_fraction: float = 0.3
    """Share of the steps (or of the time, where a deadline binds) in which the rate decays."""

    # machine
    dtype: str = "bfloat16"
    compile: bool = True
    sharding: str = "ddp"
    """ddp: every GPU holds everything; fsdp: weights, gradients and states are sharded (FSDP2)."""
    activation_checkpointing: bool = False
    """Keep each block's input alone, and compute the rest again in the backward pass."""

    # intervals
    log_every: int = 10
    eval_every: int = 100
    eval_tokens: int = 1_048_576
    save_every: int = 250
    keep_best: int = 2

    @property
    def heads(self) -> int:
        return self.width // self.head_dim

    def global_batch(self, gpus: int) -> int:
        """Sequences per optimizer step over all GPUs."""
        return self.batch * self.accumulation * gpus

    def tokens_per_step(self, gpus: int) -> int:
        return self.global_batch(gpus) * self.sequence

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PhaseRecipe:
        return cls(**{name: data[name] for name in _FIELDS if name in data})


_FIELDS = {field.name: field for field in dataclasses.fields(PhaseRecipe)}
_FIXED = ("recipe", "family", "phase")
SETTABLE = tuple(name for name in _FIELDS if name not in _FIXED)

_POSITIVE = (
    "depth", "width", "head_dim", "supervision_steps", "loops", "vocab_size", "sequence",
    "batch", "accumulation", "steps", "matrix_lr", "embedding_lr", "head_lr", "grad_clip",
    "log_every", "eval_every", "eval_tokens", "save_every", "keep_best",
    "supervision_weight_base",
)  # fmt: skip
_NOT_NEGATIVE = (
    "warmup_steps", "weight_decay", "improvement_reward_scale", "seed", "hidden",
    "loader_workers",
)  # fmt: skip
_CHOICES = {
    "preset": tuple(PRESETS),
    "dtype": DTYPES,
    "tokenizer": TOKENIZERS,
    "rows": ROWS,
    "family": FAMILIES,
    "optimizer": OPTIMIZERS,
    "sharding": SHARDINGS,
}
#: What the trainer of TRM runs with; other values are other families' or later work.
_TRM_FIXED = {
    "hidden": 0,
    "tied": False,
    "optimizer": "muon",
    "ema": False,
    "sharding": "ddp",
    "activation_checkpointing": False,
}


@dataclass(frozen=True)
class Recipe:
    """One recipe file: shared settings, and what each phase and each hardware changes."""

    name: str
    family: str
    title: str
    shared: Mapping[str, Any]
    phases: Mapping[str, Mapping[str, Any]]
    hardware: Mapping[str, Mapping[str, Mapping[str, Any]]]
    """``hardware[name][phase]``: the settings of the guide's row for that hardware."""
    reference_hardware: str = ""
    """Whose global batch every hardware without a row of its own keeps."""
    data_tokens: int = 0
    """Tokens of the data the recipe was written for; 0 where it leaves that open."""
    test_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings put over every row for a test: a plan made of it is not the recipe's."""

    @property
    def has_trainer(self) -> bool:
        return self.family in TRAINED_FAMILIES

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
        settings: dict[str, Any] = {**self.shared, **self.phases[phase]}
        row = self.hardware.get(hardware, {}).get(phase)
        if row is not None:
            settings.update(row)
        else:
            settings.update(self._batch_like_reference(phase, gpus))
        chosen = dict(overrides or {})
        preset = chosen.get("preset", settings.get("preset"))
        if preset is not None:
            _check_choice("preset", preset, "--set")
            base, scale = PRESETS[preset]
            settings["supervision_weight_base"] = base
            settings["improvement_reward_scale"] = scale
        settings.update(chosen)
        settings.update(recipe=self.name, family=self.family, phase=phase)
        resolved = PhaseRecipe(**settings)
        _check(resolved)
        return resolved

    def shrunk(self, settings: Mapping[str, Any], where: str) -> Recipe:
        """This recipe with ``settings`` in place of its own in every phase and on all hardware.

        Raises:
            UsageError: naming the key at fault and the nearest one that exists.
        """
        put = _checked_table(settings, where)
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
            test_settings=put,
        )

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
        "name", "family", "title", "settings", "phases", "hardware", "reference_hardware",
        "data_tokens",
    }  # fmt: skip
    for key in content:
        if key not in known:
            raise UsageError(f"unknown table {key!r}", where=where, next_step=_nearest(key, known))
    for key in ("name", "family", "phases"):
        if key not in content:
            raise UsageError(f"the recipe has no {key!r}", where=where)
    shared = _checked_table(content.get("settings", {}), f"{where} [settings]")
    phases = {
        phase: _checked_table(table, f"{where} [phases.{phase}]")
        for phase, table in content["phases"].items()
    }
    for phase in phases:
        if phase not in (*PHASES, SINGLE_PHASE):
            raise UsageError(f"unknown phase {phase!r}", where=where)
    hardware = {
        name: {
            phase: _checked_table(table, f"{where} [hardware.{name}.{phase}]")
            for phase, table in tables.items()
        }
        for name, tables in content.get("hardware", {}).items()
    }
    _check_choice("family", content["family"], where)
    return Recipe(
        name=content["name"],
        family=content["family"],
        title=content.get("title", content["name"]),
        shared=shared,
        phases=phases,
        hardware=hardware,
        reference_hardware=content.get("reference_hardware", ""),
        data_tokens=_typed_count(content.get("data_tokens", 0), where),
    )


def parse_setting(text: str) -> tuple[str, Any]:
    """``KEY=VALUE`` of ``--set`` as a typed pair.

    Raises:
        UsageError: unknown key (nearest offered) or a value of the wrong type.
    """
    key, equals, value = text.partition("=")
    key = key.strip().replace("-", "_")
    if not equals:
        raise UsageError(f"--set takes KEY=VALUE, not {text!r}", next_step="--set depth=8")
    if key not in SETTABLE:
        raise UsageError(
            f"no setting named {key!r}", where="--set", next_step=_nearest(key, SETTABLE)
        )
    return key, _typed(key, value.strip(), "--set")


def _typed_count(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"data_tokens takes a whole number, not {value!r}", where=where)
    return value


def _checked_table(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    checked = {}
    for key, value in table.items():
        if key not in SETTABLE:
            raise UsageError(
                f"no setting named {key!r}", where=where, next_step=_nearest(key, SETTABLE)
            )
        checked[key] = _typed(key, value, where)
    return checked


def _typed(key: str, value: Any, where: str) -> Any:
    kind = str(_FIELDS[key].type)
    wrong = UsageError(f"{key} takes {_KINDS[kind]}, not {value!r}", where=where)
    if kind == "bool":
        if isinstance(value, bool):
            return value
        lowered = str(value).lower()
        if lowered in ("true", "yes", "on", "1"):
            return True
        if lowered in ("false", "no", "off", "0"):
            return False
        raise wrong
    if isinstance(value, bool):
        raise wrong
    try:
        if kind == "int":
            number = int(str(value).replace("_", "")) if not isinstance(value, float) else None
            if number is None:
                raise ValueError
            return number
        if kind == "float":
            real = float(value)
            if not math.isfinite(real):
                raise ValueError
            return real
    except ValueError:
        raise wrong from None
    if not isinstance(value, str):
        raise wrong
    return value


_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
}


def _check(recipe: PhaseRecipe) -> None:
    where = f"recipe {recipe.recipe}, phase {recipe.phase}"
    for name in _POSITIVE:
        if getattr(recipe, name) <= 0:
            raise UsageError(f"{name} must be above zero, not {getattr(recipe, name)}", where=where)
    for name in _NOT_NEGATIVE:
        if getattr(recipe, name) < 0:
            raise UsageError(f"{name} cannot be negative", where=where)
    for name in _CHOICES:
        _check_choice(name, getattr(recipe, name), where)
    if recipe.width % recipe.head_dim:
        raise UsageError(
            f"width {recipe.width} is not a multiple of head_dim {recipe.head_dim}",
            where=where,
            next_step=_fitting_width(recipe),
        )
    if recipe.family == "trm":
        if recipe.head_dim % 2:  # rotary positions turn pairs
            raise UsageError(f"head_dim {recipe.head_dim} is odd", where=where)
        for name, only in _TRM_FIXED.items():
            if getattr(recipe, name) != only:
                raise UsageError(f"the trainer of trm runs with {name} = {only} only", where=where)
    _check_characters(recipe, where)
    if not 0 <= recipe.cooldown_fraction <= 1:
        raise UsageError("cooldown_fraction lies between 0 and 1", where=where)
    if not 0 < recipe.validation_fraction < 1:
        raise UsageError("validation_fraction lies between 0 and 1", where=where)


def _check_characters(recipe: PhaseRecipe, where: str) -> None:
    known = len(recipe.characters)
    if known and recipe.tokenizer != "char":
        raise UsageError("characters are a char tokenizer's", where=where)
    if len(set(recipe.characters)) != known:
        raise UsageError("a character stands twice in characters", where=where)
    if known >= recipe.vocab_size:
        raise UsageError(
            f"{known} characters and a special id do not fit into vocab_size {recipe.vocab_size}",
            where=where,
            next_step=f"--set vocab_size={known + 1}",
        )


def _fitting_width(recipe: PhaseRecipe) -> str:
    """The head that divides the width where that is one of use, else the nearest width."""
    head = math.gcd(recipe.width, recipe.head_dim)
    if head >= 8 and head % 2 == 0:
        return f"--set head_dim={head}"
    return f"--set width={max(1, round(recipe.width / recipe.head_dim)) * recipe.head_dim}"


def _check_choice(name: str, value: Any, where: str) -> None:
    if value not in _CHOICES[name]:
        raise UsageError(
            f"{name} is one of {', '.join(_CHOICES[name])}, not {value!r}",
            where=where,
            next_step=_nearest(str(value), _CHOICES[name]),
        )


def _nearest(word: str, words: Any) -> str:
    found = difflib.get_close_matches(word, list(words), n=1, cutoff=0.5)
    return f"did you mean {found[0]!r}?" if found else f"one of: {', '.join(sorted(words))}"
