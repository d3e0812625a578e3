"""The real SkyPilot reads what we hand it: our own tasks, and those below ``sky/``.

Skipped where ``make sky`` was not run. One process for all: importing SkyPilot takes seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.unit.skypilot.rig import KEYS, NOW, request
from trmcloud.adapters.skypilot.task import make_task
from trmcloud.core.providers import RUNPOD_BY_SKYPILOT

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-sky" / "bin" / "python"
_CHIPS = ("A100", "A100-80GB", "A100-80GB-SXM", "B200", "H100", "H100-SXM", "H200", "H200-SXM")
_HEAD = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,"
    "AvailabilityZone,GpuInfo\n"
)
_READ = """
import json, sys
import sky
told = {}
for path in sys.argv[1:]:
    task = sky.Task.from_yaml(path)
    (one, *_) = task.resources
    told[path] = [str(one.cloud), one.accelerators, one.max_hourly_cost,
                  one.autostop_config.down if one.autostop_config else None, task.num_nodes]
print(json.dumps(told))
"""

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no SkyPilot here: make sky")


def test_it_reads_every_task(tmp_path: Path) -> None:
    catalogue = tmp_path / ".sky" / "catalogs" / "v8"
    rows = {
        "aws": "p5.48xlarge,H100,8,192,2048,55.04,,us-east-1,us-east-1a,\n",
        "runpod": "8x_H100-SXM_SECURE,H100-SXM,8,160,1000,31.92,,US,US-KS-2,\n",
    }
    for cloud, row in rows.items():
        (catalogue / cloud).mkdir(parents=True)
        (catalogue / cloud / "vms.csv").write_text(_HEAD + row)
    (catalogue / "common").mkdir()
    names = "".join(f"{chip},\"['AWS', 'RunPod']\"\n" for chip in _CHIPS)
    (catalogue / "common" / "accelerators.csv").write_text("AcceleratorName,Clouds\n" + names)
    archive = tmp_path / "boot.tar.gz"
    archive.write_bytes(b"x")
    ours = {}
    for provider, region in (("aws", "us-east-1"), (RUNPOD_BY_SKYPILOT, "US")):
        path = tmp_path / f"{provider}.yaml"
        path.write_text(make_task(provider, request(region=region), KEYS, str(archive), NOW))
        ours[provider] = str(path)
    shipped = sorted(str(path) for path in (ROOT / "sky").glob("*.yaml"))
    done = subprocess.run(
        [str(PYTHON), "-c", _READ, *ours.values(), *shipped],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path),
             "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told[ours["aws"]] == ["AWS", {"H100": 8}, 55.04, True, 1]
    assert told[ours[RUNPOD_BY_SKYPILOT]] == ["RunPod", {"H100-SXM": 8}, 55.04, True, 1]
    assert set(shipped) <= set(told)
