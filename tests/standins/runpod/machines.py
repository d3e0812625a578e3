"""Pods whose commands really run: in namespaces of their own where root can make them, and as
plain processes of this machine elsewhere.

A container is a thread that starts the command, waits for its end and starts it again, as RunPod
does. Halting kills everything in it at once. Its processes die with the stand-in, however that
dies, where there are namespaces.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from tests.standins.runpod import netns, tools
from tests.standins.runpod.knobs import Knobs
from tests.standins.runpod.pods import Pod

SCRIPT = Path(__file__).parent / "container.sh"
KEEPER = Path(__file__).parent / "inside" / "keeper.py"
DEFAULT_COMMAND = ("start.sh",)
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEATH_WAIT_S = 10.0
NEEDED = ("setpriv", "unshare", "mount", "pivot_root", "bash")
PRIVATE = ("/tmp", "/root", "/opt", "/run", "/var/tmp", "/home", "/mnt", "/media", "/workspace")


@functools.cache
def no_namespaces() -> str:
    """Why pods cannot have namespaces here; empty where they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "not root"
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"no {missing[0]}"
    with tempfile.TemporaryDirectory() as folder:
        commands = (
            f"mount -t tmpfs tmpfs {folder} && mkdir {folder}/u {folder}/w {folder}/m && "
            f"mount -t overlay overlay -o lowerdir=/,upperdir={folder}/u,workdir={folder}/w "
            f"{folder}/m"
        )
        probe = subprocess.run(
            [*_UNSHARE, "sh", "-c", commands], capture_output=True, text=True, check=False
        )
    return "" if probe.returncode == 0 else probe.stderr.strip()[:200] or "unshare failed"


_UNSHARE = (
    *("unshare", "--pid", "--mount", "--uts", "--ipc", "--net", "--fork", "--kill-child=KILL"),
    "--",
)


class RealMachines:
    """Pods' files are below ``folder``: ``pods/<id>``, ``volumes/<id>`` and ``logs/<id>.log``,
    which stays when the pod is gone. ``api_url`` must be set before the first boot."""

    def __init__(
        self,
        folder: Path,
        knobs: Knobs,
        now: Callable[[], float],
        ssh_keys: Callable[[], list[str]],
        isolated: bool | None = None,
    ) -> None:
        self._folder, self._knobs, self._now = folder.resolve(), knobs, now
        self._ssh_keys = ssh_keys
        self.isolated = not no_namespaces() if isolated is None else isolated
        self.api_url = ""
        self._containers: dict[str, Container] = {}
        self._ports: dict[str, dict[int, int]] = {}
        (self._folder / "logs").mkdir(parents=True, exist_ok=True)

    def boot(self, pod: Pod) -> None:
        folder = self._folder / "pods" / pod.id
        workspace = folder / "workspace"
        if pod.volume_id:
            workspace = self._folder / "volumes" / pod.volume_id
        workspace.mkdir(parents=True, exist_ok=True)
        kind = Isolated if self.isolated else Plain
        self._containers[pod.id] = kind(self, pod, folder, workspace)

    def halt(self, pod: Pod, forget: bool) -> None:
        container = self._containers.pop(pod.id, None)
        if container is not None:
            container.halt()
        if forget:
            shutil.rmtree(self._folder / "pods" / pod.id, ignore_errors=True)

    def address(self, pod: Pod, port: int) -> tuple[str, int] | None:
        container = self._containers.get(pod.id)
        public = container.ports.get(port) if container is not None else None
        return ("127.0.0.1", public) if public is not None else None

    def cut(self, pod: Pod) -> None:
        """Drop every connection into the pod."""
        container = self._containers.get(pod.id)
        if container is not None:
            container.cut()

    def inside(self, pod: Pod, script: str) -> str:
        """What a shell script prints that runs in the pod.

        Raises:
            ValueError: the pod's command does not run, or the script failed.
        """
        container = self._containers.get(pod.id)
        if container is None or container.pid is None:
            raise ValueError(f"{pod.name} does not run")
        enter = (
            ("nsenter", "--target", str(container.pid), "--all", "--wd") if self.isolated else ()
        )
        done = subprocess.run(
            [*enter, "bash", "-c", script],
            cwd=None if self.isolated else self.workspace(pod),
            env={"PATH": SYSTEM_PATH},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ValueError(f"code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def workspace(self, pod: Pod) -> Path:
        """The folder of this machine that is the pod's mount."""
        if pod.volume_id:
            return self._folder / "volumes" / pod.volume_id
        return self._folder / "pods" / pod.id / "workspace"

    def remove_volume(self, volume_id: str) -> None:
        shutil.rmtree(self._folder / "volumes" / volume_id, ignore_errors=True)

    def close(self) -> None:
        for container in list(self._containers.values()):
            container.halt()
        self._containers.clear()

    # -- what containers ask for -----------------------------------------------------------

    @property
    def knobs(self) -> Knobs:
        return self._knobs

    def say(self, pod: Pod, source: str, line: str) -> None:
        pod.say(self._now(), source, line)
        with open(self._folder / "logs" / f"{pod.id}.log", "a") as log:
            log.write(f"{source}: {line}\n")

    def environment(self, pod: Pod, public_ssh: int | None) -> dict[str, str]:
        """What RunPod gives the first process, the request's own variables among it."""
        given = {
            "PATH": SYSTEM_PATH,
            "HOME": "/root",
            "HOSTNAME": pod.id,
            "CUDA_VERSION": f"{pod.cuda or '12.8'}.1",
            "PYTORCH_VERSION": "2.9.1",
            "RUNPOD_POD_ID": pod.id,
            "RUNPOD_API_KEY": pod.key,
            "RUNPOD_DC_ID": pod.data_center,
            "RUNPOD_POD_HOSTNAME": f"{pod.id}-{pod.host}",
            "RUNPOD_GPU_COUNT": str(len(tools.shown_gpus(pod, self._knobs))),
            "RUNPOD_CPU_COUNT": str(pod.cpu["vcpuCount"] if pod.cpu else 8),
            "RUNPOD_PUBLIC_IP": "127.0.0.1",
            "TRMCLOUD_RUNPOD_API": self.api_url,
            "RUNPOD_API_BASE_URL": self.api_url,
        }
        if public_ssh is not None:
            given["RUNPOD_TCP_PORT_22"] = str(public_ssh)
        if pod.volume_id:
            given["RUNPOD_VOLUME_ID"] = pod.volume_id
        if pod.body.get("startSsh") and self._ssh_keys():
            given["PUBLIC_KEY"] = "\n".join(self._ssh_keys())
        wished: dict[str, str] = pod.body.get("env", {})
        return given | wished


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

    def cut(self) -> None: ...

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
            command = tuple(shlex.split(self._pod.body.get("args", ""))) or DEFAULT_COMMAND
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

    def _publish(self) -> None: ...

    def _unpublish(self) -> None: ...

    def _spawn(self, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def _ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether the command has been let run."""
        return True

    def _kill(self) -> None:
        raise NotImplementedError


class Isolated(Container):
    """The command is process 1 of its own machine, as far as it can see."""

    def _publish(self) -> None:
        self._relays = {
            port: netns.Relay(netns.listen(), functools.partial(self._into, port))
            for port in self._pod.tcp_ports
        }
        self.ports = {port: relay.port for port, relay in self._relays.items()}
        self._namespace: int | None = None
        self._api: netns.Relay | None = None

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
            inside["workspace_mib"], ":".join(_kept()), ":".join(inside["absent"]),
            ready_there, go_there,
        )  # fmt: skip
        try:
            return subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "--", *_UNSHARE, "bash", str(SCRIPT)),
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
        with open(self._ready_fd, "rb") as pipe, open(self._go, "wb") as go:
            if not pipe.readline():
                return False
            with self._lock:
                if self._halted.is_set():
                    return False
                self.pid = _only_child(process.pid)
                self._namespace = netns.namespace_of(process.pid)
                netns.inside(self._namespace, netns.raise_loopback)
                port = int(self._machines.api_url.rpartition(":")[2])
                server = netns.inside(self._namespace, lambda: netns.listen(port))
                self._api = netns.Relay(
                    server, lambda: socket.create_connection(("127.0.0.1", port), 10)
                )
            with contextlib.suppress(OSError):
                go.write(b"go\n")
        return True

    def _kill(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                if self.pid is not None:
                    os.kill(self.pid, signal.SIGKILL)
                process.kill()
        if self._api is not None:
            self._api.close()
            self._api = None
        if self._namespace is not None:
            os.close(self._namespace)
            self._namespace = None
        for relay in self._relays.values():
            relay.drop()


class Plain(Container):
    """The command is a process like any other, told by its environment where its files go.

    A path of the pod in its command or environment, /workspace or /opt, is made the folder that
    stands for it; whoever comes by SSH has to know where that is.
    """

    def _publish(self) -> None:
        with contextlib.ExitStack() as taken:
            for port in self._pod.tcp_ports:
                self.ports[port] = taken.enter_context(netns.listen()).getsockname()[1]

    def _spawn(self, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
        disk = self._folder / "disk"
        shutil.rmtree(disk, ignore_errors=True)
        for name in ("root", "tmp", "opt"):
            (disk / name).mkdir(parents=True)
        shutil.copytree(self._folder / "tools" / "home", disk / "root", dirs_exist_ok=True)
        here = {
            self._pod.mount_path or "/workspace": str(self._workspace),
            "/opt/": f"{disk / 'opt'}/",
        }
        given = self._machines.environment(self._pod, self.ports.get(22))
        given.setdefault("TRMCLOUD_ROOT", "/workspace/trmcloud")
        environment = {name: _moved_within(value, here) for name, value in given.items()}
        environment |= {
            "PATH": os.pathsep.join(
                (str(self._folder / "tools" / "bin"), str(Path(sys.executable).parent), SYSTEM_PATH)
            ),
            "HOME": str(disk / "root"),
            "TMPDIR": str(disk / "tmp"),
            "TRMCLOUD_SSH_PORT": str(self.ports.get(22, 0)),
        }
        process = subprocess.Popen(
            [sys.executable, "-IS", str(KEEPER), *(_moved(word, here) for word in command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=disk,
            start_new_session=True,
        )
        self.pid = process.pid
        return process

    def _kill(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(DEATH_WAIT_S)


def _kept() -> list[str]:
    """Folders of this machine that a pod must see though its root hides them, or lies apart."""
    needed = {os.path.realpath(sys.base_prefix), os.path.realpath(sys.prefix)}
    device = os.stat("/").st_dev
    return sorted(
        folder
        for folder in needed
        if os.stat(folder).st_dev != device or folder.startswith(tuple(f"{p}/" for p in PRIVATE))
    )


def _only_child(pid: int) -> int | None:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return None


def _moved_within(text: str, here: Mapping[str, str]) -> str:
    """The same for a variable, which may be JSON in base64."""
    try:
        told = base64.b64decode(text, validate=True).decode()
        json.loads(told)
    except ValueError:
        return _moved(text, here)
    return base64.b64encode(_moved(told, here).encode()).decode()


def _moved(text: str, here: Mapping[str, str]) -> str:
    for there, folder in here.items():
        text = text.replace(there, folder)
    return text
