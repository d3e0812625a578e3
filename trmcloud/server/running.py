"""Command lines of people, each run in a process of its own on the server.

A command is started in a new, empty folder, or in the unpacked files that its client has sent. No
input reaches it. Its environment holds the provider's keys, which its output is searched for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import sys
import tarfile
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trmcloud.app.working_tree import MOST_BYTES, MOST_FILES
from trmcloud.core.contract.command import is_inside
from trmcloud.core.errors import ConflictError, DataError, NotFoundError, UsageError
from trmcloud.io.hashing import file_sha256
from trmcloud.io.redaction import secrets_of
from trmcloud.server.rights import with_value

Input = tuple[str, str, str]
"""(an option's flag, its value in the command's words, the content of the file that it names)"""
MOST_COMMANDS = 32
BEAT_S = 10.0
_KEPT_S = 3600.0
_CHUNK = 1 << 16
_MOST_UPLOAD = MOST_BYTES + (4 << 20)
_UNTRUSTED_FOLDER = {
    "PYTHONSAFEPATH": "1",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.bareRepository",
    "GIT_CONFIG_VALUE_0": "explicit",
}
"""Modules and repositories that a client has sent are not imported or read by what runs in their
folder: a module named trmcloud, or a repository's settings, could start anything here."""
_ID = re.compile(r"[0-9a-f]{32}")
_HIDDEN = "[removed: a secret of the server]"
_LEAST_SECRET = 6


@dataclass
class Kept:
    """A folder of a person's: of a command that has run, or of files that were sent."""

    person: str
    folder: Path
    at: float
    files: Mapping[str, str] = field(default_factory=dict)


class CommandRunner:
    """Runs command lines below ``folder``. ``now`` returns seconds that only grow;
    ``more_secrets`` are removed from what is printed, as those that ``environment`` names are."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        now: Callable[[], float],
        more_secrets: Collection[str] = (),
    ) -> None:
        self._folder, self._environment, self._now = folder, dict(environment), now
        self._kept: dict[str, Kept] = {}
        self._uploads: dict[str, Kept] = {}
        self._running = 0
        found = {*secrets_of(environment), *more_secrets}
        self._secrets = sorted((s for s in found if len(s) >= _LEAST_SECRET), key=len, reverse=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)

    # -- files that are sent -----------------------------------------------------------------------

    async def take_upload(self, person: str, parts: AsyncIterator[bytes]) -> str:
        """Keep a tar archive of a working tree for the person's next command; its id.

        Raises:
            DataError: it is too large.
        """
        self.tidy()
        mine = [key for key, kept in self._uploads.items() if kept.person == person]
        for key in mine[:-3]:
            self._drop(self._uploads, key)
        key = secrets.token_hex(16)
        folder = self._folder / f"upload-{key}"
        folder.mkdir(mode=0o700)
        self._uploads[key] = Kept(person, folder, self._now())
        size = 0
        with open(folder / "tree.tar", "xb") as file:
            async for part in parts:
                size += len(part)
                if size > _MOST_UPLOAD:
                    self._drop(self._uploads, key)
                    raise DataError(f"the files are larger than {MOST_BYTES / 1e6:,.0f} MB")
                file.write(part)
        return key

    def _unpack(self, person: str, key: str, into: Path) -> None:
        """
        Raises:
            NotFoundError: no such upload of the person's. DataError: no archive of plain files.
        """
        kept = self._uploads.get(key) if _ID.fullmatch(key) else None
        if kept is None or kept.person != person:
            raise NotFoundError(
                "the files that were sent are not here", next_step="send them again"
            )
        try:
            _extract(kept.folder / "tree.tar", into)
        finally:
            self._drop(self._uploads, key)

    # -- running -----------------------------------------------------------------------------------

    async def run(
        self,
        person: str,
        words: Sequence[str],
        variables: Mapping[str, str],
        *,
        upload: str = "",
        below: str = "",
        keeps_files: bool = False,
        inputs: Sequence[Input] = (),
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield what a command prints as ``{"out": text}`` and ``{"err": text}``, a beat where it
        prints nothing for a while, and ``{"exit_code": n}`` at last, with the files that it wrote.

        Where this is closed before, the command is interrupted as by Ctrl-C.

        Args:
            below: the folder of the sent files that the command is started in.
            inputs: files beside that folder: of each the option, its value, and the content.

        Raises:
            ConflictError: too many commands are running.
        """
        self.tidy()
        if self._running >= MOST_COMMANDS:
            raise ConflictError(
                f"{MOST_COMMANDS} commands are running on the server", next_step="try again later"
            )
        key = secrets.token_hex(16)
        folder = self._folder / f"command-{key}"
        folder.mkdir(mode=0o700)
        beside = self._folder / f"inputs-{key}"
        self._running += 1
        process: asyncio.subprocess.Process | None = None
        readers: list[asyncio.Task[None]] = []
        try:
            where = folder
            if upload:
                self._unpack(person, upload, folder)
                if below and not is_inside(below):
                    raise UsageError("the folder of the command is not inside the files")
                where = folder / below if below else folder
            made = list(words)
            for flag, name, content in inputs:
                beside.mkdir(mode=0o700, exist_ok=True)
                (beside / name).write_text(content, encoding="utf-8")
                made = with_value(made, flag, name, str(beside / name))
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "trmcloud", *made,
                cwd=where,
                env={**self._environment, **variables, **_UNTRUSTED_FOLDER},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(maxsize=64)
            streams = (("out", process.stdout), ("err", process.stderr))
            readers = [
                asyncio.create_task(self._read(name, stream, queue, (where, beside)))
                for name, stream in streams
                if stream is not None
            ]
            left = len(readers)
            while left:
                try:
                    line = await asyncio.wait_for(queue.get(), BEAT_S)
                except asyncio.TimeoutError:
                    yield {"beat": 1}
                    continue
                if line is None:
                    left -= 1
                else:
                    yield line
            code = await process.wait()
            files = _listed(folder) if keeps_files else {}
            if files:
                self._kept[key] = Kept(person, folder, self._now(), files)
            yield {
                "exit_code": code if code >= 0 else 128 - code,
                "id": key if files else None,
                "files": [
                    {"name": name, "sha256": digest, "size_bytes": (folder / name).stat().st_size}
                    for name, digest in files.items()
                ],
            }
        finally:
            self._running -= 1
            for reader in readers:
                reader.cancel()
            if process is not None and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGINT)
                _leave_alone(process, folder, beside)
            else:
                shutil.rmtree(beside, ignore_errors=True)
                if key not in self._kept:
                    shutil.rmtree(folder, ignore_errors=True)

    async def _read(
        self,
        name: str,
        stream: asyncio.StreamReader,
        queue: asyncio.Queue[dict[str, Any] | None],
        folders: Sequence[Path],
    ) -> None:
        """Whole lines where there are some: a secret or a path is then in one piece."""
        rest = b""
        while chunk := await stream.read(_CHUNK):
            whole, newline, rest = (rest + chunk).rpartition(b"\n")
            if newline:
                await queue.put({name: self._cleaned(whole + newline, folders)})
            if len(rest) > _CHUNK or b"\r" in rest:
                await queue.put({name: self._cleaned(rest, folders)})
                rest = b""
        if rest:
            await queue.put({name: self._cleaned(rest, folders)})
        await queue.put(None)

    def _cleaned(self, content: bytes, folders: Sequence[Path]) -> str:
        text = content.decode(errors="replace")
        for folder in folders:
            text = text.replace(f"{folder}/", "").replace(str(folder), ".")
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return text

    # -- files that were written -------------------------------------------------------------------

    def file(self, person: str, key: str, name: str) -> Path:
        """
        Raises:
            NotFoundError: no such file of a command of the person's.
        """
        kept = self._kept.get(key) if _ID.fullmatch(key) else None
        if kept is None or kept.person != person or name not in kept.files:
            raise NotFoundError("there is no such file here", next_step="run the command again")
        return kept.folder / name

    def tidy(self) -> None:
        """Remove files that were sent or written an hour ago."""
        for folders in (self._kept, self._uploads):
            for key, kept in list(folders.items()):
                if self._now() - kept.at > _KEPT_S:
                    self._drop(folders, key)

    def _drop(self, folders: dict[str, Kept], key: str) -> None:
        kept = folders.pop(key, None)
        if kept is not None:
            shutil.rmtree(kept.folder, ignore_errors=True)


def _leave_alone(process: asyncio.subprocess.Process, *folders: Path) -> None:
    """Wait for a command that was interrupted; a second signal would kill it in mid-write."""

    async def waited() -> None:
        await process.wait()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)

    task = asyncio.get_running_loop().create_task(waited())
    _waiting.add(task)
    task.add_done_callback(_waiting.discard)


_waiting: set[asyncio.Task[None]] = set()


def _extract(archive: Path, into: Path) -> None:
    """
    Raises:
        DataError: it holds other things than plain files below ``into``, or too much.
    """
    try:
        with tarfile.open(archive, "r:") as tar:
            size = count = 0
            for member in tar:
                size, count = size + member.size, count + 1
                if not member.isreg() or not is_inside(member.name):
                    raise DataError("the files that were sent hold more than plain files")
                if ".git" in member.name.lower().split("/"):
                    raise DataError("the files that were sent hold a git repository's own files")
                if size > MOST_BYTES or count > MOST_FILES:
                    raise DataError("the files that were sent are too many, or too large")
                path = into / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                source = tar.extractfile(member)
                assert source is not None
                mode = 0o755 if member.mode & 0o100 else 0o644
                handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, mode)
                with open(handle, "wb") as file:
                    shutil.copyfileobj(source, file)
    except (tarfile.TarError, OSError, EOFError):
        raise DataError("the files that were sent cannot be unpacked") from None


def _listed(folder: Path) -> dict[str, str]:
    """By their names below ``folder``, the hashes of plain files."""
    found = {}
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(root) / name
            if path.is_file() and not path.is_symlink():
                found[path.relative_to(folder).as_posix()] = file_sha256(path)
    return found


def line_of(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, ensure_ascii=False).encode() + b"\n"
