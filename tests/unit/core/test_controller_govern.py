"""``govern``: budgets that were cut, and pods that nobody owns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.reasons import quoted
from trmcloud.core.clock import Seen, Unknown
from trmcloud.core.contract.pod_contract import PodName
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.events import StopRequested
from trmcloud.core.control.governance import Governance, govern
from trmcloud.core.control.observation import PodSeen, PodStatus
from trmcloud.core.control.reason import ReasonKind, because
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.money import Usd

NOW = 1_790_000_000.0
OURS, THEIRS = "abcd1234", "ffff0000"


def name(run_id: str = "r1", *, ledger: str = OURS, generation: int = 1, left_s: int = 600) -> str:
    return str(PodName(ledger, run_id, generation, int(NOW) + left_s))


def pod(pod_name: str, pod_id: str = "id-1", status: str = "running") -> PodSeen:
    return PodSeen(pod_id, pod_name, PodStatus(status), Usd(1))


def run(run_id: str = "r1", state: State = State.RUNNING, *, left_s: int = 600) -> RunState:
    generation = Generation(
        number=1,
        pod_name=name(run_id, left_s=left_s),
        provider="test",
        candidate_id="first",
        rate=Usd(1),
        soft_stop_at=NOW + left_s - 100,
        hard_stop_at=NOW + left_s,
        intended_at=NOW - 60,
        pod_id="id-1" if state is not State.RENTING else None,
        ended_at=NOW - 5 if state in (State.SETTLING, State.SETTLED, State.CLOSED) else None,
    )
    made = (generation,) if state not in (State.PLANNED, State.RESERVED) else ()
    return RunState(
        run_id,
        state=state,
        cap=Usd(100),
        project="thesis",
        reserved=Usd(5),
        reserved_at=NOW - 60,
        generations=made,
    )


def ask(*runs: RunState, pods: tuple[PodSeen, ...] = (), cap: str | None = None) -> Governance:
    caps = {("account", ""): Usd(cap)} if cap is not None else {}
    ledger = LedgerState(OURS, {r.run_id: r for r in runs}, caps)
    return govern(ledger, Seen(pods, NOW), NOW)


def orphans(*runs: RunState, pods: tuple[PodSeen, ...]) -> list[str]:
    return [orphan.pod.name for orphan in ask(*runs, pods=pods).orphans]


# -- orphans -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.RENTING, State.BOOTING, State.RUNNING, State.ENDING])
def test_a_pod_of_a_live_generation_is_owned(state: State) -> None:
    assert orphans(run(state=state), pods=(pod(name()),)) == []


def test_a_run_that_is_over_or_has_rented_nothing_owns_none() -> None:
    over = replace(run(), state=State.CLOSED)
    assert orphans(over, pods=(pod(name()),)) == [name()]
    assert orphans(run(state=State.RESERVED), pods=(pod(name()),)) == [name()]


@pytest.mark.parametrize("state", [State.RENTING, State.BOOTING, State.RUNNING, State.ENDING])
def test_its_run_has_the_kill_latency_to_end_it_and_then_anybody_does(state: State) -> None:
    """A run whose decisions fail, or are never reached, keeps no pod alive."""
    for left_s, ended in ((-59, False), (-60, False), (-61, True), (-9000, True)):
        late = run(state=state, left_s=left_s)
        generation = replace(late.generations[0], provider="runpod")
        late = replace(late, generations=(generation,))
        there = (pod(name(left_s=left_s)),)
        assert orphans(late, pods=there) == ([name(left_s=left_s)] if ended else []), left_s
        assert orphans(late, pods=(pod(name(left_s=left_s), status=PodStatus.GONE),)) == []


def test_of_a_provider_that_is_not_known_any_more_too() -> None:
    late = run(left_s=-900)
    assert orphans(late, pods=(pod(name(left_s=-900)),)) == [name(left_s=-900)]


@pytest.mark.parametrize("state", [State.SETTLING, State.SETTLED, State.CLOSED])
def test_a_pod_that_comes_back_after_it_was_gone_is_an_orphan(state: State) -> None:
    assert orphans(run(state=state), pods=(pod(name()),)) == [name()]


def test_a_pod_of_a_generation_that_was_given_up_is_an_orphan() -> None:
    known = run(state=State.RENTING)
    given_up = replace(known.generations[0], not_made=quoted("it never appeared"))
    assert orphans(replace(known, generations=(given_up,)), pods=(pod(name()),)) == [name()]


def test_an_earlier_generations_pod_is_an_orphan() -> None:
    known = run()
    first = replace(known.generations[0], ended_at=NOW - 50)
    second = replace(known.generations[0], number=2, pod_name=name(generation=2), pod_id="id-2")
    both = replace(known, generations=(first, second))
    pods = (pod(name()), pod(name(generation=2), "id-2"))
    assert orphans(both, pods=pods) == [name()]


def test_a_pod_of_this_ledger_that_it_does_not_know_is_an_orphan() -> None:
    assert orphans(pods=(pod(name("r9")),)) == [name("r9")]
    assert orphans(run(), pods=(pod(name("r9")), pod(name()))) == [name("r9")]


def test_a_second_pod_of_one_name_is_an_orphan_and_the_first_is_not() -> None:
    governed = ask(run(), pods=(pod(name(), "id-2"), pod(name(), "id-1")))
    assert [orphan.pod.pod_id for orphan in governed.orphans] == ["id-2"]


def test_while_no_id_is_known_no_pod_of_that_name_is_an_orphan() -> None:
    assert orphans(run(state=State.RENTING), pods=(pod(name(), "id-2"), pod(name(), "id-1"))) == []


@pytest.mark.parametrize(
    ("left_s", "expected"), [(1, False), (0, False), (-1, True), (-9999, True)]
)
def test_another_ledgers_pod_is_touched_only_after_its_hard_stop(
    left_s: int, expected: bool
) -> None:
    theirs = name(ledger=THEIRS, left_s=left_s)
    assert orphans(run(), pods=(pod(theirs),)) == ([theirs] if expected else [])


@pytest.mark.parametrize(
    "foreign",
    [
        "my-training",
        "",
        "trmc",
        "trmcloud-abcd1234-r1-g1-1690000000",
        "trmc-abcd1234-r1-g1-1690000000-copy",
        "x-trmc-abcd1234-r1-g1-1690000000",
        "TRMC-abcd1234-r1-g1-1690000000",
        "trmc-ABCD1234-r1-g1-1690000000",
        "trmc-abcd123-r1-g1-1690000000",
        "trmc-abcd1234-r1-g01-1690000000",
        "trmc-abcd1234-r1-g1-0690000000",
        "trmc-abcd1234-r1-g1-١٦٩٠٠٠٠٠٠٠",
        "trmc-abcd1234-r1-g1-1690000000\n",
        " trmc-abcd1234-r1-g1-1690000000",
    ],
)
@pytest.mark.parametrize("status", ["running", "unknown", "creating"])
def test_a_foreign_pod_is_never_touched(foreign: str, status: str) -> None:
    assert orphans(pods=(pod(foreign, status=status),)) == []


@pytest.mark.parametrize("status", [each for each in PodStatus if each is not PodStatus.GONE])
def test_whatever_may_be_spending_is_an_orphan_and_what_is_gone_is_none(status: str) -> None:
    assert orphans(pods=(pod(name(), status=status),)) == [name()]
    assert orphans(pods=(pod(name(), status=PodStatus.GONE),)) == []


def test_without_a_list_nothing_is_an_orphan() -> None:
    ledger = LedgerState(OURS, {"r1": run()})
    assert govern(ledger, Unknown(NOW), NOW).orphans == ()


# -- runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
def test_every_live_run_is_to_be_driven(state: State) -> None:
    driven = state not in (State.NEW, State.CLOSED)
    assert ask(run(state=state)).drive == (("r1",) if driven else ())


CUT = because(ReasonKind.BUDGET_CUT, level="account", cap_usd=Usd(4))
LANDABLE = (State.RESERVED, State.RENTING, State.BOOTING, State.RUNNING)


@pytest.mark.parametrize("state", State)
def test_a_cut_below_what_is_held_lands_the_run(state: State) -> None:
    landed = ask(run(state=state), cap="4").land
    if state in LANDABLE:
        assert landed == (("r1", CUT),)
    else:
        assert landed == ()


def test_a_run_lands_once_however_many_budgets_were_cut() -> None:
    caps = {("account", ""): Usd(4), ("project", "thesis"): Usd(3)}
    landed = govern(LedgerState(OURS, {"r1": run()}, caps), Unknown(NOW), NOW).land
    assert landed == (("r1", CUT),)


def test_a_cap_that_still_holds_lands_nothing() -> None:
    assert ask(run(), cap="5").land == ()
    assert ask(run()).land == ()


def test_a_run_that_was_told_is_not_told_again() -> None:
    told = replace(run(), stop=StopRequested("budget", quoted("cut")), stop_at=NOW)
    assert ask(told, cap="4").land == ()


def test_every_run_under_a_level_that_was_cut_lands() -> None:
    assert [run_id for run_id, _ in ask(run("r1"), run("r2"), cap="9").land] == ["r1", "r2"]


@pytest.mark.parametrize(("past_s", "due"), [(0.5, True), (-0.5, False)])
def test_the_pod_of_a_provider_that_is_not_known_has_no_time_beyond_its_stop(
    past_s: float, due: bool
) -> None:
    owner = run()
    late = replace(owner.generations[0], hard_stop_at=NOW - past_s, provider="of another version")
    orphans = ask(replace(owner, generations=(late,)), pods=(pod(name()),)).orphans
    assert [orphan.reason.kind for orphan in orphans] == (
        [ReasonKind.OUTLIVED_HARD_STOP] if due else []
    )
