"""A ledger for what ends pods: it is waited for a moment, and then left out."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from trmcloud.core.errors import LedgerError, LedgerLocked, RunQuarantined, StaleEpoch
from trmcloud.ports.ledger import Ledger

WITHIN_S = 1.5
_READS = frozenset(("ledger_id", "read", "records", "last_seq", "records_after", "driver"))


class HurriedLedger:
    """A ``Ledger`` whose calls wait ``within_s`` for the ``ledger``, all of them together. After
    that, and after the first ``LedgerError`` of a kind, each call of that kind raises at once: a
    ledger that takes no record may still be read.

    A call that is late goes on in its thread, and its record may be written after all.
    """

    def __init__(
        self,
        ledger: Ledger,
        within_s: float = WITHIN_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger, self._left_s, self._monotonic = ledger, within_s, monotonic
        self._within_s = within_s
        self._failed: dict[bool, LedgerError] = {}
        """By whether it reads."""

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            return self._in_time(
                lambda: getattr(self._ledger, name)(*arguments, **named), name in _READS
            )

        if name == "ledger_id":
            return self._in_time(lambda: self._ledger.ledger_id, True)
        return call

    def _in_time(self, use: Callable[[], Any], reads: bool) -> Any:
        failed = self._failed.get(True) or self._failed.get(reads)
        if failed is not None:
            raise failed
        answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=_answer, args=(use, answers), daemon=True).start()
        began = self._monotonic()
        try:
            answer, error = answers.get(timeout=max(self._left_s, 0.01))
        except queue.Empty:
            answer = None
            error = LedgerLocked(
                f"the ledger did not answer within {self._within_s:g} s", next_step="try again"
            )
        self._left_s -= self._monotonic() - began
        if isinstance(error, LedgerError) and not isinstance(error, StaleEpoch | RunQuarantined):
            self._failed[reads] = error
        if error is not None:
            raise error
        return answer


def _answer(
    use: Callable[[], Any], answers: queue.SimpleQueue[tuple[Any, BaseException | None]]
) -> None:
    try:
        answers.put((use(), None))
    except BaseException as error:
        answers.put((None, error))
