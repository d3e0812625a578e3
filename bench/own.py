"""What it costs a script of the user's own to be watched: nanoGPT's ``train.py``, bare and under
``trmcloud run``, in turns.

``make bench-own PEER_PATH=… TEXT=…``: a checkout of nanoGPT, which is copied and not changed, and
Shakespeare's text. Rates are by the times that it prints itself; watching is charged with the
processor time that the kernel counted for all of ours while it trained.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.row import Row
from trmcloud.pod.machine import processes

ROUNDS = 5
STEPS = 500
_WORDS = (
    *("train.py", "config/train_shakespeare_char.py", "--device=cpu", "--compile=False"),
    *("--eval_iters=5", "--log_interval=1", "--block_size=64", "--batch_size=12", "--n_layer=4"),
    *("--n_head=4", "--n_embd=128", f"--max_iters={STEPS}", "--dropout=0.0"),
    "--eval_interval=250",
)
"""Its published setting for a CPU, telling of every step."""
_TOLD_MS = re.compile(r"^iter \d+: .* time ([0-9.]+)ms", re.M)
_WARM_UP = 20
_OURS = b"trmcloud.pod."


def run() -> Iterator[Row]:
    """
    Raises:
        SystemExit: no checkout of nanoGPT, or no text.
    """
    path, text = Path(os.environ.get("PEER_PATH", "")), Path(os.environ.get("TEXT", ""))
    if not (path / "train.py").is_file():
        raise SystemExit(f"PEER_PATH={path} has no train.py: name a checkout of nanogpt")
    if not text.is_file():
        raise SystemExit(f"TEXT={text} is no file: name the text to train on")
    with tempfile.TemporaryDirectory() as scratch:
        project, home = Path(scratch, "project"), Path(scratch, "home")
        shutil.copytree(path, project, ignore=shutil.ignore_patterns(".git", ".gitignore"))
        data = project / "data" / "shakespeare_char"
        shutil.copy(text, data / "input.txt")
        bin_path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "PATH": bin_path, "TRMCLOUD_HOME": str(home),
        }  # fmt: skip
        for command in (["git", "init", "-q"], ["python", str(data / "prepare.py")]):
            subprocess.run(
                command, cwd=project, env=environment, stdout=subprocess.DEVNULL, check=True
            )
        rounds = [_round(project, home, environment, number) for number in range(ROUNDS)]
    bare = statistics.median(ms for ms, _, _ in rounds)
    watched = statistics.median(ms for _, ms, _ in rounds)
    yield Row(
        "nanoGPT under run ÷ bare, steps a second",
        statistics.median(alone / beside for alone, beside, _ in rounds),
        0.98,
        "higher",
        "×",
        f"{ROUNDS} rounds in turns: {watched:.1f} and {bare:.1f} ms a step",
    )
    share = statistics.median(share for _, _, share in rounds)
    each = ", ".join(f"{100 * share:.2f}" for _, _, share in rounds)
    yield Row(
        "watching, of the script's processor time",
        100 * share,
        1.0,
        "lower",
        "%",
        f"what runs it, its agent and watchdog together: {each}",
    )


def _round(
    project: Path, home: Path, environment: Mapping[str, str], number: int
) -> tuple[float, float, float]:
    """(ms of a step bare, under ours, our share of the script's processor time)"""
    if number % 2:
        beside, share = _watched(project, home, environment)
        return _bare(project, environment), beside, share
    alone = _bare(project, environment)
    return alone, *_watched(project, home, environment)


def _bare(project: Path, environment: Mapping[str, str]) -> float:
    done = subprocess.run(
        ["python", *_WORDS], cwd=project, env=environment, check=True, capture_output=True
    )
    return _step_ms(done.stdout.decode())


def _watched(project: Path, home: Path, environment: Mapping[str, str]) -> tuple[float, float]:
    begun = time.time()
    command = [
        *("trmcloud", "run", "local", "--rate", "3.60", "--budget", "1", "--grace", "5"),
        *("--checkpoint-gb", "0.05", "--checkpoints", "out-shakespeare-char"),
        *("--metric", "val loss ([0-9.]+)", "-y", "--", "python", *_WORDS),
    ]
    with subprocess.Popen(
        command, cwd=project, env=environment, stdout=subprocess.DEVNULL
    ) as process:
        share = _share_of_ours(home, process, begun)
        if process.wait():
            raise SystemExit("it failed under run: trmcloud logs")
    log = max(home.glob("runs/*/train/train.log"), key=lambda path: path.stat().st_mtime)
    return _step_ms(log.read_text(encoding="utf-8")), share


def _step_ms(log: str) -> float:
    return statistics.median(float(ms) for ms in _TOLD_MS.findall(log)[_WARM_UP:])


def _share_of_ours(home: Path, process: subprocess.Popen[bytes], begun: float) -> float:
    """Of the processor time that the script took from its first steps to its last, all that ours
    took meanwhile."""
    first: dict[int, tuple[bool, float]] = {}
    last: dict[int, tuple[bool, float]] = {}
    while process.poll() is None:
        if _trains(home, begun):
            now = _processor_s(home)
            first = first or now
            if set(first) <= set(now):
                last = now
        time.sleep(1.0)
    used = [(is_ours, last[pid][1] - taken) for pid, (is_ours, taken) in first.items()]
    ours = sum(seconds for is_ours, seconds in used if is_ours)
    return ours / sum(seconds for is_ours, seconds in used if not is_ours)


def _trains(home: Path, since: float) -> bool:
    """Whether a script that was started ``since`` has told of steps."""
    logs = [path for path in home.glob("runs/*/train/train.log") if path.stat().st_mtime > since]
    return any(len(_TOLD_MS.findall(path.read_text())) > _WARM_UP for path in logs)


def _processor_s(home: Path) -> dict[int, tuple[bool, float]]:
    """pid → (whether it is ours, seconds that all of its threads have used)."""
    found = {}
    for folder in home.glob("pods/*"):
        for pid in processes.of_pod(folder.name):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                threads = list(Path(f"/proc/{pid}/task").iterdir())
                nanoseconds = sum(int((t / "schedstat").read_text().split()[0]) for t in threads)
            except (OSError, IndexError):
                continue
            found[pid] = _OURS in words, nanoseconds / 1e9
    return found
