"""The space of settings that a sweep searches, and its points. Pure.

Grammar of a word, one parameter each; parentheses may replace the colon, and need quotes in a
shell, as | does::

    NAME=DOMAIN[@PARENT=VALUE[|VALUE…]]

    lr=log:1e-4,1e-2             a real number, uniform in its logarithm; or lr=log(1e-4,1e-2)
    dropout=uniform:0,0.5        a real number
    width=int:64,256,step=32     a whole number; both ends are included
    batch=logint:8,512           a whole number, uniform in its logarithm
    depth=2|4|8                  one of these; commas do as well: depth=2,4,8
    epochs=3                     a constant
    muon_lr=log:1e-3,1e-1@optimizer=muon     exists only where optimizer is muon

The same as tables, as TOML gives them: ``lr = {log = [1e-4, 1e-2]}``, ``depth = [2, 4, 8]``,
``epochs = 3``, ``muon_lr = {log = [1e-3, 1e-1], when = {optimizer = "muon"}}``.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from trmcloud.core.errors import UsageError
from trmcloud.core.nearest import suggest_name
from trmcloud.core.text import one_line
from trmcloud.core.values import dataclass, replace

Value = float | int | str | bool
Point = tuple[tuple[str, Value], ...]
"""(name, value) pairs in the space's order, without the parameters that do not exist there."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_CALL = re.compile(r"(log|uniform|int|logint)(?::(.*)|\((.*)\))", re.DOTALL)
_CONDITION = re.compile(r"(.*)@([A-Za-z_][A-Za-z0-9_.-]*)=(.+)", re.DOTALL)
_INTEGER = re.compile(r"[+-]?[0-9]{1,15}")
_REAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
_DIGITS = 6
_MOST_WHOLE = 2**53
"""Whole numbers beyond this are no longer exact in JSON readers that use floats."""
_EXAMPLE = "like lr=log:1e-4,1e-2, width=int:64,256, depth=2,4,8"


class Kind(str, Enum):
    """How a parameter's values are distributed."""

    CONSTANT = "constant"
    CHOICE = "choice"
    UNIFORM = "uniform"
    LOG = "log"
    INT = "int"
    LOGINT = "logint"


_WHOLE = frozenset({Kind.INT, Kind.LOGINT})
_LOGARITHMIC = frozenset({Kind.LOG, Kind.LOGINT})
_NAMED = frozenset({Kind.CONSTANT, Kind.CHOICE})
_RANGES = tuple(kind for kind in Kind if kind not in _NAMED)


@dataclass(frozen=True)
class Parameter:
    """A setting and its values: ``values`` of constants and choices, else ``low`` to ``high``, both
    included, whole numbers in steps of ``step`` from ``low``. It exists where ``parent`` has one of
    the values ``when``; ``parent`` empty: everywhere."""

    name: str
    kind: Kind
    low: float = 0.0
    high: float = 0.0
    step: int = 1
    values: tuple[Value, ...] = ()
    parent: str = ""
    when: tuple[Value, ...] = ()

    @property
    def count(self) -> float:
        """How many values there are; infinite for real numbers."""
        if self.kind in _NAMED:
            return len(self.values)
        if self.kind in _WHOLE:
            return (self.high - self.low) // self.step + 1
        return math.inf

    @property
    def is_fixed(self) -> bool:
        return self.count == 1

    @property
    def is_logarithmic(self) -> bool:
        return self.kind in _LOGARITHMIC

    @property
    def is_ordered(self) -> bool:
        """Whether nearer values are more alike: not so among a choice's words."""
        return self.kind not in _NAMED or all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in self.values
        )

    def value(self, share: float) -> Value:
        """Return the value at ``share`` (0 to 1) of the distribution."""
        share = min(max(share, 0.0), 1.0)
        if self.kind in _NAMED:
            return self.values[min(int(share * len(self.values)), len(self.values) - 1)]
        if self.kind is Kind.INT:
            return int(self.low) + min(int(share * self.count), int(self.count) - 1) * self.step
        if self.kind is Kind.LOGINT:
            # Half a step beyond both ends, so that the ends are as likely as their neighbours.
            low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
            return self._nearest(math.exp(low + share * (high - low)))
        if self.kind is Kind.LOG:
            low, high = math.log(self.low), math.log(self.high)
            found = math.exp(low + share * (high - low))
        else:
            found = self.low + share * (self.high - self.low)
        return min(max(float(f"{found:.{_DIGITS}g}"), self.low), self.high)

    def share(self, value: Value) -> float:
        """Return where ``value`` is in the distribution, 0 to 1; values beyond the ends are at
        them. ``value(share(v))`` is ``v``, up to the digits that are kept."""
        if self.kind in _NAMED:
            place = self.values.index(value) if value in self.values else 0
            return (place + 0.5) / len(self.values)
        number = min(max(float(value), self.low), self.high)
        if self.kind is Kind.INT:
            return ((number - self.low) // self.step + 0.5) / self.count
        ends = self.low, self.high
        if self.kind is Kind.LOGINT:
            ends = self.low - 0.5, self.high + 0.5
        low, high, number = (
            (math.log(ends[0]), math.log(ends[1]), math.log(number))
            if self.is_logarithmic
            else (*ends, number)
        )
        return (number - low) / (high - low) if high > low else 0.5

    def contains(self, value: Value) -> bool:
        if self.kind in _NAMED:
            return value in self.values
        if isinstance(value, bool | str) or not self.low <= value <= self.high:
            return False
        return self.kind not in _WHOLE or (value - self.low) % self.step == 0

    def cut(self, parts: int) -> tuple[Parameter, ...]:
        """Return it in ``parts`` of about equal shares, at most ``count``: together they have all
        its values, and no value of a choice or whole number twice."""
        places = [int(min(self.count, 2**53)) * part // parts for part in range(parts + 1)]
        if self.kind in _NAMED:
            return tuple(self._of(self.values[one:end]) for one, end in itertools.pairwise(places))
        apart = self.step if self.kind in _WHOLE else 0
        ends: list[float]
        if self.kind is Kind.INT:
            ends = [self.low + place * apart for place in places]
        else:
            ends = [float(self.value(part / parts)) for part in range(parts + 1)]
        if self.kind is Kind.LOGINT:  # near its low end several shares have the same number
            for part in range(1, parts):
                ends[part] = max(ends[part], ends[part - 1] + apart)
            ends[-1] += apart
        return tuple(self._range(one, end - apart) for one, end in itertools.pairwise(ends))

    def _range(self, low: float, high: float) -> Parameter:
        return self._of((low,)) if low == high else replace(self, low=low, high=high)

    def _of(self, values: tuple[Value, ...]) -> Parameter:
        kind = Kind.CONSTANT if len(values) == 1 else Kind.CHOICE
        return Parameter(self.name, kind, values=values)

    def _nearest(self, number: float) -> int:
        steps = round((number - self.low) / self.step)
        return int(self.low) + min(max(steps, 0), int(self.count) - 1) * self.step

    def __str__(self) -> str:
        if self.kind in _NAMED:
            text = "|".join(format_value(value) for value in self.values)
        else:
            step = f",step={self.step}" if self.step != 1 else ""
            text = f"{self.kind.value}:{format_value(self.low)},{format_value(self.high)}{step}"
        when = "|".join(format_value(value) for value in self.when)
        return f"{self.name}={text}" + (f"@{self.parent}={when}" if self.parent else "")


@dataclass(frozen=True)
class Space:
    """Parameters, each after its parent."""

    parameters: tuple[Parameter, ...]

    @property
    def free(self) -> tuple[Parameter, ...]:
        """The parameters with more than one value."""
        return tuple(each for each in self.parameters if not each.is_fixed)

    @property
    def count(self) -> float:
        """The most points that there can be: exact without conditions; infinite with a real
        number."""
        return math.prod(each.count for each in self.parameters)

    @property
    def is_one_point(self) -> bool:
        return not self.free

    def divided(self, parts: int) -> tuple[Space, ...]:
        """Return ``parts`` spaces that share its points out: one parameter's values are cut.

        Raises:
            UsageError: no parameter that exists everywhere, and none depends on, has so many.
        """
        bound = {each.parent for each in self.parameters}
        able = [each for each in self.parameters if not each.parent and each.name not in bound]
        widest = max(able, key=lambda each: each.count, default=None)
        if widest is None or widest.count < parts:
            most = int(widest.count) if widest is not None else 1
            raise UsageError(
                f"no setting has {parts} values that can be shared out over {parts} machines",
                next_step=f"--machines {most}" if most > 1 else "leave --machines out",
            )
        return tuple(
            Space(tuple(part if each is widest else each for each in self.parameters))
            for part in widest.cut(parts)
        )

    def point(self, shares: Sequence[float]) -> Point:
        """Return the point at ``shares``, one for each of ``free``."""
        places = iter(shares)
        return self.make(
            {
                each.name: each.value(0.0 if each.is_fixed else next(places))
                for each in self.parameters
            }
        )

    def shares(self, point: Point) -> tuple[float | None, ...]:
        """Return where the point is along each of ``free``; None where the parameter does not
        exist at it."""
        values = dict(point)
        return tuple(
            each.share(values[each.name]) if each.name in values else None for each in self.free
        )

    def points(self) -> Iterator[Point]:
        """All points of a space without real numbers, each once."""
        counts = [int(each.count) for each in self.parameters]
        seen = set()
        for places in itertools.product(*map(range, counts)):
            point = self.make(
                {
                    each.name: each.value((place + 0.5) / count)
                    if each.kind is not Kind.LOGINT
                    else int(each.low) + place * each.step
                    for each, place, count in zip(self.parameters, places, counts, strict=True)
                }
            )
            if point not in seen:
                seen.add(point)
                yield point

    def make(self, values: Mapping[str, Value]) -> Point:
        """Return the point with these values, without those whose condition does not hold."""
        made: dict[str, Value] = {}
        for each in self.parameters:
            if not each.parent or made.get(each.parent) in each.when:
                made[each.name] = values[each.name]
        return tuple(made.items())

    def default(self, known: Mapping[str, Value]) -> tuple[Point, tuple[str, ...]]:
        """Return the point that all others are compared with, and the names whose value is not
        in ``known``: these are at the middle of their range, or the first of their choice. Known
        values may be outside of the range.

        Raises:
            UsageError: ``known`` has a name that the space does not.
        """
        names = [each.name for each in self.parameters]
        for name in known:
            if name not in names:
                raise UsageError(
                    f"the default has {name!r}, which is not in the space",
                    next_step=suggest_name(name, names),
                )
        assumed = tuple(
            each.name for each in self.parameters if each.name not in known and not each.is_fixed
        )
        middle = {
            each.name: each.values[0] if each.kind in _NAMED else each.value(0.5)
            for each in self.parameters
        }
        point = self.make(middle | dict(known))
        here = dict(point)
        return point, tuple(name for name in assumed if name in here)

    def check(self) -> None:
        """
        Raises:
            UsageError: it has no parameter, a name twice, or a condition that never holds.
        """
        if not self.parameters:
            raise UsageError("the space has no parameter", next_step=f"name one, {_EXAMPLE}")
        before: dict[str, Parameter] = {}
        for each in self.parameters:
            if each.name in before:
                raise UsageError(
                    f"{each.name} stands twice in the space", next_step="keep one of the two"
                )
            if each.parent:
                _check_condition(each, before.get(each.parent), list(before))
            before[each.name] = each


def read_words(words: Iterable[str]) -> Space:
    """Return the space of ``NAME=DOMAIN`` words.

    Raises:
        UsageError: with the word and how it should look.
    """
    return _ordered([_read_word(word) for word in words])


def read_tables(tables: Mapping[str, Any]) -> Space:
    """Return the space of a TOML file's table, by the names of its parameters.

    Raises:
        UsageError: with the name and how it should look.
    """
    return _ordered([_read_entry(name, entry) for name, entry in tables.items()])


def read_default(words: Iterable[str]) -> dict[str, Value]:
    """Return the values of ``NAME=VALUE`` words.

    Raises:
        UsageError: one is none.
    """
    found = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not sign or not _NAME.fullmatch(name):
            raise UsageError(f"{_shown(word)} is not NAME=VALUE", next_step="write it like lr=3e-4")
        found[name] = read_value(text)
    return found


def read_value(text: str) -> Value:
    """Return the text as the whole number, real number or boolean that it is, else as it is."""
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _REAL.fullmatch(text) else text


def format_value(value: Value) -> str:
    """The value as a command's word or a setting's text; ``read_value`` restores it, but for whole
    numbers, which lose their point."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, float):
        return str(value)
    short = f"{value:.{_DIGITS}g}"
    return short if float(short) == value else repr(value)


def format_point(point: Point) -> str:
    """``lr=0.001 width=64``"""
    return " ".join(f"{name}={format_value(value)}" for name, value in point)


def _ordered(parameters: list[Parameter]) -> Space:
    """Return the checked space, each parameter after its parent."""
    names = {each.name for each in parameters}
    waiting, ordered = list(parameters), list[Parameter]()
    while waiting:
        made = {each.name for each in ordered}
        ready = [each for each in waiting if each.parent in made or each.parent not in names]
        if not ready:
            names_left = ", ".join(each.name for each in waiting)
            raise UsageError(
                f"the conditions of {names_left} depend on one another",
                next_step="remove one of the conditions",
            )
        ordered += ready
        waiting = [each for each in waiting if each not in ready]
    space = Space(tuple(ordered))
    space.check()
    return space


def _check_condition(one: Parameter, parent: Parameter | None, before: list[str]) -> None:
    if parent is None:
        raise UsageError(
            f"{one.name} depends on {one.parent!r}, which is not in the space",
            next_step=suggest_name(one.parent, before) if before else f"add {one.parent}=…",
        )
    if parent.kind not in _NAMED:
        raise UsageError(
            f"{one.name} depends on {parent.name}, which is a range",
            next_step=f"make {parent.name} a choice, like {parent.name}=a|b",
        )
    for value in one.when:
        if value not in parent.values:
            raise UsageError(
                f"{one.name} depends on {parent.name}={format_value(value)}, which cannot be",
                next_step=suggest_name(
                    format_value(value), [format_value(each) for each in parent.values]
                ),
            )


def _read_word(word: str) -> Parameter:
    name, sign, domain = word.partition("=")
    if not sign or not domain or not _NAME.fullmatch(name):
        raise UsageError(f"{_shown(word)} is not NAME=VALUES", next_step=f"write it {_EXAMPLE}")
    parent, when = "", tuple[Value, ...]()
    if (found := _CONDITION.fullmatch(domain)) is not None:
        domain, parent, texts = found.groups()
        when = _read_values(name, re.split(r"[|,]", texts))
    if (called := _CALL.fullmatch(domain)) is not None:
        kind, *either = called.groups()
        options = [text.strip() for text in (either[0] or either[1] or "").split(",")]
        return _ranged(name, Kind(kind), options, parent, when)
    if re.match(r"[A-Za-z_]+\(", domain):
        raise UsageError(
            f"{_shown(word)} has an unknown distribution",
            next_step=suggest_name(domain.partition("(")[0], [each.value for each in _RANGES]),
        )
    return _named(name, _read_values(name, re.split(r"[|,]", domain)), parent, when)


def _read_values(name: str, texts: list[str]) -> tuple[Value, ...]:
    if not all(text.strip() for text in texts):
        raise UsageError(f"{name} has an empty value", next_step=f"write it like {name}=a|b")
    return tuple(read_value(text.strip()) for text in texts)


def _read_entry(name: str, entry: Any) -> Parameter:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{_shown(name)} is not a parameter's name", next_step=_EXAMPLE)
    if not isinstance(entry, Mapping):
        return _named(name, _plain_values(name, entry), "", ())
    condition = entry.get("when", {})
    if not isinstance(condition, Mapping) or len(condition) > 1:
        raise UsageError(
            f"{name} has a condition of more than one parameter, or none",
            next_step='write it like when = {optimizer = "muon"}',
        )
    parent, when = "", tuple[Value, ...]()
    for parent, values in condition.items():  # noqa: B007
        when = _plain_values(name, values)
    kinds = [key for key in entry if key not in ("when", "step")]
    if len(kinds) != 1 or kinds[0] not in (*(each.value for each in _RANGES), "choice"):
        raise UsageError(
            f"{name} needs one of log, uniform, int, logint, choice",
            next_step=f"write it like {name} = {{log = [1e-4, 1e-2]}}",
        )
    (kind,) = kinds
    if kind == "choice":
        return _named(name, _plain_values(name, entry[kind]), parent, when)
    ends = entry[kind] if isinstance(entry[kind], list) else [entry[kind]]
    step = [f"step={entry['step']}"] if "step" in entry else []
    return _ranged(name, Kind(kind), [*map(str, ends), *step], parent, when)


def _plain_values(name: str, entry: Any) -> tuple[Value, ...]:
    values = entry if isinstance(entry, list) else [entry]
    for value in values:
        if not isinstance(value, bool | int | float | str) or value != value:
            raise UsageError(
                f"{name} has {value!r:.40}, which is no number, text or boolean",
                next_step=f"write it like {name} = [2, 4, 8]",
            )
    return tuple(values)


def _named(name: str, values: tuple[Value, ...], parent: str, when: tuple[Value, ...]) -> Parameter:
    if not values:
        raise UsageError(f"{name} has no value", next_step=f"write it like {name}=2|4|8")
    if len({(type(value), value) for value in values}) < len(values):
        raise UsageError(f"{name} has a value twice", next_step="name each value once")
    kind = Kind.CONSTANT if len(values) == 1 else Kind.CHOICE
    return Parameter(name, kind, values=values, parent=parent, when=when)


def _ranged(
    name: str, kind: Kind, options: list[str], parent: str, when: tuple[Value, ...]
) -> Parameter:
    example = f"{name}={kind.value}:" + ("8,512" if kind in _WHOLE else "1e-4,1e-2")
    numbers, step = [], 1
    for option in options:
        key, sign, text = option.partition("=")
        number = read_value(text if sign else option)
        if isinstance(number, bool | str) or (sign and key.strip() != "step"):
            raise UsageError(
                f"{name} has {_shown(option)}, which is no number",
                next_step=f"write it like {example}",
            )
        if not sign:
            numbers.append(number)
        elif kind in _WHOLE and isinstance(number, int) and number > 0:
            step = number
        else:
            raise UsageError(
                f"{name} has step {_shown(text)}", next_step="a step is a whole number of int's"
            )
    if len(numbers) != 2:
        raise UsageError(
            f"{name} needs two ends, and has {len(numbers)}", next_step=f"write it like {example}"
        )
    low, high = numbers
    if kind in _WHOLE and not (isinstance(low, int) and isinstance(high, int)):
        raise UsageError(
            f"{name} needs whole numbers", next_step=f"write it like {example}, or uniform:…"
        )
    if not (math.isfinite(low) and math.isfinite(high) and max(abs(low), abs(high)) < _MOST_WHOLE):
        raise UsageError(f"{name} has an end that is too large", next_step=f"like {example}")
    if low > high:
        raise UsageError(
            f"{name} ends at {format_value(high)}, below its start",
            next_step=f"write {name}={kind.value}:{format_value(high)},{format_value(low)}",
        )
    if kind in _LOGARITHMIC and low <= 0:
        raise UsageError(
            f"{name} starts at {format_value(low)}, which has no logarithm",
            next_step=f"start above 0, or write {name}=" + ("int" if kind in _WHOLE else "uniform"),
        )
    if low == high:
        return Parameter(name, Kind.CONSTANT, values=(low,), parent=parent, when=when)
    if kind in _WHOLE:
        high -= (high - low) % step
        return Parameter(name, kind, low, high, step=step, parent=parent, when=when)
    return Parameter(name, kind, float(low), float(high), parent=parent, when=when)


def _shown(text: str) -> str:
    return repr(one_line(text)[:60])
