"""kill -9 at random moments: within the budget, no checkpoint lost, nothing left running."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.drawn import drawn
from tests.e2e.user import SMALL, User, kill, until
from trmcloud.core.contract import manifest as mf
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd
from trmcloud.operations.reasons import sentence
from trmcloud.pod.machine import processes

BUDGET = Usd("0.02")
MOMENTS, TRIED = 20, 2
LATEST_S = 8.0
LAUNCH = (
    *("launch", "local", *SMALL, "--phase", "fast", "--budget", BUDGET.plain(), "-y"),
    *("--processes", "2"),
)

NewUser = Callable[[str], User]


def settle(user: User, cap: Usd = BUDGET) -> RunState:
    """What the next command makes of it, once the pod has ended by itself."""
    until(lambda: not user.live_pods(), what="the pod ends by itself")
    time.sleep(1.0)  # how long a pod may take to appear after it was asked for
    user.run("status")
    run = user.only_run()
    assert not run.live
    assert run.reserved == ZERO
    assert run.settled <= run.cap == cap
    assert [pid for pod in user.pods() for pid in processes.of_pod(pod.name)] == []
    return run


def at_random_moments(new_user: NewUser, play: Callable[[User, float], None]) -> None:
    """``play(user, delay_s)`` for users side by side, each with a moment of its own."""
    moments = drawn([(f"u{n}", (n + 0.5) * LATEST_S / MOMENTS) for n in range(MOMENTS)], TRIED)
    with ThreadPoolExecutor(TRIED) as pool:
        for done in [pool.submit(play, new_user(name), delay) for name, delay in moments]:
            done.result()


def test_killing_the_command(new_user: NewUser) -> None:
    """With the controller dead the agent alone ends the run in time; the next command settles."""

    def play(user: User, delay_s: float) -> None:
        process = user.start(*LAUNCH)
        until(lambda: (user.home / "ledger.db").exists())
        time.sleep(delay_s)
        process.kill()
        process.wait()
        before = user.checkpoints()
        runs = user.ledger().runs
        if not runs:
            return
        run = settle(user)
        assert run.outcome in (Outcome.LANDED, Outcome.NOT_STARTED, Outcome.STOPPED)
        if run.outcome is not Outcome.LANDED:
            assert run.settled == ZERO
        after = user.checkpoints()
        best = mf.pick_best(before.values())
        assert best is None or best.label in after or mf.pick_best(after.values()) is not None

    at_random_moments(new_user, play)


@pytest.mark.parametrize(
    "victim", ["trmcloud.pod.agent.process", "model.train", "torch.distributed.run"]
)
def test_killing_agent_rank_or_torchrun(new_user: NewUser, victim: str) -> None:
    """The watchdog starts the agent again, the agent the trainer; the run goes on and lands."""

    def play(user: User, delay_s: float) -> None:
        # On a busy machine it may have landed before the command has left it.
        user.run(*LAUNCH, "-d", code=(0, Outcome.LANDED.exit_code))
        time.sleep(delay_s)
        victims = user.pids(victim)
        before = mf.pick_best(user.checkpoints().values())
        if victims:
            kill(random.Random(delay_s).choice(victims))
        run = settle(user)
        assert run.outcome is Outcome.LANDED, sentence(run.reason)
        after = mf.pick_best(user.checkpoints().values())
        assert after is not None
        if before is not None and before.val_bpb is not None and after.val_bpb is not None:
            assert after.val_bpb <= before.val_bpb

    at_random_moments(new_user, play)


def test_killing_watchdog_and_agent_leaves_the_trainer_to_land_by_itself(user: User) -> None:
    user.run(*LAUNCH, "-d")
    until(lambda: bool(user.pids("model.train")))

    def no_guard_left() -> bool:
        """The watchdog first; what it was starting just then, and who has yet to die, again."""
        guards = [
            pid
            for word in ("trmcloud.pod.agent.watchdog", "trmcloud.pod")
            for pid in user.pids(word)
        ]
        for pid in guards:
            kill(pid)
        return not guards

    until(no_guard_left)
    assert user.pids("model.train")
    run = settle(user)
    assert run.outcome is Outcome.LOST
    assert user.checkpoints()


def test_killing_everything_is_settled_and_resumed(user: User) -> None:
    budget = Usd("0.04")  # what is left of it must buy a second pod's start and landing
    user.run(*LAUNCH, "--budget", budget.plain(), "-d")
    until(lambda: bool(user.checkpoints()))
    for pod in user.live_pods():
        processes.kill_pod(pod.name)
    run = settle(user, budget)
    assert run.outcome is Outcome.LOST
    assert ZERO < run.settled < budget
    user.run("resume", "-y", run.run_id, code=20)
    run = user.only_run()
    assert run.outcome is Outcome.LANDED
    assert len(run.generations) == 2
    assert run.settled <= budget


def test_a_deaf_trainer_is_killed_at_the_hard_stop(user: User) -> None:
    user.environment["TRMCLOUD_STANDIN_FAULT"] = "deaf"
    user.run(*LAUNCH, "--set", "steps=100000", code=25)
    run = user.only_run()
    assert run.outcome is Outcome.KILLED
    assert run.settled <= BUDGET
    assert user.checkpoints()


def test_a_stopped_agent_is_outlived_by_the_watchdog(user: User) -> None:
    """SIGSTOP to agent and trainer: the watchdog alone still keeps the hard stop."""
    user.environment["TRMCLOUD_STANDIN_FAULT"] = "deaf"
    user.run(*LAUNCH, "--set", "steps=100000", "-d")
    until(lambda: bool(user.pids("model.train")))
    for word in ("trmcloud.pod.agent.process", "torch.distributed.run", "model.train"):
        for pid in user.pids(word):
            os.kill(pid, signal.SIGSTOP)
    run = settle(user)
    assert run.outcome is Outcome.KILLED
    assert run.settled <= BUDGET


def test_nan_fails_the_run_and_keeps_its_checkpoint(user: User) -> None:
    user.environment["TRMCLOUD_STANDIN_FAULT"] = "nan@30"
    arguments = ("launch", "local", *SMALL, "--phase", "fast", "--steps", "60", "--budget", "1")
    user.run(*arguments, "-y", code=24)
    assert list(user.checkpoints()) == ["fast/step-00000020"]


def test_a_reused_process_id_is_not_mistaken_for_the_pod(user: User) -> None:
    user.run(*LAUNCH, "-d")
    until(lambda: bool(user.checkpoints()))
    for pod in user.live_pods():
        processes.kill_pod(pod.name)
    folder = next(user.home.glob("pods/*"))
    record = (folder / "pod.json").read_text()
    mine = f'"pid": {os.getpid()}, '
    (folder / "pod.json").write_text(record.replace('"pid": ', mine + '"old": ', 1))
    run = settle(user)
    assert run.outcome is Outcome.LOST
    assert processes.started(os.getpid()) is not None
