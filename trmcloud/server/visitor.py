"""Who asks the page, as far as the page shows less to some: set by the server in front of it."""

from __future__ import annotations

from typing import Any

from trmcloud.core.values import dataclass
from trmcloud.ports.team import Raise

_KEY = "trmcloud.visitor"


@dataclass(frozen=True)
class Visitor:
    """``projects``: those whose runs are shown; empty: all. ``raises``: commands that wait for a
    second person."""

    projects: tuple[str, ...] = ()
    raises: tuple[Raise, ...] = ()

    def sees(self, project: str) -> bool:
        return not self.projects or project in self.projects


EVERYTHING = Visitor()
"""Of ``trmcloud ui``: the ledger's owner."""


def set_visitor(scope: Any, visitor: Visitor) -> None:
    scope[_KEY] = visitor


def visitor_of(scope: Any) -> Visitor:
    found = scope.get(_KEY, EVERYTHING)
    assert isinstance(found, Visitor)
    return found
