"""From typing ``launch`` to the first trained step: on the stand-in of RunPod against this machine.

The same job, the same bundled trainer, data made ready before; only the GPU is missing. The two
take turns, so that a busy machine is busy for both. What lies between them is renting: look-ups and
checks, the create, a container's start, its own checks, sending code and data, and hearing of it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.row import Row
from tests.standins.runpod.machines import no_namespaces
from tests.standins.runpod.standin import running
from tests.standins.sshd import find_sshd
from trmcloud.io.files import read_small

ROUNDS = 5
_MOST_CALLS = 6
_MOST_LISTS = 1.0
_LIST = "GET /v2/pods"
_MOST_TIMES = 3.0
_WITHIN_S = 240.0
_JOB = (
    *("--recipe", "trm-tiny", "--phase", "fast", "--steps", "2", "-y"),
    *("--budget", "2", "--data", "text.txt"),
)
_RENTED = ("launch", "1xRTX4090", *_JOB, "--accept-exposure", "2")
_HERE = ("launch", "local", *_JOB, "--rate", "0.69")


def run() -> list[Row]:
    """RunPod's requests of one launch until its first step, and its seconds as a ratio."""
    why_not = no_namespaces() or ("" if find_sshd() else "no sshd")
    if why_not:
        print(f"first step: left out, since {why_not}")
        return []
    with tempfile.TemporaryDirectory() as name, running(Path(name) / "runpod") as standin:
        folder = Path(name)
        (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 4000)
        environment = {
            **os.environ,
            "HOME": name,
            "TRMCLOUD_RUNPOD_API": standin.url,
            "RUNPOD_API_BASE_URL": standin.url,
            "RUNPOD_API_KEY": standin.api_key,
            # Its pods have the torch of this machine, not that of the image we would ask for.
            "TRMCLOUD_RUNPOD_IMAGE": "an/image:own",
        }
        ready = folder / "ready"
        command = [sys.executable, "-m", "trmcloud", *_HERE]
        subprocess.run(
            command, env={**environment, "TRMCLOUD_HOME": str(ready)}, cwd=name,
            stdout=subprocess.DEVNULL, check=True, timeout=300,
        )  # fmt: skip
        seconds: dict[Sequence[str], list[float]] = {_RENTED: [], _HERE: []}
        asked: list[list[str]] = []
        for number in range(ROUNDS):
            for job in (_RENTED, _HERE) if number % 2 else (_HERE, _RENTED):
                home = folder / f"home-{number}-{'rented' if job is _RENTED else 'here'}"
                shutil.copytree(ready / "data", home / "data")
                standin.requests.clear()
                took, first_at = _first_step(job, {**environment, "TRMCLOUD_HOME": str(home)}, home)
                for pod in standin.control.live():
                    standin.control.end(pod.id)
                seconds[job].append(took)
                if job is _RENTED:
                    asked.append(
                        [
                            each.operation or f"{each.method} {each.path}"
                            for each in standin.requests
                            if each.who == "account" and each.at <= first_at
                        ]
                    )
    ratio = statistics.median(
        mine / theirs for mine, theirs in zip(seconds[_RENTED], seconds[_HERE], strict=True)
    )
    rented, here = statistics.median(seconds[_RENTED]), statistics.median(seconds[_HERE])
    lists = statistics.median(
        calls.count(_LIST) / took for calls, took in zip(asked, seconds[_RENTED], strict=True)
    )
    others = max(([one for one in calls if one != _LIST] for calls in asked), key=len)
    told = " · ".join(f"{count} × {one}" for one, count in Counter(others).most_common())
    load = os.getloadavg()[0]
    return [
        Row("calls to the first step, lists apart", len(others), _MOST_CALLS, "lower", "", told),
        Row("lists of pods meanwhile", lists, _MOST_LISTS, "lower", "/s", f"{_LIST}, as it boots"),
        Row(
            "launch to first step, rented against local", ratio, _MOST_TIMES, "lower", "",
            f"{rented:.1f} s against {here:.1f} s, {ROUNDS} rounds in turns, load {load:.1f}",
        ),
    ]  # fmt: skip


def _first_step(
    job: Sequence[str], environment: Mapping[str, str], home: Path
) -> tuple[float, float]:
    """(seconds from the command's start to the end of its first step, when that was). What comes
    after is not waited for."""
    begun = time.time()
    launch = subprocess.Popen(
        [sys.executable, "-m", "trmcloud", *job],
        env=environment, cwd=home.parent, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while time.time() - begun < _WITHIN_S:
            for path in home.glob("runs/*/fast/metrics.jsonl"):
                for line in map(json.loads, (read_small(path) or "").splitlines()):
                    if line["kind"] == "train":
                        return float(line["at"]) - begun, float(line["at"])
            assert launch.poll() in (None, 0), f"{job} ended with {launch.returncode}"
            time.sleep(0.1)
        raise AssertionError(f"{job} took no step within {_WITHIN_S:.0f} s")
    finally:
        launch.terminate()
        launch.wait()
