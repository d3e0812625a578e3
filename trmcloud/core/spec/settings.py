"""The flat settings that one phase runs with: their types, and what cannot be.

Each is a key of ``--set`` and of a recipe's tables. The Plan shows them, the planner computes from
them, and the trainer reads them as JSON.
"""

from __future__ import annotations

import dataclasses
import math
from functools import lru_cache
from typing import Any, Iterable, Mapping

from trmcloud.core.errors import UsageError
from trmcloud.core.nearest import nearest
from trmcloud.core.spec.dense_keys import DENSE_CHOICES, DenseKeys, check_dense
from trmcloud.core.spec.families import COMMAND, FAMILIES, takes
from trmcloud.core.spec.update_keys import UPDATE_CHOICES, UpdateKeys, check_update
from trmcloud.core.values import dataclass

PHASES = ("fast", "extreme")
"""The two phases of the guides' TRM recipes, in running order."""
SINGLE_PHASE = "train"
"""The one phase of a recipe that has no two."""
PHASE_NAMES = (*PHASES, SINGLE_PHASE)
"""Every name that a phase has, in running order."""

#: (supervision_weight_base, improvement_reward_scale) of the guides' presets.
PRESETS: Mapping[str, tuple[float, float]] = {
    "moderate": (3.0, 0.5),
    "aggressive": (5.0, 1.0),
    "extreme": (10.0, 2.0),
}

SHARDINGS = ("ddp", "fsdp")
TOKENIZERS = ("bpe", "char", "gpt2")
"""bpe: byte pairs learnt from the text; char: one id a character; gpt2: GPT-2's own byte pairs."""
PADDED = "padded"
SEGMENTS = "segments"
ROWS = ("stream", "bestfit", PADDED, SEGMENTS)
"""stream: the text cut every T tokens; bestfit: whole documents, each row from a beginning; padded:
one document a row, what is left of the row in no loss; segments: a question, a plan and an
execution, each in a segment of its own."""
ROWS_OF_TEXTS = (PADDED, SEGMENTS)
"""Each of which is one text, however short."""
AUTO, FLOAT8 = "auto", "float8"
DTYPES = ("float32", "bfloat16", "float16", FLOAT8, AUTO)
"""auto: the highest rung of the trainer's ladder that the machine has, float8 only where a trial
finds it faster."""
FLOAT8_BACKENDS = ("any", "torchao-tensorwise", "torchao-rowwise", "native", "emulated")
"""Who takes float8's products; any: the first of the others but the last that works."""
PRECISIONS: Mapping[str, str] = {
    "auto": AUTO,
    "fp8": FLOAT8,
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
}
"""What ``--precision`` takes, and the ``dtype`` it stands for."""


@dataclass(frozen=True)
class PhaseRecipe(DenseKeys, UpdateKeys):
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
    block: int = 16
    """Tokens that block diffusion brings out of the noise together."""
    question_tokens: int = 128
    """Of a row in segments, as many as its question has room for, with its end; like it its plan
    and its execution."""
    plan_tokens: int = 128
    execution_tokens: int = 256
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

    # machine
    dtype: str = "bfloat16"
    float8: str = "any"
    """Who takes its products, where dtype is float8 or auto."""
    compile: bool = True
    sharding: str = "ddp"
    """ddp: every GPU holds everything; fsdp: weights, gradients and states are sharded (FSDP2)."""

    # intervals
    log_every: int = 10
    eval_every: int = 100
    eval_tokens: int = 1_048_576
    save_every: int = 250
    save_minutes: float = 0.0
    """Also once so many have passed since the last save; 0: by steps alone."""
    keep_best: int = 2
    checkpoint_bytes: int = 0
    """Of a command, the most that one of its checkpoints may hold."""

    @property
    def heads(self) -> int:
        return self.width // self.head_dim

    @property
    def kept_checkpoints(self) -> int:
        """At one time, at most: the best, the latest, and the one from before its cooldown."""
        if self.family == COMMAND:
            return self.keep_best + 1
        return self.keep_best + 1 + (self.schedule != "constant" and self.cooldown_fraction > 0)

    @property
    def text_ids(self) -> int:
        """Ids that a tokenizer may use: all but those that the family keeps for itself."""
        return self.vocab_size - FAMILIES[self.family].own_ids

    @property
    def segments(self) -> tuple[int, int, int]:
        """Tokens of a row's question, plan and execution, each with its end."""
        return self.question_tokens, self.plan_tokens, self.execution_tokens

    @property
    def segments_text(self) -> str:
        return f"{self.question_tokens}, {self.plan_tokens} and {self.execution_tokens} tokens"

    @property
    def row_is_text(self) -> bool:
        return self.rows in ROWS_OF_TEXTS

    def global_batch(self, gpus: int) -> int:
        """Sequences per optimizer step over all GPUs."""
        return self.batch * self.accumulation * gpus

    def tokens_per_step(self, gpus: int) -> int:
        return self.global_batch(gpus) * self.sequence

    def to_json(self) -> dict[str, Any]:
        """Its settings; those that its family does not take are left out."""
        return {name: getattr(self, name) for name in _taken_by(self.family)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PhaseRecipe:
        family = FAMILIES.get(str(data.get("family")))
        values = {**(family.own if family else {}), **data}
        return cls(**{name: values[name] for name in _FIELDS if name in values})


_FIELDS = {field.name: field for field in dataclasses.fields(PhaseRecipe)}


@lru_cache
def _taken_by(family: str) -> tuple[str, ...]:
    return tuple(name for name in _FIELDS if takes(family, name))


_FIXED = ("recipe", "family", "phase", "checkpoint_bytes")
SETTABLE = tuple(name for name in _FIELDS if name not in _FIXED)

_POSITIVE = (
    "depth", "width", "head_dim", "supervision_steps", "loops", "vocab_size", "sequence",
    "block", "question_tokens", "plan_tokens", "execution_tokens", "batch", "accumulation", "steps",
    "log_every", "eval_every", "eval_tokens", "save_every", "keep_best", "supervision_weight_base",
)  # fmt: skip
_NOT_NEGATIVE = ("improvement_reward_scale", "seed", "loader_workers", "save_minutes")
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "preset": tuple(PRESETS),
    "dtype": DTYPES,
    "float8": FLOAT8_BACKENDS,
    "tokenizer": TOKENIZERS,
    "rows": ROWS,
    "family": tuple(FAMILIES),
    "sharding": SHARDINGS,
    **UPDATE_CHOICES,
    **DENSE_CHOICES,
}


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
            f"no setting named {key!r}", where="--set", next_step=nearest_of(key, SETTABLE)
        )
    return key, _typed(key, value.strip(), "--set")


def as_option(key: str, value: Any) -> str:
    """``--set KEY=VALUE``, from which ``parse_setting`` makes the pair again."""
    return f"--set {key}={str(value).lower() if isinstance(value, bool) else value}"


def check_foreign(family: str, keys: Iterable[str], where: str) -> None:
    """
    Raises:
        UsageError: naming the first key that ``family`` does not take, and the nearest it takes.
    """
    for key in keys:
        if not takes(family, key):
            raise UsageError(
                f"{family} has no setting {key!r}",
                where=where,
                next_step=nearest_of(key, [each for each in SETTABLE if takes(family, each)]),
            )


def checked_table(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    checked = {}
    for key, value in table.items():
        if key not in SETTABLE:
            raise UsageError(
                f"no setting named {key!r}", where=where, next_step=nearest_of(key, SETTABLE)
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


def check_settings(recipe: PhaseRecipe) -> None:
    """
    Raises:
        UsageError: settings that cannot be, or not together.
    """
    if recipe.family == COMMAND:
        return
    where = f"recipe {recipe.recipe}, phase {recipe.phase}"
    for name in _POSITIVE:
        if getattr(recipe, name) <= 0:
            raise UsageError(f"{name} must be above zero, not {getattr(recipe, name)}", where=where)
    for name in _NOT_NEGATIVE:
        if getattr(recipe, name) < 0:
            raise UsageError(f"{name} cannot be negative", where=where)
    for name in _CHOICES:
        check_choice(name, getattr(recipe, name), where)
    if recipe.width % recipe.head_dim:
        raise UsageError(
            f"width {recipe.width} is not a multiple of head_dim {recipe.head_dim}",
            where=where,
            next_step=_fitting_width(recipe),
        )
    rope = FAMILIES[recipe.family].has_rope
    check_dense(recipe, heads=recipe.heads, head_dim=recipe.head_dim, rope=rope, where=where)
    check_update(recipe, where)
    _check_float8(recipe, where)
    _check_rows(recipe, where)
    _check_characters(recipe, where)
    if not 0 < recipe.validation_fraction < 1:
        raise UsageError("validation_fraction lies between 0 and 1", where=where)


def _check_float8(recipe: PhaseRecipe, where: str) -> None:
    if recipe.float8 != "any" and recipe.dtype not in (AUTO, FLOAT8):
        raise UsageError(
            f"float8={recipe.float8} says who takes float8's products, and dtype is {recipe.dtype}",
            where=where,
            next_step="--set dtype=float8, or dtype=auto",
        )


def _check_rows(recipe: PhaseRecipe, where: str) -> None:
    family = FAMILIES[recipe.family]
    if family.in_segments:
        _check_segments(recipe, where)
    elif recipe.rows == SEGMENTS:
        raise UsageError(
            f"{recipe.family} knows no question, plan and execution: rows=segments is not for it",
            where=where,
            next_step=f"--set rows={PADDED if family.pads else 'bestfit'}",
        )
    if recipe.rows == PADDED and not family.pads:
        raise UsageError(
            f"{recipe.family} would learn the padding of rows=padded",
            where=where,
            next_step="--set rows=bestfit",
        )
    if takes(recipe.family, "block") and recipe.sequence % recipe.block:
        fitting = [n for n in range(1, recipe.block + 1) if recipe.sequence % n == 0]
        raise UsageError(
            f"blocks of {recipe.block} do not divide a sequence of {recipe.sequence}",
            where=where,
            next_step=f"--set block={fitting[-1]}",
        )


def _check_segments(recipe: PhaseRecipe, where: str) -> None:
    if recipe.rows != SEGMENTS:
        raise UsageError(
            f"{recipe.family} learns a plan and an execution: rows={recipe.rows} has none",
            where=where,
            next_step=f"--set rows={SEGMENTS}",
        )
    if sum(recipe.segments) != recipe.sequence:
        raise UsageError(
            f"segments of {recipe.segments_text} do not make up a sequence of {recipe.sequence}",
            where=where,
            next_step=f"--set sequence={sum(recipe.segments)}",
        )


def _check_characters(recipe: PhaseRecipe, where: str) -> None:
    known = len(recipe.characters)
    if known and recipe.tokenizer != "char":
        raise UsageError("characters are a char tokenizer's", where=where)
    if len(set(recipe.characters)) != known:
        raise UsageError("a character stands twice in characters", where=where)
    if known >= recipe.text_ids:
        needed = known + 1 + recipe.vocab_size - recipe.text_ids
        raise UsageError(
            f"{known} characters and the special ids do not fit into vocab_size "
            f"{recipe.vocab_size}",
            where=where,
            next_step=f"--set vocab_size={needed}",
        )


def _fitting_width(recipe: PhaseRecipe) -> str:
    """The head that divides the width where that is one of use, else the nearest width."""
    head = math.gcd(recipe.width, recipe.head_dim)
    if head >= 8 and head % 2 == 0:
        return f"--set head_dim={head}"
    return f"--set width={max(1, round(recipe.width / recipe.head_dim)) * recipe.head_dim}"


def check_choice(name: str, value: Any, where: str) -> None:
    if value not in _CHOICES[name]:
        raise UsageError(
            f"{name} is one of {', '.join(_CHOICES[name])}, not {value!r}",
            where=where,
            next_step=nearest_of(str(value), _CHOICES[name]),
        )


def nearest_of(word: str, words: Any) -> str:
    """What to type instead of ``word``."""
    found = nearest(word, words, likeness=0.5)
    return f"did you mean {found!r}?" if found else f"one of: {', '.join(sorted(words))}"
