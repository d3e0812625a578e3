"""Runs that wait for a machine, with the real commands against a stand-in of RunPod: sold out and
then not, boots that never come, time that passes, a command that is killed meanwhile."""

from __future__ import annotations

from datetime import datetime

from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser
from tests.e2e.user import until
from trmcloud.core.catalog.providers import TRAITS
from trmcloud.core.control.reason import ReasonKind
from trmcloud.core.control.run_state import RunState
from trmcloud.core.control.waiting import asks, is_waiting
from trmcloud.core.errors import Outcome
from trmcloud.core.money import Usd
from trmcloud.core.spec.boots import ASK_EVERY_S
from trmcloud.operations.plans.stock import BOOTED, REFUSED, read_stock

HOUR_S = 3600.0
BOOT_S = TRAITS["runpod"].boot_deadline_s
NEXT_S = 1.25 * ASK_EVERY_S
"""By then it has asked again."""


def launch_of(user: RentedUser, *more: str, hardware: str = "1xRTX4090") -> tuple[str, ...]:
    wish = (*LAUNCH[2:], "--steps", "60", "--budget", "0.60", *ACCEPT)
    return ("launch", hardware, *wish, *user.data, *more)


def sold_out(user: RentedUser, *gpus: str) -> None:
    user.standin.control.set(no_capacity=list(gpus) or ["*"])


def runs_of(user: RentedUser) -> list[RunState]:
    return list(user.ledger().runs.values()) if user.ledger_path.exists() else []


def waits(user: RentedUser, asked: int = 1) -> RunState:
    """The run, once it has asked so often and waits."""
    found: list[RunState] = []

    def is_there() -> bool:
        found[:] = [run for run in runs_of(user) if is_waiting(run) and len(asks(run)) >= asked]
        return bool(found)

    until(is_there, within_s=90, what=f"it has asked {asked} times")
    return found[0]


def test_what_was_sold_out_is_rented_once_it_is_free(rented: RentedUser) -> None:
    sold_out(rented)
    launch = rented.start(*launch_of(rented, "--wait-for", "6h", "--max-price", "1.00"))
    run = waits(rented)
    told = rented.run("status", run.run_id)
    assert "a free 1xRTX4090" in told
    assert "then the launch ends with exit code 75" in told
    (row,) = rented.json("status", run.run_id, "--json")["runs"]
    assert row["waits_for"]["code"] == ReasonKind.AWAITS_CAPACITY.value
    until_at = datetime.fromisoformat(row["waits_until_at"]).timestamp()
    assert until_at - run.created_at > 6 * HOUR_S - 60
    before = len(asks(run))
    rented.clock.advance(NEXT_S)
    waits(rented, before + 1)
    sold_out(rented, "nothing")
    rented.clock.advance(NEXT_S)
    out, _ = rented.see_out(launch, code=0)
    run = rented.close_books()
    assert run.outcome is Outcome.FINISHED
    assert all(g.rate <= Usd("1.00") for g in run.generations)
    assert len(rented.truth()) == 1
    assert "Waiting for a machine" in out
    outcomes = [line.outcome for line in read_stock(rented.home)]
    assert outcomes.count(BOOTED) == 1
    assert outcomes.count(REFUSED) == len(run.generations) - 1
    planned = rented.run(
        "plan", "--hardware", "1xRTX4090", "--recipe", "trm-tiny", "--provider", "runpod"
    )
    assert "booted 1 of " in planned


def test_the_guard_goes_on_for_a_command_that_was_killed(rented: RentedUser) -> None:
    sold_out(rented)
    more = ("--wait-for", "6h", "--accept-loss", "-d")
    launch = rented.start(*launch_of(rented, *more))
    run = waits(rented)
    launch.kill()
    launch.wait()
    before = rented.creates()
    told = rented.run("status", run.run_id)
    assert "only the guard asks now" in told
    assert rented.creates() == before, "a look asks for nothing"
    rented.clock.advance(NEXT_S)
    rented.run("admin", "reap", "--yes", "--guard-every", "5")
    assert len(asks(waits(rented))) == len(asks(run)) + 1
    sold_out(rented, "nothing")
    rented.clock.advance(NEXT_S)
    out = rented.run("admin", "reap", "--yes", "--guard-every", "5")
    assert f"{run.run_id}: it has a machine and trains" in out
    [pod] = rented.truth()
    rented.drive("logs", "-f", run.run_id)
    run = rented.close_books()
    assert run.outcome is Outcome.FINISHED
    assert pod["name"] == run.generations[-1].pod_name


def test_a_price_that_nothing_has_is_said_at_once(renter: RentedUser) -> None:
    out = renter.fails(*launch_of(renter, "--max-price", "0.05"), code=2)
    assert "no offer is planned at $0.05/h or less: the cheapest is 1xRTX4090" in out
    assert runs_of(renter) == []
    launch = renter.start(*launch_of(renter, "--max-price", "0.05", "--wait-for", "30m"))
    run = waits(renter)
    assert renter.creates() == 0, "what costs more is not asked for"
    renter.clock.advance(1800.0)
    out, _ = renter.see_out(launch, code=75)
    assert "less than all offers; the cheapest is 1xRTX4090" in out
    assert "more than the limit of $0.05/h" in out
    assert renter.truth() == []
    assert run.generations[0].rate == Usd("0.05")
