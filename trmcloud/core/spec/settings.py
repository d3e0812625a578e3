"""The settings that one phase runs with, the optimizer's and its rates among them. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar

from trmcloud.core.contract.command import RECIPE
from trmcloud.core.errors import UsageError
from trmcloud.core.nearest import nearest
from trmcloud.core.spec.guides import Guide
from trmcloud.core.spec.work import Work
from trmcloud.core.values import dataclass

# Learning rates that go with the whole batch: by a root's law, or by a recipe's own table.

OFF = "off"
SCALES = (OFF, "sqrt", "table")
"""off: rates are what they are; sqrt: the table's first times √(batch ÷ the first's); table: its
rows, and between two of them the power law that joins them."""
RATES = ("matrix_lr", "embedding_lr", "head_lr")


def rate_for(sequences: int, rule: str, rows: Mapping[int, float], where: str) -> float:
    """The rate for a step of so many sequences.

    Args:
        rows: the table: sequences a step → rate.

    Raises:
        UsageError: there is no table, or its rows do not reach so far.
    """
    if not rows:
        raise UsageError(
            f"{where} has no [rates]: the batch for its rates is not known",
            next_step="set them: --set matrix_lr=… embedding_lr=… head_lr=…",
        )
    known = sorted(rows.items())
    base, rate = known[0]
    if rule == "sqrt":
        return rate * math.sqrt(sequences / base)
    if sequences in rows:
        return rows[sequences]
    for (low, first), (high, last) in pairwise(known):
        if low < sequences < high:
            share = math.log(sequences / low) / math.log(high / low)
            return first * math.pow(last / first, share)
    raise UsageError(
        f"the table of rates of {where} covers {base} to {known[-1][0]} sequences per step, not "
        f"{sequences}",
        next_step="--scale-lr sqrt",
    )


def scaled(
    settings: Mapping[str, float], sequences: int, rule: str, rows: Mapping[int, float], where: str
) -> dict[str, float]:
    """Every rate of ``settings``, times what brings ``matrix_lr`` to the one for ``sequences``."""
    factor = rate_for(sequences, rule, rows, where) / settings[RATES[0]]
    return {key: settings[key] * factor for key in RATES}


# Settings of the optimizer, the schedule of its rates, and the average of the weights.

OPTIMIZERS = ("muon", "adamw")
LINEAR = "wsd-linear"
SCHEDULES = ("wsd", LINEAR, "cosine", "constant")
PLAIN, NANOCHAT, ATAN2 = "plain", "nanochat-2026", "atan2"
EMA_DECAY = 0.999


@dataclass(frozen=True, kw_only=True)
class UpdateKeys:
    """The settings of the optimizer's update."""

    optimizer: str = "muon"
    """muon: block matrices by Muon, the rest by AdamW; adamw: everything by AdamW."""
    matrix_lr: float = 1e-3
    embedding_lr: float = 1e-2
    head_lr: float = 4e-3
    """Beside Muon, AdamW's rates are those at width 768, and go with width^−½."""
    scale_lr: str = "off"
    """off, sqrt or table: whether the rates were brought to the whole batch, and by which rule."""
    weight_decay: float = 0.0
    beta1: float = 0.0
    """AdamW's; 0: 0.9, or 0.8 beside Muon."""
    beta2: float = 0.0
    """0: 0.95."""
    eps: float = 0.0
    """0: 1e-8, or 1e-10 beside Muon."""
    normuon: bool = False
    """Muon's rows are brought to one size by their running mean squares (Li et al. 2025)."""
    cautious_decay: bool = False
    """Muon's matrices decay only where the update shrinks them anyway (Chen et al. 2025)."""
    grad_clip: float = 1.0
    """The most that the gradients' norm may be; 0: they are not clipped."""
    schedule: str = "wsd"
    """wsd: warm-up, stable, and a cooldown 1 − √t; wsd-linear: a cooldown 1 − t; cosine over all
    steps; constant."""
    warmup_steps: int = 40
    cooldown_fraction: float = 0.3
    """Share of the steps (or of the time, where a deadline binds) in which the rate decays; 0:
    none, whatever binds."""
    rate_floor: float = 0.0
    """The rate at the end, as a share of the full one."""
    ema: bool = False
    """Keep an exponential moving average of the weights, too: it is what is evaluated and saved."""
    ema_decay: float = EMA_DECAY


UPDATE_CHOICES: Mapping[str, tuple[str, ...]] = {
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "scale_lr": SCALES,
}


def check_update(keys: UpdateKeys, where: str) -> None:
    """
    Raises:
        UsageError: settings that cannot be, or not together.
    """
    for name in ("beta1", "beta2", "rate_floor", "ema_decay"):
        value = getattr(keys, name)
        if not 0 <= value < 1 or (name == "ema_decay" and not value):
            raise UsageError(f"{name} must be at least 0 and below 1, not {value:g}", where=where)
    if not 0 <= keys.cooldown_fraction <= 1:
        raise UsageError("cooldown_fraction must be from 0 to 1", where=where)
    for name in ("normuon", "cautious_decay"):
        if getattr(keys, name) and keys.optimizer != "muon":
            raise UsageError(
                f"{name} belongs to Muon, but the optimizer is {keys.optimizer}",
                where=where,
                next_step=f"--set {name}=false, or --set optimizer=muon",
            )
    if keys.ema_decay != EMA_DECAY and not keys.ema:
        raise UsageError("ema_decay needs ema=true", where=where, next_step="--set ema=true")


# The flat settings that one phase runs with: their types, and what cannot be.
#
# Each is a key of ``--set`` and of a recipe's tables. The Plan shows them, the planner computes
# from them, and the trainer reads them as JSON. ``PhaseRecipe`` holds what every family of models
# takes. A family's own settings are a class of its own, ``Settings`` in
# ``model/families/NAME/plan.py``, which says what else the planner needs of it. ``FAMILIES``
# knows them by name.

PHASES = ("fast", "extreme")
"""The two phases of the guides' TRM recipes, in running order."""
SINGLE_PHASE = "train"
"""The one phase of a recipe that has no two."""
CHAT = "chat"
"""The phase that trains a model on conversations, from the weights of ``SINGLE_PHASE``; also the
arrangement of its rows."""
PHASE_NAMES = (*PHASES, SINGLE_PHASE, CHAT)
"""Every name that a phase has, in running order."""

SHARDINGS = ("ddp", "fsdp")
CHAT_BYTE_PAIRS = "bpe-chat"
BYTE_PAIRS = ("bpe", CHAT_BYTE_PAIRS)
TOKENIZERS = (*BYTE_PAIRS, "char", "gpt2")
"""bpe: byte pairs learnt from the text; bpe-chat: the same with special tokens for conversations;
char: one id a character; gpt2: GPT-2's own byte pairs."""
PADDED = "padded"
SEGMENTS = "segments"
ROWS = ("stream", "bestfit", PADDED, SEGMENTS, CHAT)
"""stream: the text cut every T tokens; bestfit: whole documents, each row from a beginning; padded:
one document a row, what is left of the row in no loss; segments: a question, a plan and an
execution, each in a segment of its own; chat: whole conversations, what is left of the row in no
loss, and only the assistant's tokens judged."""
ROWS_OF_TEXTS = (PADDED, SEGMENTS)
"""Each of which is one text, however short."""
AUTO, FLOAT8 = "auto", "float8"
DTYPES = ("float32", "bfloat16", "float16", FLOAT8, AUTO)
"""auto: the highest rung of the trainer's ladder that the machine has, float8 only where a trial
finds it faster."""
FLOAT8_BACKENDS = ("any", "torchao-tensorwise", "torchao-rowwise", "native", "emulated")
"""The backends of float8's products; any: the first of the others but the last that works."""
PRECISIONS: Mapping[str, str] = {
    "auto": AUTO,
    "fp8": FLOAT8,
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
}
"""The values of ``--precision``, and the ``dtype`` that each stands for."""


@dataclass(frozen=True)
class PhaseRecipe(UpdateKeys):
    """The settings that every family takes; each field is a key of ``--set``. A family's class
    adds its own.

    Counts are per optimizer step unless named otherwise; intervals are in optimizer steps.
    """

    recipe: str
    family: str
    phase: str

    # shape
    depth: int = 12
    width: int = 768
    head_dim: int = 128
    vocab_size: int = 65_536
    sequence: int = 1024

    # data
    tokenizer: str = "bpe"
    characters: str = ""
    """The alphabet of a char tokenizer, in the order of its ids; empty: learnt from the text."""
    data: str = ""
    """Default source where ``--data`` is not given; empty means the user must name one."""
    rows: str = "stream"
    """The arrangement of tokens in rows, in training and validation; losses of different ones
    differ."""
    loader_workers: int = 1
    """Threads that read batches ahead; 0 reads each one when it is needed."""
    validation_fraction: float = 0.01
    seed: int = 1337

    # batch: sequences on one GPU in one forward pass, and passes per optimizer step
    batch: int = 32
    accumulation: int = 1
    steps: int = 1000

    # machine
    dtype: str = "bfloat16"
    float8: str = "any"
    """The backend of its products, where dtype is float8 or auto."""
    compile: bool = True
    activation_checkpointing: bool = False
    """Keep each block's input alone, and compute the rest again in the backward pass."""
    selective_checkpointing: bool = False
    """Of that, keep what products and attention made too: the cheap rest alone is computed again.
    """
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

    # of the family
    has_trainer: ClassVar[bool] = True
    """Whether it can be trained, not only planned."""
    own_ids: ClassVar[int] = 0
    """Ids at the vocabulary's end that it keeps for itself: no text has them."""
    pads: ClassVar[bool] = False
    """Whether its loss leaves out what a row is filled up with."""
    chats: ClassVar[bool] = False
    """Whether it can be trained on conversations."""
    update_rules: ClassVar[str] = PLAIN
    """Muon's and AdamW's, which an architecture may bring along."""
    why_not_sharded: ClassVar[str] = "its trainer keeps all weights on each GPU"
    """Why its weights are on every GPU whole; empty where they may be shared out: each block is
    applied once in a pass, and so gathered once."""
    head_again: ClassVar[bool] = False
    """A head that runs in pieces is computed again by the backward pass: its losses are weighted
    one by one, so that no piece's gradient is known before all are there."""
    may_be_slower: ClassVar[tuple[float, str]] = (1.0, "")
    """By which factor a step may take longer than planned, beside what is not known of any
    training, and why: there is no published training of its kind that the plan was held to."""
    not_set: ClassVar[tuple[str, ...]] = ("activation_checkpointing", "selective_checkpointing")
    """Settings that no recipe of it says."""
    positive: ClassVar[tuple[str, ...]] = ()
    """Of its own keys, those that must be above zero."""
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The values of its own keys that have a few."""
    decisive: ClassVar[tuple[str, ...]] = ()
    """Of its own keys, those of which another value makes another training."""
    shape_keys: ClassVar[tuple[str, ...]] = ()
    """Of its own keys, those with another value of which the weights may not fit."""
    flops_formula: ClassVar[str] = ""
    """FLOPs per token, as ``plan --explain`` shows them; empty: the sum of its matmuls."""
    reached: ClassVar[Mapping[str, str]] = {}
    """The quality that a recipe's source or our own runs reached, by recipe, in a few words."""
    beaten_by: ClassVar[Mapping[str, str]] = {}
    """By recipe: the outcome of a comparison that the recipe lost to its own control."""
    file_layout: ClassVar[str] = ""
    """The layout of a text file that it is trained on, where that is no plain text."""
    guides: ClassVar[Mapping[str, Guide]] = {}
    """What is claimed of its recipes, by recipe."""

    def work(self) -> Work:
        """Parameters and FLOPs of the model that these settings describe."""
        raise NotImplementedError(f"the family {self.family!r} is not known")

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that follow from ``values`` where they are not set themselves."""
        return {}

    @property
    def heads(self) -> int:
        return self.width // self.head_dim

    @property
    def row_multiple(self) -> int:
        """What a padded row's length is filled up to a multiple of."""
        return 1

    @property
    def segments(self) -> tuple[int, ...]:
        """Tokens of each part of a row, its end included; empty where a row is one text."""
        return ()

    @property
    def segments_text(self) -> str:
        *first, last = (str(tokens) for tokens in self.segments)
        return f"{', '.join(first)} and {last} tokens"

    @property
    def guide(self) -> Guide | None:
        """What is claimed of its recipe."""
        return self.guides.get(self.recipe)

    @property
    def carried_bytes(self) -> int:
        """Bytes that one process keeps from step to step beside the weights."""
        return 0

    @property
    def kept_checkpoints(self) -> int:
        """At one time, at most: the best, the latest, and the one from before its cooldown."""
        return self.keep_best + 1 + (self.schedule != "constant" and self.cooldown_fraction > 0)

    @property
    def text_ids(self) -> int:
        """Ids that a tokenizer may use: all but those that the family keeps for itself."""
        return self.vocab_size - self.own_ids

    @property
    def dummy_row(self) -> Sequence[int] | None:
        """A row of ``sequence`` + 1 ids for passes whose results are dropped; None: any ids of
        texts will do."""
        return None

    @property
    def row_is_text(self) -> bool:
        return self.rows in ROWS_OF_TEXTS

    @property
    def varies_rows(self) -> bool:
        """Whether a row is another one each time that it is read: then no text is repeated."""
        return False

    @property
    def leaves_targets_out(self) -> bool:
        """Whether some targets are in no loss, in one micro-batch more than in another."""
        return self.row_is_text or self.rows == CHAT

    def global_batch(self, gpus: int) -> int:
        """Sequences per optimizer step over all GPUs."""
        return self.batch * self.accumulation * gpus

    def tokens_per_step(self, gpus: int) -> int:
        return self.global_batch(gpus) * self.sequence

    def fixed_keys(self) -> tuple[str, ...]:
        """Settings that cannot change within a run, since its weights were made for them."""
        return (*SHAPE_KEYS, *self.shape_keys)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of its settings."""
        return _names_of(cls)  # type: ignore[arg-type]  # its class has a hash, too

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.names()}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PhaseRecipe:
        """Settings of the family that ``data`` names; what that one does not take is left out."""
        kind = kind_of(str(data.get("family")))
        known = (field.name for field in dataclasses.fields(kind))
        return kind(**{name: data[name] for name in known if name in data})

    def check(self) -> None:
        """
        Raises:
            UsageError: settings that cannot be, or not together.
        """
        where = f"recipe {self.recipe}, phase {self.phase}"
        for name in (*_POSITIVE, *self.positive):
            if getattr(self, name) <= 0:
                value = getattr(self, name)
                raise UsageError(f"{name} must be above zero, not {value}", where=where)
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise UsageError(f"{name} cannot be negative", where=where)
        for name, known in {**_CHOICES, **self.choices}.items():
            check_choice(name, getattr(self, name), known, where)
        if self.width % self.head_dim:
            raise UsageError(
                f"width {self.width} is not a multiple of head_dim {self.head_dim}",
                where=where,
                next_step=_fitting_width(self),
            )
        self.check_shape(where)
        check_update(self, where)
        if self.float8 != "any" and self.dtype not in (AUTO, FLOAT8):
            raise UsageError(
                f"float8={self.float8} sets the library for float8, but dtype is {self.dtype}",
                where=where,
                next_step="--set dtype=float8, or dtype=auto",
            )
        self.check_rows(where)
        _check_characters(self, where)
        if not 0 < self.validation_fraction < 1:
            raise UsageError("validation_fraction must be between 0 and 1", where=where)

    def check_shape(self, where: str) -> None:
        """
        Raises:
            UsageError: what the family's own keys cannot be, or not together.
        """

    def check_rows(self, where: str) -> None:
        """
        Raises:
            UsageError: rows that the family does not learn from.
        """
        if self.rows == SEGMENTS:
            raise UsageError(
                f"{self.family} does not use question, plan and execution: rows=segments does "
                "not work with it",
                where=where,
                next_step=f"--set rows={PADDED if self.pads else 'bestfit'}",
            )
        if (self.rows == CHAT) != (self.phase == CHAT):
            raise UsageError(
                f"rows={self.rows} does not work in the {self.phase} phase: rows=chat and the "
                "chat phase belong together",
                where=where,
                next_step="leave rows out",
            )
        if self.rows == CHAT and not self.chats:
            raise UsageError(f"{self.family} cannot be trained on conversations", where=where)
        if self.rows == CHAT and self.tokenizer != CHAT_BYTE_PAIRS:
            raise UsageError(
                f"the chat phase needs tokens for conversations; tokenizer={self.tokenizer} has "
                "none",
                where=where,
                next_step=f"--set tokenizer={CHAT_BYTE_PAIRS}, in the train phase too",
            )
        if self.rows == PADDED and not self.pads:
            raise UsageError(
                f"{self.family} would also learn the padding of rows=padded",
                where=where,
                next_step="--set rows=bestfit",
            )


@lru_cache
def _names_of(kind: type[PhaseRecipe]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind) if field.name not in kind.not_set)


@dataclass(frozen=True)
class CommandSettings(PhaseRecipe):
    """What is known of a trainer of the user's own: nothing of its model."""

    checkpoint_bytes: int = 0
    """The most that one of its checkpoints may hold."""

    @property
    def kept_checkpoints(self) -> int:
        return self.keep_best + 1

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return ("recipe", "family", "phase", "steps", "keep_best", "checkpoint_bytes")

    def check(self) -> None:
        pass


class Families(Mapping[str, type[PhaseRecipe]]):
    """The families of models by name, each as the class of its settings.

    The start of a process provides them (``wiring`` here, the trainer on its machine), before any
    settings are read.
    """

    def __init__(self) -> None:
        self._found: Mapping[str, type[PhaseRecipe]] | None = None
        self._kinds: dict[str, str] = {}

    def provide(self, found: Mapping[str, type[PhaseRecipe]]) -> None:
        self._found, self._kinds = found, {}

    def __getitem__(self, name: str) -> type[PhaseRecipe]:
        return self._provided[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._provided)

    def __len__(self) -> int:
        return len(self._provided)

    def kinds(self) -> Mapping[str, str]:
        """The keys that can be set, those of any family, and the name of each one's type."""
        if not self._kinds:
            self._kinds = {
                field.name: field.type if isinstance(field.type, str) else field.type.__name__
                for family in self.values()
                for field in dataclasses.fields(family)
                if field.name in family.names() and field.name not in _FIXED
            }
        return self._kinds

    @property
    def _provided(self) -> Mapping[str, type[PhaseRecipe]]:
        if self._found is None:
            raise RuntimeError("no model families were given")
        return self._found


FAMILIES = Families()


def kind_of(family: str) -> type[PhaseRecipe]:
    """The class of its settings: of a family that is not known, of what every one takes."""
    return CommandSettings if family == RECIPE else FAMILIES.get(family, PhaseRecipe)


SHAPE_KEYS = ("depth", "width", "head_dim", "vocab_size")
"""Of the settings that every family takes, those with another value of which weights may not
fit."""
_FIXED = ("recipe", "family", "phase")
_POSITIVE = (
    "depth", "width", "head_dim", "vocab_size", "sequence", "batch", "accumulation", "steps",
    "log_every", "eval_every", "eval_tokens", "save_every", "keep_best", *RATES,
)  # fmt: skip
_NOT_NEGATIVE = (
    "seed", "loader_workers", "save_minutes", "weight_decay", "eps", "warmup_steps", "grad_clip",
)  # fmt: skip
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "dtype": DTYPES,
    "float8": FLOAT8_BACKENDS,
    "tokenizer": TOKENIZERS,
    "rows": ROWS,
    "sharding": SHARDINGS,
    **UPDATE_CHOICES,
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
    return key, _typed(key, value.strip(), "--set")


def as_option(key: str, value: Any) -> str:
    """``--set KEY=VALUE``, from which ``parse_setting`` makes the pair again."""
    return f"--set {key}={str(value).lower() if isinstance(value, bool) else value}"


def check_foreign(family: str, keys: Iterable[str], where: str) -> None:
    """
    Raises:
        UsageError: naming the first key that ``family`` does not take, and the nearest it takes.
    """
    taken = kind_of(family).names()
    for key in keys:
        if key not in taken:
            raise UsageError(
                f"{family} has no setting {key!r}",
                where=where,
                next_step=suggest_word(key, [each for each in taken if each not in _FIXED]),
            )


def checked_table(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {key: _typed(key, value, where) for key, value in table.items()}


def _typed(key: str, value: Any, where: str) -> Any:
    kinds = FAMILIES.kinds()
    if key not in kinds:
        why = f"there is no setting {key!r}"
        raise UsageError(why, where=where, next_step=suggest_word(key, kinds))
    kind = kinds[key]
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
            if isinstance(value, float):
                raise ValueError
            return int(str(value).replace("_", ""))
        if kind == "float":
            real = float(value)
            if not math.isfinite(real):
                raise ValueError
            return real
    except ValueError:
        raise wrong from None
    if isinstance(value, str):
        return value
    raise wrong


_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
}


def _check_characters(recipe: PhaseRecipe, where: str) -> None:
    known = len(recipe.characters)
    if known and recipe.tokenizer != "char":
        raise UsageError("characters needs tokenizer=char", where=where)
    if len(set(recipe.characters)) != known:
        raise UsageError("characters has a character twice", where=where)
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


def check_rotary(head_dim: int, where: str) -> None:
    """
    Raises:
        UsageError: rotary positions turn pairs, and there is one number without another.
    """
    if head_dim % 2:
        raise UsageError(
            f"head_dim {head_dim} is odd; rotary positions need an even number",
            where=where,
            next_step=f"--set head_dim={head_dim + 1}",
        )


def check_choice(name: str, value: Any, known: Iterable[str], where: str) -> None:
    """
    Raises:
        UsageError: ``value`` is none of ``known``.
    """
    if value not in known:
        raise UsageError(
            f"{name} must be one of {', '.join(known)}, not {value!r}",
            where=where,
            next_step=suggest_word(str(value), known),
        )


def suggest_word(word: str, words: Any) -> str:
    """Suggest a replacement for ``word``."""
    found = nearest(word, words, likeness=0.5)
    return f"did you mean {found!r}?" if found else f"one of: {', '.join(sorted(words))}"
