"""A PostgreSQL server of the tests' own: a cluster in a new folder, on a socket in that folder."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

MISSING = "PostgreSQL is not installed here: apt-get install postgresql"
NO_DRIVER = "psycopg is not installed here: pip install 'trmcloud[postgres]'"
_WAIT_S = "150"


def postgres_bin() -> Path | None:
    """Return the folder of ``initdb``; Debian keeps it off the PATH."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    folders = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = max(folders, key=lambda path: int(path.parts[-3]), default=None)
    return newest.parent if newest is not None else None


class PostgresServer:
    """``durable``: it syncs what it commits to the disk, as it does where money is at stake.

    ``folder``: a cluster that outlives its process; one that is there is started again.
    """

    def __init__(self, *, durable: bool = False, folder: Path | None = None) -> None:
        bin_folder = postgres_bin()
        assert bin_folder is not None, MISSING
        self._bin = bin_folder
        # The server refuses to run as root, and its socket's path has to be short.
        self.folder = folder or Path(tempfile.mkdtemp(prefix="trmc-pg-"))
        self.folder.mkdir(exist_ok=True)
        self._user = _unprivileged() if os.getuid() == 0 else None
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
            os.chmod(self.folder, 0o755)
        self.data = self.folder / "data"
        self._numbers = count(1)
        if self.data.exists():
            self.start()
            return
        self.run("initdb", "-D", str(self.data), "-U", "ada", "-A", "trust", "--no-sync", "-E",
                 "UTF8", "--locale=C")  # fmt: skip
        settings = {
            "listen_addresses": "''",
            "unix_socket_directories": f"'{self.folder}'",
            "max_connections": "120",
            "fsync": "on" if durable else "off",
            "log_min_messages": "fatal",
        }
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
        self.start()

    def start(self) -> None:
        self.run("pg_ctl", "start", "-D", str(self.data), "-w", "-t", _WAIT_S, "-l",
                 str(self.folder / "log"))  # fmt: skip

    def stop(self, mode: str = "immediate") -> None:
        self.run("pg_ctl", "stop", "-D", str(self.data), "-m", mode, "-w", "-t", _WAIT_S)

    def restart(self) -> None:
        self.run("pg_ctl", "restart", "-D", str(self.data), "-m", "immediate", "-w", "-t",
                 _WAIT_S, "-l", str(self.folder / "log"))  # fmt: skip

    def remove(self) -> None:
        if (self.data / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, program: str, *words: str) -> None:
        user: dict[str, Any] = {}
        if self._user is not None:
            user = {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        done = subprocess.run(
            [str(self._bin / program), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C"},
            text=True,
            check=False,
            **user,
        )
        assert done.returncode == 0, f"{program} {words}: {done.stdout}"

    def new_database(self) -> str:
        """Make an empty database and return its URL."""
        name = f"db{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, database: str, user: str = "ada") -> str:
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def execute(self, *statements: str, url: str = "") -> list[tuple[Any, ...]]:
        """The rows of the last statement, each committed by itself."""
        import psycopg

        with psycopg.connect(url or self.url("postgres"), autocommit=True) as conn:
            for statement in statements:
                cursor = conn.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


class Proxy:
    """Passes bytes between a client and the server's socket, until it is told to cut them off."""

    def __init__(self, server: PostgresServer, password: str = "") -> None:
        self._password = password
        self._target = str(server.folder / ".s.PGSQL.5432")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cut_at_commit = ""
        """"before" the server sees it, or "after" it, without the answer."""
        self.cuts = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def url(self, database: str) -> str:
        return f"postgresql://ada:{self._password}@127.0.0.1:{self.port}/{database}"

    def close(self) -> None:
        self._listener.close()

    def drop_all(self) -> None:
        """Cut every connection that is open."""
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(self._target)
                except OSError:
                    client.close()
                    continue
                pair = [client, server]
                self._open = [end for end in self._open if end.fileno() >= 0] + pair
                mute = threading.Event()
                for ends in ((client, server, True), (server, client, False)):
                    threading.Thread(
                        target=self._pass, args=(*ends, pair, mute), daemon=True
                    ).start()

    def _pass(
        self,
        source: socket.socket,
        target: socket.socket,
        from_client: bool,
        pair: list[socket.socket],
        mute: threading.Event,
    ) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if from_client and self.cut_at_commit and b"COMMIT" in data:
                    how, self.cut_at_commit = self.cut_at_commit, ""
                    self.cuts += 1
                    if how == "before":
                        break
                    mute.set()
                if not from_client and mute.is_set():
                    break  # the server has answered: the commit is done
                target.sendall(data)
        for end in pair:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        if from_client:
            for end in pair:
                end.close()


def require_postgres() -> None:
    """Skip the test where there is no server or no driver."""
    pytest.importorskip("psycopg", reason=NO_DRIVER)
    if postgres_bin() is None:
        pytest.skip(MISSING)


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise AssertionError("there is no user that a server may run as")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests of this process; it syncs nothing, which no test here can tell."""
    require_postgres()
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """An empty database."""
    return postgres_server.new_database()
