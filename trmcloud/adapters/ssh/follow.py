"""A file on the pod as it grows, over drops, restarts and truncations."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator

from trmcloud.adapters.ssh.connection import SshConnection
from trmcloud.adapters.ssh.session import Session
from trmcloud.core.contract.records import whole
from trmcloud.core.errors import Dropped, LinkError
from trmcloud.io.backoff import pause_s

_FRAME_BYTES = 1 << 16
_IDLE_S = 30.0
_MAX_PAUSE_S = 8.0
_HEADER_BYTES = 48

# Each frame says from where it is and how long, so that the offset is always known exactly. Empty
# frames are sent now and then: a side that has gone away is noticed by both.
_WATCH = """
at=$OFFSET; idle=0
while :; do
  size=0; [ -f "$FILE" ] && size=$(wc -c < "$FILE")
  [ "$size" -lt "$at" ] && at=0
  n=$(( size - at )); [ "$n" -gt $FRAME ] && n=$FRAME
  if [ "$n" -gt 0 ]; then
    printf '%d %d\\n' "$at" "$n" && tail -c +$(( at + 1 )) "$FILE" | head -c "$n" || exit
    at=$(( at + n )); idle=0
  else
    idle=$(( idle + 1 ))
    [ $(( idle % 8 )) -eq 1 ] && { printf '%d 0\\n' "$at" || exit; }
    sleep 1
  fi
done
"""


def follow(
    connect: Callable[[], SshConnection],
    path: str,
    offset: int = 0,
    *,
    stop: Callable[[], bool] = lambda: False,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[int, bytes]]:
    """Yields (offset, bytes) as the file at ``path`` grows, from ``offset`` on; begins again at 0
    where the file was cut. Empty bytes mean that nothing is new, every few seconds, so that the
    caller is not held.

    ``connect`` is asked for the connection anew after each drop: the address may have changed.
    Text is as the pod has it; control characters are the caller's to strip.

    Raises:
        LinkError: the pod is not what it should be. A drop is no error: it goes on.
    """
    failures = 0
    while not stop():
        try:
            connection = connect()
            names = f"FILE={shlex.quote(path)}; FRAME={_FRAME_BYTES}; OFFSET={offset}\n"
            with connection.open(names + _WATCH) as session:
                for at, content in _frames(session, connection.where):
                    failures = 0
                    offset = at + len(content)
                    yield at, content
                    if stop():
                        return
        except Dropped:
            failures += 1
            yield offset, b""
            if stop():
                return
            pause(pause_s(failures, 0.25, _MAX_PAUSE_S))


def _frames(session: Session, where: str) -> Iterator[tuple[int, bytes]]:
    while True:
        header = bytearray()
        while not header.endswith(b"\n"):
            header += _exactly(session, 1, where)
            if len(header) > _HEADER_BYTES:
                raise LinkError("the pod answers out of turn", where=where)
        at, count, *more = [*map(whole, bytes(header).split()), None, None]
        if at is None or count is None or len(more) != 2:
            raise LinkError("the pod answers out of turn", where=where)
        if count > _FRAME_BYTES:
            raise LinkError("the pod answers with more than was asked for", where=where)
        yield at, _exactly(session, count, where)


def _exactly(session: Session, count: int, where: str) -> bytes:
    content = memoryview(bytearray(count))
    filled = 0
    while filled < count:
        got = session.read_into(content[filled:], _IDLE_S)
        if got == 0:
            raise Dropped("the connection was lost", where=where)
        filled += got
    return bytes(content)
