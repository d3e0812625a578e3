"""The state of each destination of notifications in one JSON file, and the thread that sends."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import field
from pathlib import Path

from trmcloud.adapters.notify.senders import read_destinations
from trmcloud.core.contract.records import dump, record_of
from trmcloud.core.errors import NotifyError, TrmcloudError
from trmcloud.core.values import Value
from trmcloud.io.files import read_small, write_atomic
from trmcloud.io.locks import locked
from trmcloud.operations.notices.notifications import GIVE_UP_AFTER_S, Notifier
from trmcloud.ports.notices import DeliveryState, Destination, QueuedNotice

NAME = "notified.json"
_VERSION = 1
_OLD_NAME = "outbox.db"
_MOST_BYTES = 64 << 20
_LOCK_WAIT_S = 5.0


class _Notified(Value):
    """``notified.json``."""

    version: int = _VERSION
    destinations: Mapping[str, DeliveryState] = field(default_factory=dict)


class NotifiedFile:
    """The ``Deliveries`` of one home, for its owner alone. Made, with its folder, on first use;
    what an earlier version kept in ``outbox.db`` is taken over then.

    Args:
        report: called with a line where a file could not be read and notifications begin anew.
        wall: epoch s.
    """

    def __init__(
        self, home: Path, report: Callable[[str], None], wall: Callable[[], float] = time.time
    ) -> None:
        self._path, self._report, self._wall = home / NAME, report, wall
        self._aside = home / f"{NAME}.damaged"

    @contextmanager
    def change(self) -> Iterator[dict[str, DeliveryState]]:
        with self._locked():
            before, is_written = self._read()
            states = dict(before)
            yield states
            if states != before or not is_written:
                try:
                    write_atomic(self._path, dump(_Notified(destinations=states)), mode=0o600)
                except OSError as error:
                    raise self._failed(error) from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as held:
            try:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                held.enter_context(locked(self._path.with_suffix(".lock"), _LOCK_WAIT_S))
            except TimeoutError:
                raise NotifyError(
                    f"another process has locked the notifications for {_LOCK_WAIT_S:g} s",
                    where=str(self._path),
                    next_step="try again; if this happens again, look for a trmcloud process "
                    "that hangs",
                ) from None
            except OSError as error:
                raise self._failed(error) from None
            yield

    def _read(self) -> tuple[Mapping[str, DeliveryState], bool]:
        """Return the states, and whether the file has them already."""
        try:
            text = read_small(self._path, _MOST_BYTES)
            if text is None:
                return self._take_over(), False
            data = json.loads(text)
            version = data["version"]
            if version == _VERSION:
                return record_of(_Notified, data).destinations, True
            if type(version) is not int or version < _VERSION:
                raise ValueError(f"its version is {version!r:.20}")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            try:
                os.replace(self._path, self._aside)
            except OSError as failed:
                raise self._failed(failed) from None
            self._report(
                f"{self._path} was damaged ({type(error).__name__}) and was renamed to "
                f"{self._aside.name}; notifications begin from now"
            )
            return {}, False
        raise self._failed(f"its version is {version}, but this one knows {_VERSION}")

    def _take_over(self) -> Mapping[str, DeliveryState]:
        """Return what an earlier version's database says, which is read this once. What waits for
        three days is dropped."""
        path, now = self._path.with_name(_OLD_NAME), self._wall()
        # A damaged file that was renamed by a process which was killed then: it begins from now.
        if self._aside.exists() or not path.exists():
            return {}
        try:
            with closing(sqlite3.connect(path, timeout=_LOCK_WAIT_S)) as old:
                (cursor,) = old.execute("SELECT cursor FROM meta").fetchone()
                known = tuple(name for (name,) in old.execute("SELECT id FROM known"))
                waiting = old.execute(
                    "SELECT destination, id, body, since, tries, next_at, held_until, why"
                    " FROM waiting WHERE since > ? ORDER BY number",
                    (now - GIVE_UP_AFTER_S,),
                ).fetchall()
                rows = old.execute("SELECT destination, at, gave_up FROM told")
                told = {name: (at, gave_up) for name, at, gave_up in rows}
        except (sqlite3.Error, TypeError, ValueError) as error:
            self._report(f"{path} cannot be read ({error}); notifications begin from now")
            return {}
        if cursor is None:
            return {}
        return {
            each.name: DeliveryState(
                cursor,
                now,
                known,
                tuple(QueuedNotice(*row[1:]) for row in waiting if row[0] == each.name),
                *told.get(each.name, (None, "")),
            )
            for each in read_destinations(self._path.parent)
        }

    def _failed(self, error: object) -> NotifyError:
        return NotifyError(
            f"what was sent cannot be kept: {error}",
            where=str(self._path),
            next_step=f"free some disk space, or remove {self._path}: the notifications in it are "
            "lost",
        )


# The thread that delivers while others control: no command waits for it beyond a deadline.

_EVERY_S = 2.0


class NotificationThread:
    """Derives every few seconds; each destination has a thread of its own, so that one which never
    answers delays no other. All of them are daemons: no process waits for them to end."""

    def __init__(self, teller: Notifier, every_s: float = _EVERY_S) -> None:
        self._teller, self._every_s = teller, every_s
        self._leave = threading.Event()
        self._workers: dict[str, threading.Thread] = {}
        self._loop = threading.Thread(target=self._run, name="telling", daemon=True)
        self.trouble: Exception | None = None
        """The error that kept the last look from being queued."""

    def start(self) -> None:
        self._loop.start()

    def finish(self, within_s: float) -> bool:
        """Look once more and tell what is due, for at most so long; whether all of it was tried.
        What is left waits in the file."""
        deadline = time.monotonic() + within_s
        self._leave.set()
        self._loop.join(max(0.0, deadline - time.monotonic()))
        for worker in list(self._workers.values()):
            worker.join(max(0.0, deadline - time.monotonic()))
        threads = [self._loop, *self._workers.values()]
        return not any(thread.is_alive() for thread in threads)

    def _run(self) -> None:
        while True:
            leaving = self._leave.is_set()
            self._look()
            if leaving:
                return
            self._leave.wait(self._every_s)

    def _look(self) -> None:
        try:
            self._teller.derive()
            self.trouble = None
        except Exception as error:  # a ledger that is locked, a disk that is full: looked at again
            self.trouble = error
        for destination in self._teller.destinations:
            worker = self._workers.get(destination.name)
            if worker is None or not worker.is_alive():
                worker = threading.Thread(target=self._tell, args=(destination,), daemon=True)
                self._workers[destination.name] = worker
                worker.start()

    def _tell(self, destination: Destination) -> None:
        try:
            while self._teller.deliver(destination):
                pass
        except TrmcloudError as error:
            self.trouble = error
