"""Events for the page."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from trmcloud.io.redaction import mask_tokens

STILL_HERE_S = 15.0
_MOST_WAITING = 256
MOST_STREAMS = 64


class Listener:
    """One open stream. ``run_id``: the run that is looked at; '' for the table of all."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[str] = asyncio.Queue()

    def put(self, message: str) -> None:
        with suppress(RuntimeError):  # the loop is closed: the tab is gone
            self._loop.call_soon_threadsafe(self._put, message)

    def _put(self, message: str) -> None:
        if self._waiting.qsize() >= _MOST_WAITING:
            # A tab that stopped reading asks for everything again once it reads.
            while not self._waiting.empty():
                self._waiting.get_nowait()
            message = _message("anew", {})
        self._waiting.put_nowait(message)

    async def messages(self) -> AsyncIterator[str]:
        yield _message("hello", {})
        while True:
            try:
                yield await asyncio.wait_for(self._waiting.get(), STILL_HERE_S)
            except asyncio.TimeoutError:
                yield ": still here\n\n"


class Feed:
    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._lock = threading.Lock()
        self.has_listeners = threading.Event()

    def listen(self, run_id: str) -> Listener:
        """To be called where an event loop runs."""
        made = Listener(run_id)
        with self._lock:
            self._listeners.add(made)
            self.has_listeners.set()
        return made

    def leave(self, listener: Listener) -> None:
        with self._lock:
            self._listeners.discard(listener)
            if not self._listeners:
                self.has_listeners.clear()

    @property
    def is_full(self) -> bool:
        """Whether as many pages are open as may be."""
        with self._lock:
            return len(self._listeners) >= MOST_STREAMS

    @property
    def watched(self) -> frozenset[str]:
        """Runs whose own page is open."""
        with self._lock:
            return frozenset(each.run_id for each in self._listeners if each.run_id)

    def tell(self, kind: str, data: Any, run_id: str = "") -> None:
        """Send news to all open pages, or to those of one run."""
        with self._lock:
            to = [each for each in self._listeners if run_id in ("", each.run_id)]
        if to:
            message = _message(kind, data)
            for listener in to:
                listener.put(message)


def _message(kind: str, data: Any) -> str:
    return f"event: {kind}\ndata: {mask_tokens(json.dumps(data, separators=(',', ':')))}\n\n"
