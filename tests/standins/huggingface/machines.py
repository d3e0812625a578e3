"""Jobs whose commands really run: each in namespaces of its own, once, with a gateway for SSH.

The containers are those of RunPod's stand-in. What differs: a command that ends is not started
again, its job is over. The gateway is a real sshd in the job's network, where Hugging Face has one
server for all jobs that tells them by the user's name; a machine has no user of each job's id, so
here each job has a port of its own and the user is this one.
"""

from __future__ import annotations

import contextlib
import getpass
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.standins.huggingface.hub import Hub, StoodJob
from tests.standins.runpod import commands
from tests.standins.runpod.containers import SYSTEM_PATH, Container
from tests.standins.runpod.knobs import Knobs
from tests.standins.runpod.machines import RealMachines
from tests.standins.runpod.pods import Pod
from tests.standins.sshd import find_sshd, make_key

GATEWAY_PORT = 2222
_HOST_MARK = "RUNPOD_POD_ID"
"""Variables by which the containers' script knows the machine; removed before the command runs."""
_GPUS: Mapping[str, str] = {
    "A100": "NVIDIA A100-SXM4-80GB", "H200": "NVIDIA H200", "L4": "NVIDIA L4",
    "L40S": "NVIDIA L40S",
}  # fmt: skip


class JobContainer(Container):
    """One job's command, to its end; ``ended`` is called with its exit code."""

    def __init__(self, machines: JobMachines, pod: Pod, folder: Path, workspace: Path) -> None:
        self._gateway: subprocess.Popen[bytes] | None = None
        self._jobs, self._where = machines, folder
        super().__init__(machines, pod, folder, workspace)

    def _live(self) -> None:
        try:
            process = self._started()
        except OSError as error:
            self._machines.say(self._pod, "container", f"error: {error}")
            process = None
        if process is not None:
            self._watch(process, self._machines.knobs)
        if not self._halted.is_set():
            self._halted.set()
            self._unpublish()
            self._jobs.ended(self._pod.id, process.returncode if process is not None else 1)

    def _connect(self, pid: int) -> None:
        super()._connect(pid)
        config = self._where / "gateway.conf"
        config.write_text(
            "\n".join(
                (
                    f"Port {GATEWAY_PORT}",
                    "ListenAddress 127.0.0.1",
                    f"HostKey {self._jobs.gateway_key}",
                    f"AuthorizedKeysFile {self._jobs.user_key}.pub",
                    "PidFile none",
                    "AuthenticationMethods publickey",
                    "PermitRootLogin prohibit-password",
                    "StrictModes no",
                    "UsePAM no",
                )
            )
            + "\n"
        )
        program = find_sshd()
        assert program is not None
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self._gateway = subprocess.Popen(
            ["nsenter", f"--net=/proc/{self.pid}/ns/net", program, "-D", "-f", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _kill(self) -> None:
        super()._kill()
        if self._gateway is not None:
            self._gateway.kill()
            self._gateway.wait()
            self._gateway = None


class JobMachines(RealMachines):
    """``Machines`` of the hub, which is given before the first job starts. ``user_key`` is the
    private key whose public one the account has registered."""

    def __init__(
        self,
        folder: Path,
        now: Callable[[], float],
        keep: Sequence[Path] = (),
        image_env: Mapping[str, str] | None = None,
        reach: Sequence[int] = (),
    ) -> None:
        super().__init__(folder, Knobs(), now, keep, image_env or {}, reach)
        self.hub: Hub = None  # type: ignore[assignment]
        self.user_key, self.gateway_key = self._folder / "user_key", self._folder / "gateway_key"
        for path in (self.user_key, self.gateway_key):
            if not path.exists():
                make_key(path)
        self._pods: dict[str, Pod] = {}

    def boot(self, job: StoodJob) -> None:  # type: ignore[override]
        row = self.hub.hardware[job.spec["flavor"]]
        chip = row["accelerator"] or {"model": "", "quantity": "0"}
        command = commands.Command(
            ("env", "-u", _HOST_MARK), (*job.spec["command"], *job.spec.get("arguments", ()))
        )
        shown = _GPUS.get(chip["model"], "")
        pod = Pod(
            id=job.id, name=job.name, created_at=job.made_at, visible_at=job.made_at,
            body={"args": command.args, "env": {}, "ports": [f"{GATEWAY_PORT}/tcp"]},
            cloud="", data_center="", rate=0.0, key="", host="host", gpu_id=shown,
            gpu_count=int(chip["quantity"]),
            inside={"fewer_gpus": 0, "absent": [], "workspace_mib": 0, "runpodctl": "absent"},
        )  # fmt: skip
        self._pods[job.id] = pod
        folder = self._folder / "pods" / job.id
        workspace = folder / "workspace"
        workspace.mkdir(parents=True, exist_ok=True)
        container = JobContainer(self, pod, folder, workspace)
        self._containers[job.id] = container
        job.ssh = (getpass.getuser(), "127.0.0.1", container.ports[GATEWAY_PORT])

    def halt(self, job: StoodJob, forget: bool = True) -> None:  # type: ignore[override]
        container = self._containers.pop(job.id, None)
        if container is not None:
            # Its own thread may wait for the books' lock, which the caller holds.
            threading.Thread(target=container.halt, daemon=True).start()

    def ended(self, job_id: str, code: int) -> None:
        self._containers.pop(job_id, None)
        with self.hub.lock:
            self.hub.exited(self.hub.jobs[job_id], code)

    def say(self, pod: Pod, source: str, line: str) -> None:
        super().say(pod, source, line)
        if source == "container":
            self.hub.jobs[pod.id].log.append((self._now(), line))

    def environment(self, pod: Pod, public_ssh: int | None) -> dict[str, str]:
        """A job's variables: the Hub's own, and those of the request."""
        spec: dict[str, Any] = self.hub.jobs[pod.id].spec
        row = self.hub.hardware[spec["flavor"]]
        return {
            "PATH": SYSTEM_PATH,
            "HOME": "/root",
            _HOST_MARK: pod.id,
            "JOB_ID": pod.id,
            "ACCELERATOR": spec["flavor"] if row["accelerator"] else "none",
            "CPU_CORES": row["cpu"].split()[0],
            "MEMORY": row["ram"].replace(" GB", "Gi"),
            "CUDA_VERSION": "12.8.1",
            "PYTORCH_VERSION": "2.9.1",
            **self._image_env,
            **spec.get("environment", {}),
            **spec.get("secrets", {}),
        }

    def close(self) -> None:
        for container in list(self._containers.values()):
            with contextlib.suppress(RuntimeError):
                container.halt()
        self._containers.clear()
