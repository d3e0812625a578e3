"""CPU of ``plan`` by the agents' door against the command's: a server that is there already, and a
process of its own, each making the same plan."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.row import Row
from trmcloud.api import Home

ROUNDS = 5
MOST = 1.2
_PLAN = {
    "hardware": "local", "recipe": "trm-tiny", "phase": "fast", "rate": "3.60", "budget": "1",
    "data": "python-stdlib",
}  # fmt: skip


def run() -> list[Row]:
    from trmcloud.mcp.server import answer, desk_of
    from trmcloud.mcp.tools import tools

    with tempfile.TemporaryDirectory(prefix="trmcloud-bench-") as folder:
        home, project = Path(folder) / "home", Path(folder) / "project"
        project.mkdir()
        Home(home).give_grant("agent", "2")
        desk, tool = desk_of(home, "agent", project), tools()["plan"]
        words = [word for name, value in _PLAN.items() for word in (f"--{name}", value)]
        shares, door_s, command_s = [], 0.0, 0.0
        for _ in range(ROUNDS):
            began = time.process_time()
            assert not answer(desk, tool, _PLAN).is_error
            door_s, command_s = time.process_time() - began, _cpu_of_command(home, words)
            shares.append(door_s / command_s)
    detail = f"{door_s * 1000:.0f} ms against {command_s * 1000:.0f} ms in the last of {ROUNDS}"
    worst = f"; {max(shares):.2f} × in the worst"
    share = statistics.median(shares)
    return [Row("CPU of plan, by MCP", share, MOST, "lower", "×", detail + worst)]


def _cpu_of_command(home: Path, words: list[str]) -> float:
    """CPU seconds of ``trmcloud plan``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "trmcloud", "plan", *words],
        env={**os.environ, "TRMCLOUD_HOME": str(home)}, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
