"""Whole runs through RunPod's adapter, ledger and controller, on a clock that waiting moves:
what becomes of them where RunPod refuses, misleads, or puts a pod where nobody asked for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract.runpod_rig import Rig
from tests.reasons import sentence
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.app import launching
from trmcloud.app.context import Context
from trmcloud.app.drive import RunDriver
from trmcloud.app.pod_request import LaunchData
from trmcloud.app.smoke_plan import make_smoke_plan
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.clock import Instant
from trmcloud.core.control import events as ev
from trmcloud.core.control.report import spent_so_far
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import FinalRefusal, LinkError, PaymentRequired, ProviderError
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.outcome import Outcome
from trmcloud.core.spec.plan import Plan
from trmcloud.ports.ledger import ControllerId
from trmcloud.providers.runpod.offers import live_offers


class _Clock:
    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def now(self) -> Instant:
        return Instant(self._rig.clock(), self._rig.clock())

    def sleep(self, seconds: float) -> None:
        self._rig.on(seconds)


class _Silent:
    """A pod that never says a word."""

    def report(self, pod_name: str) -> None:
        return None

    def trouble(self, pod_name: str) -> None:
        return None

    def left_behind(self, pod_name: str, earlier: str) -> None:
        return None

    def send_orders(self, pod_name: str, orders: Any) -> None:
        raise LinkError("nobody there")


class _Idle:
    def running(self) -> frozenset[str]:
        return frozenset()

    def finished(self) -> tuple[()]:
        return ()

    def cancel(self) -> None:
        pass


class Launch:
    """One launch with every cheap machine as a candidate, driven by hand."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        unused: Any = None
        self.world = Context(
            home=folder, clock=_Clock(rig), ledger=SqliteLedger(folder / "ledger.db"),
            computes={"runpod": rig.compute}, links={"runpod": _Silent()},  # type: ignore[dict-item]
            files=unused, who=ControllerId("here", 1, "boot"), is_alive=lambda who: True,
            project="p", workers=_Idle(), stage_items=unused, folder_on_pod=unused,  # type: ignore[arg-type]
        )  # fmt: skip
        self._driver: RunDriver | None = None

    def plan(self, *regions: str) -> Plan:
        now = self.rig.clock()
        offers = [
            offer
            for offer in live_offers(self.rig.api.catalogue, now, (1,))
            if offer.sku in ("L4", "L40S", "RTX4090") and offer.region in (regions or ("US-KS-2",))
        ]
        return make_smoke_plan(offers, traits_of("runpod"), Usd(2), 1800.0, Usd("0.01"), now)

    def start(self, plan: Plan) -> RunDriver:
        self._driver = launching.start(self.world, plan, data=LaunchData())
        self.rig.standin.requests.clear()
        return self._driver

    def until(self, done: Callable[[RunState], bool], within_s: float = 3600.0) -> RunState:
        assert self._driver is not None
        began_at = self.rig.clock()
        while True:
            run = self._driver.step()
            if done(run) or not run.live:
                return run
            assert self.rig.clock() - began_at < within_s, run
            self.rig.on(1.0)

    def to_the_end(self) -> RunState:
        run = self.until(lambda run: False)
        assert self.rig.standin.control.live() == [], "nothing is left running"
        return run

    def created(self) -> int:
        return self.rig.asked("POST").count("POST /v2/pods")


@pytest.fixture
def made(rig: Rig, tmp_path: Path) -> Launch:
    return Launch(rig, tmp_path / "home")


def nothing_rented(made: Launch, run: RunState, says: str) -> None:
    assert (run.state, run.outcome) == (State.CLOSED, Outcome.NOT_STARTED)
    assert says in sentence(run.reason)
    assert "\n" not in sentence(run.reason)
    assert len(sentence(run.reason)) < 400
    assert spent_so_far(run, made.rig.clock()) == run.reserved == ZERO


# -- before anything is reserved -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "error", "says"),
    [
        ({"list_endless": True}, ProviderError, "does not end"),
        ({"list_circle": True}, ProviderError, "in a circle"),
        ({"list_lacks_pods": 99}, ProviderError, "pods: Field required"),
        ({"errors_502": 999}, ProviderError, "answers 502: a web page"),
        ({"v2_gone": True}, FinalRefusal, "gone"),
        ({"throttled_until": 2e9}, ProviderError, "less often"),
    ],
)
def test_a_list_that_is_none_stops_a_launch_before_it_costs(
    made: Launch, knobs: dict[str, Any], error: type[ProviderError], says: str
) -> None:
    plan = made.plan()
    made.rig.standin.control.set(**knobs)
    with pytest.raises(error, match=says) as caught:
        made.start(plan)
    assert caught.value.next_step
    assert made.world.ledger.read().runs == {}
    made.rig.standin.control.reset()
    assert made.rig.standin.control.live() == []


# -- who goes on and who stops ------------------------------------------------------------------


def test_a_403_on_the_first_of_three_leads_to_the_second(made: Launch) -> None:
    plan = made.plan()
    assert len(plan.launchable) == 3
    made.rig.standin.control.set(forbidden_gpus=["NVIDIA L4"])
    made.start(plan)
    run = made.until(lambda run: run.state is State.BOOTING)
    assert "cannot access the requested pool" in sentence(run.generations[0].not_made)
    (pod,) = made.rig.standin.control.live()
    assert pod.gpu_id != "NVIDIA L4"
    assert made.created() == 2


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (402, "add credit"),
        (410, "gone"),
        (413, "larger than RunPod takes"),
        (422, "contract was broken"),
    ],
)
def test_what_no_candidate_mends_is_asked_once(made: Launch, code: int, says: str) -> None:
    plan = made.plan()
    made.rig.standin.control.set(create_refused=code)
    made.start(plan)
    nothing_rented(made, made.to_the_end(), says)
    assert made.created() == 1


def test_a_refusal_of_every_candidate_is_told_in_the_last_ones_words(made: Launch) -> None:
    plan = made.plan()
    made.rig.standin.control.set(create_refused=400)
    made.start(plan)
    nothing_rented(made, made.to_the_end(), "refused by a knob")
    assert made.created() == 3


def test_two_minutes_of_429_end_in_one_line(made: Launch) -> None:
    made.start(made.plan())
    began_at = made.rig.clock()
    made.rig.standin.control.set(throttled_until=began_at + 120.0, retry_after_s=20)
    run = made.to_the_end()
    nothing_rented(made, run, "asks to be asked less often")
    assert "nothing was rented" in sentence(run.reason)
    assert made.created() == 0
    assert made.rig.clock() - began_at < 240.0


def test_a_minute_of_429_is_waited_out(made: Launch) -> None:
    made.start(made.plan())
    made.rig.standin.control.set(throttled_until=made.rig.clock() + 60.0, retry_after_s=20)
    run = made.until(lambda run: run.state is State.BOOTING)
    assert len(run.generations) == 1, "the first choice is not lost over it"
    assert len(made.rig.standin.control.live()) == 1


def test_an_outage_before_the_create_is_no_riddle(made: Launch) -> None:
    """Nothing was asked for, so nobody waits ten minutes for a pod that may come."""
    made.start(made.plan())
    made.rig.standin.control.set(errors_502=40)
    began_at = made.rig.clock()
    run = made.until(lambda run: run.state is State.BOOTING)
    assert made.rig.clock() - began_at < 180.0
    assert len(run.generations) == 2
    assert len(made.rig.standin.control.live()) == 1


def test_a_balance_that_went_in_between(made: Launch) -> None:
    plan = made.plan()
    made.start(plan)
    made.rig.standin.control.set_balance(0.01)
    nothing_rented(made, made.to_the_end(), "balance is too low")
    with pytest.raises(PaymentRequired):
        made.start(plan)


# -- where it landed, and whether it is up ---------------------------------------------------------


def test_a_pod_that_landed_elsewhere_is_ended_and_the_next_is_tried(made: Launch) -> None:
    made.rig.standin.control.set(lands_in="EUR-IS-1")
    plan = made.plan("US-KS-2", "EU-RO-1")
    made.start(plan)
    first = made.until(lambda run: run.state is State.BOOTING)
    assert first.generation is not None
    astray = first.generation.pod_name
    made.rig.standin.control.set(lands_in="")
    made.until(lambda run: len(run.generations) > 1 and run.state is State.BOOTING)
    assert made.rig.standin.control.pod(astray).ended_by == "api"
    (reason,) = {
        sentence(event.reason)
        for event in (record.event for record in made.world.ledger.records(first.run_id))
        if isinstance(event, ev.ActionFinished) and event.verb == "terminate" and event.reason
    }
    asked_for = plan.candidate(plan.launchable[0]).region
    assert reason == f"it stands in EUR-IS-1, and {asked_for} was asked for"
    (pod,) = made.rig.standin.control.live()
    assert pod.data_center != "EUR-IS-1"


def test_a_pod_said_to_run_is_waited_for_all_the_same(made: Launch) -> None:
    made.rig.standin.control.set(says_running=True, provisioning_s=200.0, ssh_after_s=100.0)
    made.start(made.plan())
    run = made.until(lambda run: run.state is State.BOOTING)
    for _ in range(50):
        made.rig.on(5.0)
        run = made.until(lambda run: True)
    assert (run.state, len(run.generations)) == (State.BOOTING, 1)
    assert len(made.rig.standin.control.live()) == 1


def test_a_list_that_goes_bad_in_mid_run_ends_no_pod_and_loses_none(made: Launch) -> None:
    made.start(made.plan())
    run = made.until(lambda run: run.state is State.BOOTING)
    assert run.generation is not None
    for knobs in ({"list_endless": True}, {"list_lacks_pods": 9999}, {"html": 9999}):
        made.rig.standin.control.set(**knobs)
        for _ in range(20):
            made.rig.on(5.0)
            run = made.until(lambda run: True)
        made.rig.standin.control.reset(*knobs)
    assert (run.state, len(run.generations)) == (State.BOOTING, 1)
    assert len(made.rig.standin.control.live()) == 1
