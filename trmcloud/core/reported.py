"""Values that a pod reported, which no screen can show as facts. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")
BY_POD = "by the pod's report"
PODS = "pod's"
POD = "pod"
"""``reported_by`` in JSON and in facts of notices."""
MARK = "*"


class ReportedValue(Generic[T]):
    """A value of which this machine knows only that a pod said so.

    It has no text of its own and is no number: a view shows it with ``as_reported``, which says
    whose word it is, and a fact is made of it by ``checked`` alone, from code that looks at bytes
    on this machine. ``here``: the trainer ran on this machine, and its word is not a stranger's.
    """

    __slots__ = ("_told", "here")

    def __init__(self, told: T, *, here: bool = False) -> None:
        self._told, self.here = told, here

    def as_reported(self, words: Callable[[T], str]) -> str:
        """Its words, with whose report they are; of a run on this machine the words alone."""
        said = words(self._told)
        return said if self.here else f"{said} {BY_POD}"

    def as_marked(self, words: Callable[[T], str]) -> str:
        """In a table, below which ``MARK`` is explained."""
        said = words(self._told)
        return said if self.here else f"{said}{MARK}"

    def as_pods(self, words: Callable[[T], str]) -> str:
        """In a line that has room for little: ``pod's bpb 2.31``."""
        said = words(self._told)
        return said if self.here else f"{PODS} {said}"

    @property
    def source(self) -> str | None:
        """The source of the figure, for programs; None where this machine measured it."""
        return None if self.here else POD

    def checked(self, judge: Callable[[T], R]) -> R:
        """The result of ``judge``, which holds the value against bytes on this machine."""
        return judge(self._told)

    def __str__(self) -> str:
        return "(a pod's report)"

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return str(self)

    def __bool__(self) -> bool:
        raise TypeError("a pod's report is no answer to a question of ours")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReportedValue) and (self._told, self.here) == (
            other._told,
            other.here,
        )

    def __hash__(self) -> int:
        return hash((ReportedValue, self.here))
