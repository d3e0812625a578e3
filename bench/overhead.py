"""What guarding and telling cost: the demo's launch, its agent and watchdog watched from outside.

Agent and watchdog are charged with the processor time the kernel counted for them, manifests with
every second spent saving, metrics and heartbeats with their measured cost per call times the calls
that the run made. Rules, too, are charged with their processor time, which other work on the
machine does not lengthen. The sum is stated against the seconds spent in training steps.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.row import Row
from trmcloud.pod.machine import processes

_LAUNCH = (
    *("launch", "local", "--recipe", "trm-tiny", "--phase", "fast", "--processes", "2"),
    *("--rate", "3.60", "--budget", "0.20", "-y"),
)
_CALLS = 2000


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "TRMCLOUD_HOME": home, "HOME": home}
        entry = str(Path(sys.executable).parent / "trmcloud")
        launch = subprocess.Popen([entry, *_LAUNCH], env=environment, stdout=subprocess.DEVNULL)
        guards_s = _cpu_of_guards(Path(home), launch)
        answer = subprocess.run(
            [entry, "report", "--json"], env=environment, capture_output=True, check=True
        )
        report = json.loads(answer.stdout)["runs"][0]
        metrics = next(Path(home).glob("runs/*/fast/metrics.jsonl"))
        logged = metrics.read_text().splitlines()
    lines, evaluations = len(logged), sum('"kind": "eval"' in line for line in logged)
    seconds = report["parts_s"]
    beat_s, write_s, line_s = _cost_of_telling()
    judge_s, fit_s, pace_s = _cost_of_rules()
    rules_s = report["steps"] * (judge_s + pace_s) + evaluations * fit_s
    telling_s = report["steps"] * beat_s + report["paid_s"] * write_s + lines * line_s
    spent_s = guards_s + telling_s + seconds["saving"]
    share = 100 * spent_s / seconds["training"]
    useful = 100 * report["useful_fraction"]
    return [
        Row(
            "agent + metrics + manifests, of step time",
            share,
            1.0,
            "lower",
            "%",
            f"agent and watchdog {guards_s:.2f} s, telling {telling_s:.2f} s, saving "
            f"{seconds['saving']:.2f} s beside {seconds['training']:.0f} s of training",
        ),
        Row(
            "rules of recovery and of worth, of step time",
            100 * rules_s / seconds["training"],
            0.1,
            "lower",
            "%",
            f"{report['steps']:,} steps judged at {judge_s * 1e6:.0f} µs, their ranks' pace told"
            f" at {pace_s * 1e6:.0f} µs, {evaluations} curves fitted at {fit_s * 1e6:.0f} µs",
        ),
        Row(
            "paid seconds in training steps, demo",
            useful,
            80.0,
            "higher",
            "%",
            ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items() if value),
        ),
    ]


def _cpu_of_guards(home: Path, launch: subprocess.Popen[bytes]) -> float:
    """Processor seconds that agent and watchdog had used when last seen alive."""
    used: dict[int, float] = {}
    while launch.poll() is None:
        for folder in home.glob("pods/*"):
            for pid in processes.of_pod(folder.name):
                try:
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if b"trmcloud.pod." in command:
                    ticks = int(fields[11]) + int(fields[12])
                    used[pid] = ticks / os.sysconf("SC_CLK_TCK")
        time.sleep(1.0)
    return sum(used.values())


def _cost_of_telling() -> tuple[float, float, float]:
    """Seconds of a heartbeat not written, a heartbeat written, and a line of metrics."""
    from model.machine.telemetry import Clock, HeartbeatWriter, Metrics
    from trmcloud.core.contract.trainer_contract import PhaseJob

    with tempfile.TemporaryDirectory() as folder:
        job = PhaseJob("r-bench", "fast", {}, folder, folder, 1)
        pulse = HeartbeatWriter(job, 1, _CALLS, Clock())
        metrics = Metrics(Path(folder), Clock())
        news = {"loss": 1.0, "step_losses": (4.0, 3.0, 2.0, 1.0), "grad_norm": 1.0}
        begun = time.perf_counter()
        for step in range(_CALLS):
            pulse.beat(step=step, **news)
        beaten = time.perf_counter()
        for step in range(_CALLS // 10):
            pulse.enter("training", step=step, **news)
        written = time.perf_counter()
        for step in range(_CALLS):
            metrics.write("train", step, **news, lr=1.0, tokens=step)
        told = time.perf_counter()
    calls = float(_CALLS)
    return (beaten - begun) / calls, (written - beaten) / (calls / 10), (told - written) / calls


def _cost_of_rules() -> tuple[float, float, float]:
    """Processor seconds of judging a step beside 128 others, of fitting a curve through points,
    and of timing a step's pass and adding up eight ranks' (the collective call is there without
    them)."""
    import torch

    from model.training.soundness import Soundness
    from model.training.stepping import Pace, Paces
    from trmcloud.core.contract import gate
    from trmcloud.core.contract.trainer_contract import OVER

    soundness = Soundness()
    losses = [2.0 + 0.01 * math.sin(step) for step in range(OVER + _CALLS)]
    for step in range(OVER):
        soundness.judge(step, losses[step], 1.0, finite=True)
    begun = time.process_time()
    for step in range(OVER, OVER + _CALLS):
        soundness.judge(step, losses[step], 1.0, finite=True)
    judged = time.process_time()
    evaluations = [(100 * (n + 1), 2.0 - 0.1 * math.log(n + 1)) for n in range(gate.MOST_POINTS)]
    for _ in range(_CALLS // 10):
        assert gate.fit(evaluations) is not None
    fitted = time.process_time()
    pace, paces = Pace(torch.device("cpu"), time.monotonic), Paces()
    for _ in range(_CALLS):
        with pace.timed():
            pass
        own = torch.zeros(8, dtype=torch.float64)
        own[0] = pace.taken_s()
        paces.add(torch.cat([own[:3], own]).tolist()[3:])
    told = time.process_time()
    return (
        (judged - begun) / _CALLS,
        (fitted - judged) / (_CALLS // 10),
        (told - fitted) / _CALLS,
    )
