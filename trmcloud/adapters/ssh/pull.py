"""Pulls from a machine that somebody else owns: in parallel, resumable, verified.

Each lane is an SSH connection of its own. It asks for parts of files by name, and the pod
answers each with the file's size and then the bytes. rsync is not used in this direction: it
would have to believe the other side's list of names and sizes, and here every byte is asked
for, counted, capped and hashed.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from trmcloud.adapters.ssh.connection import SshConnection
from trmcloud.adapters.ssh.session import Session
from trmcloud.core.contract.manifest import CheckpointFile
from trmcloud.core.contract.records import whole
from trmcloud.core.errors import CheckpointError, ConnectionDropped, LinkError
from trmcloud.io.transfer import BLOCK_BYTES, Lane, Part, Progress, Way
from trmcloud.operations.checkpoints.receiving import receive_files, unusable

LANES = 4
_PART_BYTES = 16 << 20
_SMALL_BYTES = 8 << 20
_IDLE_S = 30.0
_HEADER_BYTES = 32
_AHEAD = 2
"""Requests of one lane: the way there and back costs nothing."""

_SERVE = f"""
while read -r skip count name; do
  if [ -L "$name" ]; then echo '!link'
  elif [ ! -f "$name" ]; then echo '!missing'
  elif [ ! -r "$name" ]; then echo '!missing'
  else wc -c < "$name"; dd if="$name" bs={BLOCK_BYTES} skip="$skip" count="$count" 2>/dev/null
  fi
done
"""


def pull(
    connection: SshConnection,
    remote: str,
    files: Sequence[CheckpointFile],
    target: Path,
    progress: Progress,
    *,
    lanes: int = LANES,
) -> None:
    """Bring ``files`` from the folder ``remote`` into ``target``: see ``receive_files``.

    Raises:
        CheckpointError: a file is missing on the pod, a link, of another size, or not what its hash
            says. DoesNotFit: too little room here. LinkError: the pod stayed out of reach.
    """
    puller = _Puller(connection, f"cd {shlex.quote(remote)} || exit 1\n{_SERVE}")
    way = Way(puller.serve, lanes, _PART_BYTES, lambda each: isinstance(each, ConnectionDropped))
    receive_files(target, files, way, progress, connection.where)


class _Puller:
    """Asks one ``connection`` for parts, by the ``command`` that serves them."""

    def __init__(self, connection: SshConnection, command: str) -> None:
        self._connection, self._command = connection, command

    def serve(self, lane: Lane) -> None:
        """One session's life: ask ahead, read what comes, until nothing is left to ask for."""
        fresh = lane.take(_AHEAD)
        if not fresh:
            return
        own = lane.due_bytes > _SMALL_BYTES
        with self._connection.open(self._command, own=own) as session:
            lane.on_stop(session.interrupt)
            while lane.taken:
                self._ask(session, fresh)
                self._receive(session, lane)
                fresh = lane.take(_AHEAD)

    def _ask(self, session: Session, parts: Sequence[Part]) -> None:
        for part in parts:
            count = -(-(part.end - part.start) // BLOCK_BYTES)
            line = f"{part.start // BLOCK_BYTES} {count} {part.file.name}\n"
            try:
                session.stdin.write(line.encode())
            except OSError:
                raise self._why(session) from None

    def _receive(self, session: Session, lane: Lane) -> None:
        """Read the answer to the first of the lane's requests."""
        part = lane.taken[0]
        file = part.file
        said = self._header(session)
        if said.startswith("!"):
            what = "is a link on the pod" if said == "!link" else "is missing on the pod"
            raise CheckpointError(f"{file.name} {what}", where=self._connection.where)
        size = whole(said)
        if size is None:
            raise LinkError("the pod's answer was not expected", where=self._connection.where)
        if size != file.size_bytes:
            what = "truncated" if size < file.size_bytes else "longer than expected"
            told = f"{size} bytes on the pod, {file.size_bytes} in its manifest"
            raise unusable(f"{file.name} is {what}: {told}", self._connection.where)
        at = part.start
        while at < part.end:
            upto = min(at - at % BLOCK_BYTES + BLOCK_BYTES, part.end)
            while at < upto:
                count = session.read_to_file(file.handle, at, upto - at, _IDLE_S)
                if count == 0:
                    raise self._why(session)
                at += count
            lane.moved(at)

    def _header(self, session: Session) -> str:
        """One short line, read byte by byte so that nothing behind it is taken."""
        line = bytearray()
        one = memoryview(bytearray(1))
        while len(line) < _HEADER_BYTES:
            if session.read_into(one, _IDLE_S) == 0:
                raise self._why(session)
            if one[0] == ord("\n"):
                return line.decode("ascii", "replace").strip()
            line.append(one[0])
        raise LinkError("the pod's answer was not expected", where=self._connection.where)

    def _why(self, session: Session) -> LinkError | CheckpointError:
        """Why the bytes ended."""
        code = session.end(time.monotonic() + _IDLE_S)
        if code == 1:
            return CheckpointError(
                "the checkpoint is no longer on the pod", where=self._connection.where
            )
        return ConnectionDropped(
            f"the command on the pod ended with code {code}", where=self._connection.where
        )
