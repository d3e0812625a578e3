"""Pushes to a pod over several SSH connections; whole folders are put in place at once."""

from __future__ import annotations

import contextlib
import os
import shlex
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trmcloud.adapters.ssh.connection import SshConnection
from trmcloud.adapters.ssh.session import Session
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.pod_contract import SENDABLE, is_sendable
from trmcloud.core.contract.records import whole
from trmcloud.core.errors import ConnectionDropped, LinkError, NotSendable
from trmcloud.core.values import Value
from trmcloud.io.requests import pause_s
from trmcloud.io.transfer import BLOCK_BYTES, Lane, MovingFile, Progress, Transfer, Way, shifted

# Files to a pod. Only files that are named are sent. An interrupted transfer continues from what is
# there, and the pod computes the hashes of what arrived: a wrong byte costs time and nothing else.

_LANES = 4
_SMALL_BYTES = 4 << 20
_CHUNK_BYTES = 1 << 18
_TRIES = 6
_MAX_PAUSE_S = 8.0
_END_S = 60.0
_IDLE_S = 60.0
_VERIFY_S = 3600.0
_MAX_LIST_BYTES = 16 << 20

_EACH_S = 0.02
"""For a name in a list that a script on the pod works through: it may start a program for each."""
# In a locale of UTF-8, bash reads the newline as part of a name that ends in half a character.
_READ = "export LC_ALL=C; while IFS= read -r name; do"
_SIZES = f"""
{_READ}
  if [ -f "./$name" ] && [ ! -L "./$name" ]; then wc -c < "./$name"; else echo 0; fi
done
"""


class Parcel(Value):
    """Files below ``folder`` by their relative names, with the SHA-256 of each."""

    folder: Path
    sha256: Mapping[str, str]

    def size_bytes(self) -> int:
        return sum((self.folder / name).stat().st_size for name in self.sha256)


def parcel_of(local: Path, sha256: Mapping[str, str]) -> Parcel:
    """Return the named files of a file or a folder.

    Raises:
        NotSendable: a name is not a plain relative path, or there is no such file.
    """
    folder = local if local.is_dir() else local.parent
    for name in sha256:
        if not is_sendable(name):
            raise NotSendable(f"{name!a:.140} cannot be sent: {SENDABLE}")
        if folder != local and name != local.name:
            raise LinkError(f"{local.name} cannot be sent under another name", where=str(local))
        if not (folder / name).is_file():
            raise NotSendable(f"{ascii(name)[1:-1]} is missing", where=str(folder))
    return Parcel(folder, sha256)


def push(connection: SshConnection, parcel: Parcel, remote: str, progress: Progress) -> None:
    """Bring the files into the folder ``remote``, made where it is missing; nothing there is
    deleted.

    Raises:
        LinkError: the pod's disk is full, or it stayed out of reach.
    """
    whole = parcel.size_bytes()
    failures = 0
    best = 0

    def tell(done: int) -> None:
        nonlocal best, failures
        if done > best:
            best, failures = done, 0
        progress(min(done, whole), whole)

    while True:
        try:
            _send_missing(connection, parcel, remote, tell)
            progress(whole, whole)
            return
        except ConnectionDropped:
            failures += 1
            if failures >= _TRIES:
                raise
            time.sleep(pause_s(failures, 0.25, _MAX_PAUSE_S))


def verify(connection: SshConnection, parcel: Parcel, remote: str) -> list[str]:
    """Names whose content there is not what it should be; the pod computes the hashes.

    Raises:
        LinkError: the pod has no sha256sum, or is out of reach.
    """
    lines = "".join(_sum_line(name, sha) for name, sha in sorted(parcel.sha256.items()))
    script = (
        f"cd {shlex.quote(remote)} || exit 3\n"
        "command -v sha256sum >/dev/null || exit 4\n"
        "export LC_ALL=C; sha256sum -c - 2>/dev/null | grep -v ': OK$'\n"
        "exit 0"
    )
    answer = connection.run(
        script, content=os.fsencode(lines), timeout_s=_VERIFY_S, max_bytes=_MAX_LIST_BYTES
    )
    if answer.code != 0:
        raise LinkError("the pod cannot hash the received files", where=connection.where)
    said = os.fsdecode(answer.out).removesuffix("\n").split("\n") if answer.out else []
    return [line.rpartition(": ")[0].removeprefix("./") for line in said]


def _sum_line(name: str, sha256: str) -> str:
    """A line for ``sha256sum -c``, which takes ``-`` for its input and reads escapes where the line
    begins with a backslash."""
    escaped = name.replace("\\", "\\\\")
    return f"{'' if escaped == name else chr(92)}{sha256}  ./{escaped}\n"


def _send_missing(
    connection: SshConnection, parcel: Parcel, remote: str, tell: Callable[[int], None]
) -> None:
    """Send what is not there in its full size: small files as one archive, large ones in lanes."""
    names = sorted(parcel.sha256)
    folders = {str((Path(remote) / name).parent) for name in names}
    _make_folders(connection, sorted({remote, *folders}))
    there = _sizes(connection, names, remote)
    here = {name: (parcel.folder / name).stat().st_size for name in names}
    due = [name for name in names if there[name] != here[name] or here[name] == 0]
    sent = sum(here[name] for name in names if name not in due)
    small = [name for name in due if here[name] <= _SMALL_BYTES]
    if small:
        _send_small(connection, parcel.folder, small, remote, lambda size: tell(sent + size))
        sent += sum(here[name] for name in small)
    large = [name for name in due if here[name] > _SMALL_BYTES]

    def serve(lane: Lane) -> None:
        for part in lane:
            name, size = part.file.name, there[part.file.name]
            kept = size - size % BLOCK_BYTES if size < here[name] else 0
            with open(parcel.folder / name, "rb") as file:
                _send_large(connection, file.fileno(), f"{remote}/{name}", kept, lane)

    # Each is opened by its lane: they may be more than a process can have open.
    files = [MovingFile(name, -1, here[name], spans=[(0, here[name])]) for name in large]
    Transfer(files, Way(serve, _LANES)).run(lambda done, _: tell(sent + done))


def _send_small(
    connection: SshConnection,
    folder: Path,
    names: Sequence[str],
    remote: str,
    tell: Callable[[int], None],
) -> None:
    sent = 0
    with connection.open(f"cd {shlex.quote(remote)} && exec tar -xf -") as session:
        pipe: Any = _Pipe(session)
        try:
            form = tarfile.GNU_FORMAT
            with tarfile.open(None, "w|", pipe, dereference=True, format=form) as archive:
                for name in names:
                    about = archive.gettarinfo(str(folder / name), arcname=name)
                    about.uid = about.gid = 0
                    about.uname = about.gname = ""
                    about.mode = 0o644
                    about.type = tarfile.REGTYPE
                    with open(folder / name, "rb") as file:
                        archive.addfile(about, file)
                    sent += about.size
                    tell(sent)
        except OSError:
            raise _why(session, connection.where) from None
        session.feed(b"")
        _expect_success(session, connection.where)


def _send_large(connection: SshConnection, handle: int, remote: str, kept: int, lane: Lane) -> None:
    """Send the lane's file, of which the first ``kept`` bytes are there."""
    # Written at its own place and never appended: bytes of a dropped connection that arrive late
    # are the same bytes at the same place.
    keep = f" seek={kept // BLOCK_BYTES} conv=notrunc" if kept else ""
    command = f"exec dd of={shlex.quote(remote)} bs={BLOCK_BYTES}{keep}"
    part = lane.taken[0]
    with connection.open(command, own=True) as session:
        lane.on_stop(session.interrupt)
        pipe = _Pipe(session)
        lane.moved(kept)
        try:
            while part.start < part.end:
                block = os.pread(handle, min(_CHUNK_BYTES, part.end - part.start), part.start)
                pipe.write(block)
                # A file that was cut meanwhile is found by its hash.
                lane.moved(part.start + len(block) if block else part.end)
        except OSError:
            raise _why(session, connection.where) from None
        session.feed(b"")
        _expect_success(session, connection.where)


class _Pipe:
    """The stream that tarfile writes to."""

    def __init__(self, session: Session) -> None:
        self._stdin = session.stdin

    def write(self, content: Any) -> int:
        view = memoryview(content)
        while view:
            view = view[self._stdin.write(view) :]
        return len(content)


def _sizes(connection: SshConnection, names: Sequence[str], remote: str) -> dict[str, int]:
    listing = os.fsencode("".join(f"{name}\n" for name in names))
    answer = connection.run(
        f"cd {shlex.quote(remote)} || exit 1\n{_SIZES}",
        content=listing,
        timeout_s=_IDLE_S + _EACH_S * len(names),
        max_bytes=_MAX_LIST_BYTES,
    )
    sizes = [whole(word) for word in answer.out.split()]
    if answer.code != 0 or len(sizes) != len(names) or None in sizes:
        raise LinkError("the pod did not list its files", where=connection.where)
    return {name: size for name, size in zip(names, sizes, strict=True) if size is not None}


def _make_folders(connection: SshConnection, folders: Sequence[str]) -> None:
    answer = connection.run(
        f'{_READ} mkdir -p -- "$name" || exit 1; done',
        content=os.fsencode("".join(f"{folder}\n" for folder in folders)),
        timeout_s=_IDLE_S + _EACH_S * len(folders),
    )
    if answer.code != 0:
        raise _refused(answer.said, connection.where)


def _expect_success(session: Session, where: str) -> None:
    code = session.end(time.monotonic() + _END_S)
    if code != 0:
        raise _refused(session.stderr_text(), where)


def _why(session: Session, where: str) -> LinkError:
    """Why the pod takes no more."""
    with contextlib.suppress(OSError):
        session.stdin.close()
    code = session.end(time.monotonic() + _END_S)
    return _refused(
        session.stderr_text() or f"the command on the pod ended with code {code}", where
    )


def _is_full(said: str) -> bool:
    return "No space left" in said or "Disk quota exceeded" in said


def _refused(said: str, where: str) -> LinkError:
    if _is_full(said):
        return NotSendable(
            "the pod's disk is full",
            where=where,
            next_step="plan with a larger disk, or a network volume",
        )
    last = said.splitlines()[-1][:200] if said else "it gave no reason"
    return LinkError(f"the pod does not accept the upload: {last}", where=where)


# Staging: whole folders, each put in place at once, and a small file last that says so.

STAGED_MARK = ".staged"
CODE_DIR = "code"
_WRITE_TIMEOUT_S = 15.0


def stage(
    connection: SshConnection,
    parcels: Mapping[str, Parcel],
    root: str,
    pod_folder: str,
    progress: Progress,
) -> None:
    """Bring each parcel to its folder, ``root``'s below it; the agent of ``pod_folder`` gets a
    note once the one below ``<root>/code`` is among them.

    Raises:
        LinkError: something did not arrive as it was sent.
    """
    staged = _already_staged(connection, list(parcels))
    sizes = {remote: parcel.size_bytes() for remote, parcel in parcels.items()}
    whole = sum(sizes.values())
    before = 0
    for remote, parcel in parcels.items():
        base = before
        if remote not in staged:
            _bring(connection, parcel, remote, shifted(progress, base, whole))
        before += sizes[remote]
        progress(before, whole)
    code = [remote for remote in parcels if remote.startswith(f"{root}/{CODE_DIR}/")]
    if code:
        data = tuple(remote for remote in parcels if remote not in code)
        path = f"{pod_folder}/{contract.STAGED_NAME}"
        write_text(connection, path, contract.dump(contract.StagedFiles(code[0], data)))


def write_text(connection: SshConnection, path: str, text: str, *, umask: str = "022") -> None:
    """Replace a small file there so that its reader sees the old or the new."""
    folder, _, name = path.rpartition("/")
    new = f".{name}.new.$$"
    script = (
        f"mkdir -p {shlex.quote(folder)} && cd {shlex.quote(folder)} && umask {umask}\n"
        f"cat > {new} && mv -f {new} {shlex.quote(name)} || {{ rm -f {new}; exit 1; }}"
    )
    answer = connection.run(script, content=text.encode(), timeout_s=_WRITE_TIMEOUT_S)
    if answer.code != 0:
        raise LinkError(
            f"{name} could not be written on the pod: {answer.said[-200:]}", where=connection.where
        )


def _already_staged(connection: SshConnection, remotes: Sequence[str]) -> set[str]:
    """Which of the folders are complete there."""
    script = (
        f'while read -r folder; do [ -f "$folder/{STAGED_MARK}" ] && echo "$folder"; done\nexit 0'
    )
    content = "".join(f"{remote}\n" for remote in remotes).encode()
    said = connection.run(script, content=content).out.decode("utf-8", "replace")
    return set(said.splitlines()) & set(remotes)


def _bring(connection: SshConnection, parcel: Parcel, remote: str, tell: Progress) -> None:
    part = remote + ".part"
    push(connection, parcel, part, tell)
    wrong = verify(connection, parcel, part)
    if wrong:
        # Sizes alone made an earlier attempt's remains look right: once more, without them.
        connection.run(
            f"cd {shlex.quote(part)} && rm -f -- {shlex.join(wrong)}"
            if set(wrong) <= set(parcel.sha256)
            and len(wrong) <= 20  # they are words of one command
            else f"rm -rf {shlex.quote(part)}"
        )
        push(connection, parcel, part, tell)
        wrong = verify(connection, parcel, part)
    if wrong:
        raise LinkError(
            f"{ascii(wrong[0])[1:-1]:.80} was damaged on the way, or changed here meanwhile",
            where=connection.where,
        )
    quoted, quoted_part = shlex.quote(remote), shlex.quote(part)
    answer = connection.run(
        f"[ -f {quoted}/{STAGED_MARK} ] && exit 0\n"
        f"rm -rf {quoted} && : > {quoted_part}/{STAGED_MARK} && mv {quoted_part} {quoted}"
    )
    if answer.code != 0:
        raise LinkError(
            f"the received files could not be moved into place: {answer.said[-200:]}",
            where=connection.where,
        )
