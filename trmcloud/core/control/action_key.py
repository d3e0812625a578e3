"""How an action is named, and how one can fail. Pure.

The text of a key is what the ledger keeps and what users see; it is written and read here alone.
"""

from __future__ import annotations

import re
from enum import Enum

from trmcloud.core.values import dataclass

_TEXT = re.compile(r"([^/]+)/g([0-9]+)/([a-z]+)(?:-([^/]+))?/([0-9]+)")


@dataclass(frozen=True)
class ActionKey:
    """Which try of which action for which pod of a run: issuing the same one again is safe.

    ``item`` stands beside a verb that may be wanted more than once of a pod: which checkpoint is
    pulled, the how many-eth one is asked for.
    """

    run_id: str
    generation: int
    verb: str
    attempt: int
    item: str = ""

    def __str__(self) -> str:
        name = f"{self.verb}-{self.item}" if self.item else self.verb
        return f"{self.run_id}/g{self.generation}/{name}/{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> ActionKey:
        """
        Raises:
            ValueError: it is no action's.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r:.200} names no action")
        run_id, generation, verb, item, attempt = match.groups()
        return cls(run_id, int(generation), verb, int(attempt), item or "")


class FailureKind(str, Enum):
    """How an action failed, and so what follows."""

    REFUSED = "refused"
    """Nothing happened."""
    NO_CAPACITY = "no_capacity"
    """The create's provider has none left."""
    FINAL = "final"
    """Every other candidate's create would fail as well."""
    AMBIGUOUS = "ambiguous"
    """It may have happened all the same."""
    DAMAGED = "damaged"
    """A pull brought other bits than the manifest names: the link was not to blame."""
    ERROR = "error"
    """Anything else; it may be tried again."""
