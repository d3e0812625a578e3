"""The known name that was most likely meant by a mistyped one."""

from __future__ import annotations

from collections.abc import Iterable

_LIKENESS = 0.4
"""Of two texts, from 0 to 1 as difflib counts it: below this a guess would only confuse."""


def nearest(typed: str, known: Iterable[str], *, likeness: float = _LIKENESS) -> str | None:
    """The one of ``known`` that is most like ``typed``, whatever the case; None where none is."""
    import difflib  # for an error alone

    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(typed.lower(), by_lower, n=1, cutoff=likeness)
    return by_lower[near[0]] if near else None


def suggest_name(typed: str, known: Iterable[str]) -> str:
    """Suggest a replacement: the nearest of ``known``, or any of them."""
    names = list(known)
    found = nearest(typed, names)
    return f"did you mean {found}?" if found else f"one of: {', '.join(names)}"
