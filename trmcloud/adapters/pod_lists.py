"""A cached list of a provider's pods, for providers with an adapter of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

from trmcloud.core.errors import ProviderError, ProviderRefused
from trmcloud.ports.compute import ThrottledError

LONGEST_HOLD_S = 60.0
"""The longest that a list is left alone where the provider asks for it."""

Row = TypeVar("Row")


class PodList(Generic[Row]):
    """The last list, and its failure. ``read`` asks the provider, and ``now`` gives epoch seconds.
    ``lock`` is held in a read."""

    def __init__(self, read: Callable[[], list[Row]], now: Callable[[], float]) -> None:
        self._read, self._now = read, now
        self.lock = threading.RLock()
        self.rows: list[Row] = []
        """Of the last list that could be read; empty before the first."""
        self._at: float | None = None
        self._failed: ProviderError | None = None
        self._hold_s = 0.0

    def get(self, fresh_s: float) -> list[Row]:
        """Return the rows, read again where they are ``fresh_s`` old or older, and not held.

        Raises:
            ProviderError: as ``read`` does; again, without asking, while that is fresh.
        """
        with self.lock:
            if self.age_s < max(self._hold_s, fresh_s):
                if self._failed is not None:
                    raise self._failed
                return self.rows
            return self.read()

    def read(self) -> list[Row]:
        """Return the rows, read now.

        Raises:
            ProviderError: as ``read`` does.
        """
        with self.lock:
            try:
                rows = self._read()
            except ProviderError as error:
                self._failed, self._at = error, self._now()
                wait_s = error.retry_after_s if isinstance(error, ThrottledError) else None
                self._hold_s = min(LONGEST_HOLD_S, wait_s or 0.0)
                raise
            self.rows, self._failed, self._hold_s, self._at = rows, None, 0.0, self._now()
            return rows

    def read_before_create(self, fresh_s: float = 0.0) -> list[Row]:
        """Return the rows that a create looks at; those of less than ``fresh_s`` seconds ago are
        not read again. Where they cannot be read, nothing was asked for: that is certain, and
        unlike a create whose answer was lost.

        Raises:
            ThrottledError, ProviderRefused: nothing was asked for.
        """
        try:
            return self.get(fresh_s) if fresh_s else self.read()
        except (ThrottledError, ProviderRefused):
            raise
        except ProviderError as error:
            raise ProviderRefused(
                f"nothing was rented, because the list of pods was not available: {error.what}",
                where=error.where,
                next_step=error.next_step,
            ) from error

    def forget(self) -> None:
        """Have the next look ask again: a pod was made or ended."""
        self._at = None

    @property
    def age_s(self) -> float:
        """Seconds since the last look; infinite before the first, and after a clock that was set
        back, which must not keep an old list fresh for ever."""
        age_s = inf if self._at is None else self._now() - self._at
        return age_s if age_s >= 0 else inf
