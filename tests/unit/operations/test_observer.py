"""What one process observes of a run: which reports count as heard."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.core.runs import AT, a_report, follow, running, the_pod
from trmcloud.core.clock import Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.control.observation import PodStatus
from trmcloud.core.control.run_state import RunState, State
from trmcloud.operations.driving.observer import Observer
from trmcloud.operations.machines import Machines
from trmcloud.sim.world.store import SimNotes

PLAN: Any = SimpleNamespace(spec=SimpleNamespace(pod_uploads=True))


def settling_unreported() -> RunState:
    run = running()
    run, _ = follow(run, AT + 520, pods=[the_pod(run, status=PodStatus.GONE, ended_at=AT + 510)])
    assert (run.state, run.result) == (State.SETTLING, None)
    return run


@pytest.mark.parametrize(("run", "asked"), [(running(), 0), (settling_unreported(), 1)])
def test_a_twins_old_report_does_not_stand_for_the_word_of_a_pod_that_is_gone(
    run: RunState, asked: int
) -> None:
    """Of two pods of one name the one that worked is gone, and left its result in the bucket."""
    done, reads = a_report(run, result="stopped"), list[str]()

    def last_report(run_id: str, number: int) -> bytes:
        reads.append(run_id)
        return contract.dump(done).encode()

    provider = run.generations[0].provider
    link: Any = SimpleNamespace(report=lambda pod_name: a_report(run))
    compute: Any = SimpleNamespace(
        list_pods=list, bill=lambda pod_id: None, expect=lambda pod_id: None,
    )  # fmt: skip
    context: Any = SimpleNamespace(
        wall=lambda: AT + 900.0,
        clock=SimpleNamespace(now=lambda: Instant(AT + 900.0, 900.0, "here")),
        workers=SimpleNamespace(running=frozenset),
        notes=SimNotes(),
        buckets=SimpleNamespace(at=lambda place: SimpleNamespace(last_report=last_report)),
        machines=Machines({provider: compute}, {provider: link}),
    )
    seen = Observer(context).look(run, PLAN)
    assert len(reads) == asked
    assert (seen.word.result if seen.word is not None else None) == ("stopped" if asked else None)
