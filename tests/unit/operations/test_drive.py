"""A run's driver while its ledger cannot be written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trmcloud.core.clock import Instant
from trmcloud.core.control import bookkeeping
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import CREATE, TERMINATE, Action
from trmcloud.core.control.events import ActionKey, FailureKind
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import ActionState, Generation, RunState, State
from trmcloud.core.errors import (
    CheckpointError,
    ConnectionDropped,
    DataError,
    LedgerLocked,
    LedgerOlder,
    LinkError,
    NotSendable,
    TrmcloudError,
)
from trmcloud.core.money import Usd
from trmcloud.core.values import replace
from trmcloud.operations.driving.drive import RunDriver
from trmcloud.operations.machines import Machines
from trmcloud.ports.machine import WorkDone

RUN = RunState(
    "r-1",
    state=State.RUNNING,
    epoch=1,
    generations=(Generation(1, "pod", "runpod", "c0", Usd(1), 9e9, 9e9, 0.0, pod_id="runpod-1"),),
)


def test_a_driver_whose_run_a_restored_ledger_has_forgotten_stays_and_ends_its_pod() -> None:
    """Nothing is driven that the ledger does not know, and its machine is not left alone."""
    runs, did, now, wall = {"r-1": RUN}, list[str](), [1000.0], RUN.generations[0].hard_stop_at
    state: Any = SimpleNamespace(runs=runs, quarantined={}, unread={})
    ledger = SimpleNamespace(
        read=lambda: state,
        driver=lambda run_id: None,
        append=lambda *given: bookkeeping.require_run(state, "r-1"),
    )

    class Driver(RunDriver):
        def _step(self) -> RunState:
            self.run()
            return RUN

    pods = [SimpleNamespace(name="pod", gone=False)]
    compute: Any = SimpleNamespace(
        list_pods=lambda: pods, terminate=lambda pod: did.append(f"ends {pod}")
    )
    context: Any = SimpleNamespace(
        wall=lambda: now[0],
        clock=SimpleNamespace(now=lambda: Instant(now[0], now[0], "here")),
        ledger=ledger,
        machines=Machines({"runpod": compute}, {}),
        workers=SimpleNamespace(cancel=lambda: None),
        troubles={},
    )
    driver = Driver(context, "r-1", 1)
    driver.step()
    runs.clear()
    assert driver.step() is RUN, "as it was known last"
    assert isinstance(context.troubles["r-1"], LedgerOlder)
    assert "does not know r-1 any more" in str(context.troubles["r-1"])
    assert did == []
    with pytest.raises(LedgerOlder):
        driver._append(ev.AgentUp(1))
    now[0] = wall + 1.0
    driver.step()
    assert did == ["ends runpod-1"]

    with pytest.raises(LedgerOlder, match="does not know r-1 any more"):
        RunDriver(context, "r-1", 1).step()  # it knows of no pod to stay for


def test_a_stop_that_another_wrote_is_tried_to_be_acted_on_by_the_ledger_first() -> None:
    did: list[str] = []
    runs = {"r-1": RUN}
    now = [1000.0]

    class Driver(RunDriver):
        def _step(self) -> RunState:
            did.append("tries to write")
            self.run()
            raise LedgerLocked("the ledger's disk is full")

    ledger = SimpleNamespace(
        read=lambda: SimpleNamespace(runs=runs, quarantined={}, unread={}),
        driver=lambda run_id: None,
    )
    compute: Any = SimpleNamespace(list_pods=list, terminate=lambda pod: did.append(f"ends {pod}"))
    link: Any = SimpleNamespace(report=lambda pod_name: None)
    context: Any = SimpleNamespace(
        wall=lambda: now[0],
        ledger=ledger,
        machines=Machines({"runpod": compute}, {"runpod": link}),
        workers=SimpleNamespace(cancel=lambda: None),
        troubles={},
    )
    driver = Driver(context, "r-1", 1)
    driver.step()
    now[0] += 0.5  # it waits before it tries again
    driver.step()
    assert did == ["tries to write"]

    stop = ev.StopRequested("user", make_reason(ReasonKind.STOP_NOW))
    runs["r-1"] = replace(RUN, stop=stop)
    driver.step()
    assert did == ["tries to write", "tries to write", "ends runpod-1"]


@pytest.mark.parametrize(
    ("error", "verb", "kind"),
    [
        (NotSendable("'a b' cannot be sent"), "stage", FailureKind.FINAL),
        (DataError("data/x is missing"), "stage", FailureKind.FINAL),
        (ConnectionDropped("reset"), "stage", FailureKind.ERROR),
        (LinkError("damaged on the way"), "stage", FailureKind.ERROR),
        (CheckpointError("damaged"), "pull", FailureKind.DAMAGED),
        (DataError("x"), "grant", FailureKind.ERROR),
    ],
)
def test_an_error_of_sending_is_passing_or_for_good(
    error: TrmcloudError, verb: str, kind: FailureKind
) -> None:
    key = ActionKey("r-1", 1, verb, 1)
    started = ActionState(verb, 0.0)
    run, known = replace(RUN, actions={key: started}), replace(RUN, actions={})
    written: list[Any] = []

    class Driver(RunDriver):
        def _append(self, *events: Any) -> None:
            written.extend(events)

        def run(self) -> RunState:
            return known

    context: Any = SimpleNamespace(wall=lambda: 0.0)
    driver = Driver(context, "r-1", 1)
    # What is decided next knows of the failure: else it would be tried again at once.
    assert driver._note_done(run, WorkDone(key, error)) is known
    [failed] = written
    assert (failed.kind, failed.error) == (kind, str(error))


@pytest.mark.parametrize(("slept_s", "is_sent"), [(60.0, True), (600.0, False)])
def test_what_was_decided_before_a_sleep_is_not_asked_for_after_it(
    slept_s: float, is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine sleeps while it puts on record what it is about to do."""
    now, written, did = [1000.0], list[Any](), list[str]()

    def clock() -> Instant:
        return Instant(now[0], now[0], "here")

    class Driver(RunDriver):
        def _append(self, *events: Any) -> None:
            written.extend(events)
            now[0] += slept_s

        def run(self) -> Any:
            return SimpleNamespace(present=RUN.generations, plan=None)

        def _watch(self, run: RunState) -> None:
            pass

    def request(*given: Any) -> float:
        return clock().since(given[-1])

    monkeypatch.setattr("trmcloud.operations.driving.drive.pod_request", request)
    compute: Any = SimpleNamespace(
        terminate=lambda pod: did.append(f"ends {pod}"),
        create=lambda since_s: did.append(f"asks {since_s:.0f} s after it was decided on"),
    )
    context: Any = SimpleNamespace(
        clock=SimpleNamespace(now=clock),
        machines=Machines({"runpod": compute}, {}),
        workers=SimpleNamespace(cancel=lambda: None),
    )
    driver = Driver(context, "r-1", 1)
    end = Action(ActionKey("r-1", 1, TERMINATE, 1), pod_id="runpod-1")
    driver._act(RUN, end)
    assert did == (["ends runpod-1"] if is_sent else [])
    assert isinstance(written[-1], ev.ActionFinished if is_sent else ev.ActionFailed)

    # A create request carries the time of its decision: the sender refuses one that is late.
    did.clear()
    driver._act(RUN, Action(ActionKey("r-1", 1, CREATE, 1)))
    assert did == [f"asks {slept_s:.0f} s after it was decided on"]
