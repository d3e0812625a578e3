"""`govern`, grants for uploads, and `decide` where two of its conditions meet."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from tests.plans import a_generation
from tests.present import only
from tests.reasons import quoted
from tests.unit.core.runs import (
    AT,
    FIRST,
    PLAN,
    RESERVATION,
    SECOND,
    TRAITS,
    StubPlan,
    StubSpec,
    a_report,
    actions_at,
    apply,
    ask,
    created,
    ending,
    failed,
    reserved,
    running,
    settling,
    stopped,
    the_pod,
)
from trmcloud.core.clock import DatedFact, UnknownSince
from trmcloud.core.contract.bucket import RENEW_BEFORE_S
from trmcloud.core.contract.pod_contract import PodName
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import LAND, Decision
from trmcloud.core.control.bookkeeping import Governance, govern
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.controller import _storage
from trmcloud.core.control.events import ActionKey, FailureKind, StopRequested
from trmcloud.core.control.observation import PodSeen, PodStatus
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.renting import hard_stop_within, storage_beside_disks
from trmcloud.core.control.run_state import GRANT, STAGE, Generation, RunState, State
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.spec.plan import Candidate, Interval

# -- ``govern``: budgets that were cut, and pods that nobody owns -------------------------------


NOW = 1_790_000_000.0
OURS, THEIRS = "abcd1234", "ffff0000"


def name(run_id: str = "r1", *, ledger: str = OURS, generation: int = 1, left_s: int = 600) -> str:
    return str(PodName(ledger, run_id, generation, int(NOW) + left_s))


def pod(pod_name: str, pod_id: str = "id-1", status: str = "running") -> PodSeen:
    return PodSeen(pod_id, pod_name, PodStatus(status), Usd(1))


def run(run_id: str = "r1", state: State = State.RUNNING, *, left_s: int = 600) -> RunState:
    generation = a_generation(
        pod_name=name(run_id, left_s=left_s), provider="test", candidate_id="first",
        soft_stop_at=NOW + left_s - 100, hard_stop_at=NOW + left_s, intended_at=NOW - 60,
        pod_id="id-1" if state is not State.RENTING else None,
        ended_at=NOW - 5 if state in (State.SETTLING, State.SETTLED, State.CLOSED) else None,
    )  # fmt: skip
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


def govern_all(
    *runs: RunState, pods: tuple[PodSeen, ...] = (), cap: str | None = None
) -> Governance:
    caps = {("account", ""): Usd(cap)} if cap is not None else {}
    ledger = LedgerState(OURS, {r.run_id: r for r in runs}, caps)
    return govern(ledger, DatedFact(pods, NOW), NOW)


def orphans(*runs: RunState, pods: tuple[PodSeen, ...]) -> list[str]:
    return [orphan.pod.name for orphan in govern_all(*runs, pods=pods).orphans]


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
    governed = govern_all(run(), pods=(pod(name(), "id-2"), pod(name(), "id-1")))
    assert [orphan.pod.pod_id for orphan in governed.orphans] == ["id-2"]


def test_while_no_id_is_known_no_pod_of_that_name_is_an_orphan() -> None:
    assert orphans(run(state=State.RENTING), pods=(pod(name(), "id-2"), pod(name(), "id-1"))) == []


@pytest.mark.parametrize(
    ("left_s", "expected"), [(1, False), (0, False), (-1, True), (-9999, True)]
)
def test_another_ledgers_pod_is_touched_after_its_hard_stop(left_s: int, expected: bool) -> None:
    theirs = name(ledger=THEIRS, left_s=left_s)
    assert orphans(run(), pods=(pod(theirs),)) == ([theirs] if expected else [])


@pytest.mark.parametrize(
    "foreign",
    [
        "my-training",
        "trmc-abcd1234-r1-g1-1690000000-copy",
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
    assert govern(ledger, UnknownSince(NOW), NOW).orphans == ()


# -- runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
def test_every_live_run_is_to_be_driven(state: State) -> None:
    driven = state not in (State.NEW, State.CLOSED)
    assert govern_all(run(state=state)).drive == (("r1",) if driven else ())


CUT = make_reason(ReasonKind.BUDGET_CUT, level="account", cap_usd=Usd(4))
LANDABLE = (State.RESERVED, State.RENTING, State.BOOTING, State.RUNNING)


@pytest.mark.parametrize("state", State)
def test_a_cut_below_what_is_held_lands_the_run(state: State) -> None:
    landed = govern_all(run(state=state), cap="4").land
    if state in LANDABLE:
        assert landed == (("r1", CUT),)
    else:
        assert landed == ()


def test_a_run_lands_once_however_many_budgets_were_cut() -> None:
    caps = {("account", ""): Usd(4), ("project", "thesis"): Usd(3)}
    landed = govern(LedgerState(OURS, {"r1": run()}, caps), UnknownSince(NOW), NOW).land
    assert landed == (("r1", CUT),)


def test_a_cap_that_still_holds_lands_nothing() -> None:
    assert govern_all(run(), cap="5").land == ()
    assert govern_all(run()).land == ()


def test_a_run_that_was_told_is_not_told_again() -> None:
    told = replace(run(), stop=StopRequested("budget", quoted("cut")), stop_at=NOW)
    assert govern_all(told, cap="4").land == ()


def test_every_run_under_a_level_that_was_cut_lands() -> None:
    assert [run_id for run_id, _ in govern_all(run("r1"), run("r2"), cap="9").land] == ["r1", "r2"]


@pytest.mark.parametrize(("past_s", "due"), [(0.5, True), (-0.5, False)])
def test_a_pod_of_an_unknown_provider_has_no_time_after_its_stop(past_s: float, due: bool) -> None:
    owner = run()
    late = replace(owner.generations[0], hard_stop_at=NOW - past_s, provider="of another version")
    orphans = govern_all(replace(owner, generations=(late,)), pods=(pod(name()),)).orphans
    assert [orphan.reason.kind for orphan in orphans] == (
        [ReasonKind.OUTLIVED_HARD_STOP] if due else []
    )


# -- ``decide``: when an agent that uploads for itself is given the right to, and again ---------


UPLOADS = StubPlan((FIRST, SECOND), StubSpec(volume=False, pod_uploads=True))
FIRST_GRANT, SECOND_GRANT = (GRANT, "r1/g1/grant/1"), (GRANT, "r1/g1/grant/2")


actions = partial(actions_at, plan=UPLOADS)


def given(run: RunState, at: float) -> RunState:
    started = ev.ActionStarted(FIRST_GRANT[1], GRANT)
    return apply(run, started, ev.ActionFinished(FIRST_GRANT[1], GRANT), at=at)


@pytest.mark.parametrize("waiting", ["", "grants"])
def test_an_agent_without_the_right_is_given_it(waiting: str) -> None:
    assert actions(running(), AT + 30, report={"waiting": waiting}) == [FIRST_GRANT]
    assert actions(running(), AT + 30, report={"waiting": waiting}, plan=PLAN) == []


def test_one_that_is_not_so_far_waits_for_other_things() -> None:
    assert actions(running(), AT + 30, report={"waiting": "checking"}) == []
    assert actions(running(), AT + 30, report={"waiting": "files"}) == [(STAGE, "r1/g1/stage/1")]


def test_what_is_being_given_is_not_given_twice() -> None:
    assert actions(running(), AT + 30, in_flight=frozenset({FIRST_GRANT[1]})) == [FIRST_GRANT]
    run = apply(running(), ev.ActionStarted(FIRST_GRANT[1], GRANT), at=AT + 25)
    assert actions(run, AT + 900, in_flight=frozenset({FIRST_GRANT[1]})) == []


def test_given_once_it_is_given_again_only_to_one_that_lost_it() -> None:
    """Its report must be half a minute younger than what it was sent; or that is minutes ago, where
    its clock is behind."""
    run = given(running(), AT + 60)
    for at in (AT + 59, AT + 90):
        assert actions(run, AT + 200, report={"at": at}) == []
    assert actions(run, AT + 200, report={"at": AT + 90.5}) == [SECOND_GRANT]
    assert actions(run, AT + 211, report={"at": AT - 3600}) == [SECOND_GRANT]


def test_what_could_not_be_given_is_tried_again() -> None:
    failed = ev.ActionFailed(FIRST_GRANT[1], GRANT, FailureKind.ERROR, "the bucket is away")
    run = apply(running(), ev.ActionStarted(FIRST_GRANT[1], GRANT), failed, at=AT + 60)
    assert actions(run, AT + 61) == []
    assert actions(run, AT + 63) == [SECOND_GRANT]


def test_it_is_renewed_before_it_ends() -> None:
    run, now = given(running(), AT + 30), AT + 1000
    far = replace(run.generations[0], hard_stop_at=AT + 20_000)
    run = replace(run, generations=(far,))
    enough = {"at": now, "granted_until": now + RENEW_BEFORE_S}
    assert actions(run, now, report=enough) == []
    assert actions(run, now + 0.5, report=enough) == [SECOND_GRANT]


def test_one_that_lasts_until_the_hard_stop_is_enough() -> None:
    run = given(running(), AT + 30)
    hard_stop_at = a_report(run).hard_stop_at
    now = hard_stop_at - 30
    assert actions(run, now, report={"at": now, "granted_until": hard_stop_at}) == []
    short = {"at": now, "granted_until": hard_stop_at - 0.5}
    assert actions(run, now, report=short) == [SECOND_GRANT]


def test_a_run_that_shall_stop_gets_no_first_one_and_keeps_what_it_has() -> None:
    run = stopped(running(), AT + 40)
    assert actions(run, AT + 41) == [(LAND, "r1/g1/land/1")]
    run = stopped(given(running(), AT + 30), AT + 40)
    soon = {"at": AT + 90, "granted_until": AT + 95}
    assert actions(run, AT + 90, report=soon) == [(LAND, "r1/g1/land/1"), SECOND_GRANT]


def test_one_whose_work_is_done_needs_none() -> None:
    assert actions(ending(), AT + 510, report={"result": "finished"}) == []


def test_a_run_that_never_rented_asks_for_no_list_first() -> None:
    assert only(ev.PodIntended, ask(reserved(), AT, pods=UnknownSince(AT)).events)


# -- controller corners -------------------------------------------------------------------------
# ``decide`` where two of its conditions meet: the last cent, a volume's rent, words that come
# late or to the wrong pod.


DAY_S = 86_400.0
VOLUME = Usd("0.36")  # a hundredth of a cent per second


# -- money -------------------------------------------------------------------------------------


def storage(p50_hours: float, kept: Usd) -> tuple[Usd, Usd]:
    """Of a pod of 3,000 s with a volume that is kept for two days."""
    candidate = replace(
        FIRST, storage=kept, volume_rate=VOLUME, hours=Interval(0.1, p50_hours, 9.0)
    )
    spec = SimpleNamespace(volume_days=2.0)
    plan = SimpleNamespace(candidate=lambda name: candidate, spec=spec)
    pod = Generation(1, "trmc", "test", "c1", FIRST.rate, AT + 2900, AT + 3000, AT)
    return _storage(plan, pod, TRAITS)  # type: ignore[arg-type]


@pytest.mark.parametrize(("p50_hours", "planned_s"), [(0.5, 1800.0), (2.0, 3000.0)])
def test_a_volumes_rent_is_kept_apart_from_disks(p50_hours: float, planned_s: float) -> None:
    """As long as it is likely to train, at most until its hard stop, and two days after."""
    planned = cost(VOLUME, planned_s + 2 * DAY_S)
    volume = cost(VOLUME, 3030.0 + 2 * DAY_S)
    assert storage(p50_hours, planned + Usd("0.25")) == (Usd("0.25"), volume)
    assert storage(p50_hours, planned - Usd("0.25")) == (ZERO, volume)


@pytest.mark.parametrize(("p50_hours", "planned_s"), [(0.5, 1800.0), (2.0, 3000.0)])
def test_disks_that_are_paid_by_the_hour_are_no_part_of_what_is_kept(
    p50_hours: float, planned_s: float
) -> None:
    disks = replace(FIRST, disk_rate=VOLUME, hours=Interval(0.1, p50_hours, 9.0))
    for beside in (Usd("0.25"), ZERO):
        kept = replace(disks, storage=cost(VOLUME, planned_s) + beside)
        assert storage_beside_disks(cast(Candidate, kept)) == beside
    assert storage_beside_disks(cast(Candidate, disks)) == ZERO


def test_a_pod_is_estimated_at_no_more_than_is_reserved_beside_its_volume() -> None:
    """It lived for 510 s, $0.54 with its kill; its volume is reserved for 3,030 s."""
    for volume_rate, amount in ((Usd("3.3"), "0.2525"), (Usd("0.36"), "0.54"), (Usd(9), "0")):
        with_volume = replace(FIRST, volume_rate=volume_rate)
        plan = StubPlan((with_volume,), StubSpec(volume_days=0.0))
        event = only(ev.Settled, ask(settling(), AT + 9999, plan=plan).events)
        assert event.amount == Usd(amount)


@pytest.mark.parametrize(
    ("left", "kept", "tried"),
    [("0.19", "0", False), ("0.190001", "0", True),
     ("0.29", "0.1", False), ("0.2901", "0.1", True)],
)  # fmt: skip
def test_the_next_is_tried_where_more_is_left_than_its_start_landing_and_kill_cost(
    left: str, kept: str, tried: bool
) -> None:
    """60 s, 100 s and 30 s of a tenth of a cent, beside what its disks cost afterwards."""
    run = settling()
    silent = replace(run.generations[-1], agent_at=None, ended_at=AT + 100, settled=Usd("0.05"))
    run = replace(
        run,
        state=State.SETTLED,
        result=None,
        generations=(silent,),
        reservation=Usd(left) + Usd("0.05"),
    )
    # Half of what an hour costs is its disks, which are in what is kept for storage, too.
    disks = SECOND.rate
    second = replace(SECOND, disk_rate=disks, storage=Usd(kept) + cost(disks, 1800.0))
    (event,) = ask(run, AT + 900, plan=StubPlan((FIRST, second))).events
    assert isinstance(event, ev.Reserved) is tried
    if isinstance(event, ev.Reserved):
        assert event.amount == Usd(left)


def stop_s(run: RunState, **changes: object) -> float:
    candidate = replace(FIRST, **changes)  # type: ignore[arg-type]
    return hard_stop_within(cast(Candidate, candidate), run, TRAITS)


def reopened(amount: Usd) -> RunState:
    return replace(reserved(amount), first_generation=2)


def test_a_reopened_run_pays_its_volume_by_the_hour_too() -> None:
    """The first one's plan has that in its own stop."""
    assert stop_s(reserved(), volume_rate=FIRST.rate) == 3000.0
    assert stop_s(reserved(), disk_rate=FIRST.rate) == 1485.0, "its disks it pays in any case"
    assert stop_s(reopened(RESERVATION)) == 3000.0
    assert stop_s(reopened(RESERVATION * 2)) == 6030.0
    assert stop_s(reopened(RESERVATION), volume_rate=FIRST.rate) == 1485.0


def test_a_reopened_run_with_less_than_a_kill_costs_has_no_time() -> None:
    assert stop_s(reopened(Usd("0.0295"))) == 0.0
    assert stop_s(reopened(Usd("0.0305"))) == pytest.approx(0.5)


# -- a pod that is waited for ------------------------------------------------------------------


def test_what_was_never_made_was_never_up() -> None:
    run = created()
    none = the_pod(run, status=PodStatus.GONE, rate=ZERO, never_made="none left")
    events = ask(run, AT + 60, pods=[none]).events
    assert [type(event) for event in events] == [ev.ActionFailed, ev.PodNotMade]


def test_where_lists_do_not_lag_absence_alone_proves_that_nothing_was_made() -> None:
    run = failed("ambiguous")
    for unbilled in (True, False):
        assert only(ev.PodNotMade, ask(run, AT + 600, absent_lists=3, unbilled=unbilled).events)


# -- a pod that trains or ends -----------------------------------------------------------------


def test_a_pod_that_has_spoken_is_gone_and_not_unmade() -> None:
    run = running()
    none = the_pod(run, status=PodStatus.GONE, never_made="none left", ended_at=AT + 50)
    assert ask(run, AT + 60, pods=[none]).events == (ev.PodGone(1, AT + 50),)


def test_a_pod_that_ends_is_not_asked_to_save() -> None:
    wanted = ev.SaveRequested(1, "user")
    run = apply(running(), wanted, at=AT + 100)
    report = a_report(run)
    assert [a.verb for a in ask(run, AT + 101, pods=[the_pod(run)], report=report).actions] == [
        "save"
    ]
    run = apply(running(), wanted, ev.ResultKnown("finished", None), at=AT + 505)
    report = a_report(run, result="finished")
    assert ask(run, AT + 506, pods=[the_pod(run)], report=report) == Decision()


def test_a_pod_whose_agent_has_given_up_is_sent_no_files() -> None:
    run = ending()
    report = a_report(run, waiting="files", result="failed")
    assert ask(run, AT + 505, pods=[the_pod(run)], report=report) == Decision()
    run = running()
    report = a_report(run, waiting="files")
    (action,) = ask(run, AT + 505, pods=[the_pod(run)], report=report).actions
    assert action.verb == "stage"


def told_to_land(at: float) -> RunState:
    run = stopped(running(), at)
    key = str(ActionKey("r1", 1, LAND, 1))
    return apply(run, ev.ActionStarted(key, LAND), ev.ActionFinished(key, LAND), at=at)


def test_one_that_has_landed_and_uploads_is_left_to_it() -> None:
    run = told_to_land(AT + 100)
    uploading = a_report(run, uploading=True)
    assert ask(run, AT + 260, pods=[the_pod(run)], report=uploading).actions == ()
