"""Ports of a pod forwarded to this machine, and TensorBoard on the pod behind one of them."""

from __future__ import annotations

import contextlib
import shlex
import socket
from collections.abc import Callable, Iterator

from trmcloud.adapters.ssh.connection import SshConnection
from trmcloud.core.contract.records import whole
from trmcloud.core.errors import LinkError

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
            f"TensorBoard did not start on the pod: {answer.said[-200:]}", where=connection.where
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
