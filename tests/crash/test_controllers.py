"""Two controllers of one run: stopped and overtaken, or both at the same moment. One acts."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.crash.user import CrashUser, stop_at_rest, stop_process
from tests.e2e.user import SMALL
from tests.waiting import deadline_s, until
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome
from trmcloud.pod.machine import processes

TOOK_OVER = "another command drives it now"


def launch(user: CrashUser) -> tuple[subprocess.Popen[str], Path]:
    """A command that drives a run which trains by now, and what holds that before its end."""
    held = user.hold()
    budget = ("--steps", "100", "--budget", "1", "-y")
    process = user.start("launch", "local", *SMALL, "--phase", "fast", *budget)
    until(lambda: bool(user.runs_on_disk()) and user.only_run().state is State.RUNNING)
    return process, held


def check_one_acted(user: CrashUser) -> None:
    """No epoch wrote after a newer one had, and nothing was begun twice."""
    run = user.only_run()
    records = SqliteLedger(user.home / "ledger.db").records(run.run_id)
    wishes = (ev.StopRequested, ev.Fetched)
    epochs = [record.epoch for record in records if not isinstance(record.event, wishes)]
    assert epochs == sorted(epochs), "a stale controller wrote"
    begun = [r.event.action_id for r in records if isinstance(r.event, ev.ActionStarted)]
    assert len(begun) == len(set(begun)), begun
    assert len(run.generations) == len(list(user.pods()))
    user.check_money_and_pods(run)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=deadline_s(60.0))
    assert "Traceback" not in err, err
    return process.returncode, out, err


def test_a_stopped_command_is_overtaken_and_writes_nothing_when_it_wakes(user: CrashUser) -> None:
    first, held = launch(user)
    stop_at_rest(first, user.ledger_path)
    err = user.fails("resume", "-y", code=8)
    assert "is running already" in err, "it may wake any moment"
    time.sleep(1.2)
    second = user.start_with(("--stale", "1"), "resume", "-y")
    user.drives_on(second.pid)
    first.send_signal(signal.SIGCONT)
    assert processes.started(second.pid) is not None, "the run goes on under the second"
    held.unlink()
    for code, out, said in (ended(first), ended(second)):
        assert code == 0, out + said
        assert "finished" in out
        assert out.count(TOOK_OVER) == (1 if out.startswith("  plan") else 0), out
    assert user.only_run().outcome is Outcome.FINISHED
    check_one_acted(user)


def test_a_command_that_wakes_after_the_end_changes_nothing(user: CrashUser) -> None:
    process, held = launch(user)
    stop_at_rest(process, user.ledger_path)
    held.unlink()
    until(lambda: not user.live_pods(), what="the pod ends by itself")
    time.sleep(1.2)
    code, out, err = ended(user.start_with(("--stale", "1"), "status"))
    assert code == 0, out + err
    run = user.only_run()
    assert run.outcome is Outcome.FINISHED
    before = SqliteLedger(user.home / "ledger.db").records()
    process.send_signal(signal.SIGCONT)
    code, out, err = ended(process)
    assert code == 0, out + err
    assert "finished" in out
    assert SqliteLedger(user.home / "ledger.db").records() == before
    check_one_acted(user)


def test_of_two_commands_that_take_a_run_over_at_once_one_acts(user: CrashUser) -> None:
    process, held = launch(user)
    process.kill()
    process.wait()
    racing = [user.start("resume", "-y") for _ in range(2)]
    until(lambda: user.driver_pid() in {each.pid for each in racing}, what="one of them drives")
    held.unlink()
    for code, out, err in map(ended, racing):
        # It drives; or it looks on, having been overtaken or come too late.
        assert code in (0, 8), out + err
        assert code == 0 or "is running already" in err, err
    run = user.settled()
    assert run.outcome is Outcome.FINISHED
    assert len(run.generations) == 1
    check_one_acted(user)


def test_of_two_commands_that_reopen_a_run_at_once_one_acts(user: CrashUser) -> None:
    process, held = launch(user)
    user.stop()
    ended(process)
    held.unlink()
    assert user.only_run().outcome is Outcome.STOPPED
    racing = [user.start("resume", "-y") for _ in range(2)]
    codes = sorted(code for code, _, _ in map(ended, racing))
    assert codes in ([0, 8], [0, 0]), codes
    run = user.settled()
    assert run.outcome is Outcome.FINISHED
    assert len(run.generations) == 2
    records = SqliteLedger(user.home / "ledger.db").records()
    assert sum(isinstance(record.event, ev.Reopened) for record in records) == 1
    check_one_acted(user)


def test_a_stopped_process_is_told_from_one_that_runs() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert not processes.stopped(process.pid)
        stop_process(process)
        assert processes.stopped(process.pid)
        assert processes.alive(process.pid, processes.started(process.pid) or "")
        os.kill(process.pid, signal.SIGCONT)
        until(lambda: not processes.stopped(process.pid))
    finally:
        process.kill()
        process.wait()
    assert not processes.stopped(process.pid)
