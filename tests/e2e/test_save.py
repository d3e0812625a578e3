"""``trmcloud save``, and a checkpoint that was saved and never evaluated."""

from __future__ import annotations

from tests.e2e.test_crashes import LAUNCH
from tests.e2e.user import User, until
from trmcloud.core.errors import Outcome

RARELY = ("--set", "save_every=100000", "--set", "eval_every=100000")


def test_a_run_is_saved_twice_while_it_trains_and_then_stopped(user: User) -> None:
    launch = (*LAUNCH, *RARELY, "--set", "keep_best=5", "--steps", "100000")
    user.run(*launch, "--budget", "2", "-y", "-d")
    until(lambda: bool(user.metrics("train")))
    first = user.json("save", "--json")
    assert first["safe"]
    out = user.run("save")
    second = max(user.checkpoints())
    assert f"{second}: saved" in out
    assert first["checkpoint"] < second
    assert str(user.home) in out
    until(lambda: all(m.val_bpb is not None for m in user.checkpoints().values()))
    assert user.live_pods(), "the run continues"
    user.stop()
    run = user.only_run()
    assert run.outcome is Outcome.STOPPED
    assert run.phases["fast"].attempts == 1, "the very same trainer"
    last = max(user.checkpoints())
    assert last > second
    assert set(user.checkpoints()) == {first["checkpoint"], second, last}
    said = user.refused("save", code=8)
    assert "is not training: it has ended: stopped" in said


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


def test_a_request_is_left_with_whoever_drives_the_run(user: User) -> None:
    with_driver = user.start(*LAUNCH, *RARELY, "--steps", "2000", "--budget", "1", "-y")
    try:
        until(lambda: bool(user.ledger().runs) and user.only_run().trains, what="training")
        asked = user.json("save", "-d", "--json")
        assert (asked["schema"], asked["safe"], asked["kept"]) == ("save/1", False, False)
        until(lambda: bool(user.checkpoints()), what="a checkpoint")
        assert with_driver.poll() is None
        user.stop("-d")
    finally:
        with_driver.wait(60)
