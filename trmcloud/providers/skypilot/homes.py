"""A permanent home for ``sky``, one per cloud account: it holds that cloud's credential alone.

SkyPilot copies the credential files of every cloud that it finds in HOME to every machine that it
rents. In a home of its own it finds one cloud's. The home also keeps SkyPilot's table of clusters
and its keys to them, and so is backed up.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
import shlex
import shutil
import socket
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path

from trmcloud.core.contract.pod_contract import parse_pod_name
from trmcloud.core.errors import ProviderRefused
from trmcloud.io.files import write_atomic
from trmcloud.providers.skypilot.secrets import (
    ATTACHED,
    COMMON_ENV,
    COPIED,
    FILES,
    KNOWS_IDENTITY,
    NEVER,
    NO_UPLOAD,
    REACH_ENV,
    MachineCredential,
    on_machine,
)
from trmcloud.providers.skypilot.traits import CLOUDS

FOLDER, EMPTY = "skypilot", "empty"
ENV_ENDPOINT = "SKYPILOT_API_SERVER_ENDPOINT"
NO_PROJECT = {"SKYPILOT_PROJECT_CONFIG": os.devnull}
"""No settings of the folder that a command is typed in (``.sky.yaml``): they name a server."""
_OF_SKY = (
    *("SKYPILOT_GLOBAL_CONFIG", "SKYPILOT_API_SERVER_LOCAL_PORT", "SKY_RUNTIME_DIR"),
    *(ENV_ENDPOINT, "SKYPILOT_SERVICE_ACCOUNT_TOKEN", "SKYPILOT_USER"),
)
"""The variables that say which server and whose account the user's own ``sky`` uses."""
BACKUPS_KEPT = 5
FIRST_PORT, LAST_PORT = 46581, 46980
"""SkyPilot's own default is 46580: the user's server may have it."""
_SERVER = re.compile(
    r"(?m)^api_server:[ \t]*(?:#.*)?\n(?:[ \t]+\S.*\n|[ \t]*\n)*?"
    r"[ \t]+endpoint:[ \t]*['\"]?([^\s'\"#]+)"
)
_IDENTITY = re.compile(r"\bremote_identity['\"]?\s*:\s*['\"]?([A-Za-z0-9_./@:-]+)")
_KEPT_KEYS = (".sky/user_hash", ".sky/config.yaml", ".sky/clients", ".sky/generated", ".ssh")
"""The files that ``sky`` in this home needs beside its tables to reach and end its clusters."""


def environ_of_user(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of ``sky`` in the user's own home: variables of an allow-list, and the server
    that the user's settings name."""
    of_clouds = (name for files in FILES.values() for name in files.environment)
    allowed = {"HOME", *COMMON_ENV, *REACH_ENV, *_OF_SKY, *of_clouds}
    kept = {name: value for name, value in environ.items() if name in allowed}
    named = environ.get("SKYPILOT_GLOBAL_CONFIG") or "~/.sky/config.yaml"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        path = Path(environ.get("HOME") or Path.home()) / named.removeprefix("~/")
        if (server := _SERVER.search(path.read_text(encoding="utf-8"))) is not None:
            kept.setdefault(ENV_ENDPOINT, server[1])
    return {**kept, **NO_PROJECT}


class SkyHome:
    """``root`` is below the trmcloud home; ``user_home`` is where the cloud's tools keep their
    credentials; ``environ`` is the user's."""

    def __init__(self, root: Path, provider: str, user_home: Path, environ: Mapping[str, str]):
        self.root, self.provider = root / FOLDER / provider, provider
        self.path = self.root / "home"
        self.seen = self.root / "seen"
        self.empty = self.root / EMPTY
        self._user_home, self._given = user_home, environ
        self._lock = threading.Lock()

    @property
    def is_used(self) -> bool:
        """Whether a cluster may have been rented from here."""
        if (self.path / ".sky" / "state.db").exists():
            return True
        return any(self.seen.glob("*")) if self.seen.is_dir() else False

    @property
    def has_clusters(self) -> bool:
        """Whether one that was rented from here may still be there."""
        names = (parse_pod_name(path.stem) for path in self.seen.glob("*.json"))
        return any(name is not None for name in names)

    def lay(self) -> None:
        """Make it, or bring its links up to date. It starts nothing.

        Raises:
            ProviderRefused: a credential of another cloud was put into it.
        """
        with self._lock:
            self._restore()
            for folder in (self.root.parent, self.root, self.path, self.path / ".sky"):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.chmod(0o700)
            self._lay_credential()
            self._refuse_others()
            text = self._settings()
            target = self.path / ".sky" / "config.yaml"
            if not target.exists() or target.read_text(encoding="utf-8") != text:
                write_atomic(target, text.encode())
            catalogs = self._user_home / ".sky" / "catalogs"
            if catalogs.is_dir():
                _link(self.path / ".sky" / "catalogs", catalogs)
            self._port()

    @property
    def is_lost(self) -> bool:
        """Whether SkyPilot's table of clusters is not there, or empty, though it was backed up."""
        table = self.path / ".sky" / "state.db"
        with contextlib.suppress(OSError):
            return table.stat().st_size == 0 and bool(self._backups())
        return bool(self._backups())

    def restored(self) -> str:
        """When and from which backup the home was put back last, in words; '' if it never was."""
        with contextlib.suppress(OSError):
            return (self.root / "restored").read_text(encoding="utf-8").strip()
        return ""

    def environ(self) -> dict[str, str]:
        """Return the environment of ``sky``: variables of an allow-list, and this home's own."""
        allowed = {*COMMON_ENV, *REACH_ENV, *FILES[self.provider].environment}
        return {
            **{name: value for name, value in self._given.items() if name in allowed},
            **self._own(),
        }

    def command(self, program: str, *words: str) -> str:
        """The line that a person types for ``sky words`` in this home. Values of the user's own
        variables are not shown, and others of theirs do not reach SkyPilot's server."""
        passed = {*REACH_ENV, *FILES[self.provider].environment}
        kept = [f'{name}="${name}"' for name in ("PATH", *sorted(passed & set(self._given)))]
        own = [f"{name}={shlex.quote(value)}" for name, value in self._own().items()]
        return " ".join(["env -i", *own, *kept, shlex.join([program, *words])])

    def identity(self) -> str:
        """SkyPilot's ``remote_identity`` of this cloud's machines."""
        own = _IDENTITY.search(self._section())
        return own[1] if own else FILES[self.provider].identity

    def on_machine(self) -> MachineCredential:
        return on_machine(self.provider, self.path, self.identity(), self._given)

    def back_up(self, at: float) -> None:
        """Copy SkyPilot's tables and its keys to clusters; ``BACKUPS_KEPT`` are kept. What cannot
        be copied now is by the next launch or end of a cluster: nothing is kept from either."""
        with self._lock, contextlib.suppress(OSError, sqlite3.Error):
            made = self.root / "backups" / f"{int(at * 1000):015d}"
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
            made.parent.chmod(0o700)
            try:
                self._copy_into(made)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
            for old in sorted(made.parent.iterdir())[:-BACKUPS_KEPT]:
                shutil.rmtree(old, ignore_errors=True)

    # -- how -------------------------------------------------------------------------------------

    def _backups(self) -> list[Path]:
        """The oldest first."""
        folder = self.root / "backups"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def _restore(self) -> None:
        """Put the newest backup in the place of what was lost: without its table of clusters
        SkyPilot can neither list nor end them."""
        if not self.is_lost:
            return
        newest = self._backups()[-1]
        for journal in (self.path / ".sky").glob("*.db-*"):
            journal.unlink()  # it belongs to a table that is gone
        shutil.copytree(newest, self.path, symlinks=True, dirs_exist_ok=True)
        at = dt.datetime.fromtimestamp(int(newest.name) / 1000, dt.timezone.utc)
        said = (
            "its SkyPilot home was lost, and was restored from the backup of "
            f"{at:%Y-%m-%d %H:%M} UTC"
        )
        write_atomic(self.root / "restored", f"{said}\n".encode())

    def _copy_into(self, made: Path) -> None:
        for path in sorted((self.path / ".sky").glob("*.db")):
            target = made / ".sky" / path.name
            target.parent.mkdir(mode=0o700, exist_ok=True)
            with (
                contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as table,
                contextlib.closing(sqlite3.connect(target)) as copy,
            ):
                table.backup(copy)
                (verdict,) = copy.execute("PRAGMA quick_check").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(str(verdict))
        for name in _KEPT_KEYS:
            source, target = self.path / name, made / name
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
            elif source.is_file():
                shutil.copy2(source, target)

    def _own(self) -> dict[str, str]:
        port = self._port()
        return {
            "HOME": str(self.path),
            "SKY_RUNTIME_DIR": str(self.path),
            "SKYPILOT_API_SERVER_LOCAL_PORT": str(port),
            ENV_ENDPOINT: f"http://127.0.0.1:{port}",
            **NO_PROJECT,
        }

    def _port(self) -> int:
        """The port of this home's API server: chosen once, since clusters are known by it."""
        kept = self.root / "port"
        with contextlib.suppress(OSError, ValueError):
            return int(kept.read_text(encoding="utf-8"))
        taken = {
            path.read_text(encoding="utf-8").strip() for path in self.root.parent.glob("*/port")
        }
        for port in range(FIRST_PORT, LAST_PORT + 1):
            if str(port) not in taken and _is_free(port):
                self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_atomic(kept, f"{port}\n".encode())
                return port
        raise ProviderRefused(
            f"SkyPilot's server finds no free port from {FIRST_PORT} to {LAST_PORT}",
            where=str(self.root),
        )

    def _lay_credential(self) -> None:
        files = FILES[self.provider]
        first = next((p for p in files.first_of if (self._user_home / p).exists()), None)
        wanted = [p for p in files.links if (self._user_home / p).exists()]
        wanted += [first] if first is not None else []
        for path in {*files.links, *files.first_of} - set(wanted):
            if (self.path / path).is_symlink():
                (self.path / path).unlink()
        for path in wanted:
            _link(self.path / path, self._user_home / path)
        made = files.made
        if made is None or wanted:
            return
        values = [self._given.get(name, "") for name in made.variables]
        if not all(values):
            return
        if any(re.search(r"[\s\"\\]", value) for value in values):
            raise ProviderRefused(f"{made.variables[0]} does not contain a key")
        target = self.path / made.path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(target, made.text.format(*values), mode=0o600)

    def _refuse_others(self) -> None:
        files = FILES[self.provider]
        mine = (*files.links, *files.first_of, *([files.made.path] if files.made else []))
        for name in NEVER:
            if (self.path / name).exists() and not any(_holds(name, path) for path in mine):
                raise ProviderRefused(
                    f"SkyPilot would copy {self.path / name} to machines of {self.provider}",
                    next_step="move it away: this home is only for the credential of "
                    f"{self.provider}",
                )

    def _section(self) -> str:
        """Return the user's own settings of SkyPilot for this cloud, as text; '' for none."""
        try:
            text = (self._user_home / ".sky" / "config.yaml").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""
        cloud = CLOUDS[self.provider]
        if text.lstrip().startswith("{"):
            with contextlib.suppress(ValueError, RecursionError, AttributeError):
                section = json.loads(text).get(cloud)
                return f"{cloud}: {json.dumps(section)}\n" if section else ""
        found = re.search(
            rf"(?m)^{cloud}:[^\n]*\n?(?:(?:[ \t]+[^\n]*|#[^\n]*|[ \t]*)(?:\n|\Z))*", text
        )
        return found[0].rstrip() + "\n" if found else ""

    def _settings(self) -> str:
        """SkyPilot's settings in this home: the user's own of this cloud, and that no file of
        another cloud is copied. Logging agents and further workspaces, which may copy files of
        their own, are left out."""
        cloud, section = CLOUDS[self.provider], self._section()
        others = [name for name in KNOWS_IDENTITY if name != cloud]
        lines = [f"{name}:\n  remote_identity: {NO_UPLOAD}\n" for name in others]
        identity = FILES[self.provider].identity
        if identity != COPIED and not _IDENTITY.search(section):
            section = _with_identity(cloud, section, ATTACHED)
        return f"allowed_clouds: [{cloud}]\n" + section + "".join(lines)


def _with_identity(cloud: str, section: str, identity: str) -> str:
    head, _, rest = section.partition("\n")
    inline = re.fullmatch(rf"{cloud}:\s*\{{(.*)", head)
    if inline:
        return f'{cloud}: {{"remote_identity": "{identity}", {inline[1]}\n{rest}'
    indent = next((m[1] for m in re.finditer(r"(?m)^([ \t]+)[^\s#]", rest)), "  ")
    return f"{cloud}:\n{indent}remote_identity: {identity}\n{rest}"


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _link(path: Path, target: Path) -> None:
    if path.is_symlink() and Path(os.readlink(path)) == target:
        return
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        return  # SkyPilot's own, made before there was one to link to
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.symlink_to(target)


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
