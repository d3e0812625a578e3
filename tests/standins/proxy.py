"""A company's HTTP proxy on loopback: it ends TLS with a certificate of the company's own CA, and
passes on what it reads to an address of this machine. No other host is reached through it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


def find_openssl() -> str | None:
    """The program that makes the certificates."""
    return shutil.which("openssl")


@dataclass
class Proxy:
    """``hosts`` are those that were asked for, in their order."""

    url: str
    ca: Path
    hosts: list[str] = field(default_factory=list)


@contextlib.contextmanager
def proxying(folder: Path, host: str, port: int) -> Iterator[Proxy]:
    """A proxy by which ``https://host`` is what answers in the clear on ``port`` of 127.0.0.1."""
    folder.mkdir(parents=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*_certificate(folder, host))
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy(f"http://127.0.0.1:{listener.getsockname()[1]}", folder / "ca.pem")

    def serve(client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(4096) or b"\r\n\r\n"
            verb, _, rest = head.decode("latin-1").partition(" ")
            asked = rest.partition(":")[0]
            proxy.hosts.append(asked)
            if verb != "CONNECT" or asked != host:
                client.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
                return
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            with (
                context.wrap_socket(client, server_side=True) as inside,
                socket.create_connection(("127.0.0.1", port)) as behind,
            ):
                back = threading.Thread(target=_copy, args=(behind, inside), daemon=True)
                back.start()
                _copy(inside, behind)
                back.join(60)

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _certificate(folder: Path, host: str) -> tuple[Path, Path]:
    """Make the company's CA, and a certificate of it for ``host``: the chain and its key."""
    openssl = find_openssl()
    assert openssl is not None
    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    ca = ["-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=A company's CA"]
    uses = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    own = ["-CA", "ca.pem", "-CAkey", "ca.key", "-keyout", "own.key", "-out", "own.pem"]
    named = ["-days", "2", "-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}"]
    leaf = ["-addext", "basicConstraints=critical,CA:FALSE"]
    for words in ([*new, *ca, *uses], [*new, *own, *named, *leaf]):
        subprocess.run([openssl, *words], cwd=folder, check=True, capture_output=True)
    return folder / "own.pem", folder / "own.key"
