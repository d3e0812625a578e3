"""Readings of balances by one process: how often, what a failure leaves, and what follows."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests import registered  # noqa: F401
from tests.unit.core.test_balance import AT, CAP, reserved, training
from trmcloud.core.control import events as ev
from trmcloud.core.control.balance import LOOK_EVERY_S, AccountBalance, look_every_s
from trmcloud.core.control.reason import ReasonKind
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import AuthError, LedgerError, PaymentRequired, ProviderError
from trmcloud.core.money import Usd
from trmcloud.core.spec.spec import IGNORE, STOP
from trmcloud.core.values import replace
from trmcloud.operations.driving.balances import (
    balances_due,
    check_balance,
    read_funds,
    read_funds_if_any,
)
from trmcloud.operations.machines import Machines


class Rig:
    """A process with one account at RunPod, on a clock that the test moves."""

    def __init__(self, *runs: RunState) -> None:
        self.now, self.reads = AT, 0
        self.answer: Callable[[], AccountBalance | None] = lambda: AccountBalance(Usd(100))
        self.noted: list[ev.BalanceLow] = []
        self.runs = {run.run_id: run for run in runs}
        ledger = SimpleNamespace(read=self._ledger, note=lambda event, at: self.noted.append(event))
        self.context: Any = SimpleNamespace(
            ledger=ledger, wall=lambda: self.now, caller=SimpleNamespace(controller="me"),
            machines=Machines({"runpod": SimpleNamespace(balance=self._balance)}, {}),  # type: ignore[dict-item]
        )  # fmt: skip

    def _ledger(self) -> Any:
        low = {"runpod": self.noted[-1]} if self.noted and self.noted[-1].hours else {}
        return SimpleNamespace(runs=self.runs, low_balances=low)

    def _balance(self) -> AccountBalance | None:
        self.reads += 1
        return self.answer()

    def look(self, after_s: float = 0.0) -> list[str]:
        self.now += after_s
        return [run_id for run_id, _ in balances_due(self.context)]


def refuse(error: ProviderError) -> Callable[[], AccountBalance | None]:
    def answer() -> AccountBalance | None:
        raise error

    return answer


def test_one_process_reads_a_provider_once_in_five_to_six_minutes() -> None:
    rig = Rig(training("r1"), training("r2", STOP))
    for _ in range(3600 // 5):
        rig.look(5.0)
    assert 3600 / look_every_s(1.0) <= rig.reads <= 3600 / LOOK_EVERY_S + 1
    assert rig.reads <= 60, "the most that may be asked of a provider an hour"


@pytest.mark.parametrize("run", [training(policy=IGNORE), reserved()], ids=["ignored", "no pod"])
def test_nothing_is_read_where_nothing_follows_from_it(run: RunState) -> None:
    rig = Rig(run)
    rig.look()
    assert rig.reads == 0


@pytest.mark.parametrize(
    "error", [AuthError("401"), ProviderError("500"), ProviderError("timed out")]
)
def test_a_failure_is_kept_beside_what_was_read_before(error: ProviderError) -> None:
    rig = Rig(training("r1", STOP, hours=30.0))
    rig.answer = refuse(error)
    assert rig.look() == []
    assert rig.context.machines.balances.last("runpod").trouble == str(error)
    rig.answer = lambda: AccountBalance(Usd(36))  # for ten hours
    assert rig.look(400.0) == []
    assert [low.hours for low in rig.noted] == [24]
    rig.answer = refuse(error)
    assert rig.look(400.0) == []
    assert rig.look(9.6 * 3600.0) == ["r1"], "it lands by what was read last"
    assert len(rig.noted) == 1, "no warning follows from no reading"


def test_a_balance_that_ends_lands_only_who_chose_that() -> None:
    rig = Rig(training("r1", STOP), training("r2"))
    rig.answer = lambda: AccountBalance(Usd(1), Usd("7.2"))
    [(run_id, reason)] = balances_due(rig.context)
    assert (run_id, reason.kind) == ("r1", ReasonKind.BALANCE_ENDS)
    assert [low.hours for low in rig.noted] == [6]


def test_a_provider_that_tells_nothing_is_no_trouble() -> None:
    rig = Rig(training("r1", STOP))
    rig.answer = lambda: None
    assert rig.look() == []
    assert read_funds(rig.context, "runpod") == (None, "")


def test_a_launch_counts_what_live_runs_hold() -> None:
    run = training("r1")
    rig = Rig(run)
    funds, trouble = read_funds(rig.context, "runpod")
    assert trouble == ""
    assert funds is not None
    assert funds.free == Usd(100) - CAP
    plan = run.plan  # of which $1.00 is the worst case
    check_balance(rig.context, plan)
    rig.answer = lambda: AccountBalance(Usd("40.5"))
    rig.now += 61.0
    with pytest.raises(
        PaymentRequired,
        match=r"\$0.50 of the runpod balance of \$40.50 are free, \$40.00 are reserved for r1",
    ):
        check_balance(rig.context, plan)


def test_a_provider_that_is_left_alone_or_is_this_machine_is_not_read() -> None:
    rig = Rig(training("r1"))
    rig.context.machines = replace(rig.context.machines, unasked=frozenset({"runpod"}))
    rig.look()
    assert read_funds(rig.context, "local") == (None, "")
    assert rig.reads == 0


def test_no_context_is_built_to_say_that_there_is_no_account() -> None:
    def build() -> Any:
        raise AssertionError("it was built")

    assert read_funds_if_any("runpod", lambda name: name != "runpod", build) == (None, "")


def test_funds_are_read_where_there_is_an_account_and_a_ledger() -> None:
    rig = Rig()
    read = read_funds_if_any("runpod", lambda name: name == "runpod", lambda: rig.context)
    assert read == read_funds(rig.context, "runpod")
    assert read[0] is not None


def test_a_ledger_that_cannot_be_read_is_the_reason() -> None:
    def build() -> Any:
        raise LedgerError("it is damaged")

    assert read_funds_if_any("runpod", lambda name: True, build) == (None, "it is damaged")
