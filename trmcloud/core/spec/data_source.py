"""Where training data is made ready, and why: on this machine, or on the one that trains.

A private text goes from here, since it is here; so do sets that are small and whole. Shards that
are downloaded anyway are downloaded, and tokenized, by the machine that trains on them.
"""

from __future__ import annotations

import hashlib
import json

from trmcloud.core.catalog.datasets import DataSet
from trmcloud.core.spec.settings import SEGMENTS, PhaseRecipe
from trmcloud.core.values import dataclass

KEY_CHARS = 16


@dataclass(frozen=True)
class DataSource:
    """What a run trains on. ``data_set`` is None for files of this machine."""

    name: str
    """A data set's name, an address, or an absolute path."""
    data_set: DataSet | None = None
    sent_bytes: int = 0
    """The size of a folder that is sent as it is, for a command."""

    @property
    def made_there(self) -> bool:
        """Whether the machine that trains makes it ready while it trains."""
        return self.data_set is not None and not self.data_set.is_whole

    def where_and_why(self, *, rented: bool) -> str:
        """``fineweb-edu: made on the rented machine, …``."""
        there = "on the rented machine" if rented else "on this machine, beside training"
        if self.data_set is None:
            what = "made ready here and sent" if rented else "made ready here first"
            return f"{self.name}: {what}, since the text is on this machine"
        if not self.made_there:
            what = "made ready here and sent" if rented else "made ready here first"
            return f"{self.name}: {what}, since it is small and whole"
        if self.data_set.layout == "generated":
            return f"{self.name}: made {there}, from a formula: nothing is sent or downloaded"
        if rented:
            return f"{self.name}: made {there}, whose line and cores are faster than sending it"
        return f"{self.name}: made {there}: shards come while earlier ones are trained on"


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
        str(settings.seed) if data_set is not None and data_set.layout == "generated" else "",
        *([SEGMENTS] if settings.rows == SEGMENTS else []),
        *more,
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:KEY_CHARS]
