"""``trmcloud save``, and a checkpoint that was saved and never evaluated: the real command, with
the real trainer and with its stand-in."""

from __future__ import annotations

import os
import signal

from tests.e2e.test_crashes import LAUNCH
from tests.e2e.user import TINY, User, until
from trmcloud.core.contract import manifest as mf
from trmcloud.core.errors import Outcome

RARELY = ("--set", "save_every=100000", "--set", "eval_every=100000")


def test_a_run_is_saved_twice_while_it_trains_and_then_stopped(trainee: User) -> None:
    launch = ("launch", "local", *TINY, *RARELY, "--set", "keep_best=5", "--steps", "4000")
    trainee.pace(0.2)
    trainee.run(*launch, "--budget", "2", "-y", "-d")
    until(lambda: bool(trainee.metrics("train")))
    first = trainee.json("save", "--json")
    assert first["safe"]
    out = trainee.run("save")
    second = max(trainee.checkpoints())
    assert f"{second}: saved" in out
    assert first["checkpoint"] < second
    assert str(trainee.home) in out
    until(lambda: all(m.val_bpb is not None for m in trainee.checkpoints().values()))
    assert trainee.live_pods(), "it goes on"
    [start] = trainee.metrics("start")
    assert start["attempt"] == 1, "the very same trainer"
    trainee.stop()
    run = trainee.only_run()
    assert run.outcome is Outcome.STOPPED
    last = max(trainee.checkpoints())
    assert last > second
    assert set(trainee.checkpoints()) == {first["checkpoint"], second, last}
    said = trainee.refused("save", code=8)
    assert "is not training: it has ended: stopped" in said


def test_one_that_is_killed_between_save_and_metric_loses_nothing(trainee: User) -> None:
    """SIGKILL to every process of the trainer while it evaluates what it has just saved."""
    slow = (
        *("--processes", "1", "--set", "eval_tokens=16000", "--set", "validation_fraction=0.5"),
        *("--set", "save_every=30", "--set", "eval_every=100000"),
    )
    trainee.run("launch", "local", *TINY, *slow, "--steps", "45", "--budget", "2", "-y", "-d")

    def unscored() -> bool:
        return any(made.val_bpb is None for made in trainee.checkpoints().values())

    until(unscored, what="a checkpoint that is not evaluated yet")
    for pid in trainee.pids("model.train"):
        os.kill(pid, signal.SIGKILL)
    [(label, made)] = trainee.checkpoints().items()
    assert (label, made.val_bpb) == ("fast/step-00000030", None)
    out = trainee.run("status", trainee.only_run().run_id)
    assert f"{label} · not evaluated" in out
    until(lambda: not trainee.live_pods(), within_s=120, what="the pod ends by itself")
    trainee.run("status")
    assert trainee.only_run().outcome is Outcome.FINISHED
    starts = trainee.metrics("start")
    assert [line["from_step"] for line in starts] == [0, 30], "not a step was trained again"
    every = trainee.checkpoints()
    best = mf.pick_best(every.values())
    assert best is not None
    assert best.label == "fast/step-00000045"


def test_out_of_memory_in_the_last_evaluation_and_what_is_fetched_then(user: User) -> None:
    user.environment["TRMCLOUD_STANDIN_FAULT"] = "out-of-memory@40"
    steps = ("--steps", "40", "--set", "save_every=100", "--set", "eval_every=100")
    user.run(*LAUNCH, *steps, "--budget", "1", "-y", code=24)
    run = user.only_run()
    assert run.outcome is Outcome.FAILED
    fetching = user.start("fetch-best", "--into", "best")
    said = fetching.communicate(timeout=60)[1].splitlines()
    assert fetching.returncode == 0
    why = "no checkpoint of fast was evaluated; this is the latest, step 40"
    assert said == [f"{run.run_id}: {why}"]
    fetched = user.json("fetch-best", "--into", "best", "--json")
    assert (fetched["checkpoint"], fetched["val_bpb"]) == ("fast/step-00000040", None)


def test_what_does_not_train_is_not_asked(user: User) -> None:
    assert "there are no runs yet" in user.refused("save", code=3)
    user.run(*LAUNCH, "--steps", "30", "--budget", "1", "-y")
    assert "is not training: it has ended: finished" in user.refused("save", code=8)


def test_a_request_is_left_with_whoever_drives_the_run(user: User) -> None:
    rarely = ("--set", "save_every=100000", "--set", "eval_every=100000")
    with_driver = user.start(*LAUNCH, *rarely, "--steps", "2000", "--budget", "1", "-y")
    try:
        until(lambda: bool(user.ledger().runs) and user.only_run().trains, what="training")
        asked = user.json("save", "-d", "--json")
        assert (asked["schema"], asked["safe"], asked["kept"]) == ("save/1", False, False)
        until(lambda: bool(user.checkpoints()), what="a checkpoint")
        assert with_driver.poll() is None
        user.stop("-d")
    finally:
        with_driver.wait(60)
