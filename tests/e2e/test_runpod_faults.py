"""Hostile worlds: whatever the provider, the pod or the line does, money is stopped first."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser, in_hand
from tests.e2e.user import until
from tests.typist import RenterInProcess
from trmcloud.core.catalog.providers import TRAITS
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd
from trmcloud.operations.reasons import sentence

BOOT_S = TRAITS["runpod"].boot_deadline_s


def begin(user: RentedUser, *more: str, steps: int = 60) -> subprocess.Popen[str]:
    arguments = ("--steps", str(steps), "--budget", "0.30", *user.data, *ACCEPT)
    return user.start(*LAUNCH, *arguments, *more)


def ended(user: RentedUser, outcome: Outcome) -> RunState:
    """The only run, closed so, with nothing left alive and nothing spent beyond its cap."""
    run = user.close_books()
    assert run.outcome is outcome, (run.outcome, sentence(run.reason))
    assert user.live() == []
    assert run.settled <= run.cap
    assert user.billed() <= float(run.settled) + 2e-6
    assert run.reserved == ZERO
    return run


def training(user: RentedUser, *more: str, steps: int = 500) -> subprocess.Popen[str]:
    """A launch whose first checkpoint is here."""
    launch = begin(user, *more, steps=steps)
    user.run_in(State.RUNNING)
    until(lambda: bool(user.only_run().pulled), what="a checkpoint")
    return launch


def test_an_agent_that_is_killed_and_a_line_that_goes_down(rented: RentedUser) -> None:
    """The watchdog starts another agent, which keeps the trainer; while the line is down the run
    goes on, and then pulls and the log go on where they stood."""
    launch = training(rented, steps=1_000_000)
    (pod,) = rented.live()
    control, run_id = rented.standin.control, rented.only_run().run_id
    there = control.workspace(pod.id) / "trmcloud" / "runs" / run_id / "fast"
    written: list[str] = []

    def write() -> None:
        with open(there / "train.log", "a") as log:
            for _ in range(50):
                written.append(f"line {len(written)} of the log")
                log.write(written[-1] + "\n")

    def step_there() -> int:
        return int(json.loads((there / "heartbeat.json").read_text())["step"])

    def is_down_while_pulling() -> bool:
        if not in_hand(rented.only_run(), "pull"):
            return False
        control.inside(pod.id, "pkill -STOP sshd")
        if in_hand(rented.only_run(), "pull"):
            return True
        control.inside(pod.id, "pkill -CONT sshd")  # it was just over
        return False

    logs = rented.start("logs", "-f")
    write()
    agents = control.inside(pod.id, "pgrep -f trmcloud.pod.agent.process").split()
    assert agents
    control.inside(pod.id, f"kill -9 {' '.join(agents)}")
    until(is_down_while_pulling, what="the line is down while a checkpoint is pulled")
    write()
    before = step_there()
    until(lambda: step_there() > before + 40, what="the run goes on")
    control.cut(pod.id)
    control.down(3.0)
    control.inside(pod.id, "pkill -CONT sshd")
    until(
        lambda: max(s for _, s in rented.only_run().pulled) > before,
        what="pulls go on",
        within_s=120.0,
    )
    write()
    here = rented.home / "runs" / run_id / "fast" / "train.log"
    until(lambda: written[-1] in here.read_text(), what="the log goes on")
    rented.stop("-d")
    rented.see_out(launch, code=Outcome.STOPPED.exit_code)
    out, _ = logs.communicate(timeout=60)
    assert [line for line in out.splitlines() if line.startswith("line ")] == written
    run = ended(rented, Outcome.STOPPED)
    assert run.phases["fast"].attempts == 1
    assert set(rented.checkpoints()) >= {f"fast/step-{max(s for _, s in run.pulled):08d}"}
    assert len(rented.truth()) == 1


# -- with the terminal gone ------------------------------------------------------------------------


def test_detached_without_a_volume_is_refused(quick_renter: RenterInProcess) -> None:
    arguments = ("--steps", "60", "--budget", "0.30", *quick_renter.data, *ACCEPT)
    assert "--accept-loss" in quick_renter.refused(*LAUNCH, *arguments, "-d", code=2)


def test_detached_through_both_phases_with_the_terminal_gone(rented: RentedUser) -> None:
    """The window is closed as soon as there is a pod: the command still sends what it needs, and
    its agent ends it."""
    arguments = (
        *("--steps", "150", "--budget", "0.90", "--volume", "--volume-days", "2"),
        *("--volume-then", "delete-fetched", "--region", "EU-RO-1", "-d", "-y"),
    )
    launch = rented.start(*LAUNCH[:4], *arguments, *rented.data, *ACCEPT)
    until(lambda: bool(rented.live()), what="a pod")
    launch.send_signal(signal.SIGHUP)
    rented.see_out(launch)
    until(lambda: not rented.live(), what="the pod ends by itself", within_s=90.0)
    assert rented.truth()[0]["ended_by"] not in ("api", "")
    (volume,) = rented.standin.control.world.volumes
    root = rented.standin.control.world.machines._folder  # type: ignore[attr-defined]
    found = list((root / "volumes" / volume).glob("trmcloud/runs/*/extreme/checkpoints/step-*/m*"))
    assert found
    run = rented.close_books()
    assert (run.outcome, run.phases) == (Outcome.UNREPORTED, {})
    # The rent of its volume is held until its day; then it goes on, since nothing was fetched.
    shown = rented.run("budget", "show")
    print(shown, rented.run("status", run.run_id))
    assert "network volume in EU-RO-1: $0.0" in shown
    assert "then it is deleted if best and latest were fetched" in shown
    (told,) = rented.json("status", "--json")["runs"]
    (held,) = told["volumes"]
    assert Usd(told["spent_usd"]) + Usd(held["reserved_usd"]) <= run.cap
    rented.clock.advance(2 * 86_400.0)
    for words in ("status", f"status {run.run_id}", "budget show", "report", "admin volumes"):
        shown = rented.run(*words.split())
        assert "a day beyond every budget since " in shown
        assert f"the checkpoints of {run.run_id} were not fetched" in shown
        assert "trmcloud admin volumes delete EU-RO-1" in shown
    print(shown)
    assert volume in rented.standin.control.world.volumes
    where = f"on its network volume; to fetch it: trmcloud fetch-best {run.run_id}"
    assert where in rented.run("status", run.run_id)
    assert where in rented.run("report", run.run_id)
    # The machine that is rented to bring the best home finds out, too, how it had ended.
    rented.drive("fetch-best", "-y", "--into", str(rented.folder / "best"))
    run = rented.close_books()
    assert (run.outcome, set(run.phases)) == (Outcome.FINISHED, {"fast", "extreme"})
    # What is best and what is latest are here: its owner had agreed to its end.
    said = rented.run("admin", "reap", "--yes")
    print(said)
    assert volume in rented.standin.control.world.gone_volumes
    assert "network volume" not in rented.run("budget", "show")
    assert float(run.settled) == pytest.approx(rented.billed(), abs=2e-6)
