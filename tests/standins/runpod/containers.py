"""Containers: one pod's command, from a boot until it is halted, in namespaces of its own.

A container is a thread that starts the command, waits for its end and starts it again, as RunPod
does. The command is process 1 of its own machine, as far as it can see. Halting kills everything in
it at once.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import site
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tests.standins.runpod import commands, netns, tools
from tests.standins.runpod.knobs import Knobs
from tests.standins.runpod.pods import Pod

if TYPE_CHECKING:
    from tests.standins.runpod.machines import RealMachines

SCRIPT = Path(__file__).parent / "container.sh"
CHECKOUT = Path(__file__).resolve().parents[3]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEATH_WAIT_S = 10.0
PRIVATE = ("/tmp", "/root", "/opt", "/run", "/var/tmp", "/home", "/mnt", "/media", "/workspace")
UNSHARE = (
    *("unshare", "--pid", "--mount", "--uts", "--ipc", "--net", "--fork", "--kill-child=KILL"),
    "--",
)


class Container:
    """One pod's command, from a boot until ``halt``."""

    def __init__(self, machines: RealMachines, pod: Pod, folder: Path, workspace: Path) -> None:
        self._machines, self._pod = machines, pod
        self._folder, self._workspace = folder, workspace
        self.ports: dict[int, int] = {}
        self.pid: int | None = None
        self._halted = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._publish()
        # The command is started by this thread because it is to die with its starter.
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def halt(self) -> None:
        self._halted.set()
        with self._lock:
            self._kill()
        self._thread.join(DEATH_WAIT_S)
        self._unpublish()

    def _live(self) -> None:
        knobs = self._machines.knobs
        while not self._halted.is_set():
            try:
                process = self._started()
            except OSError as error:
                self._machines.say(self._pod, "system", f"error: {error}")
            else:
                if process is not None:
                    self._watch(process, knobs)
            self.pid = None
            self._halted.wait(knobs.restart_after_s)

    def _started(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._halted.is_set():
                return None
            tools.install(
                self._folder / "tools", self._pod, self._machines.knobs, self._machines.api_url
            )
            command = commands.read(self._pod.body.get("args", "")).words(
                self._machines.knobs.image_entrypoint
            )
            self._process = self._spawn(command)
            self._pod.boots += 1
        return self._process

    def _watch(self, process: subprocess.Popen[bytes], knobs: Knobs) -> None:
        assert process.stdout is not None
        reader = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
        reader.start()
        if self._ready(process) and knobs.restart_loop:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(knobs.restart_loop_s)
            with self._lock:
                self._kill()
        process.wait()
        with self._lock:
            self._kill()
        reader.join(1.0)
        if not self._halted.is_set():
            self._machines.say(self._pod, "system", f"restart container {self._pod.id}")

    def _read(self, output: IO[bytes]) -> None:
        with contextlib.suppress(ValueError, OSError), output:
            for line in output:
                text = line.decode(errors="replace").rstrip("\n")
                self._machines.say(self._pod, "container", text)

    def _publish(self) -> None:
        self._relays = {
            port: netns.Relay(netns.listen(), functools.partial(self._into, port))
            for port in self._pod.tcp_ports
        }
        self.ports = {port: relay.port for port, relay in self._relays.items()}
        self._namespace: int | None = None
        self._out: list[netns.Relay] = []

    def _unpublish(self) -> None:
        for relay in self._relays.values():
            relay.close()

    def cut(self) -> None:
        for relay in self._relays.values():
            relay.drop()

    def _into(self, port: int) -> socket.socket:
        with self._lock:
            if self._namespace is None:
                raise OSError("not running")
            namespace = self._namespace
            return netns.inside(
                namespace, lambda: socket.create_connection(("127.0.0.1", port), 10)
            )

    def _spawn(self, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
        root = self._folder / "root"
        root.mkdir(parents=True, exist_ok=True)
        ready, ready_there = os.pipe()
        go_there, self._go = os.pipe()
        self._ready_fd = ready
        inside = self._pod.inside
        arguments = (
            root, self._folder / "tools", self._workspace, self._pod.mount_path,
            inside["workspace_mib"], ":".join(_hidden()), ":".join(self._machines.kept()),
            ":".join(inside["absent"]), ready_there, go_there,
        )  # fmt: skip
        try:
            return subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "--", *UNSHARE, "bash", str(SCRIPT)),
                    *(str(argument) for argument in arguments),
                    *command,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._machines.environment(self._pod, self.ports.get(22)),
                pass_fds=(ready_there, go_there),
                start_new_session=True,
            )
        except OSError:
            os.close(ready)
            os.close(self._go)
            raise
        finally:
            os.close(ready_there)
            os.close(go_there)

    def _ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether the command has been let run."""
        with open(self._ready_fd, "rb") as pipe, open(self._go, "wb", buffering=0) as go:
            if not pipe.readline():
                return False
            try:
                with self._lock:
                    if self._halted.is_set():
                        return False
                    self._connect(process.pid)
                go.write(b"go\n")
            except OSError as error:
                self._machines.say(self._pod, "system", f"error: {error}")
                return False
        return True

    def _connect(self, pid: int) -> None:
        """Open the pod's network, and let it reach the API and what else it is to."""
        self.pid = _only_child(pid)
        self._namespace = netns.namespace_of(pid)
        netns.inside(self._namespace, netns.raise_loopback)
        for port in (int(self._machines.api_url.rpartition(":")[2]), *self._machines.reach):
            server = netns.inside(self._namespace, functools.partial(netns.listen, port))
            there = ("127.0.0.1", port)
            connect = functools.partial(socket.create_connection, there, 10)
            self._out.append(netns.Relay(server, connect))

    def _kill(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                if self.pid is not None:
                    os.kill(self.pid, signal.SIGKILL)
                process.kill()
        while self._out:
            self._out.pop().close()
        if self._namespace is not None:
            os.close(self._namespace)
            self._namespace = None
        for relay in self._relays.values():
            relay.drop()


def kept() -> list[str]:
    """Folders of this machine that a pod must see though its root hides them, or lies apart."""
    needed = {os.path.realpath(sys.base_prefix), os.path.realpath(sys.prefix)}
    device = os.stat("/").st_dev
    return sorted(
        folder
        for folder in needed
        if os.stat(folder).st_dev != device or folder.startswith(tuple(f"{p}/" for p in PRIVATE))
    )


@functools.cache
def _hidden() -> list[str]:
    """This checkout, and what makes it importable: a pod has no code that was not sent to it."""
    prefix = Path(os.path.realpath(sys.prefix))
    hidden = [CHECKOUT]
    if prefix.is_relative_to(CHECKOUT):
        venv = prefix.relative_to(CHECKOUT).parts[0]
        hidden = [path for path in sorted(CHECKOUT.iterdir()) if path.name != venv]
    for folder in site.getsitepackages():
        hidden += sorted(Path(folder).glob("*trmcloud*"))
    return [str(path) for path in hidden]


def _only_child(pid: int) -> int | None:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return None
