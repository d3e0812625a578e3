"""Connections of a web server, bounded in number and in time.

uvicorn waits without end for a request's headers, and its ``limit_concurrency`` refuses good
requests while open connections that sent nothing stay. Here a connection without a complete
request is closed after some seconds, and when there are as many connections as may be, the
oldest of those gives way to a new one.

A server whose requests end something keeps connections in reserve for them. Where all others are
under way, a new one comes into the reserve: there only a request that ends something is answered.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from trmcloud.io.web_guard import ENDS, KEEP, SPARE

HEADERS_WITHIN_S = 10.0
"""From a connection's opening, or its last answer, to the end of the next request's headers."""
WRITTEN_WITHIN_S = 60.0
"""A client that takes nothing of its answer for so long is left."""
MOST_CONNECTIONS = 256
SPARE_CONNECTIONS = 96
"""More than are accepted at once: each is looked at before another one takes its place."""
SPARE_WITHIN_S = 2.0
"""As ``HEADERS_WITHIN_S``, in the reserve."""
ACCEPTED_AT_ONCE = 64
"""asyncio accepts so many connections before it looks at any of them."""
_PENDING = 1024
"""Connections that the kernel keeps until they are accepted; they need no file of ours."""


def most_connections(wanted: int = 0) -> int:
    """Connections that may be open: ``MOST_CONNECTIONS``, or as many as are ``wanted``, within
    half of the files that this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(MOST_CONNECTIONS, wanted)
    return most if files == resource.RLIM_INFINITY else max(8, min(most, files // 2 - 32))


class Connections:
    """The open connections, oldest wait first."""

    def __init__(
        self,
        most: int,
        headers_within_s: float = HEADERS_WITHIN_S,
        written_within_s: float = WRITTEN_WITHIN_S,
        spare: int = 0,
    ) -> None:
        self.most, self.spare = most, spare
        self.headers_within_s, self.written_within_s = headers_within_s, written_within_s
        self._open: dict[BoundedProtocol, None] = {}
        self._spare: dict[BoundedProtocol, None] = {}

    def __len__(self) -> int:
        return len(self._open) + len(self._spare)

    def add(self, one: BoundedProtocol) -> None:
        """Takes in a connection; where there are too many, one is closed: the one that waits
        longest for a request, else the oldest that did not prove itself, else the oldest of the
        reserve, into which the new one comes."""
        if len(self._open) >= self.most:
            victim = next((each for each in self._open if each.is_waiting), None)
            victim = victim or next((each for each in self._open if not each.kept), None)
            if victim is None:
                self._add_spare(one)
                return
            self.remove(victim)
            victim.leave()
        self._open[one] = None

    def _add_spare(self, one: BoundedProtocol) -> None:
        if len(self._spare) >= self.spare:
            victim = next((each for each in self._spare if not each.ends), one)
            self.remove(victim)
            victim.leave()
            if victim is one:
                return
        one.is_spare = True
        self._spare[one] = None

    def again(self, one: BoundedProtocol) -> None:
        """Its wait for a request begins now."""
        if one in self._open:
            del self._open[one]
            self._open[one] = None

    def remove(self, one: BoundedProtocol) -> None:
        self._open.pop(one, None)
        self._spare.pop(one, None)


class BoundedProtocol(H11Protocol):
    """One connection. ``kept``: its request proved that it may be here; ``is_spare``: it is one of
    the reserve, and ``ends``: it has sent what that is for."""

    bounds: Connections

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept = self.is_spare = self.ends = False
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._begun = False
        served = self.app

        async def app(scope: Any, receive: Any, send: Any) -> None:
            async def send_on(message: Any) -> None:
                if not self.transport.is_closing():  # asyncio warns of writes to a client that left
                    await send(message)

            scope[KEEP], scope[SPARE], scope[ENDS] = self._keep, self.is_spare, self._note_end
            await served(scope, receive, send_on)

        self.app = app

    @property
    def is_waiting(self) -> bool:
        """Whether no request is under way: its headers are not complete yet, or it is answered."""
        theirs, ours = self.conn.their_state, self.conn.our_state
        return theirs is h11.IDLE or ours not in (h11.SEND_RESPONSE, h11.SEND_BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.bounds.add(self)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self.bounds.remove(self)
        self._cancel_deadline()
        self._cancel_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._begun = True
        super().data_received(data)
        if not self.is_waiting:
            self._cancel_deadline()

    def on_response_complete(self) -> None:
        self.kept = self._begun = False
        self.bounds.again(self)
        if self.is_spare:  # for one request
            self.transport.close()
        super().on_response_complete()  # which may begin a request that came meanwhile
        if self.is_waiting:
            self._wait()

    def send_400_response(self, msg: str) -> None:
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # the request was answered before the rest of it came
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.bounds.written_within_s, self.leave)

    def resume_writing(self) -> None:
        self._cancel_unread()
        super().resume_writing()

    def leave(self) -> None:
        """Closes the connection now, whatever is on its way."""
        self._cancel_deadline()
        self.transport.abort()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cancel_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _keep(self) -> None:
        self.kept = True

    def _note_end(self) -> None:
        self.ends = True

    def _wait(self) -> None:
        self._cancel_deadline()
        if not self.transport.is_closing():
            within_s = self.bounds.headers_within_s
            if self.is_spare:
                within_s = min(within_s, SPARE_WITHIN_S)
            self._deadline = self.loop.call_later(within_s, self._too_slow)

    def _too_slow(self) -> None:
        self._deadline = None
        if self.transport.is_closing() or not self.is_waiting:
            return
        if self._begun and self.conn.our_state is h11.IDLE:
            self.transport.write(_TOO_SLOW)
        self.transport.close()


_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class BoundedServer(uvicorn.Server):
    """uvicorn's server with ``Connections`` of its own."""

    def __init__(self, config: uvicorn.Config, bounds: Connections) -> None:
        config.http = type("Protocol", (BoundedProtocol,), {"bounds": bounds})
        config.backlog = ACCEPTED_AT_ONCE
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_PENDING)
