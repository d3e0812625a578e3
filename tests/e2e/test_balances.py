"""A balance that ends while a run trains; plans and launches: contract/test_runpod_refusals.py."""

from __future__ import annotations

from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser
from tests.e2e.user import until
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import Usd


def test_the_guard_lands_a_run_whose_balance_ends(rented: RentedUser) -> None:
    """Money that other machines of the account use up in the middle of a run."""
    user = rented
    long = ("--steps", "4000", "--budget", "2", *user.data, *ACCEPT, "--balance", "stop")
    launch = user.start(*LAUNCH, *long)
    user.run_in(State.RUNNING)
    until(lambda: user.only_run().trains, what="it trains")
    user.standin.control.set_balance(0.10)
    user.run("admin", "reap", "--yes")
    out, _ = user.see_out(launch, code=Outcome.STOPPED.exit_code)
    low = user.ledger().low_balances["runpod"]
    assert (low.hours, low.balance) == (6, Usd("0.1"))
    assert "the runpod balance was $0.10" in out
    assert "why: the runpod balance of $0.10 lasts" in out
    assert user.only_run().pulled, "it landed, and what it saved is here"

    user.close_books()
    run_id = user.only_run().run_id
    user.standin.control.set_balance(1.0)
    err = user.refused("resume", "-y", run_id, "-d", code=14)
    assert "--fit-balance reserves only the free balance" in err
    user.run("resume", "-y", run_id, "-d", "--fit-balance", "--balance", "warn")
    again = user.only_run()
    assert again.reserved <= Usd("0.98")
    assert again.balance_policy == "warn"
    user.run("stop", "-y", run_id)
    user.close_books()
