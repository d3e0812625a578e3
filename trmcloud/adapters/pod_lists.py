"""A provider's list of pods, read rarely, and a create that comes back where the provider asks for
time. For providers that are rented by an API of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

from trmcloud.core.errors import ProviderError, ProviderRefused
from trmcloud.ports.compute import Throttled

LONGEST_HOLD_S = 60.0
"""The longest that a list is left alone where the provider asks for it."""
THROTTLED_S = 90.0
"""A create that is only ever asked to come back is given up after this time."""

Row = TypeVar("Row")


class PodList(Generic[Row]):
    """The last list, and its failure. ``read`` asks the provider, ``now`` gives epoch seconds, and
    ``throttled`` is the error of 429 with its ``retry_after_s``. ``lock`` is held in a read."""

    def __init__(
        self,
        read: Callable[[], list[Row]],
        now: Callable[[], float],
        throttled: type[ProviderError],
    ) -> None:
        self._read, self._now, self._throttled = read, now, throttled
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
                is_held = isinstance(error, self._throttled)
                self._hold_s = min(LONGEST_HOLD_S, _retry_after_s(error) or 0.0) if is_held else 0.0
                raise
            self.rows, self._failed, self._hold_s, self._at = rows, None, 0.0, self._now()
            return rows

    def read_before_create(self, fresh_s: float = 0.0) -> list[Row]:
        """Return the rows that a create looks at; those of less than ``fresh_s`` seconds ago are
        not read again. Where they cannot be read, nothing was asked for: that is certain, and
        unlike a create whose answer was lost.

        Raises:
            ProviderError: ``throttled``.
            ProviderRefused: nothing was asked for.
        """
        try:
            return self.get(fresh_s) if fresh_s else self.read()
        except (self._throttled, ProviderRefused):
            raise
        except ProviderError as error:
            raise ProviderRefused(
                f"nothing was asked for, since no list was to be had: {error.what}",
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


def create_patiently(
    create: Callable[[], str],
    *,
    throttled: type[ProviderError],
    untold_wait_s: float,
    now: Callable[[], float],
    sleep: Callable[[float], None],
    asked_again: bool = False,
) -> str:
    """Return what ``create`` returns. After ``throttled`` it is called again, when the provider
    says, else after ``untold_wait_s``, for at most ``THROTTLED_S`` in all. ``asked_again``: whoever
    asks comes back later by himself, and is answered at once.

    Raises:
        Throttled: the provider went on asking for time; nothing was made.
    """
    began_at = now()
    while True:
        try:
            return create()
        except throttled as error:
            told_s = _retry_after_s(error)
            wait_s = max(1.0, told_s if told_s is not None else untold_wait_s)
            waited_s = now() - began_at
            if asked_again or not 0 <= waited_s <= THROTTLED_S - wait_s:
                raise Throttled(
                    f"{error.what} (for {max(wait_s, waited_s):.0f} s; nothing was rented)",
                    where=error.where,
                    next_step="launch again later, or with --wait-for: this account's quota of"
                    " requests is used up",
                    retry_s=told_s or 0.0,
                ) from None
            sleep(wait_s)


def _retry_after_s(error: ProviderError) -> float | None:
    told_s = getattr(error, "retry_after_s", None)
    return float(told_s) if told_s is not None else None
