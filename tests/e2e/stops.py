"""Rounds of SIGSTOP and SIGKILL: a local run's command, agent, watchdog and trainer, all but one.

Each round starts a real run under a budget of cents, and at random moments stops or kills its
processes, so that at least one of command, agent and watchdog is left running. That one must have
the pod ended in time: what the pod's life costs, by this process's own clock and by the ledger, is
within the budget, and no process of the pod is left.

    python -m tests.e2e.stops --rounds 60 --page docs/soak/stops.md --date 2026-11-23
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.crash.__main__ import hash_of
from tests.e2e.user import SMALL, User, until
from trmcloud.core.contract.pod_contract import parse_pod_name
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.pod.machine import processes

SOURCES = (
    *("trmcloud/providers/local/compute.py", "trmcloud/operations/driving/drive.py"),
    *("trmcloud/core/catalog/providers.py", "trmcloud/core/control/controller.py"),
    *("trmcloud/core/contract/supervisor.py", "trmcloud/pod/agent/loop.py"),
    *("trmcloud/pod/agent/process.py", "trmcloud/pod/agent/watchdog.py"),
    *("trmcloud/pod/agent/watchdog.py", "trmcloud/pod/machine/processes.py"),
)
RATE = Usd("3.60")
BUDGETS = ("0.016", "0.018", "0.02", "0.024")
COMMAND, AGENT, WATCHDOG, TRAINER = "command", "agent", "watchdog", "trainer"
LAYERS = (COMMAND, AGENT, WATCHDOG)
STOP, KILL = "stopped", "killed"
_SIGNALS = {STOP: signal.SIGSTOP, KILL: signal.SIGKILL}
_WORDS = {
    AGENT: ("trmcloud.pod.agent.process",),
    WATCHDOG: ("trmcloud.pod.agent.watchdog",),
    TRAINER: ("torch.distributed.run", "model.train"),
}
_LATEST_S = 12.0
_LEFT_S = 30.0
"""How long after its hard stop a round is watched, before its pod counts as left alive."""


@dataclass(frozen=True)
class Blow:
    """One signal: to whom, which, and when (s after the trainer was seen)."""

    victim: str
    how: str
    at_s: float


@dataclass(frozen=True)
class Round:
    """One run: its budget, whether its trainer heeds SIGTERM, and what befalls its processes."""

    number: int
    budget: str
    deaf: bool
    blows: tuple[Blow, ...]

    @property
    def untouched(self) -> tuple[str, ...]:
        struck = {blow.victim for blow in self.blows}
        return tuple(layer for layer in LAYERS if layer not in struck)

    def __str__(self) -> str:
        blows = ", ".join(f"{b.victim} {b.how} at {b.at_s:.1f} s" for b in self.blows)
        return f"{'deaf trainer; ' if self.deaf else ''}{blows or 'nothing befalls it'}"


@dataclass(frozen=True)
class Result:
    """``lived_usd``: rate × the pod's life as this process saw it; ``late_s``: how long after the
    hard stop its last process ended (negative: before)."""

    round: Round
    cap: Usd
    settled: Usd
    lived: Usd
    late_s: float
    left: tuple[int, ...]

    @property
    def over(self) -> Usd:
        return max(self.settled, self.lived) - self.cap

    @property
    def holds(self) -> bool:
        return self.over <= ZERO and not self.left


def source_hash() -> str:
    return hash_of(SOURCES)


def drawn(number: int, seed: str) -> Round:
    """The round of that number: one or two layers are left alone, the others struck."""
    rng = random.Random(f"{seed} {number}")
    keep = LAYERS[number % len(LAYERS)]
    struck = [layer for layer in LAYERS if layer != keep and rng.random() < 0.85]
    if rng.random() < 0.3:
        struck.append(TRAINER)
    together = rng.uniform(0.0, _LATEST_S)
    blows = []
    for victim in struck:
        at_s = together if rng.random() < 0.5 else rng.uniform(0.0, _LATEST_S)
        blows.append(Blow(victim, rng.choice((STOP, STOP, KILL)), at_s))
        if victim == TRAINER:
            blows[-1] = Blow(victim, STOP, at_s)
    rng.shuffle(blows)
    blows.sort(key=lambda blow: blow.at_s)
    return Round(number, rng.choice(BUDGETS), rng.random() < 0.8, tuple(blows))


def play(one: Round, folder: Path, environment: Mapping[str, str] | None = None) -> Result:
    """Play one round in an empty folder; ends every process that it started."""
    user = User(folder, environment=dict(environment or {}))
    if one.deaf:
        user.environment["TRMCLOUD_STANDIN_FAULT"] = "deaf"
    words = [*("launch", "local", *SMALL, "--phase", "fast", "-y", "--processes", "1")]
    words += ["--set", "steps=100000", "--budget", one.budget]
    user.warm = False
    with open(folder / "command.log", "w", encoding="utf-8") as log:
        env = user.env()
        command = subprocess.Popen(
            [sys.executable, "-m", "trmcloud", *words],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: bool(_pids(user, TRAINER)), within_s=60.0, what="its trainer starts")
        return _strike_and_watch(one, user, command)
    finally:
        command.kill()
        command.wait()
        user.end_everything()


def _strike_and_watch(one: Round, user: User, command: subprocess.Popen[bytes]) -> Result:
    (name,) = [path.name for path in user.home.glob("pods/*")]
    parsed = parse_pod_name(name)
    assert parsed is not None
    hard_stop_at = float(parsed.hard_stop_at)
    begun_at = (user.home / "pods" / name / "lease.json").stat().st_mtime
    started, struck = time.time(), 0
    while True:
        now = time.time()
        while struck < len(one.blows) and now >= started + one.blows[struck].at_s:
            _strike(one.blows[struck], user, command)
            struck += 1
        alive = processes.of_pod(name)
        if not alive or now > hard_stop_at + _LEFT_S:
            break
        time.sleep(0.03)
    gone_at = time.time()
    # Whatever befell the command, another one comes by and settles.
    if COMMAND in one.untouched:
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.wait(timeout=20)
    command.kill()
    command.wait()
    time.sleep(1.0)
    user.run("status")
    run = user.only_run()
    return Result(
        one,
        run.cap,
        run.settled,
        cost(RATE, gone_at - begun_at),
        gone_at - hard_stop_at,
        tuple(processes.of_pod(name)),
    )


def _strike(blow: Blow, user: User, command: subprocess.Popen[bytes]) -> None:
    pids = [command.pid] if blow.victim == COMMAND else _pids(user, blow.victim)
    for pid in pids:
        if blow.victim == COMMAND and command.poll() is not None:
            return
        try:
            os.kill(pid, _SIGNALS[blow.how])
        except ProcessLookupError:
            continue


def _pids(user: User, victim: str) -> list[int]:
    """Live processes of the run's pod that are its agent, watchdog or trainer."""
    found = []
    for folder in user.home.glob("pods/*"):
        for pid in processes.of_pod(folder.name):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if any(word in line for word in _WORDS[victim]):
                found.append(pid)
    return found


def play_all(rounds: Sequence[Round], folder: Path, jobs: int) -> list[Result]:
    """Play rounds side by side, each in a home of its own."""

    def one(each: Round) -> Result:
        home = folder / f"round-{each.number}"
        home.mkdir()
        result = play(each, home)
        told = "holds" if result.holds else "BROKEN"
        print(
            f"{each.number:3} {told} {result.late_s:+6.2f} s settled {result.settled} "
            f"lived {result.lived} of {result.cap}: {each}",
            flush=True,
        )
        return result

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, rounds))


def page(results: Sequence[Result], date: str, command: str, wall_s: float) -> str:
    """The page that docs/soak keeps."""
    broken = [result for result in results if not result.holds]
    rows = []
    for keep in (*((layer,) for layer in LAYERS), None):
        mine = [
            r
            for r in results
            if (r.round.untouched == keep if keep else len(r.round.untouched) > 1)
        ]
        if mine:
            late = max(r.late_s for r in mine)
            over = max((r.over for r in mine), key=lambda usd: usd.micros)
            name = f"{keep[0]} alone" if keep else "two or more"
            over_said = "0" if over <= ZERO else str(over)
            rows.append(f"| {name} | {len(mine)} | {late:+.2f} s | {over_said} |")
    blows = [blow for r in results for blow in r.round.blows]
    stops, kills = (sum(b.how == how for b in blows) for how in (STOP, KILL))
    lines = [
        "# Stops: a local run's processes under SIGSTOP and SIGKILL",
        "",
        "Real runs on this machine under a budget of cents. At random moments the command, the",
        "agent, the watchdog and the trainer's processes are stopped or killed, so that at least",
        "one of command, agent and watchdog is left running. Most trainers ignore SIGTERM. A round",
        "holds if rate × the pod's life, by the harness's own clock and by the ledger, is within",
        "the budget, and no process of the pod is left.",
        "",
        f"- date: {date}",
        f"- command: `make soak-stops`, that is `{command}`",
        f"- source: `{source_hash()}`",
        f"- rounds: **{len(results)}**; signals: {stops} SIGSTOP, {kills} SIGKILL",
        f"- {wall_s:.0f} s on {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}",
        f"- rounds that exceeded their budget or left a process: **{len(broken)}**",
        "",
        "| left running | rounds | latest end after the hard stop | overshoot |",
        "|---|---:|---:|---:|",
        *rows,
        "",
        "A hard stop lies 3 s, the kill latency, before the instant at which the budget is spent.",
    ]
    if broken:
        lines += ["", "## Broken", ""]
        lines += [
            f"- {r.round.number}: {r.settled}, {r.lived} of {r.cap}, left {r.left}: {r.round}"
            for r in broken
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="stops", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--date", default="")
    parser.add_argument("--seed", default="")
    arguments = parser.parse_args()
    rounds = [drawn(n, arguments.seed or source_hash()) for n in range(arguments.rounds)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        results = play_all(rounds, Path(folder), arguments.jobs)
    command = f"python -m tests.e2e.stops --rounds {arguments.rounds} --page FILE"
    if arguments.page is not None:
        text = page(results, arguments.date, command, time.monotonic() - began)
        arguments.page.write_text(text, encoding="utf-8")
    broken = sum(not result.holds for result in results)
    print(f"{len(results)} rounds, {broken} broken")
    raise SystemExit(1 if broken else 0)


if __name__ == "__main__":
    main()
