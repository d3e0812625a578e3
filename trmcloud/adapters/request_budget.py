"""The requests that all processes of this home together may send to one provider's account.

A provider counts an account's requests, whichever process sends them: launches, guards and status
screens side by side reach its limit though each of them is modest. So they share one small file per
account, and each takes its request from there before it sends it.

Each limit of N requests in W seconds is kept as a bucket of N/2 that is filled with N/2 in W
seconds: within any W seconds no more than N are sent. Where a provider says which limits hold, by
``RateLimit-Policy``, those take the place of the documented ones.

A 429 pauses every process. Each further one doubles the pause, until a request succeeds.

A request that ends a pod never waits for a bucket, and lists, by which an end is proven, may use
what other requests must leave. The file loses nothing that matters: where it cannot be used,
requests are sent without it.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any

from trmcloud.core.catalog.providers import RequestLimit, traits_of
from trmcloud.core.values import Value, replace
from trmcloud.ports.compute import ThrottledError

FOLDER = "requests"
"""Below the home."""
MOST_BYTES = 4096
_MOST_LIMITS = 6
_LOCK_TRIES, _LOCK_PAUSE_S = 50, 0.01
"""A process that was stopped while it had the lock must not stop the others."""
_LONGEST_PAUSE_S = 5.0
"""The longest sleep before the file is read again: another process may have had a 429."""
_LEAST_PAUSE_S = 0.001
"""Epoch seconds as a float are no finer than a quarter of a microsecond."""
DEFAULT_HOLD_S = 2.0
"""The pause after a first 429 that names no time."""
_LONGEST_HOLD_S = 300.0
"""The longest pause that doubling gives; a provider may name a longer one."""
_AGAIN_S = 900.0
"""Where no request was sent for so long after a pause, and its own length, nothing is doubled."""


class Priority(Enum):
    """``reserve``: the share of a bucket that a request must leave. ``most_hold_s``: the longest
    part of a pause for which it waits; ends count it from the last 429."""

    ORDINARY = 0.4, 300.0
    LIST = 0.1, 180.0
    END = -math.inf, 10.0

    @property
    def reserve(self) -> float:
        return self.value[0]

    @property
    def most_hold_s(self) -> float:
        return self.value[1]


class _State(Value):
    """``levels``: requests left in each limit's bucket at ``at`` (epoch s). ``held_at``: the last
    429. ``paused_at`` and ``hold_until``: the last pause; ``paused_at`` is 0 once a request has
    succeeded after it."""

    at: float
    limits: tuple[RequestLimit, ...]
    levels: tuple[float, ...]
    held_at: float = 0.0
    hold_until: float = 0.0
    paused_at: float = 0.0


class RequestBudget:
    """The budget of one account at one provider. ``path`` None: this process's own."""

    def __init__(
        self,
        path: Path | None,
        limits: Sequence[RequestLimit],
        *,
        seller: str = "the provider",
        unlimited_unless_told: bool = False,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``seller``: the provider's name in errors. ``unlimited_unless_told``: the provider says
        in each answer which limits hold, and none do where it says nothing."""
        self._path, self._limits = path, tuple(limits)
        self._seller, self._unlimited_unless_told = seller, unlimited_unless_told
        self._now, self._sleep = now, sleep
        self._own: _State | None = None
        self._taken_after = 0.0
        """``paused_at`` of the pause that the last request waited for; ends wait for none."""
        self._has_warned = False

    def take(self, priority: Priority, wait_s: float, where: str = "") -> float:
        """Take one request, waiting for it up to ``wait_s``; returns the seconds that it waited.
        One that ends a pod waits only after a 429, for ``most_hold_s`` at most. ``where``: the
        request, for the error.

        Raises:
            ThrottledError: it would take longer. Nothing was taken.
        """
        waited_s = 0.0
        while True:
            needed_s = self._try_to_take(priority)
            if needed_s <= 0:
                return waited_s
            if waited_s + needed_s > wait_s and priority is not Priority.END:
                raise ThrottledError(
                    f"the commands of this home sent too many requests to {self._seller}: "
                    "nothing was sent now",
                    where=where,
                    retry_after_s=needed_s,
                    sent=False,
                )
            pause_s = min(max(needed_s, _LEAST_PAUSE_S), _LONGEST_PAUSE_S)
            self._sleep(pause_s)
            waited_s += pause_s

    def hold(self, retry_after_s: float | None) -> None:
        """The provider answered 429: pause all processes for ``retry_after_s``, and for twice the
        last pause, up to 300 s, where no request has succeeded since."""
        with self._opened() as file:
            state, now = self._read(file), self._now()
            self._write(file, _paused(state, now, retry_after_s, self._taken_after))

    def learn(self, policy: str | None, left: str | None) -> None:
        """A request has succeeded: end the pauses, and take over the limits that its answer states.

        They are in the headers ``RateLimit-Policy`` and ``RateLimit`` of the IETF's draft, None
        where there is none. An answer without them says that there are no limits only where the
        provider says so.
        """
        taken_after, self._taken_after = self._taken_after, 0.0
        states = _policy(policy or "")
        if not states and not self._unlimited_unless_told:
            states = self._limits
        spent_s = _until_reset_s(left or "")
        if states == self._limits and not (spent_s or taken_after):
            return
        with self._opened() as file:
            state, now = self._read(file), self._now()
            if taken_after == state.paused_at:  # no other pause has begun since it was sent
                state = replace(state, hold_until=min(state.hold_until, now), paused_at=0.0)
            if state.limits != states:
                state = replace(state, at=now, limits=states, levels=_full(states))
            if spent_s:
                state = _paused(state, now, spent_s, doubles=False)  # no 429
            self._write(file, state)
        self._limits = states

    # -- how -------------------------------------------------------------------------------------

    def _try_to_take(self, priority: Priority) -> float:
        """Seconds until a request can be sent; 0: it was taken."""
        with self._opened() as file:
            now, known = self._now(), self._read(file)
            state = _filled(known, now)
            if known.at > now:
                self._write(file, state)  # its clock was set back: it is filled from here on
            self._limits = state.limits
            held_s = _held_s(state, priority, now)
            if held_s > 0:
                return held_s
            needed_s = 0.0
            for limit, level in zip(state.limits, state.levels, strict=True):
                size = _size(limit)
                least = -math.inf
                if priority is not Priority.END:
                    least = min(size - 1.0, math.floor(priority.reserve * size))
                missing = least + 1.0 - level
                needed_s = max(needed_s, missing * limit.window_s / size if missing > 0 else 0.0)
            if needed_s > 0:
                return needed_s
            left = tuple(
                max(-_size(limit), level - 1.0)
                for limit, level in zip(state.limits, state.levels, strict=True)
            )
            self._write(file, replace(state, levels=left))
            self._taken_after = 0.0 if priority is Priority.END else state.paused_at
            return 0.0

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """The file, locked against other processes and threads; None where that cannot be had."""
        file = None
        try:
            file = self._locked()
        except OSError as error:
            self._warn(error.strerror or str(error))
        try:
            yield file
        finally:
            if file is not None:
                os.close(file)  # and with it the lock

    def _locked(self) -> int | None:
        if self._path is None:
            return None
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            for _ in range(_LOCK_TRIES):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return file
                except BlockingIOError:
                    time.sleep(_LOCK_PAUSE_S)
        except OSError:
            os.close(file)
            raise
        os.close(file)
        return None

    def _read(self, file: int | None) -> _State:
        full = _State(self._now(), self._limits, _full(self._limits))
        if file is None:
            return self._own or full
        try:
            text = os.pread(file, MOST_BYTES + 1, 0)
            return _state_of(text) if text else full
        except OSError as error:
            self._warn(error.strerror or str(error))
            return self._own or full
        except (ValueError, TypeError, KeyError, RecursionError):
            self._warn("it is damaged, and was created again")
            return full

    def _write(self, file: int | None, state: _State) -> None:
        self._own = state
        if file is None:
            return
        text = json.dumps(
            {
                "version": 1,
                "at": state.at,
                "limits": [[limit.requests, limit.window_s] for limit in state.limits],
                "levels": state.levels,
                "held_at": state.held_at,
                "hold_until": state.hold_until,
                "paused_at": state.paused_at,
            }
        ).encode()
        try:
            os.pwrite(file, text, 0)
            os.ftruncate(file, len(text))
        except OSError as error:
            self._warn(error.strerror or str(error))

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{self._path}: {why}: requests are counted only for this command", stacklevel=1
            )


def budget_of(
    home: Path, provider: str, key: str, *, unlimited_unless_told: bool = False
) -> RequestBudget:
    """The budget that the processes of ``home`` share for the account of ``key``. Its file is named
    by the key's hash, which opens nothing."""
    name = f"{provider}-{sha256(key.encode()).hexdigest()[:12]}.json"
    traits = traits_of(provider)
    return RequestBudget(
        home / FOLDER / name,
        traits.request_limits,
        seller=traits.title,
        unlimited_unless_told=unlimited_unless_told,
    )


def _size(limit: RequestLimit) -> float:
    return max(1.0, limit.requests / 2)


def _full(limits: Sequence[RequestLimit]) -> tuple[float, ...]:
    return tuple(_size(limit) for limit in limits)


def _filled(state: _State, now: float) -> _State:
    """Return the buckets as they are filled by ``now``; a clock that was set back adds nothing."""
    passed_s = max(0.0, now - state.at)
    levels = tuple(
        min(_size(limit), level + passed_s * _size(limit) / limit.window_s)
        for limit, level in zip(state.limits, state.levels, strict=True)
    )
    return replace(state, at=now, levels=levels)


def _held_s(state: _State, priority: Priority, now: float) -> float:
    if state.held_at > now:
        return 0.0  # by a clock that has been set back since
    since = state.held_at if priority is Priority.END else state.paused_at
    return min(state.hold_until, since + priority.most_hold_s) - now


def _paused(
    state: _State,
    now: float,
    named_s: float | None,
    taken_after: float = 0.0,
    *,
    doubles: bool = True,
) -> _State:
    """Return the state after a 429 that names ``named_s``. A request that did not wait for the
    pause, since it was under way or ends a pod, neither doubles it nor begins another one."""
    seconds = DEFAULT_HOLD_S if named_s is None else max(0.0, named_s)
    if state.held_at > now:  # by a clock that has been set back since
        return replace(state, held_at=now, hold_until=now + seconds, paused_at=now)
    began_at, pause_s = now, state.hold_until - state.paused_at
    if state.paused_at and now < state.hold_until and taken_after != state.paused_at:
        began_at = state.paused_at
        seconds = 0.0 if named_s is None else seconds
    elif state.paused_at and doubles and now <= state.hold_until + pause_s + _AGAIN_S:
        seconds = max(seconds, DEFAULT_HOLD_S, min(2.0 * pause_s, _LONGEST_HOLD_S))
    until = max(now + seconds, state.hold_until)  # no pause shortens another
    return replace(state, held_at=now, hold_until=until, paused_at=began_at)


def _state_of(text: bytes) -> _State:
    """
    Raises:
        ValueError, TypeError, KeyError: the text is none of ours.
    """
    if len(text) > MOST_BYTES:
        raise ValueError("too long")
    data: Any = json.loads(text)
    limits = tuple(RequestLimit(int(n), float(s)) for n, s in data["limits"])
    levels = tuple(map(float, data["levels"]))
    names = ("at", "held_at", "hold_until", "paused_at")
    at, held_at, hold_until, paused_at = (float(data[name]) for name in names)
    sound = (
        data["version"] == 1
        and len(limits) == len(levels) <= _MOST_LIMITS
        and all(map(math.isfinite, (*levels, at, held_at, hold_until)))
        and 0.0 <= paused_at <= hold_until
        and all(each.requests > 0 and 0 < each.window_s < math.inf for each in limits)
        and all(abs(level) <= _size(each) for each, level in zip(limits, levels, strict=True))
    )
    if not sound:
        raise ValueError("impossible numbers")
    return _State(at, limits, levels, held_at, hold_until, paused_at)


_QUOTA = re.compile(r";\s*q\s*=\s*(\d{1,9})\s*;\s*w\s*=\s*(\d{1,9})")
_REST = re.compile(r";\s*r\s*=\s*(\d{1,9})\s*;\s*t\s*=\s*(\d{1,9})")


def _policy(header: str) -> tuple[RequestLimit, ...]:
    found = [(int(q), int(w)) for q, w in _QUOTA.findall(header[:1000])]
    return tuple(RequestLimit(q, float(w)) for q, w in found if q and w)[:_MOST_LIMITS]


def _until_reset_s(header: str) -> float:
    """Seconds until requests count anew, where none is left; 0 where some are."""
    return max((float(t) for r, t in _REST.findall(header[:1000]) if int(r) == 0), default=0.0)
