"""The main job from plan to report, with a stand-in trainer and real processes."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.e2e.user import SMALL, User, until
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd


def test_a_budget_that_binds_lands_the_run_within_it(user: User) -> None:
    out = user.run("launch", "local", *SMALL, "--phase", "fast", "--budget", "0.02", "-y", code=20)
    run = user.only_run()
    assert run.outcome is Outcome.LANDED
    assert run.state is State.CLOSED
    assert ZERO < run.settled <= Usd("0.02")
    assert run.reserved == ZERO
    assert f"spent {run.settled} of $0.02" in out
    assert user.live_pods() == []

    report = user.json("report", "--json")["runs"][0]
    assert report["cap_usd"] == "0.02"
    assert report["billed_usd"] == run.settled.plain()
    # Our clock starts with the intent, the provider's a moment later.
    assert 0 <= float(report["accrued_usd"]) - float(report["billed_usd"]) < 0.005
    assert report["useful_fraction"] > 0.5
    assert sum(report["parts_s"].values()) == report["paid_s"]


def test_steps_finish_and_the_best_comes_home_verified(user: User) -> None:
    user.run("launch", "local", *SMALL, "--phase", "fast", "--steps", "50", "--budget", "1", "-y")
    run = user.only_run()
    assert run.outcome is Outcome.FINISHED
    fetched = user.json("fetch-best", "--into", str(user.folder / "best"), "--json")
    folder = Path(fetched["folder"])
    names = {entry.name for entry in folder.iterdir()}
    assert names == {"weights.safetensors", "optimizer.safetensors", "manifest.json"}
    assert fetched["checkpoint"] == "fast/step-00000050"
    again = user.json("fetch-best", "--into", str(folder), "--json")
    assert again["already_there"] is True
    kept = user.json("prune", user.only_run().run_id, "--keep-best", "1", "-y", "--json")
    assert [place["keep"] for place in kept["places"]] == [["fast/step-00000050"]]
    status = user.run("status", run.run_id)
    assert fetched["sha256"] in status
    assert str(folder) in status
    user.run("fetch-best", "--weights-only", "--into", str(user.folder / "w"))
    names = {entry.name for entry in (user.folder / "w").iterdir()}
    assert names == {"weights.safetensors", "manifest.json"}


def test_both_phases_with_the_terminal_closed(user: User) -> None:
    user.run("launch", "local", *SMALL, "--steps", "40", "--budget", "1", "-y", "-d")
    until(lambda: not user.live_pods(), what="the pod ends by itself")
    user.run("status")
    run = user.only_run()
    assert run.outcome is Outcome.FINISHED
    assert list(run.phases) == ["fast", "extreme"]
    assert run.gates["fast"].passed
    assert run.settled == run.billed


def test_another_command_looks_on_leaves_and_comes_back(user: User) -> None:
    held = user.hold()
    launch = ("launch", "local", *SMALL, "--phase", "fast", "--steps", "60", "--budget", "1", "-y")
    first = user.start(*launch)
    until(lambda: bool(user.live_pods()) and user.only_run().trains, what="training")
    run = user.only_run()
    watching = user.start("logs", "-f")
    assert watching.stderr is not None
    seen = watching.stderr.readline()
    watching.send_signal(signal.SIGINT)
    out, err = watching.communicate(timeout=60)
    assert watching.returncode == 0, out + err
    assert f"{run.run_id} continues without this command and stops at its limits." in seen + err
    assert first.poll() is None, "whoever drives it drives on"
    assert "is running already" in user.fails("resume", "-y", run.run_id, code=8)
    first.kill()
    first.wait()
    again = user.start("logs", "-f", run.run_id)
    held.unlink()
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0, out + err
    assert f"{run.run_id} finished: every step was trained" in err
    assert user.only_run().outcome is Outcome.FINISHED
    err = user.fails("ssh", run.run_id, code=2)
    assert "runs on this machine" in err


def test_a_failing_gate_ends_the_run_before_extreme(user: User) -> None:
    user.environment["TRMCLOUD_STANDIN_FAULT"] = "fail-gate"
    out = user.run("launch", "local", *SMALL, "--steps", "40", "--budget", "1", "-y", code=22)
    assert "gate after fast: FAILED" in out
    assert "✘ validation order" in out
    run = user.only_run()
    assert list(run.phases) == ["fast"]
    user.run("logs", "-f", code=22)
    assert "gate after fast: FAILED" in user.run("status", run.run_id)
    err = user.fails("resume", "-y", run.run_id, code=8)
    assert "the gate after" in err


def test_stop_lands_and_resume_finishes(user: User) -> None:
    held = user.hold()
    arguments = ("--phase", "fast", "--steps", "100", "--budget", "1")
    user.run("launch", "local", *SMALL, *arguments, "-y", "-d")
    until(lambda: bool(list(user.home.glob("runs/*/fast/checkpoints/step-*"))))
    user.stop()
    held.unlink()
    run = user.only_run()
    assert run.outcome is Outcome.STOPPED
    assert run.phases["fast"].outcome == "landed_signal"
    stopped_at = run.phases["fast"].step or 0
    assert 0 < stopped_at < 100
    user.run("resume", "-y", run.run_id)
    run = user.only_run()
    assert run.outcome is Outcome.FINISHED
    assert run.phases["fast"].step == 100
    assert len(run.generations) == 2
    assert run.settled <= run.cap
    err = user.fails("resume", "-y", run.run_id, code=8)
    assert "has finished" in err


def test_two_launches_race_for_one_budget(user: User) -> None:
    user.run("budget", "set", "month", "0.03")
    arguments = ("--phase", "fast", "--steps", "40", "--budget", "0.02", "-y")
    racing = [user.start("launch", "local", *SMALL, *arguments) for _ in range(2)]
    ended = [(p.communicate(timeout=90), p.returncode) for p in racing]
    codes = sorted(code for _, code in ended)
    assert codes == [0, 4], ended
    refused = next(err for (_, err), code in ended if code == 4)
    assert refused.startswith("error: $0.02 does not fit the month")
    assert "budget raise" in refused
    assert len(user.ledger().runs) == 1


def test_a_cap_cut_below_what_is_reserved_lands_the_run(user: User) -> None:
    process = user.start(
        "launch", "local", *SMALL, "--phase", "fast", "--steps", "2000", "--budget", "1", "-y"
    )
    until(lambda: bool(list(user.home.glob("runs/*/fast/heartbeat.json"))))
    user.run("budget", "set", "account", "0.001")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 21, out + err
    assert "budget was cut" in out


def test_without_any_cap_yes_is_refused(user: User) -> None:
    err = user.fails("launch", "local", *SMALL, "--steps", "20", "-y", code=4)
    assert "without a limit" in err
    assert user.ledger().runs == {}
