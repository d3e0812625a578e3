"""SkyPilot's table of clusters, asked for once for all providers that are rented through it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trmcloud.core.contract.pod_contract import POD_PREFIX, parse_pod_name
from trmcloud.core.errors import ProviderError, ProviderRefused
from trmcloud.providers.skypilot.command import Sky

LIST_FRESH_S = 20.0
"""A list takes SkyPilot seconds of a processor: one serves all who ask within this time."""
LIST_FRESH_NEW_S = 5.0
"""While one is being launched: it may be up at any moment, and be paid for."""
BUSY_AT_MOST_S = 45.0
"""A machine that is busy with other things is asked less often, yet within this time."""
_UNREADABLE = re.compile(rf"\b({POD_PREFIX}-[A-Za-z0-9-]+)\S*: (Failed to query .*)")
"""SkyPilot's warning about a cluster that it could not refresh: it shows the row as it was."""
_EXITED = re.compile(r"KeyError\W+(?:EXITED|TERMINATED|DEAD)\b")
"""Why not, where RunPod says that the pod's container has ended: 0.14.1 knows no such word."""
_QUIET = ("--no-show-managed-jobs", "--no-show-services", "--no-show-pools")

Row = Mapping[str, Any]


class Clusters:
    """Rows of clusters that bear a name of ours. ``now`` is epoch seconds."""

    def __init__(self, sky: Sky, *, now: Callable[[], float] = time.time) -> None:
        self._sky, self._now = sky, now
        self._lock = threading.RLock()
        self._rows: Sequence[Row] = ()
        self._failed: ProviderError | None = None
        self._listed_at: float | None = None
        self._took_s = 0.0
        self.are_cached = False
        """The rows are what SkyPilot last knew: none can be believed to be as it says."""
        self._unreadable: Mapping[str, str] = {}

    def rows(self, *, fresh: bool = False) -> Sequence[Row]:
        """
        Raises:
            ProviderError: SkyPilot cannot be asked.
        """
        with self._lock:
            age_s = self._now() - self._listed_at if self._listed_at is not None else -1.0
            if fresh or not 0 <= age_s < self._fresh_s():
                began = time.monotonic()
                try:
                    self._rows, self.are_cached = self._read()
                    self._failed = None
                except ProviderError as error:
                    self._failed = error
                self._listed_at = self._now()
                # Not by the clock that may be set, or that goes on while the machine sleeps.
                self._took_s = time.monotonic() - began
            if self._failed is not None:
                raise self._failed
            return self._rows

    def _fresh_s(self) -> float:
        """For how long the rows are believed: a machine that is busy with other things must not be
        kept busy with this, but what has exited is paid for until it is looked at again."""
        if any(self.has_exited(str(row["name"])) for row in self._rows):
            return LIST_FRESH_S
        fresh_s = LIST_FRESH_NEW_S if any(map(is_new, self._rows)) else LIST_FRESH_S
        return max(fresh_s, min(3 * self._took_s, BUSY_AT_MOST_S))

    def known(self) -> Sequence[Row]:
        """The rows as they were last read; asks nothing."""
        return self._rows

    def is_unreadable(self, name: str) -> bool:
        """Whether the cluster's row is what SkyPilot last knew: its cloud's answer was no use."""
        return self.are_cached or name in self._unreadable

    def has_exited(self, name: str) -> bool:
        """Whether its cloud says of it what SkyPilot has no word for: nothing runs there now."""
        return _EXITED.search(self._unreadable.get(name, "")) is not None

    def forget(self) -> None:
        """The next who asks gets a fresh list."""
        self._listed_at = None

    @property
    def listed_at(self) -> float | None:
        return self._listed_at

    def _read(self) -> tuple[Sequence[Row], bool]:
        """Fresh rows; where SkyPilot fails over one of them, what it last knew, of which nothing is
        believed but that they are there."""
        words = ("status", *_QUIET, f"{POD_PREFIX}-*")
        self._unreadable = {}
        try:
            rows, said = self._sky.read_and_said(*words, "-r")
            self._unreadable = dict(_UNREADABLE.findall(said))
            return _checked(rows), False
        except ProviderRefused:
            raise
        except ProviderError as error:
            if "KeyError" not in error.what:
                raise
        return _checked(self._sky.read(*words)), True


def is_new(row: Row) -> bool:
    return row.get("status") == "INIT" and row.get("init_kind") == "launching"


def _checked(rows: Any) -> Sequence[Row]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ProviderError("sky status printed no list of clusters")
    return [row for row in rows if parse_pod_name(str(row.get("name"))) is not None]
