"""What a pod finds on its PATH: its GPUs as nvidia-smi shows them, and a runpodctl."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.standins.runpod import catalog
from tests.standins.runpod.knobs import Knobs
from tests.standins.runpod.pods import Pod

HERE = Path(__file__).parent
#: Of boards: highest power limit (W), compute capability, active links of one GPU that is alone.
BOARDS = {
    "NVIDIA B200": (1000, "10.0", 18),
    "NVIDIA H200": (700, "9.0", 18),
    "NVIDIA H200 NVL": (600, "9.0", 0),
    "NVIDIA H100 80GB HBM3": (700, "9.0", 18),
    "NVIDIA H100 PCIe": (350, "9.0", 0),
    "NVIDIA H100 NVL": (400, "9.0", 0),
    "NVIDIA A100-SXM4-80GB": (400, "8.0", 12),
    "NVIDIA A100 80GB PCIe": (300, "8.0", 0),
    "NVIDIA L40S": (350, "8.9", 0),
    "NVIDIA L4": (72, "8.9", 0),
    "NVIDIA GeForce RTX 4090": (450, "8.9", 0),
    "NVIDIA GeForce RTX 3090": (350, "8.6", 0),
}
PYTHONS = ("python", "python3", "pip", "torchrun")


def install(folder: Path, pod: Pod, knobs: Knobs, api_url: str) -> None:
    """Write ``bin/`` and ``home/`` of a pod below ``folder``."""
    shutil.rmtree(folder, ignore_errors=True)
    commands, home = folder / "bin", folder / "home"
    commands.mkdir(parents=True)
    (home / ".runpod").mkdir(parents=True)
    (home / ".runpod" / "config.toml").write_text(f"apikey = '{pod.key}'\n")
    binaries = Path(sys.executable).parent
    for name in PYTHONS:
        if (binaries / name).exists():
            _write(commands / name, f'#!/bin/sh\nexec "{binaries / name}" "$@"\n')
    gpus = shown_gpus(pod)
    if gpus:
        facts = {"gpus": gpus, "driver": knobs.driver, "cuda": knobs.cuda}
        _script(commands / "nvidia-smi", "nvidia_smi.py", facts)
    if pod.inside["runpodctl"] != "absent":
        _script(commands / "runpodctl", "runpodctl.py", {"api": api_url})
    _write(commands / "start.sh", (HERE / "inside" / "start.sh").read_text())
    for name in pod.inside["absent"]:
        (commands / name).unlink(missing_ok=True)


def shown_gpus(pod: Pod) -> list[dict[str, Any]]:
    """The GPUs that are there, which need not be those that were rented."""
    gpu = catalog.gpu(pod.gpu_id)
    if gpu is None or gpu.manufacturer != "NVIDIA":
        return []
    name = pod.inside.get("shown_gpu") or gpu.shown
    watts, capability, links = BOARDS[name]
    shown = {
        "name": name,
        "power.max_limit": f"{watts}.00",
        "compute_cap": capability,
        "links": links,
        "memory.total": gpu.memory_mib,
        "memory.used": 0,
        "utilization.gpu": 0,
    }
    return [shown] * max(0, pod.gpu_count - pod.inside["fewer_gpus"])


def _script(path: Path, source: str, facts: dict[str, Any]) -> None:
    text = (HERE / "inside" / source).read_text()
    _write(path, f"#!{sys.executable} -IS\nFACTS = {json.dumps(facts)!r}\n{text}")


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
