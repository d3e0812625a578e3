"""A run's driver while its ledger cannot be written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trmcloud.app.drive import RunDriver
from trmcloud.core.control import events as ev
from trmcloud.core.control.events import ActionKey, FailureKind
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import ActionState, Generation, RunState, State
from trmcloud.core.errors import (
    CheckpointError,
    ConnectionDropped,
    DataError,
    LedgerLocked,
    LinkError,
    NotSendable,
    TrmcloudError,
)
from trmcloud.core.money import Usd
from trmcloud.core.values import replace
from trmcloud.ports.machine import WorkDone

RUN = RunState(
    "r-1",
    state=State.RUNNING,
    epoch=1,
    generations=(Generation(1, "pod", "runpod", "c0", Usd(1), 9e9, 9e9, 0.0, pod_id="runpod-1"),),
)


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
    compute = SimpleNamespace(list_pods=list, terminate=lambda pod: did.append(f"ends {pod}"))
    context: Any = SimpleNamespace(
        wall=lambda: now[0],
        ledger=ledger,
        computes={"runpod": compute},
        links={"runpod": SimpleNamespace(report=lambda pod_name: None)},
        workers=SimpleNamespace(cancel=lambda: None),
        troubles={},
        listed={},
        unasked=frozenset(),
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
    run = replace(RUN, actions={key: started})
    written: list[Any] = []

    class Driver(RunDriver):
        def _append(self, *events: Any) -> None:
            written.extend(events)

    context: Any = SimpleNamespace(wall=lambda: 0.0)
    driver = Driver(context, "r-1", 1)
    driver._note_done(run, WorkDone(key, error))
    [failed] = written
    assert (failed.kind, failed.error) == (kind, str(error))
