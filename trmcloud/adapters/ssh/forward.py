"""A pod's files and ports seen from here: growing logs, forwarded ports, TensorBoard."""

from __future__ import annotations

import contextlib
import shlex
import socket
import time
from collections.abc import Callable, Iterator

from trmcloud.adapters.ssh.connection import SshConnection
from trmcloud.adapters.ssh.session import Session
from trmcloud.core.contract.records import whole
from trmcloud.core.errors import Dropped, LinkError
from trmcloud.io.requests import pause_s

# A file on the pod as it grows, over drops, restarts and truncations.

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


# A port of the pod's loopback, on the loopback of this machine.

_TRIES = 5


@contextlib.contextmanager
def forward(connection: SshConnection, remote_port: int, *, local_port: int = 0) -> Iterator[int]:
    """The local port, bound to 127.0.0.1, that leads to the pod's ``remote_port`` meanwhile;
    a free one where ``local_port`` is 0.

    Raises:
        LinkError: the pod is out of reach, or does not forward.
    """
    connection.connect()
    for _ in range(_TRIES):
        port = local_port or _free_port()
        way = f"127.0.0.1:{port}:127.0.0.1:{remote_port}"
        answer = connection.control("forward", "-L", way)
        if answer.code == 0:
            break
    else:
        raise LinkError(f"no port could be forwarded: {answer.said[:200]}", where=connection.where)
    try:
        yield port
    finally:
        with contextlib.suppress(LinkError):
            connection.control("cancel", "-L", way)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# TensorBoard where the event files are: run on the pod, seen on this machine's loopback.

_START_TIMEOUT_S = 60.0
_UP_WITHIN_S = 30

# With the interpreter and the packages that the agent itself has, and so its trainer; what it
# starts is no process of the pod's work, which the agent may end at any moment.
_START = """
PY=$(tr '\\0' '\\n' < /proc/$AGENT/cmdline | head -n 1)
FOUND=$(tr '\\0' '\\n' < /proc/$AGENT/environ | sed -n 's/^PYTHONPATH=//p')
[ -n "$PY" ] || PY=python3
PYTHONPATH="$FOUND" exec "$PY" - "$POD_DIR" "$LOGDIR" "$WITHIN"
"""
_PROGRAM = """
import json, os, socket, subprocess, sys, time
pod_dir, logdir, within = sys.argv[1], sys.argv[2], float(sys.argv[3])
environment = {k: v for k, v in os.environ.items() if k != "TRMCLOUD_POD"}
try:
    with open(os.path.join(pod_dir, "prepared.json")) as file:
        prepared = json.load(file)
    packages, python = prepared["packages"], prepared.get("python") or sys.executable
except (OSError, ValueError, KeyError):
    packages, python = "", sys.executable
paths = [path for path in (packages, environment.get("PYTHONPATH", "")) if path]
environment["PYTHONPATH"] = os.pathsep.join(paths)
command = [python, "-c", "import tensorboard.main"]
if subprocess.run(command, env=environment, capture_output=True).returncode:
    sys.exit("missing")
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
with open(os.path.join(pod_dir, "tensorboard.log"), "wb") as log:
    child = subprocess.Popen(
        [python, "-m", "tensorboard.main", "--logdir", logdir]
        + ["--host", "127.0.0.1", "--port", str(port)],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
    )
until = time.monotonic() + within
while child.poll() is None and time.monotonic() < until:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            print(port, child.pid)
            sys.exit(0)
    time.sleep(0.1)
child.kill()
sys.exit("it did not come up")
"""


@contextlib.contextmanager
def board(
    connection: SshConnection, *, agent_pid: int, pod_dir: str, logdir: str, local_port: int
) -> Iterator[Callable[[], bool]]:
    """TensorBoard on the pod, at 127.0.0.1:``local_port`` here meanwhile; it ends with the block.

    Yields a question: whether it runs still. Asking keeps the connection.

    Raises:
        LinkError: the pod has no TensorBoard, or it did not start, or the port is taken here.
            Dropped: the connection was lost; a new block makes a new one.
    """
    values = {"POD_DIR": pod_dir, "LOGDIR": logdir, "AGENT": str(agent_pid)}
    head = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    answer = connection.run(
        f"{head}WITHIN={_UP_WITHIN_S}\n{_START}",
        content=_PROGRAM.encode(),
        timeout_s=_START_TIMEOUT_S,
        again=False,
    )
    port, pid, *more = [*map(whole, answer.out.split()), None, None]
    if answer.code != 0 or port is None or pid is None or len(more) != 2 or port > 65535:
        if "missing" in answer.said:
            raise LinkError(
                "the pod has no TensorBoard",
                where=connection.where,
                next_step="trmcloud logs -f; trmcloud status",
            )
        raise LinkError(
            f"TensorBoard did not start there: {answer.said[-200:]}", where=connection.where
        )
    try:
        with forward(connection, port, local_port=local_port) as seen_at:
            # A new connection takes a lost one's place by itself; what it forwarded is lost.
            yield (
                lambda: (
                    _listens(seen_at) and connection.run(f"kill -0 {pid}", again=False).code == 0
                )
            )
    finally:
        with contextlib.suppress(LinkError):
            connection.run(f"kill {pid}")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
