"""A container whose first process is the entry command, and what it is started with."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.unit.pod.leases import job_of
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.trainer_contract import Heartbeat, PhaseJob, load_heartbeat
from trmcloud.pod.machine import processes

ROOT = Path(__file__).resolve().parents[3]
STANDIN = ROOT / "tests" / "standins" / "trainer"
RUNPOD_POD = "abc123"
KEY = "rpa_KEYKEYKEY"


def packed(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def given_environment(
    lease: contract.Lease, root: Path, jobs: Sequence[PhaseJob] | None = None
) -> dict[str, str]:
    rows = [json.loads(contract.dump(job)) for job in jobs or (job_of(lease, root),)]
    return {
        contract.ENV_POD: lease.pod_name,
        contract.ENV_ROOT: str(root),
        contract.ENV_LEASE: packed(contract.dump(lease)),
        contract.ENV_JOBS: packed(json.dumps(rows)),
        contract.ENV_CHECK: packed("{}"),
        contract.ENV_LINGER_S: "0",
    }


class Container:
    """A container whose first process is ``trmcloud.pod.boot``."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.pod_name = environment[contract.ENV_POD]
        self.root = Path(environment[contract.ENV_ROOT])
        self.pod_dir = self.root / contract.PODS_DIR / self.pod_name
        self.log = folder / "container.log"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "trmcloud.pod.boot"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    def inside(self) -> list[int]:
        """The pod's processes but the first."""
        return processes.of_pod(self.pod_name, excluding=frozenset({self.process.pid}))

    def stop(self) -> None:
        """All of it dies at once, as a deleted container does."""
        self.process.kill()
        self.process.wait()
        while processes.kill_pod(self.pod_name):
            time.sleep(0.02)

    def restart(self) -> None:
        self.stop()
        self.process = self._start()

    def heartbeat(self) -> Heartbeat | None:
        path = self.root / contract.RUNS_DIR / "r1" / "fast" / contract.HEARTBEAT_NAME
        return load_heartbeat(path.read_text()) if path.exists() else None

    def trains(self) -> bool:
        beat = self.heartbeat()
        return beat is not None and beat.state == "training" and bool(self.inside())

    def read(self, name: str) -> Any:
        path = self.pod_dir / name
        return json.loads(path.read_text()) if path.exists() else None

    def lives_on(self, seconds: float = 0.7) -> bool:
        time.sleep(seconds)
        return self.process.poll() is None


def stage(root: Path, pod_name: str) -> None:
    """Code and data as the controller leaves them: a folder each, then the note that names them."""
    code, data = root / "code" / "c0de", root / "data" / "da7a"
    shutil.copytree(STANDIN / "model", code / "model", dirs_exist_ok=True)
    data.mkdir(parents=True, exist_ok=True)
    folder = root / contract.PODS_DIR / pod_name
    folder.mkdir(parents=True, exist_ok=True)
    note = {"version": 1, "code": str(code), "data": [str(data)]}
    (folder / contract.STAGED_NAME).write_text(json.dumps(note))
