"""``dataclass(frozen=True)`` for values that cost next to nothing until they are used.

The standard one looks through the annotations, writes six methods as text and compiles them, for
every class of every module that a command imports: half a millisecond each, and a command imports a
hundred that it never makes one of. Here a class is completed when it is first used: four of the six
methods are shared, and ``__init__`` is written when the first value is made.
``fields``, ``asdict``, ``match`` and the standard ``replace`` know these classes as those of the
standard one, and so does a type checker. What inherits from one is made here, too.

``replace`` is one for values of many fields, of which a plan tries hundreds: it copies what stays.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["Value", "dataclass", "replace"]

_OURS: tuple[dict[str, bool], ...] = ({"frozen": True}, {"frozen": True, "kw_only": True})
"""The options of what is made here; with others it is the standard library's."""

_LOCK = threading.RLock()
"""Two threads may ask for the same class at once; a class completes its bases, too."""
_GIVEN = object()
"""Stands for a default that a factory makes."""


def _dataclass(cls: type[Any] | None = None, /, **options: bool) -> Any:
    def made(cls: type[Any]) -> type[Any]:
        if options not in _OURS:
            return dataclasses.dataclass(**options)(cls)
        cls.__doc__ = cls.__doc__ or cls.__name__  # else its signature is computed, to be its doc
        # A field's default stands where the field does, and another ``__init__`` completes nothing.
        has_own_init = "__init__" in vars(cls)
        at_once = has_own_init or any(
            isinstance(value, dataclasses.Field) for value in vars(cls).values()
        )
        for name in _WHEN_USED:
            if name not in vars(cls):
                setattr(cls, name, _LazyAttribute(cls, name, "kw_only" in options))
        if at_once:
            _complete(cls, "kw_only" in options, has_own_init=has_own_init)
        return cls

    return made if cls is None else made(cls)


def _replace(value: Any, /, **changes: Any) -> Any:
    copied = getattr(value, "__replace__", None)
    return copied(**changes) if copied else dataclasses.replace(value, **changes)


def _not_checked(**_: object) -> Callable[[type[Any]], type[Any]]:
    """Stand for ``dataclass_transform``, which Python 3.10 lacks: it tells type checkers alone."""
    return lambda cls: cls


if TYPE_CHECKING:
    from dataclasses import dataclass, replace
    from typing import dataclass_transform
else:
    dataclass, replace, dataclass_transform = _dataclass, _replace, _not_checked


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Value:
    """The base of families of values, such as events: each subclass is a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True)(cls)


_WHEN_USED = ("__init__", "__setstate__", "__dataclass_fields__", "__match_args__")
"""Without one of these there is no value of a class, and nobody knows its fields."""


class _LazyAttribute:
    """An attribute of ``cls``, which is completed when somebody first asks for it."""

    def __init__(self, cls: type[Any], name: str, kw_only: bool) -> None:
        self._cls, self._name, self._kw_only = cls, name, kw_only

    def __get__(self, value: object | None, owner: type[Any]) -> Any:
        _complete(self._cls, self._kw_only)
        found = vars(self._cls)[self._name]
        return found.__get__(value, owner) if hasattr(found, "__get__") else found


def _complete(cls: type[Any], kw_only: bool, *, has_own_init: bool = False) -> None:
    with _LOCK:
        own = {name for name, value in vars(cls).items() if not isinstance(value, _LazyAttribute)}
        if own.issuperset(_WHEN_USED):
            return
        dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
        for name, made in _methods(cls, has_own_init).items():
            if name not in own:
                setattr(cls, name, made)


class _LazyInit:
    """``__init__`` of ``cls``, written when somebody first asks for it."""

    def __init__(self, cls: type[Any]) -> None:
        self._cls = cls

    def __get__(self, value: object | None, owner: type[Any]) -> Any:
        init = _written_init(self._cls)
        self._cls.__init__ = init
        return init if value is None else init.__get__(value, owner)


def _written_init(cls: type[Any]) -> Any:
    """Write the ``__init__`` of the standard library: each field by its name, defaults as they
    are."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_given": _GIVEN}
    required: list[str] = ["self"]
    items: list[str] = []
    by_name: list[str] = []
    for field in dataclasses.fields(cls):
        name, value = field.name, field.name
        parameter = name
        if field.default is not dataclasses.MISSING:
            known[f"_{name}"] = field.default
            parameter = f"{name}=_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            known[f"_{name}"] = field.default_factory
            parameter, value = f"{name}=_given", f"_{name}() if {name} is _given else {name}"
        (by_name if field.kw_only else required).append(parameter)
        items.append(f"{name!r}: {value}")
    # All at once: field by field costs more than all the rest of many values' lives.
    lines = [f" _set(self, '__dict__', {{{', '.join(items)}}})"]
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    parameters = ", ".join([*required, *(["*", *by_name] if by_name else [])])
    exec(f"def __init__({parameters}):\n" + "\n".join(lines), known)
    init = known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {f.name: f.type for f in dataclasses.fields(cls)} | {"return": None}
    return init


def _methods(cls: type[Any], has_own_init: bool) -> dict[str, Any]:
    fields = dataclasses.fields(cls)
    ordered = tuple(field.name for field in fields)
    names, count = frozenset(ordered), len(ordered)
    made_plainly = not hasattr(cls, "__post_init__") and not has_own_init
    shown = tuple(field.name for field in fields if field.repr)
    key = _key(tuple(field.name for field in fields if field.compare))

    def __repr__(self: Any) -> str:
        inner = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__qualname__}({inner})"

    def __eq__(self: Any, other: object) -> bool:
        return key(self) == key(other) if type(other) is type(self) else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(key(self))

    def __setattr__(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    def __replace__(self: Any, /, **changes: Any) -> Any:
        if not (made_plainly and type(self) is cls):
            return dataclasses.replace(self, **changes)
        values = self.__dict__ | changes
        if len(values) > count:  # beside its fields, what was computed of them, or no field at all
            if not changes.keys() <= names:
                return dataclasses.replace(self, **changes)
            values = {name: values[name] for name in ordered}
        made = object.__new__(cls)
        object.__setattr__(made, "__dict__", values)
        return made

    def __setstate__(self: Any, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    return {
        "__repr__": __repr__,
        "__eq__": __eq__,
        "__hash__": __hash__,
        "__setattr__": __setattr__,
        "__delattr__": __delattr__,
        "__replace__": __replace__,
        "__setstate__": __setstate__,
        "__match_args__": tuple(field.name for field in fields if field.init and not field.kw_only),
        "__init__": _LazyInit(cls),
    }


def _key(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that gives the tuple by which values are compared."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)
