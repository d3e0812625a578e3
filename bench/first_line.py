"""From "the pod is up" to the first trained step, on the stand-in of RunPod, its data warm.

The bundled trainer, as ``launch`` starts it; only the GPU is missing. The first
launch makes the data ready, and the second one is timed: by the ledger's own record of when RunPod
listed the pod, and by the trainer's own line about its first step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.row import Row
from tests.standins.runpod.machines import no_namespaces
from tests.standins.runpod.standin import running
from tests.standins.sshd import find_sshd
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev

_TARGET_S = 10.0
_LAUNCH = (
    *("launch", "1xRTX4090", "--recipe", "trm-tiny", "--phase", "fast", "--steps", "2", "-y"),
    *("--budget", "2", "--accept-exposure", "2", "--data", "text.txt"),
)


def run() -> list[Row]:
    """Seconds from the pod's listing to the end of its first step."""
    why_not = no_namespaces() or ("" if find_sshd() else "no sshd")
    if why_not:
        print(f"first line: left out, since {why_not}")
        return []
    with tempfile.TemporaryDirectory() as name, running(Path(name) / "runpod") as standin:
        folder = Path(name)
        (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 4000)
        environment = {
            **os.environ,
            "HOME": name,
            "TRMCLOUD_HOME": str(folder / "home"),
            "TRMCLOUD_RUNPOD_API": standin.url,
            "RUNPOD_API_BASE_URL": standin.url,
            "RUNPOD_API_KEY": standin.api_key,
        }
        command = [sys.executable, "-m", "trmcloud", *_LAUNCH]
        for _ in range(2):
            subprocess.run(
                command, env=environment, cwd=name, stdout=subprocess.DEVNULL, check=True,
                timeout=300,
            )  # fmt: skip
        seconds = _seconds(folder / "home")
    detail = "boot, check, stage, start and the first step, warm data, loopback"
    return [Row("pod listed to first trained step", seconds, _TARGET_S, "lower", "s", detail)]


def _seconds(home: Path) -> float:
    records = SqliteLedger(home / "ledger.db").records()
    last = next(r for r in reversed(records) if isinstance(r.event, ev.PodUp))
    metrics = home / "runs" / last.run_id / "fast" / "metrics.jsonl"
    lines = (json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines())
    first = next(line for line in lines if line["kind"] == "train")
    return float(first["at"]) - last.at
