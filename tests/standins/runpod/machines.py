"""Pods whose commands really run, in namespaces of their own, which takes root.

Their processes die with the stand-in, however that dies.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tests.standins.runpod import containers, tools
from tests.standins.runpod.knobs import Knobs
from tests.standins.runpod.pods import Pod

NEEDED = ("setpriv", "unshare", "mount", "pivot_root", "bash")


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
            [*containers.UNSHARE, "sh", "-c", commands], capture_output=True, text=True, check=False
        )
    return "" if probe.returncode == 0 else probe.stderr.strip()[:200] or "unshare failed"


class RealMachines:
    """Pods' files are below ``folder``: ``pods/<id>``, ``volumes/<id>`` and ``logs/<id>.log``,
    which stays when the pod is gone. ``keep`` are folders of this machine that every image has
    too, ``image_env`` variables that it sets. Of this machine's loopback a pod reaches the API,
    whose ``api_url`` must be set before the first boot, and the ports in ``reach``."""

    def __init__(
        self,
        folder: Path,
        knobs: Knobs,
        now: Callable[[], float],
        keep: Sequence[Path] = (),
        image_env: Mapping[str, str] = MappingProxyType({}),
        reach: Sequence[int] = (),
    ) -> None:
        self._folder, self._knobs, self._now = folder.resolve(), knobs, now
        self._keep, self._image_env = tuple(keep), image_env
        self.api_url, self.reach = "", tuple(reach)
        self._containers: dict[str, containers.Container] = {}
        (self._folder / "logs").mkdir(parents=True, exist_ok=True)

    def boot(self, pod: Pod) -> None:
        folder = self._folder / "pods" / pod.id
        workspace = folder / "workspace"
        if pod.volume_id:
            workspace = self._folder / "volumes" / pod.volume_id
        workspace.mkdir(parents=True, exist_ok=True)
        self._containers[pod.id] = containers.Container(self, pod, folder, workspace)

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
        done = subprocess.run(
            ["nsenter", "--target", str(container.pid), "--all", "--wd", "bash", "-c", script],
            env={"PATH": containers.SYSTEM_PATH},
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

    def kept(self) -> list[str]:
        return [*containers.kept(), *(str(folder.resolve()) for folder in self._keep)]

    def environment(self, pod: Pod, public_ssh: int | None) -> dict[str, str]:
        """What RunPod gives the first process, the request's own variables among it."""
        given = {
            "PATH": containers.SYSTEM_PATH,
            "HOME": "/root",
            "HOSTNAME": pod.id,
            "CUDA_VERSION": f"{pod.cuda or '12.8'}.1",
            "PYTORCH_VERSION": "2.9.1",
            "RUNPOD_POD_ID": pod.id,
            "RUNPOD_API_KEY": pod.key,
            "RUNPOD_DC_ID": pod.data_center,
            "RUNPOD_POD_HOSTNAME": f"{pod.id}-{pod.host}",
            "RUNPOD_GPU_COUNT": str(len(tools.shown_gpus(pod))),
            "RUNPOD_CPU_COUNT": "8",
            "RUNPOD_PUBLIC_IP": "127.0.0.1",
            "TRMCLOUD_RUNPOD_API": self.api_url,
            "RUNPOD_API_BASE_URL": self.api_url,
        }
        if public_ssh is not None:
            given["RUNPOD_TCP_PORT_22"] = str(public_ssh)
        if pod.volume_id:
            given["RUNPOD_VOLUME_ID"] = pod.volume_id
        wished: dict[str, str] = pod.body.get("env", {})
        return given | dict(self._image_env) | wished
