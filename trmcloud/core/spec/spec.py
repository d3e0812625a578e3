"""The user's request: the RunSpec, with its deadline and data source. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import field
from datetime import datetime, timedelta, tzinfo
from typing import Any

from trmcloud.core import codec
from trmcloud.core.catalog.datasets import DataSet
from trmcloud.core.catalog.goals import Goal
from trmcloud.core.catalog.hardware import nodes_of
from trmcloud.core.contract.command import Command
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd
from trmcloud.core.spec.settings import SEGMENTS, PhaseRecipe
from trmcloud.core.spec.sweep_wish import SweepWish
from trmcloud.core.values import Value

# When a run must have ended, as a person says it.

_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
MAX_S = 366 * 86_400.0


def parse_deadline(text: str, now: float, zone: tzinfo | None) -> float:
    """Epoch seconds of ``12h``, ``90m``, ``2d``, ``08:00``, ``friday`` or ``2026-11-27[T18:00]``.

    A day means its end, 24:00 in ``zone`` (None: the machine's own); a weekday is the next one,
    today's included; so is a time of day.

    Raises:
        UsageError: not a deadline, not after ``now``, or more than a year away.
    """
    cleaned = text.strip().lower()
    at = _span(cleaned, now)
    if at is None:
        at = _day(cleaned, now, zone) or _clock_time(cleaned, now, zone)
    if at is None:
        at = _instant(text.strip(), zone)
    if at is None:
        raise UsageError(
            f"--deadline: {text!r} is not a time",
            next_step="--deadline 12h, 08:00, friday or 2026-11-27T18:00",
        )
    if not now < at:
        raise UsageError(f"--deadline: {text!r} is not in the future", next_step="--deadline 12h")
    if at > now + MAX_S:
        raise UsageError(f"--deadline: {text!r} is more than a year away")
    return at


MOST_WAIT_S = 7 * 86_400.0
LEAST_IDLE_S = 60.0
"""Prices and plans are not trusted for longer."""


def parse_wait(flag: str, text: str) -> float:
    """Seconds of ``6h``, ``90m`` or ``2d``, the longest time to wait for a machine.

    Raises:
        UsageError: not a length of time, none, or more than a week.
    """
    seconds = _span(text.strip().lower(), 0.0)
    if not seconds or seconds > MOST_WAIT_S:
        raise UsageError(
            f"{flag}: {text!r} is not a duration of up to a week", next_step=f"{flag} 6h, 90m or 2d"
        )
    return seconds


def parse_idle(flag: str, text: str) -> float:
    """Seconds of ``30m``, ``2h`` or ``0``, which is no limit.

    Raises:
        UsageError: not a length of time, or less than a minute.
    """
    plain = text.strip().lower()
    seconds = _span(plain, 0.0)
    if plain != "0" and (seconds is None or not LEAST_IDLE_S <= seconds <= MOST_WAIT_S):
        raise UsageError(
            f"{flag}: {text!r:.40} is not a duration from 1 minute to a week",
            next_step=f"{flag} 30m",
        )
    return seconds or 0.0


def _span(text: str, now: float) -> float | None:
    if not text or text[-1] not in _UNITS_S:
        return None
    try:
        number = float(text[:-1])
    except ValueError:
        return None
    seconds = number * _UNITS_S[text[-1]]
    return now + seconds if 0 < seconds < float("inf") else now


def _day(text: str, now: float, zone: tzinfo | None) -> float | None:
    names = [day for day in _DAYS if len(text) >= 3 and day.startswith(text)]
    if len(names) != 1:
        return None
    today = datetime.fromtimestamp(now, zone)
    ahead = (_DAYS.index(names[0]) - today.weekday()) % 7
    end = today.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=ahead + 1)
    return end.timestamp()


def _clock_time(text: str, now: float, zone: tzinfo | None) -> float | None:
    try:
        clock = datetime.strptime(text, "%H:%M")
    except ValueError:
        return None
    at = datetime.fromtimestamp(now, zone).replace(
        hour=clock.hour, minute=clock.minute, second=0, microsecond=0
    )
    return (at if at.timestamp() > now else at + timedelta(days=1)).timestamp()


def _instant(text: str, zone: tzinfo | None) -> float | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    if len(text) <= 10:
        at += timedelta(days=1)
    return (at if at.tzinfo else at.replace(tzinfo=zone)).timestamp()


# Where training data is made ready, and why: on this machine, or on the one that trains.
#
# A private text goes from here, since it is here; so do sets that are small and whole. Shards
# that are downloaded anyway are downloaded, and tokenized, by the machine that trains on them.

KEY_CHARS = 16


class DataSource(Value):
    """The training data of a run. ``data_set`` is None for files of this machine."""

    name: str
    """A data set's name, an address, or an absolute path."""
    data_set: DataSet | None = None
    sent_bytes: int = 0
    """The size of a folder that is sent as it is, for a command."""

    @property
    def made_there(self) -> bool:
        """Whether the machine that trains makes it ready while it trains."""
        return self.data_set is not None and not self.data_set.is_whole

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a user should know of the text before paying for a training on it."""
        if self.data_set is None:
            return ()
        told = []
        if "commercial" in self.data_set.licence:
            told.append(f"{self.name} is licensed {self.data_set.licence}")
        if self.data_set.is_generated:
            made = "sums" if self.data_set.layout == "generated" else "puzzles"
            told.append(f"{self.name}: {made} made by a formula, not language")
        return tuple(told)

    def where_and_why(self, *, rented: bool) -> str:
        """``fineweb-edu: made on the rented machine, …``."""
        there = "on the rented machine" if rented else "on this machine, during training"
        if self.data_set is None:
            what = "prepared locally and sent" if rented else "prepared locally"
            return f"{self.name}: {what} (the text is on this machine)"
        if not self.made_there:
            what = "prepared locally and sent" if rented else "prepared locally"
            return f"{self.name}: {what} (small)"
        if self.data_set.is_generated:
            return f"{self.name}: made {there} from a formula (no download)"
        if rented:
            return f"{self.name}: prepared {there} (faster than sending it)"
        return f"{self.name}: prepared {there}"


def growing_key(source: DataSource, settings: PhaseRecipe, *more: str) -> str:
    """A name for a folder that grows: the source and all that shapes its tokens.

    Args:
        more: what else tells it from another one: a tokenizer that was given, a length.
    """
    data_set = source.data_set
    parts = [
        source.name,
        json.dumps(data_set.to_json(), sort_keys=True) if data_set is not None else "",
        settings.tokenizer,
        settings.characters,
        str(settings.text_ids),
        repr(settings.validation_fraction),
        str(settings.seed) if data_set is not None and data_set.is_generated else "",
        *([SEGMENTS] if settings.rows == SEGMENTS else []),
        *more,
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:KEY_CHARS]


# What the user wants: the RunSpec, as plain data.

KEEP, DELETE_FETCHED, DELETE = "keep", "delete-fetched", "delete"
THEN = (KEEP, DELETE_FETCHED, DELETE)
"""The actions on a volume after its day: none; deletion once the best and the latest checkpoints
are here, verified; deletion with all its content."""

CHEAPEST = "cheapest"
OBJECTIVES = ("value", CHEAPEST, "fastest", "most-training")

STOP, WARN, IGNORE = "stop", "warn", "ignore"
BALANCE_POLICIES = (STOP, WARN, IGNORE)
"""What follows where the provider's balance will not last: the run lands before it ends; a warning;
nothing, it is not read."""

CONTINUE = "continue"
SLOW_POLICIES = (STOP, CONTINUE)
TIGHT, AT_BUDGET = "tight", "budget"
"""Where the stop of a run is whose length is its work: see ``--stop``."""
"""The consequence where a machine's measured pace is slower than the plan's P90, or its work no
longer fits: a landing; a notification alone."""
_EARLIER_SLOW_POLICIES = {"move": CONTINUE}
"""What plans of earlier versions ask for, and what follows instead."""

GUIDE_HOUR_VALUE = Usd(18)
"""The guides' own figure for what an hour of waiting is worth."""


class RunSpec(Value):
    """One wish, complete and checked; every field is shown in the Plan, "off" included.

    ``hardware`` is the canonical request (``8xA100``, ``2x8xA100``, ``local``) or empty for "any";
    ``processes`` counts torchrun's processes where hardware is ``local``. ``steps``, ``hours`` and
    ``tokens`` end a phase early and are exclusive. ``phases`` is in running order.
    """

    recipe: str
    phases: tuple[str, ...]
    hardware: str = ""
    processes: int = 0
    budget: Usd | None = field(default=None, metadata=codec.kept_as("budget_usd"))
    rate: Usd | None = field(default=None, metadata=codec.kept_as("rate_usd_per_hour"))
    """USD/h of this machine; for ``local`` only."""
    data: str = ""
    chat_data: str = ""
    """Conversations for the chat phase; empty: those of the recipe."""
    overrides: tuple[tuple[str, Any], ...] = ()
    steps: int | None = None
    hours: float | None = None
    tokens: int | None = None
    initial_from: str = ""
    """Checkpoint folder or run whose weights the first phase starts from."""
    patience: int = 0
    """The most evaluations in a row without a better one; 0: any number."""
    objective: str = "value"
    hour_value: Usd = field(default=GUIDE_HOUR_VALUE, metadata=codec.kept_as("hour_value_usd"))
    """USD that an hour of waiting is worth."""
    deadline_at: float | None = None
    """Epoch s by which the run must have ended; None: no deadline."""
    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    """Whom and where to rent from; empty: anywhere."""
    gpus: int = 0
    """GPUs of the machine; 0: any number."""
    gpu_memory_gb: float = 0.0
    """The least memory that each of them has; 0: any."""
    spot: bool = False
    """Interruptible offers, too."""
    community: bool = False
    """Hosts of private sellers, too."""
    volume: bool = False
    """Keep checkpoints on a network volume, which outlives the pod where no controller pulls."""
    volume_days: float = 7.0
    """For how many days after the run the volume's rent is reserved."""
    volume_then: str = "keep"
    """The action on it then: see ``THEN``."""
    bucket: str = ""
    """s3://bucket/prefix where checkpoints survive both the pod and this machine."""
    bucket_relayed: bool = False
    """The bucket takes no presigned requests: what is pulled here is uploaded from here."""
    fill: bool = False
    """Train on as many tokens as budget or deadline buy, landing at the end of them."""
    equal_work: bool = False
    """The same tokens on every hardware: those of the recipe's reference row."""
    command: Command | None = None
    """A trainer of the user's own, in place of a recipe's."""
    balance: str = WARN
    """What follows where the provider's balance will not last: see ``BALANCE_POLICIES``."""
    fit_balance: bool = False
    """The budget is shortened to what the provider's balance leaves free."""
    wait_s: float = 0.0
    """For how long it asks again where no machine can be had; 0: each candidate is tried once."""
    max_rate: Usd | None = field(default=None, metadata=codec.kept_as("max_rate_usd_per_hour"))
    """The most USD/h that a rented machine may be billed at, all its GPUs together; None: what is
    planned."""
    if_slow: str = CONTINUE
    """The consequence where the machine is measured to be slow: see ``SLOW_POLICIES``."""
    goal: Goal | None = None
    """The published result that it is to reach; None: it has none."""
    sweep: SweepWish | None = None
    """The settings to search; None: one training."""
    idle_s: float = 0.0
    """A run is ended that has made no step for so long, or, of a command that tells of no steps,
    whose GPUs have computed nothing; 0: it is not."""

    @property
    def is_open_ended(self) -> bool:
        """Whether its limits end it, and not a number of steps: a command, or a sweep."""
        return self.command is not None or self.sweep is not None

    @property
    def pod_uploads(self) -> bool:
        """Its pod itself brings checkpoints to where they survive."""
        return bool(self.bucket) and not self.bucket_relayed

    @property
    def nodes(self) -> int:
        """Machines that train together."""
        return nodes_of(self.hardware)

    @property
    def fills(self) -> bool:
        """Length is what the budget buys, not what the recipe says."""
        return self.fill or self.objective == "most-training"

    def to_json(self) -> dict[str, Any]:
        return codec.to_json(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunSpec:
        slow = data.get("if_slow", CONTINUE)
        return codec.from_json(cls, {**data, "if_slow": _EARLIER_SLOW_POLICIES.get(slow, slow)})
