"""Hosts whose GPU is on another board than was rented."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.runpod_user import LAUNCH, RentedUser
from tests.e2e.test_runpod_faults import ended
from tests.e2e.vast_user import VAST_LAUNCH, VastUser, renting_from_vast
from trmcloud.app.reasons import sentence
from trmcloud.core.control.reason import ReasonKind
from trmcloud.core.errors import Outcome

ACCEPT = ("--accept-exposure", "5")


@pytest.fixture
def at_vast(tmp_path: Path) -> Iterator[VastUser]:
    with renting_from_vast(tmp_path) as made:
        yield made


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


def test_a_slower_board_on_which_the_work_fits_trains(rented: RentedUser) -> None:
    rented.standin.control.set(shown_gpu="NVIDIA H100 PCIe")
    arguments = ("launch", "1xH100", *LAUNCH[2:], "--steps", "60", "--budget", "12", *ACCEPT)
    launch = rented.start(*arguments, *rented.data)
    out, _ = rented.see_out(launch, code=0)
    run = ended(rented, Outcome.FINISHED)
    assert run.generation is not None
    assert run.generation.board is not None
    told = "H100 PCIe instead of H100 SXM: the new plan takes up to 1.68 times as long"
    assert sentence(run.generation.board) == told
    assert out.count(told) == 1
    assert told in rented.run("status", run.run_id)


def test_a_host_of_vast_that_lies_about_its_gpu_is_given_back(at_vast: VastUser) -> None:
    at_vast.vast.world.knobs.shown = "NVIDIA H100 PCIe"
    launch = ("launch", "1xH100", *VAST_LAUNCH[2:])
    plan_id = at_vast.plan_to_bind(
        "--budget", "0.80", hard_stop_s=240.0, landing_s=6.0, launch=launch
    )
    started = at_vast.start("launch", plan_id, "-y", *ACCEPT)
    at_vast.see_out(started, code=Outcome.UNFIT.exit_code)
    run = at_vast.only_run()
    assert run.outcome is Outcome.UNFIT
    assert run.reason is not None
    assert run.reason.kind is ReasonKind.WRONG_BOARD
    assert at_vast.live() == []
    assert not run.phases
    assert 0 < at_vast.billed() <= float(run.cap)
