"""The main job on rented pods, and again with the command killed wherever it may be."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.runpod_user import ACCEPT, BILLED_AFTER_S, LAUNCH, RentedUser, in_hand
from tests.e2e.user import until
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO


def test_plan_launch_land_at_the_budget_fetch_report(rented: RentedUser) -> None:
    plan_id = rented.plan_to_bind("--budget", "0.30", hard_stop_s=30.0, landing_s=6.0)
    launch = rented.start("launch", plan_id, "-y", *ACCEPT)
    run = rented.run_in(State.RUNNING)
    until(lambda: rented.only_run().trains, what="training")
    (pod,) = rented.live()
    secret = rented.standin.api_key
    assert secret not in json.dumps(pod.body)
    assert rented.holding(pod, secret[:12]) == ""
    assert secret not in "".join(command_lines())
    lease = json.loads(
        rented.run("ssh", run.run_id, "--", "sh", "-c", "cat /workspace/trmcloud/pods/*/lease.json")
    )
    assert lease["run_id"] == run.run_id
    login = rented.json("ssh", run.run_id, "--json")
    assert login["pod"].startswith("trmc-")
    assert login["argv"][0].endswith("ssh")
    out, err = rented.see_out(launch, code=20)
    run = rented.only_run()
    assert run.outcome is Outcome.LANDED
    assert rented.live() == []
    assert ZERO < run.settled <= run.cap
    assert 0 < rented.billed() <= float(run.cap)
    best = rented.best()
    assert best.step == run.phases["fast"].step
    fetched = rented.json("fetch-best", "--into", str(rented.folder / "best"), "--json")
    assert fetched["sha256"] == best.sha256
    rented.close_books()
    report = rented.json("report", "--json")["runs"][0]
    assert float(report["billed_usd"]) == pytest.approx(rented.billed(), abs=2e-6)
    assert report["useful_fraction"] > 0.3
    for path in rented.folder.rglob("*"):
        if path.is_file() and rented.folder / "site" not in path.parents:
            assert secret.encode() not in path.read_bytes(), path
    assert secret not in out + err


def command_lines() -> list[str]:
    """Of every process of this machine, those in pods included."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return found


# -- the command killed ----------------------------------------------------------------------------


MOMENTS: dict[str, Callable[[RunState], bool]] = {
    "renting": lambda run: run.state is State.RENTING and bool(run.actions),
    "booting": lambda run: run.state is State.BOOTING,
    "staging": lambda run: in_hand(run, "stage"),
    "training": lambda run: run.trains,
    "pulling": lambda run: in_hand(run, "pull"),
    "ending": lambda run: run.state is State.ENDING,
    "missed": lambda run: run.generation is not None and run.generation.absence is not None,
}


def any_run_is(rented: RentedUser, reached: Callable[[RunState], bool]) -> bool:
    return any(map(reached, rented.ledger().runs.values()))


def test_the_command_is_killed_in_every_phase_of_one_run(rented: RentedUser) -> None:
    """Each next command takes up what it finds; one pod is rented, and its best comes home."""
    control = rented.standin.control
    control.set(list_omits_new_s=3.0, provisioning_s=5.0, billing_lag_s=3600.0)
    arguments = ("--steps", "400", "--budget", "0.30", *rented.data, *ACCEPT)
    command = rented.start(*LAUNCH, *arguments)
    until(rented.ledger_path.exists)
    for name, reached in MOMENTS.items():
        until(partial(any_run_is, rented, reached), what=name)
        if name == "renting":
            until(lambda: bool(rented.live()), what="what was asked for is made")
        command.kill()
        command.wait()
        rented.run("status")
        run = rented.only_run()
        assert run.live, (name, run.outcome)
        if name != "missed":
            again = ("logs", "-f") if name == "training" else ("resume",)
            command = rented.start(*again, run.run_id)
    for _ in range(2):  # its end is put on record, then it is settled
        rented.clock.advance(BILLED_AFTER_S)
        rented.run("status")
    run = rented.only_run()
    assert (run.outcome, run.billed) == (Outcome.FINISHED, None)
    estimate = run.settled
    run = rented.close_books()
    assert run.settled <= estimate
    assert run.outcome is Outcome.FINISHED
    assert len(rented.truth()) == 1
    assert run.settled <= run.cap
    assert rented.billed() == pytest.approx(float(run.settled), abs=2e-6)
    best = rented.best()
    assert best.step == 400
