"""A network volume's rent: held in every budget until its day, and what ends it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.plans import a_candidate, errand_json, plan_json
from tests.reasons import quoted, sentence
from tests.unit.core.runs import TRAITS
from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState, extend_ledger
from trmcloud.core.control.controller import _storage
from trmcloud.core.control.kept_volumes import due, holds
from trmcloud.core.control.reason import Reason, ReasonKind, because
from trmcloud.core.control.run_state import Generation
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.outcome import Outcome
from trmcloud.core.spec.plan import Interval
from trmcloud.core.spec.spec import DELETE, DELETE_FETCHED, KEEP

AT = 1_790_000_000.0
RATE = Usd("0.005")
A_DAY = cost(RATE, DAY_S)
ENDED = AT + 3600.0

_SAVED = because(ReasonKind.SAVED_HERE)


class Book:
    """A ledger in which runs that keep a volume are written down."""

    def __init__(self) -> None:
        self.ledger = LedgerState("0a1b2c3d")
        self._seq = 0

    def add(self, run_id: str, at: float, *events: ev.Event) -> None:
        for event in events:
            self._seq += 1
            record = ev.Record(self._seq, run_id, 1, at, event)
            self.ledger = extend_ledger(self.ledger, (record,))

    def begin(self, run_id: str, at: float = AT, *, place: str = "EU-RO-1", **spec: Any) -> None:
        candidate = a_candidate(region=place, volume_rate=RATE, volume_gb=52)
        plan = plan_json(candidate, **{"volume": True, **spec})
        self.add(
            run_id,
            at,
            ev.RunPlanned(plan, Usd(5), "thesis"),
            ev.Reserved(Usd(5)),
            ev.PodIntended(1, f"trmc-{run_id}", "runpod", "c1", Usd(1), at + 3000, at + 3600),
            ev.ActionStarted(f"{run_id}/g1/create/1", "create"),
        )

    def train(self, run_id: str, at: float = AT) -> None:
        self.add(run_id, at, ev.PodUp(1, f"pod-{run_id}", Usd(1)), ev.AgentUp(1))

    def settle(self, run_id: str, at: float = ENDED, amount: str = "1") -> None:
        self.add(
            run_id,
            at,
            ev.ResultKnown("finished"),
            ev.PodGone(1, at),
            ev.Settled(1, Usd(amount), Usd(amount)),
            ev.Closed(Outcome.FINISHED.value),
        )

    def run(self, run_id: str, **spec: Any) -> None:
        self.begin(run_id, **spec)
        self.train(run_id)
        self.settle(run_id)

    def fetch(self, run_id: str, why: Reason = _SAVED, at: float = ENDED + 60.0) -> None:
        """An errand, which brings what was saved home and ends for that reason."""
        errand = errand_json(region="EU-RO-1")
        end = f"{run_id}/g2/terminate/1"
        self.add(
            run_id,
            at,
            ev.Reopened(Usd(6), errand),
            ev.Reserved(Usd("0.1")),
            ev.PodIntended(2, "trmc-2", "runpod", "fetch1", Usd(1), at + 800, at + 900),
            ev.PodUp(2, "pod-2", Usd(1)),
            ev.AgentUp(2),
            ev.Pulled(2, "fast", 100, "0" * 64),
            ev.ActionStarted(end, "terminate"),
            ev.ActionFinished(end, "terminate", taken=True, reason=why),
            ev.PodGone(2, at + 300),
            ev.Settled(2, Usd("0.1"), Usd("0.1")),
            ev.Closed(Outcome.FINISHED.value),
        )


@pytest.fixture
def book() -> Book:
    return Book()


def test_the_rent_is_held_at_every_level_until_its_day(book: Book) -> None:
    book.begin("r1")
    book.train("r1")
    assert holds(book.ledger) == (), "its reservation holds it as long as it runs"
    book.settle("r1")
    (hold,) = holds(book.ledger)
    assert (hold.since, hold.until) == (AT, ENDED + 7 * DAY_S)
    assert hold.amount == cost(RATE, 7 * DAY_S + 3600.0)
    assert hold.accrued(AT + DAY_S) == A_DAY
    assert hold.accrued(AT + 90 * DAY_S) == hold.amount
    for line in (*book.ledger.lines_for("thesis", AT), book.ledger.line("run", "r1")):
        assert (line.settled, line.reserved, line.volumes) == (Usd(1), hold.amount, hold.amount)
    assert book.ledger.line("project", "another").reserved == ZERO


def test_what_is_deleted_is_settled_at_what_it_had_cost(book: Book) -> None:
    book.run("r1")
    book.add("", AT + DAY_S, ev.VolumeDeleted("runpod", "EU-RO-1", "me"))
    line = book.ledger.line("run", "r1")
    assert (line.settled, line.reserved) == (Usd(1) + A_DAY, ZERO)
    assert due(book.ledger, AT + 100 * DAY_S) == ()


@pytest.mark.parametrize(("seen_gone_s", "until_s"), [(600.0, 600.0), (9000.0, 3600.0)])
def test_a_pod_that_lists_lacked_may_have_lived_until_it_was_seen_to_be_gone(
    book: Book, seen_gone_s: float, until_s: float
) -> None:
    """A list that flickers says nothing of the end, nor does a day that is counted from it."""
    book.begin("a", AT)
    book.train("a")
    book.add("a", AT + 20, ev.PodMissed(1))
    gone = ev.PodGone(1, AT + 20)
    book.add("a", AT + seen_gone_s, gone, ev.Settled(1, Usd(1), Usd(1)), ev.Closed("unreported"))
    assert [hold.until for hold in holds(book.ledger)] == [AT + until_s + 7 * DAY_S]


def test_one_volume_of_two_runs_is_paid_once(book: Book) -> None:
    book.run("r1")
    book.begin("r2", AT + DAY_S)
    book.train("r2", AT + DAY_S)
    book.settle("r2", AT + DAY_S + 3600.0)
    first, second = holds(book.ledger)
    assert second.since == first.until
    whole = cost(RATE, 8 * DAY_S + 3600.0)
    assert first.amount + second.amount - whole <= Usd.from_micros(1)
    book.add("", AT + 2 * DAY_S, ev.VolumeDeleted("runpod", "EU-RO-1", "me"))
    assert book.ledger.line("account", "").volumes == cost(RATE, 2 * DAY_S)
    book.begin("r3", AT + 3 * DAY_S)
    book.train("r3", AT + 3 * DAY_S)
    book.settle("r3", AT + 3 * DAY_S + 3600.0)
    assert holds(book.ledger)[2].since == AT + 3 * DAY_S, "it was made anew"


def test_a_volume_whose_pod_was_never_had_is_held_too(book: Book) -> None:
    book.begin("r1", volume_days=1.0)
    book.add(
        "r1", AT + 5.0, ev.PodNotMade(1, quoted("sold out")), ev.Closed(Outcome.NOT_STARTED.value)
    )  # fmt: skip
    (hold,) = holds(book.ledger)
    assert (hold.since, hold.until, hold.fetched) == (AT, AT + DAY_S, True)


@pytest.mark.parametrize(
    ("then", "fetched", "kept"),
    [
        (KEEP, True, "r1 did not agree to its end"),
        (DELETE_FETCHED, False, "what r1 saved was not fetched"),
        (DELETE_FETCHED, True, ""),
        (DELETE, False, ""),
    ],
)
def test_it_is_deleted_only_as_was_agreed(book: Book, then: str, fetched: bool, kept: str) -> None:
    book.run("r1", volume_then=then, volume_days=2.0)
    if fetched:
        book.fetch("r1")
    day = ENDED + 2 * DAY_S
    assert due(book.ledger, day - 1.0) == ()
    (over,) = due(book.ledger, day)
    assert (over.place, sentence(over.why_kept)) == ("EU-RO-1", kept)
    assert over.beyond(day + DAY_S) == A_DAY


def test_an_errand_that_was_cut_off_has_fetched_nothing_for_sure(book: Book) -> None:
    book.run("r1", volume_then=DELETE_FETCHED)
    book.fetch("r1", why=because(ReasonKind.HARD_STOP))
    (over,) = due(book.ledger, ENDED + 30 * DAY_S)
    assert sentence(over.why_kept) == "what r1 saved was not fetched"


def test_one_that_did_not_agree_keeps_it_for_all(book: Book) -> None:
    book.run("r1", volume_then=DELETE)
    book.run("r2", volume_then=KEEP)
    (over,) = due(book.ledger, ENDED + 30 * DAY_S)
    assert sentence(over.why_kept) == "r2 did not agree to its end"


def test_the_latest_day_of_all_its_runs_counts_and_a_live_one_keeps_it(book: Book) -> None:
    book.run("r1", volume_then=DELETE, volume_days=1.0)
    book.run("r2", volume_then=DELETE, volume_days=3.0)
    assert due(book.ledger, ENDED + 2 * DAY_S) == ()
    assert due(book.ledger, ENDED + 3 * DAY_S)
    book.begin("r3", ENDED + 3 * DAY_S, volume_then=DELETE)
    assert due(book.ledger, ENDED + 4 * DAY_S) == ()


def test_runs_without_a_volume_hold_nothing(book: Book) -> None:
    book.run("r1", volume=False)
    assert holds(book.ledger) == ()
    assert book.ledger.line("run", "r1").reserved == ZERO


def test_a_run_of_an_earlier_version_has_agreed_to_nothing(book: Book) -> None:
    book.run("r1", volume_then=DELETE)
    plan = plan_json(a_candidate(region="EU-RO-1"), volume=True)
    plan["spec"] = {k: v for k, v in plan["spec"].items() if not k.startswith("volume_")}
    row = plan["candidates"][0]
    plan["candidates"] = [{k: v for k, v in row.items() if not k.startswith("volume_")}]
    book.add(
        "r2",
        AT - DAY_S,
        ev.RunPlanned(plan, Usd(5), "thesis"),
        ev.Reserved(Usd(5)),
        ev.PodIntended(1, "trmc-r2", "runpod", "c1", Usd(1), AT, AT),
        ev.ActionStarted("r2/g1/create/1", "create"),
    )
    book.train("r2", AT - DAY_S)
    book.settle("r2", AT - DAY_S + 60.0)
    assert book.ledger.line("run", "r2").reserved == ZERO
    (over,) = due(book.ledger, ENDED + 30 * DAY_S)
    assert sentence(over.why_kept) == "r2 did not agree to its end"


def test_the_estimate_of_a_pod_leaves_its_volumes_rent_alone() -> None:
    """Bill by bill: the pod at most, with its own disks, and the volume beside it."""
    days, hard_s, p50_s = 7.0, 3000.0, 1200.0
    disks, rate = Usd("0.01"), Usd("3.6")
    candidate = SimpleNamespace(
        storage=disks + cost(RATE, p50_s + days * DAY_S),
        volume_rate=RATE,
        disk_rate=ZERO,
        hours=Interval(0.1, p50_s / 3600, 1.0),
        hard_stop_s=hard_s,
    )
    plan = SimpleNamespace(candidate=lambda name: candidate, spec=SimpleNamespace(volume_days=days))
    pod = Generation(1, "trmc", "test", "c1", rate, AT + 2900, AT + hard_s, AT)
    kept, volume = _storage(plan, pod, TRAITS)  # type: ignore[arg-type]
    assert kept == disks
    assert volume == cost(RATE, hard_s + TRAITS.kill_latency_s + days * DAY_S)
