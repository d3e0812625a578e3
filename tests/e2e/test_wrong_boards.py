"""Hosts whose GPU is on another board than was rented."""

from __future__ import annotations

from tests.e2e.runpod_user import LAUNCH, RentedUser
from tests.e2e.test_runpod_faults import ended
from trmcloud.core.control.reason import ReasonKind
from trmcloud.core.errors import Outcome
from trmcloud.operations.reasons import sentence

ACCEPT = ("--accept-exposure", "5")


def test_a_slower_board_of_which_nothing_is_known_is_ended_before_training(
    rented: RentedUser,
) -> None:
    rented.standin.control.set(shown_gpu="NVIDIA H200 NVL")
    arguments = ("launch", "1xH200", *LAUNCH[2:], "--steps", "60", "--budget", "4", *ACCEPT)
    launch = rented.start(*arguments, *rented.data)
    out, _ = rented.see_out(launch, code=Outcome.UNFIT.exit_code)
    run = ended(rented, Outcome.UNFIT)
    assert run.reason is not None
    assert run.reason.kind is ReasonKind.WRONG_BOARD
    assert sentence(run.reason).startswith("H200 SXM was rented, but its machine has H200 NVL")
    assert "H200 NVL" in out
    assert not run.phases
    assert not run.pulled
