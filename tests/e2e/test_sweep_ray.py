"""``trmcloud sweep --on ray`` with a real Ray: ``make ray``. Its own Tune reads what was done."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_sweep import SCRIPT, executor_of, folder_of, journal, swept
from tests.e2e.user import User, until
from trmcloud.core.errors import Outcome
from trmcloud.core.money import Usd
from trmcloud.core.sweep import events as ev
from trmcloud.core.sweep.halving import End, next_moves
from trmcloud.core.sweep.job import SWEEP_NAME, SweepJob, load_job
from trmcloud.core.sweep.state import fold
from trmcloud.pod.job.process import offspring
from trmcloud.pod.machine import processes
from trmcloud.pod.sweep.executor import sampler_of
from trmcloud.pod.sweep.keeper import KEEPER

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: make ray"
    ),
    pytest.mark.timeout(1200),
]
#: Its loss is that of its setting alone, whenever it is stopped.
FLAT = SCRIPT.replace(" + 5 / (5 + step)", "")
PAGE = "TRMCLOUD_RAY_PAGE"
"""The file that gets a line for each thing that was seen."""


def sweep_words(*more: str, slots: int = 2, eta: int = 2) -> tuple[str, ...]:
    return (
        *("sweep", "local", "--rate", "3.60", "-y", "--slots", str(slots), "--eta", str(eta)),
        *("--grace", "2", "--checkpoint-gb", "0.001", "--checkpoints", "out"),
        *("--metric", "val_loss", "--resume", "python3 train.py {lr} {checkpoint}"),
        *(*more, "lr=log:1e-4,1", "--", "python3", "train.py", "{lr}"),
    )


@pytest.fixture
def user(in_project: User) -> User:
    (in_project.here / "train.py").write_text(SCRIPT)
    return in_project


def note(what: str, seen: str) -> None:
    """A line of the page."""
    print(f"{what}: {seen}")
    if path := os.environ.get(PAGE):
        with open(path, "a", encoding="utf-8") as page:
            page.write(f"| {what} | {seen} |\n")


def results(user: User) -> Any:
    """Return what Ray Tune's own reader finds of the last attempt's experiment."""
    from ray import tune

    from trmcloud.pod.sweep.ray_tune import run_interval

    [*_, last] = sorted((folder_of(user) / "ray").iterdir())
    return tune.Tuner.restore(str(last), trainable=run_interval).get_results()


def spent(user: User) -> Usd:
    return Usd(user.json("status", "--json")["runs"][0]["spent_usd"])


def told_sweep(user: User) -> SweepJob:
    job = json.loads((folder_of(user) / "job.json").read_text())
    return load_job((Path(job["code_dir"]) / SWEEP_NAME).read_text())


def running(user: User) -> list[tuple[int, list[str]]]:
    """Return the processes that work in the user's home: (pid, words)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
                if str(user.home) in os.readlink(entry / "cwd") or str(user.home) in words[3:4][0]:
                    found.append((int(entry.name), words))
            except (OSError, IndexError):
                continue
    return found


def keepers(user: User) -> dict[int, int]:
    """Return the keepers that run: pid → that of the Ray worker which started it."""
    return {pid: int(words[4]) for pid, words in running(user) if words[2:3] == [KEEPER]}


def commands(user: User) -> int:
    """Return how many scripts of trials run."""
    return sum(words[1:2] == ["train.py"] for _, words in running(user))


def test_a_sweep_ends_with_its_best_and_tune_reads_the_same_scores(user: User) -> None:
    out = user.run(*sweep_words("--on", "ray", "--budget", "0.18", slots=4))
    assert "trials on" in out
    run = user.only_run()
    assert run.outcome is Outcome.FINISHED
    state, events = swept(user), journal(user)
    assert len(state.trials) >= 12
    assert spent(user) <= Usd("0.18")
    continued = [event for event in events if isinstance(event, ev.TrialContinued)]
    assert continued
    logs = [path.read_text() for path in folder_of(user).glob("trials/*/train.log")]
    assert sum(log.count("resumed from") for log in logs) >= len(continued)
    assert "fetched and verified" in user.run("fetch-best", "--into", "best")

    grid = results(user)
    told = {result.config["trial"]: result for result in grid}
    reached = {n: trial for n, trial in state.trials.items() if trial.results}
    assert set(told) == set(state.trials)
    for number, trial in reached.items():
        metrics = told[number].metrics
        assert metrics["val_loss"] == pytest.approx(trial.results[-1].metric)
        assert metrics["step"] == trial.results[-1].step
        assert metrics["training_iteration"] == len(trial.results)
        assert told[number].config["lr"] == dict(trial.point)["lr"]
    best = min(reached.values(), key=lambda trial: trial.metric or 9.0)
    assert grid.get_best_result("val_loss", "min").config["trial"] == best.number
    note(
        "a command's sweep on a Ray of this machine, 4 slots",
        f"{len(state.trials)} trials, {len(continued)} continued by Tune's pause and resume, "
        f"{spent(user)} of $0.18; Tune's ResultGrid has the same score and step for "
        f"{len(reached)} of {len(reached)} trials and the same best, trial {best.number}",
    )


def test_a_killed_worker_costs_one_interval(user: User) -> None:
    user.run(*sweep_words("--on", "ray", "--budget", "0.90", "-d", slots=1, eta=4))
    until(lambda: sum(isinstance(e, ev.RungReached) for e in journal(user)) >= 1)
    until(lambda: commands(user) == 1 and len(keepers(user)) == 1)
    [(keeper, worker)] = keepers(user).items()
    os.kill(worker, signal.SIGKILL)
    until(lambda: keeper not in keepers(user))
    until(lambda: any(isinstance(e, ev.TrialLost) for e in journal(user)))
    [lost] = [event for event in journal(user) if isinstance(event, ev.TrialLost)]
    until(lambda: len(swept(user).trials[lost.trial].results) >= 1)
    assert not [e for e in journal(user) if isinstance(e, ev.TrialFailed)]
    user.stop()
    run, state = user.only_run(), swept(user)
    assert run.outcome is Outcome.STOPPED
    assert lost.usd <= told_sweep(user).terms.most_usd(-1, 0) + Usd("0.002")
    assert spent(user) <= Usd("0.90")
    until(lambda: commands(user) == 0 and not keepers(user))
    note(
        "a Ray worker killed with SIGKILL in an interval",
        f"that interval is lost (${lost.usd.plain()}), its trial is run again to its rung, no "
        f"other one of {len(state.trials)} is touched; no process is left",
    )


def test_an_executor_that_is_killed_leaves_nothing_and_is_continued(user: User) -> None:
    user.run(*sweep_words("--on", "ray", "--budget", "0.26", "-d"))
    until(lambda: sum(isinstance(e, ev.RungReached) for e in journal(user)) >= 2)
    before = {number: trial.point for number, trial in swept(user).trials.items()}
    pid, started = executor_of(user)
    assert processes.send(pid, started, signal.SIGKILL)
    user.run("logs", "-f")
    run = user.only_run()
    assert run.outcome is Outcome.FINISHED
    state = swept(user)
    assert {n: state.trials[n].point for n in before} == before
    assert spent(user) <= Usd("0.26")
    until(lambda: commands(user) == 0 and not keepers(user))
    note(
        "the executor killed with SIGKILL",
        f"no process of a trial is left; the next one continues from the journal: "
        f"{len(state.trials)} trials, {spent(user)} of $0.26",
    )


def moves_of(events: tuple[ev.SweepEvent, ...]) -> list[tuple[Any, ...]]:
    """Return each move once: what was lost, or started too slowly, is moved again."""
    made: dict[tuple[Any, ...], None] = {}
    for event in events:
        if isinstance(event, ev.TrialStarted):
            made["begin", event.trial, event.rung, event.point] = None
        elif isinstance(event, ev.TrialContinued):
            made["continue", event.trial, event.rung, event.purpose.value] = None
    return list(made)


def test_it_decides_as_the_executor_without_ray_does(user: User, tmp_path: Path) -> None:
    """On an objective that is the same whenever it is stopped, with one slot and ample money."""
    (user.here / "train.py").write_text(FLAT)
    made: dict[str, list[tuple[Any, ...]]] = {}
    replayed = 0
    for where, place in (("here", ()), ("ray", ("--on", "ray"))):
        user.run(*sweep_words(*place, "--budget", "0.36", "-d", slots=1, eta=2))
        until(lambda: len(moves_of(journal(user))) >= _MOVES, within_s=600)
        replayed = replay(user)
        made[where] = moves_of(journal(user))[:_MOVES]
        user.stop()
        user.home.rename(tmp_path / f"home-{where}")
    assert made["ray"] == made["here"]
    continued = sum(move[0] == "continue" for move in made["ray"])
    assert continued
    note(
        "decisions beside those of the executor without Ray, one slot",
        f"the first {_MOVES} moves are the same, {continued} of them continuations; the core alone "
        f"makes the {replayed} moves of Ray's journal again",
    )


_MOVES = 6


def replay(user: User) -> int:
    """Ask the core for each move of a journal again; return how many there were."""
    terms, events = told_sweep(user).terms, journal(user)
    kinds = (ev.TrialStarted, ev.TrialContinued)
    places = [n for n, event in enumerate(events) if isinstance(event, kinds)]
    sampler = sampler_of(terms)
    for place in places:
        [move, *_] = next_moves(fold(events[:place]), terms, 1, sampler)
        assert not isinstance(move, End)
        assert move.event == events[place]
    return len(places)


@dataclass(frozen=True)
class Cluster:
    """Two nodes, each a raylet of its own with one CPU, the first one the head; ``environment`` is
    of who may use it."""

    nodes: list[subprocess.Popen[bytes]]
    environment: dict[str, str]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    ray = Path(sys.executable).with_name("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    may = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    common = ("--num-cpus", "1", "--block", "--disable-usage-stats")
    made = Cluster([], {"RAY_ADDRESS": address, **may})
    try:
        for words in (
            ("--head", "--port", str(port), "--include-dashboard", "false", *common),
            ("--address", address, *common),
        ):
            made.nodes.append(
                subprocess.Popen(
                    (str(ray), "start", *words), env={**os.environ, **may}, start_new_session=True,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip
            until(lambda: answers(port), what="the head answers")
        yield made
    finally:
        for node in made.nodes:
            end_node(node)


def answers(port: int) -> bool:
    with socket.socket() as asked:
        asked.settimeout(1.0)
        return asked.connect_ex(("127.0.0.1", port)) == 0


def end_node(node: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a node, its raylet and all workers."""
    for pid in (node.pid, *offspring(node.pid)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    node.wait()


def test_a_lost_node_of_a_cluster_costs_its_interval(user: User, cluster: Cluster) -> None:
    user.environment |= cluster.environment
    user.run(*sweep_words("--on", "ray", "--budget", "0.90", "-d", eta=4))
    until(lambda: sum(isinstance(e, ev.RungReached) for e in journal(user)) >= 2)
    until(lambda: commands(user) == 2)
    before = len(journal(user))
    end_node(cluster.nodes[1])
    until(lambda: any(isinstance(e, ev.TrialLost) for e in journal(user)[before:]))
    [lost, *_] = [e for e in journal(user)[before:] if isinstance(e, ev.TrialLost)]
    until(lambda: bool(swept(user).trials[lost.trial].results))
    user.stop()
    assert user.only_run().outcome is Outcome.STOPPED
    assert spent(user) <= Usd("0.90")
    assert "fetched and verified" in user.run("fetch-best", "--into", "best")
    note(
        "a cluster of two nodes (RAY_ADDRESS, a token), one killed with its workers",
        f"the interval there is lost (${lost.usd.plain()}), its trial reaches its rung on the "
        f"other node; {len(swept(user).trials)} trials, a verified best",
    )
