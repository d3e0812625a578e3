"""A web server of one process: guarded requests, bounded connections."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import resource
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

# Checks of a request before anything reads it: the name it asked for, the site it comes from, and
# the token. The page of ``trmcloud ui`` and ``trmcloud serve`` share them.
#
# A browser also sends requests that pages of other sites make. A page elsewhere can point its own
# name at this machine (DNS rebinding), and the browser then takes this server for that site. So a
# request has to name this server as its host, and its origin, where a browser states one, has to
# be this server's.

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANY_ADDRESS = ("0.0.0.0", "::")
_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
KEEP = "trmcloud.keep"
"""Key of a request's scope: called without arguments, its connection is not closed for others."""

Refusal = tuple[int, str]
"""A status, and why in one line."""


@dataclass(frozen=True)
class Names:
    """The hosts by which a server may be called: loopback's, ``more``, and any address of numbers
    where ``any_address``, since only names can be pointed elsewhere."""

    more: frozenset[str] = frozenset()
    any_address: bool = False

    def refusal(self, host: str) -> Refusal | None:
        """Why a request with this ``Host`` is refused."""
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        name = name.lower()
        if name in _LOOPBACK_NAMES or name in self.more or (self.any_address and _is_address(name)):
            return None
        return 421, "this server is not called by that name: use the address it printed"


OF_LOOPBACK = Names()


def names_of(host: str) -> Names:
    """The names of a server that listens at ``host``."""
    if host in LOOPBACK:
        return OF_LOOPBACK
    if host in ANY_ADDRESS:
        own = socket.gethostname(), socket.getfqdn()
        return Names(frozenset(name.lower() for name in own), any_address=True)
    return Names(frozenset({host.lower(), f"[{host}]".lower()}), any_address=True)


def headers_of(scope: Any) -> Mapping[str, str]:
    """An ASGI request's headers by their names in lower case."""
    return {name.decode("latin-1"): text.decode("latin-1") for name, text in scope["headers"]}


def refusal_of_origin(headers: Mapping[str, str]) -> Refusal | None:
    """Why a request from this ``Origin`` is refused. Programs other than browsers send none."""
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"http://{headers.get('host', '')}".lower():
        return 403, "asked from another site"
    return None


def refusal_of_token(headers: Mapping[str, str], token: str) -> Refusal | None:
    """Why a request with this ``Authorization`` is refused."""
    given = headers.get("authorization", "").removeprefix("Bearer ").encode()
    if hmac.compare_digest(given, token.encode()):
        return None
    return 401, "the token is not this server's: use what it printed at its start"


class BodyRefused(Exception):
    """A body that is not read to its end: it is answered with ``status`` and one line."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status, self.what = status, what


async def read_body(parts: AsyncIterator[bytes], most_bytes: int, within_s: float) -> bytes:
    """A request's whole body.

    Raises:
        BodyRefused: it is larger than ``most_bytes``, or was not here in time.
    """

    async def read() -> bytes:
        body = bytearray()
        async for part in parts:
            body += part
            if len(body) > most_bytes:
                raise BodyRefused(413, f"a body may have {most_bytes:,} bytes")
        return bytes(body)

    try:
        return await asyncio.wait_for(read(), within_s)
    except asyncio.TimeoutError:
        raise BodyRefused(408, f"the body did not come within {within_s:.0f} s") from None


def mark_trusted(scope: Any) -> None:
    """This request proved that it may be here: its connection gives way to no other."""
    if KEEP in scope:
        scope[KEEP]()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


# Connections of a web server, bounded in number and in time.
#
# uvicorn waits without end for a request's headers, and its ``limit_concurrency`` refuses good
# requests while open connections that sent nothing stay. Here a connection without a complete
# request is closed after some seconds, and when there are as many connections as may be, the
# oldest of those gives way to a new one. uvicorn is imported here, so import this module where it
# is used.

HEADERS_WITHIN_S = 10.0
"""From a connection's opening, or its last answer, to the end of the next request's headers."""
WRITTEN_WITHIN_S = 60.0
"""A client that takes nothing of its answer for so long is left."""
MOST_CONNECTIONS = 256
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
    ) -> None:
        self.most = most
        self.headers_within_s, self.written_within_s = headers_within_s, written_within_s
        self._open: dict[BoundedProtocol, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, one: BoundedProtocol) -> None:
        """Takes in a connection; where there are too many, one is closed: the one that waits
        longest for a request, else the oldest that did not prove itself, else the new one."""
        if len(self._open) >= self.most:
            victim = next((each for each in self._open if each.is_waiting), None)
            victim = victim or next((each for each in self._open if not each.kept), None)
            if victim is None:
                one.leave()
                return
            self.remove(victim)
            victim.leave()
        self._open[one] = None

    def again(self, one: BoundedProtocol) -> None:
        """Its wait for a request begins now."""
        if one in self._open:
            del self._open[one]
            self._open[one] = None

    def remove(self, one: BoundedProtocol) -> None:
        self._open.pop(one, None)


class BoundedProtocol(H11Protocol):
    """One connection. ``kept``: its request proved that it may be here."""

    bounds: Connections

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept = False
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._begun = False
        served = self.app

        async def app(scope: Any, receive: Any, send: Any) -> None:
            async def send_on(message: Any) -> None:
                if not self.transport.is_closing():  # asyncio warns of writes to a client that left
                    await send(message)

            scope[KEEP] = self._keep
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

    def _wait(self) -> None:
        self._cancel_deadline()
        if not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.bounds.headers_within_s, self._too_slow)

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


# A web server of one process, which says nothing of its own.

_MOST_HEADER_BYTES = 1 << 14


def silent_server(application: Any, *, leave_within_s: int, requests: int = 0) -> Any:
    """uvicorn's server of an ASGI application; ``run(sockets=[one])`` serves until it has to end,
    and gives requests under way so many seconds. Its connections are bounded in number and time;
    ``requests`` is how many may be under way at once where that is more than usual."""
    import uvicorn

    return BoundedServer(
        uvicorn.Config(
            application,
            http="h11",
            h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=leave_within_s,
        ),
        Connections(most_connections(requests)),
    )


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there, at a free port where it is 0.

    Raises:
        OSError: the port is taken, or there is no such address.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    made = socket.create_server((host, port), family=family, backlog=128)
    made.setblocking(False)
    # Its connections inherit it; without, each piece of an answer waits 40 ms for its reader.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made
