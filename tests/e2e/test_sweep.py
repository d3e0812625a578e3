"""``trmcloud sweep`` on this machine: real processes, a stand-in trainer, scripts of strangers."""

from __future__ import annotations

import json
import math
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.runpod_user import ACCEPT, RentedUser
from tests.e2e.test_bucket import stored_steps
from tests.e2e.user import SMALL, User, until
from tests.standins.s3 import BUCKET, S3
from trmcloud.api import Home
from trmcloud.cli.page.shown import whole_json
from trmcloud.core.contract.manifest import from_json
from trmcloud.core.errors import Outcome
from trmcloud.core.money import Usd
from trmcloud.core.sweep import events as ev
from trmcloud.core.sweep.space import format_point
from trmcloud.core.sweep.state import SweepState, fold
from trmcloud.pod.machine import processes

SWEEP = ("sweep", "local", *SMALL, "--phase", "fast", "--rate", "36", "--processes", "1", "-y")
SPACE = "lr=log:1e-4,1"

#: Its loss is least at 0.01; it continues from the file that it is given.
SCRIPT = """
import json, math, os, sys, time
lr, start = float(sys.argv[1]), 0
os.makedirs("out", exist_ok=True)
if len(sys.argv) > 2:
    start = json.load(open(sys.argv[2]))["step"]
    print("resumed from", start)
for step in range(start + 1, 100000):
    time.sleep(0.05)
    print(f"step {step} val_loss={1 + abs(math.log10(lr) + 2) + 5 / (5 + step):.5f}", flush=True)
    if step % 5 == 0:
        with open("saving", "w") as file:
            json.dump({"step": step, "pad": "x" * 1000}, file)
        os.rename("saving", f"out/step-{step}.pt")
"""


@pytest.fixture
def user(in_project: User) -> User:
    return in_project


def folder_of(user: User) -> Path:
    [run] = (user.home / "runs").iterdir()
    return next(path for path in run.iterdir() if path.is_dir())


def journal(user: User) -> tuple[ev.SweepEvent, ...]:
    path = folder_of(user) / "sweep.jsonl"
    return ev.read_journal(path.read_text()) if path.exists() else ()


def swept(user: User) -> SweepState:
    return fold(journal(user))


def told(user: User) -> dict[str, Any]:
    [run] = user.json("status", "--json")["runs"]
    made: dict[str, Any] = run["sweep"]
    return made


def executor_of(user: User) -> tuple[int, str]:
    beat = json.loads((folder_of(user) / "heartbeat.json").read_text())
    return beat["pid"], beat["pid_started"]


def test_a_recipes_sweep_ends_within_its_budget_with_a_verified_best(user: User) -> None:
    out = user.run(*SWEEP, "--budget", "0.60", SPACE)
    assert "slots" in out
    assert "for the winner" in out
    run = user.only_run()
    assert run.outcome is Outcome.FINISHED
    assert run.cap == Usd("0.60")
    state = swept(user)
    assert len(state.trials) >= 2
    best = state.trials[max(state.trials, key=lambda n: -(state.trials[n].metric or 1e9))]
    row = user.json("status", run.run_id, "--json")["runs"][0]
    assert Usd(row["spent_usd"]) <= Usd("0.60")
    assert row["sweep"]["best_trial"] == best.number
    assert {trial["trial"] for trial in row["sweep"]["trials"]} == set(state.trials)
    home = Home(user.home)
    known = home.sweep_trials(run.run_id)
    assert known.state.trials == state.trials
    assert known.best == best
    on_page = whole_json(home.context, home.run(run.run_id))["sweep"]
    assert on_page["rows"][0][:2] == (str(best.number), f"{best.rung + 1}/{known.terms.last + 1}")
    assert len(on_page["rows"]) == len(state.trials)
    fetched = user.run("fetch-best", run.run_id, "--into", "best")
    assert "fetched and verified" in fetched
    manifest = from_json((user.here / "best" / "manifest.json").read_text(), "best")
    assert manifest.extra["sweep"]["trial"] == best.number
    assert manifest.val_bpb == pytest.approx(best.metric)
    shown = user.run("status", run.run_id)
    assert f"best val_bpb {best.metric:.4g}, trial {best.number}" in shown
    assert max(map(len, shown.splitlines()[-len(state.trials) - 2 :])) <= 80
    report = user.run("report", run.run_id)
    assert "quarter 4: " in report
    assert re.search(r"own decisions took [\d.]+% of the processor time", report)
    assert row["sweep"]["trials_cpu_s"] > row["sweep"]["own_cpu_s"] * 0.1
    _the_next_one_begins_with_what_is_known(user, run.run_id, state)


def _the_next_one_begins_with_what_is_known(user: User, first: str, state: SweepState) -> None:
    """The first sweep's best is the second trial of the next one."""
    told = {n: t.metric or 0.0 for n, t in state.trials.items() if t.results and not t.repeats}
    rung = max(state.trials[number].results[-1].rung for number in told)
    best = min((n for n in told if state.trials[n].results[-1].rung == rung), key=told.__getitem__)
    point = format_point(state.trials[best].point)
    shown = user.run(*SWEEP, "--budget", "0.60", SPACE, "--dry-run")
    assert f"trials on the same code are used: {len(told)} of {first}" in shown
    if best != 1:
        assert re.search(rf"then +{re.escape(point)} \(trial {best} of {first}\)", shown)
    plain = user.run(*SWEEP, "--budget", "0.60", SPACE, "--dry-run", "--no-earlier")
    assert first not in plain


def test_an_executor_that_is_killed_is_started_again_and_the_cap_holds(user: User) -> None:
    user.run(*SWEEP, "--budget", "0.60", SPACE, "-d")
    until(lambda: sum(isinstance(e, ev.RungReached) for e in journal(user)) >= 1)
    pid, started = executor_of(user)
    assert processes.send(pid, started, signal.SIGKILL)
    user.run("logs", "-f")
    run = user.only_run()
    assert run.outcome is Outcome.FINISHED
    events = journal(user)
    assert sum(isinstance(event, ev.Ended) for event in events) == 1
    starts = [event for event in events if isinstance(event, ev.TrialStarted) and event.trial == 1]
    assert len(starts) == 1, "what the first trial had come to was kept"
    assert Usd(user.json("status", "--json")["runs"][0]["spent_usd"]) <= Usd("0.60")
    assert user.run("fetch-best", "--into", "best")


def test_a_commands_trials_resume_and_its_best_comes_home_under_its_own_name(user: User) -> None:
    (user.here / "train.py").write_text(SCRIPT)
    user.run(
        *("sweep", "local", "--rate", "36", "--budget", "0.60", "-y", "--slots", "2"),
        *("--grace", "2", "--checkpoint-gb", "0.001", "--checkpoints", "out"),
        *("--metric", "val_loss", "--resume", "python3 train.py {lr} {checkpoint}"),
        *("lr=log:1e-4,1", "--", "python3", "train.py", "{lr}"),
    )
    run = user.only_run()
    assert run.outcome is Outcome.FINISHED
    state = swept(user)
    assert len(state.trials) >= 2
    rows = told(user)
    assert rows["metric"] == "val_loss"
    user.run("fetch-best", "--into", "best")
    manifest = from_json((user.here / "best" / "manifest.json").read_text(), "best")
    [own] = (user.here / "best" / "own").iterdir()
    saved = json.loads(own.read_text())["step"]
    lr = manifest.extra["sweep"]["point"]["lr"]
    loss = 1 + abs(math.log10(lr) + 2) + 5 / (5 + saved)
    assert manifest.val_bpb == pytest.approx(loss, abs=1e-4)
    if any(isinstance(event, ev.TrialContinued) for event in journal(user)):
        logs = [path.read_text() for path in folder_of(user).glob("trials/*/train.log")]
        assert any("resumed from" in log for log in logs)


@pytest.mark.more
@pytest.mark.timeout(1200)
def test_a_sweep_whose_rented_machine_is_lost_continues_on_another(
    renter_in: RentedUser, s3: S3
) -> None:
    """What was published is in the bucket: the next machine's executor reads the journal there."""
    prefix = renter_in.folder.name.replace("_", "-")
    words = (
        *("sweep", "1xRTX4090", "--recipe", "trm-tiny", "--phase", "fast", "-y"),
        *("--budget", "0.30", "--hours", "0.05", "--set", "compile=false"),
        *("--bucket", f"s3://{BUCKET}/{prefix}"),
        *(*renter_in.data, *ACCEPT, SPACE),
    )
    launch = renter_in.start(*words)
    until(lambda: bool(stored_steps(s3, prefix)), within_s=400, what="a checkpoint is stored")
    before = told(renter_in)
    renter_in.standin.control.end(renter_in.live()[0].id)
    out, err = renter_in.see_out(launch, within_s=700)
    assert "was lost; training continues from the bucket" in out, out + err
    run = renter_in.only_run()
    assert run.outcome is Outcome.FINISHED, out + err
    assert len([g for g in run.generations if g.not_made is None]) == 2
    after = told(renter_in)
    points = {trial["trial"]: trial["settings"] for trial in after["trials"]}
    for trial in before["trials"]:
        assert points[trial["trial"]] == trial["settings"], "the journal came along"
    assert run.settled <= run.cap
    assert renter_in.run("fetch-best", run.run_id, "--into", str(renter_in.folder / "best"))


@pytest.mark.more
@pytest.mark.timeout(1200)
def test_parts_of_a_sweep_go_on_where_their_command_is_killed(renter_in: RentedUser) -> None:
    """Each is driven to its end by a command of its own; the one that is repeated shows both."""
    words = (
        *("sweep", "1xRTX4090", "--machines", "2", "--recipe", "trm-tiny", "--phase", "fast", "-y"),
        *("--budget", "0.60", "--hours", "0.03", "--set", "compile=false"),
        *("--idempotency-key", "both", *renter_in.data, *ACCEPT, SPACE),
    )
    launch = renter_in.start(*words)
    until(
        lambda: len(renter_in.live()) == 2 or launch.poll() is not None,
        within_s=200,
        what="both machines are rented",
    )
    launch.kill()
    launch.communicate()

    def have_ended() -> bool:
        runs = renter_in.ledger().runs.values()
        if any(run.live for run in runs) and not renter_in.live():
            renter_in.clock.advance(600.0)  # until lists prove it
        return len(runs) == 2 and not any(run.live for run in runs)

    until(have_ended, within_s=700, what="both runs have ended")
    runs = renter_in.ledger().runs
    assert {run.outcome for run in runs.values()} == {Outcome.FINISHED}
    assert sum(run.cap.micros for run in runs.values()) == 600_000
    assert all(run.settled <= run.cap for run in runs.values())
    out = renter_in.run(*words)
    assert renter_in.ledger().runs.keys() == runs.keys()
    table, _, best = out.rpartition("best of all: ")
    rows = [line.split() for line in table.splitlines() if line.startswith("r-")]
    assert {row[0] for row in rows} == runs.keys()
    metrics = [float(row[4]) for row in rows if row[5] == "complete"]
    assert metrics == sorted(metrics)
    fetched = best.split()[-1]
    assert fetched in runs
    folder = str(renter_in.folder / "best")
    assert "fetched and verified" in renter_in.run("fetch-best", fetched, "--into", folder)
