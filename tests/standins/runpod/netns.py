"""Ports in and out of a pod whose network is its own.

A socket belongs to the namespace it was made in, whichever thread uses it later, so one thread
steps inside for a moment to make it and no process has to stay there.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable
from typing import TypeVar

CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
CHUNK = 1 << 18
T = TypeVar("T")


def inside(namespace: int, make: Callable[[], T]) -> T:
    """``make()`` as a thread within the network namespace (an open fd of it) does it."""
    made: list[T] = []
    failed: list[BaseException] = []

    def step_in() -> None:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(namespace, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            made.append(make())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=step_in)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        name = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(probe, SIOCGIFFLAGS, name))[1]
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | IFF_UP))


def listen(port: int = 0) -> socket.socket:
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    server.listen(64)
    return server


class Relay:
    """Connections to a listening socket go on to ``connect()``, until ``close``."""

    def __init__(self, server: socket.socket, connect: Callable[[], socket.socket]) -> None:
        self._server, self._connect = server, connect
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    def close(self) -> None:
        with self._lock:
            self._closed = True
            open_now = [self._server, *self._open]
        for sock in open_now:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def drop(self) -> None:
        """Cut what is connected; new connections are taken."""
        with self._lock:
            open_now = list(self._open)
        for sock in open_now:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        try:
            far = self._connect()
        except OSError:
            near.close()
            return
        pair = (near, far)
        with self._lock:
            self._open.update(pair)
            closed = self._closed
        for sock in pair:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not closed:
            back = threading.Thread(target=_pump, args=(far, near), daemon=True)
            back.start()
            _pump(near, far)
            back.join()
        with self._lock:
            self._open.difference_update(pair)
        for sock in pair:
            sock.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    with contextlib.suppress(OSError):
        while count := source.recv_into(buffer):
            sink.sendall(view[:count])
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def namespace_of(pid: int) -> int:
    """An open fd of the process's network namespace."""
    return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
